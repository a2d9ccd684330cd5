"""The futures of transfers: those of ``concurrent.futures``, which asyncio awaits too.

A native ``Flight`` knows the transfer. The lock, the lists and the watch over the end, which only ``wait``, ``as_completed`` and
callbacks use, are made when they are first used.
"""

from __future__ import annotations

import concurrent.futures
import select
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn

from . import _forks
from ._error import TransferError
from ._gpufile import Flight, Watch

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    _Result = TypeVar("_Result", default=int)
else:
    from typing import TypeVar

    _Result = TypeVar("_Result")

#: The states that ``concurrent.futures`` compares.
_RUNNING, _CANCELLED, _FINISHED = "RUNNING", "CANCELLED_AND_NOTIFIED", "FINISHED"

#: What futures get when `concurrent.futures` first uses it.
_MADE_LATE = ("_condition", "_state", "_waiters", "_done_callbacks")


class Future(concurrent.futures.Future[_Result]):
    """A transfer in flight. It holds the buffers until it has ended, and a method, ``await`` or the garbage collector has
    seen that.

    Call ``result``, ``await`` it in asyncio, or use the functions of ``concurrent.futures``. Dropping a future does not
    wait: a write continues to its end, and a read stops soon, unless it has callbacks. Dropping a stream-ordered
    transfer waits for it, at most 30 seconds.
    """

    def __init__(self, flight: Flight[_Result]) -> None:
        """Makes the future of a transfer. The methods of ``File`` do that."""
        self._flight = flight

    def result(self, timeout: float | None = None) -> _Result:
        """Waits for the end, and returns the number of bytes that were transferred. The futures of
        ``read_many_each_async`` and ``write_many_each_async`` return the list of outcomes.

        Raises ``TransferError`` if the transfer failed, ``CancelledError`` of ``concurrent.futures`` after ``cancel``,
        and ``TimeoutError`` after ``timeout`` seconds. Ctrl-C ends the wait, not the transfer.
        """
        return self._flight.result(timeout)

    def get(self) -> _Result:
        """Waits for the end, like ``result`` without a timeout."""
        return self._flight.result()

    def exception(self, timeout: float | None = None) -> TransferError | None:
        """Waits like ``result``, and returns the exception of a failed transfer, or None. Raises the other exceptions."""
        try:
            self._flight.result(timeout)
        except TransferError as error:
            return error
        return None

    def done(self) -> bool:
        """Returns whether the transfer has ended. Nothing uses the buffers then."""
        return self._flight.done()

    def running(self) -> bool:
        """Returns whether the transfer is in flight."""
        return not self._flight.done()

    def cancelled(self) -> bool:
        """Returns whether the transfer has ended because of ``cancel``."""
        return self._flight.cancelled()

    def cancel(self) -> bool:
        """Lets the transfer end early, and returns at once.

        Workers finish the chunks that they have begun. The transfer is in flight until then, and uses its buffers.
        ``result`` then raises ``CancelledError``, whose ``bytes_done`` is the number of bytes that were transferred
        from the start, and whose ``outcomes`` is the list if there is one. Returns False if the transfer has ended, or is
        stream-ordered and cannot stop early.
        """
        return self._flight.cancel()

    def __await__(self) -> Generator[Any, None, _Result]:
        from ._await import outcome

        return outcome(self).__await__()

    def __repr__(self) -> str:
        try:
            state = "cancelled" if self.cancelled() else "done" if self.done() else "in flight"
        except RuntimeError:
            state = "of another process"
        return f"<gpufile.Future {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a transfer in flight belongs to its process, and cannot be pickled")

    @property
    def _result(self) -> _Result | None:  # type: ignore[override]
        return self._flight.result(0) if self._state == _FINISHED and self.exception() is None else None

    @property
    def _exception(self) -> TransferError | None:  # type: ignore[override]
        return self.exception(0) if self._state == _FINISHED else None

    def __getattr__(self, name: str) -> Any:
        if name not in _MADE_LATE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        _ends.add(self)
        return self.__dict__[name]

    def _forked(self) -> None:
        # A thread of the parent may have held the lock. The next use asks the transfer, which refuses.
        for name in _MADE_LATE:
            self.__dict__.pop(name, None)

    def _end_state(self) -> str:
        return _CANCELLED if self.cancelled() else _FINISHED

    def _tell(self) -> None:
        """Tells those that wait for the end of the transfer."""
        with self._condition:
            # `wait` counts the futures whose state it sees, so that the state changes only here.
            self._state = self._end_state()
            for waiter in self._waiters:
                if self.cancelled():
                    waiter.add_cancelled(self)
                elif self.exception() is not None:
                    waiter.add_exception(self)
                else:
                    waiter.add_result(self)
            self._condition.notify_all()
        self._invoke_callbacks()
        # They often refer to the future.
        self._done_callbacks.clear()


class _Ends:
    """The thread that waits for the ends of transfers, so that no worker of an engine runs Python's code."""

    #: Seconds between two looks at a stream-ordered transfer, which wakes nobody.
    BETWEEN_LOOKS = 0.001

    def __init__(self) -> None:
        self._futures: dict[int, Future[Any]] = {}
        self._forked()
        _forks.register(self)

    def _forked(self) -> None:
        # A thread of the parent may have held the lock, and the child has no thread.
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._futures = {}
        #: The numbers of those that the watch does not know, or not yet.
        self._silent: set[int] = set()
        #: The numbers of those that the watch knew before the thread that cancels them. Only `_run` changes it.
        self._early: set[int] = set()
        self._count = 0

    def add(self, future: Future[Any]) -> None:
        """Gives a future what ``concurrent.futures`` uses, and tells its end from now on."""
        # Not under the lock: objects of buffers may end with the transfer, and run any code.
        has_ended = future.done()
        with self._lock:
            if "_condition" in future.__dict__:
                return
            _forks.register(future)
            future._waiters, future._done_callbacks = [], []  # type: ignore[attr-defined]
            future._state = future._end_state() if has_ended else _RUNNING
            future._condition = threading.Condition()
            if has_ended:
                return
            watch = self._watch
            if watch is None:
                watch = self._watch = Watch()
                threading.Thread(target=self._run, args=(watch,), name="gpufile-futures", daemon=True).start()
            self._count += 1
            number = self._count
            # The thread looks at it again and again until it is watched, also if Ctrl-C comes before that.
            self._futures[number] = future
            self._silent.add(number)
            watch.add(0)
        if future._flight.watch(watch, number):
            self._silent.discard(number)
            # It may have ended before it was watched.
            if future.done():
                self._end(number)

    def _run(self, watch: Watch) -> None:
        poll = select.poll()
        poll.register(watch.fileno(), select.POLLIN)
        while True:
            poll.poll(self.BETWEEN_LOOKS * 1000 if self._silent or self._early else None)
            ended = watch.take()
            for number in list(self._silent):
                future = self._futures.get(number)
                if future is None or future.done():
                    self._silent.discard(number)
                    ended.append(number)
            future = None
            ended += self._early
            self._early.clear()
            for number in ended:
                if not self._end(number):
                    self._early.add(number)

    def _end(self, number: int) -> bool:
        """Tells the end of a transfer, once. Returns False if it is still in flight."""
        future = self._futures.get(number)
        if future is None:
            return True
        if not future.done():
            return False
        if self._futures.pop(number, None) is not None:
            future._tell()
        return True


_ends = _Ends()
