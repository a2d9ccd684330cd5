"""Saves on threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from . import _forks

if TYPE_CHECKING:
    from ._pieces import Pieces


class Progress(NamedTuple):
    """The progress of saves, in bytes of tensors."""

    done_bytes: int
    total_bytes: int


class Save(Future[int]):
    """A save that has begun, or will. In a forked child, which has no thread for it, it has failed."""

    def __init__(self, path: str, pieces: Pieces) -> None:
        super().__init__()
        #: The file, as the caller named it.
        self.path = path
        self._pieces = pieces
        self._is_seen = False
        _forks.register(self)

    def _forked(self) -> None:
        # A thread of the parent may have held the lock of the future, so the child makes another.
        super().__init__()
        self.set_exception(RuntimeError("the save belongs to the parent process, which forked this one"))

    def result(self, timeout: float | None = None) -> int:
        """Waits for the end, and returns the length of the file in bytes. Raises the failure of the save."""
        self.exception(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the end, and returns the failure of the save, or None."""
        error = super().exception(timeout)
        self._is_seen = True
        return error

    @property
    def progress(self) -> Progress:
        """The bytes that were written, and those of all tensors. Storage may still have to be waited for."""
        return Progress(self._pieces.done_bytes, self._pieces.total_bytes)

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "done" if self.done() else "running" if self.running() else "waiting"
        return f"<gpufile.torch.Save {self.path!r} {state}>"

    def _run(self, write: Callable[[], int]) -> None:
        if self.set_running_or_notify_cancel():
            try:
                self.set_result(write())
            except BaseException as error:
                self.set_exception(error)

    def _unseen(self) -> BaseException | None:
        """Returns the failure that nobody has asked for, and takes it as seen."""
        if self._is_seen or not self.done() or self.cancelled():
            return None
        return self.exception()


class Saves:
    """The threads, and the saves that have not ended or whose failure nobody has seen."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="gpufile-saver")
        #: The saves of each file that has not ended, in their order. A thread has the first ones.
        self._queues: dict[str, list[tuple[Save, Callable[[], int]]]] = {}
        self._lock = threading.Lock()
        self._saves: list[Save] = []
        self._is_inherited = self._is_closed = False
        _forks.register(self)

    def _forked(self) -> None:
        self._is_inherited = True

    def check(self) -> None:
        """Raises the first failure that nobody has seen, and ``RuntimeError`` if no save can start."""
        if self._is_inherited:
            raise RuntimeError("this saver belongs to the parent process; create a new one after the fork")
        if self._is_closed:
            raise RuntimeError("this saver is closed; create a new one")
        for save in list(self._saves):
            if (error := save._unseen()) is not None:
                error.add_note(f"It is the failure of an earlier save, to {save.path!r}.")
                raise error

    def start(self, save: Save, file: str, write: Callable[[], int]) -> None:
        """Starts a save, or queues it. Saves of one file follow each other."""
        with self._lock:
            following = self._queues.get(file)
            if following is not None:
                following.append((save, write))
            else:
                self._queues[file] = following = [(save, write)]
                try:
                    self._threads.submit(self._run, file, following)
                except BaseException:
                    # A thread may take the work all the same, and finds nothing.
                    del self._queues[file], following[0]
                    raise
            self._saves = [save for save in self._saves if not save.done() or not save._is_seen] + [save]

    def _run(self, file: str, following: list[tuple[Save, Callable[[], int]]]) -> None:
        with self._lock:
            if not following:
                return
        while following:
            save, write = following[0]
            save._run(write)
            with self._lock:
                del save, write, following[0]
                if not following:
                    del self._queues[file]

    def pending(self) -> list[Save]:
        """Returns the saves that run or wait, in their order. In a forked child, there are none."""
        return [] if self._is_inherited else [save for save in self._saves if not save.done()]

    def end(self) -> list[BaseException]:
        """Waits for all saves, and returns the failures that nobody has seen. In a forked child, there are none."""
        if self._is_inherited:
            return []
        self._is_closed = True
        self._threads.shutdown()
        saves, self._saves = self._saves, []
        return [error for save in saves if (error := save._unseen()) is not None]
