"""Transfers as the monitors of ``statistics`` count them. Nothing is counted while there is no monitor."""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import File, Future
from .._gpufile import memory_of
from ._error import CuFileError

if TYPE_CHECKING:
    from .statistics import SummaryMonitor

#: The ways to a file that kvikio has. WebHDFS is not supported.
BACKENDS = ("POSIX", "GDS", "MMAP", "REMOTE_HTTP", "REMOTE_HDFS")
#: The routes that use cuFile.
_CUFILE = ("gds", "p2pdma", "cufile-compat")

#: The monitors that count, by their identities. Threads change and list it without a lock.
_monitors: dict[int, weakref.ref[SummaryMonitor]] = {}


def add(monitor: SummaryMonitor) -> None:
    """Lets a monitor count, as long as it exists."""
    key = id(monitor)
    _monitors[key] = weakref.ref(monitor, lambda _: _monitors.pop(key, None))


def remove(monitor: SummaryMonitor) -> None:
    """Ends the count of a monitor."""
    _monitors.pop(id(monitor), None)


class Operation:
    """A call of a program that transfers bytes. As a context, it ends with the call unless a future continues it."""

    is_failed = False
    #: False if the call was refused before it was an operation, for example because of a wrong argument.
    is_counted = True

    def __init__(
        self, file: File, is_read: bool, buf: Any, size: Any, skipped: Any = 0, backend: str | None = None
    ) -> None:
        self.is_read, self.bytes_done = is_read, 0
        length, device = _memory_of(buf)
        self.bytes_requested = _requested(length, size, skipped)
        self.backend = backend or ("POSIX" if device is None or not _uses_cufile(file) else "GDS")
        self._continues = False
        found = [monitor() for monitor in list(_monitors.values())]
        #: The monitors that count it. Each is taken from the list once, without a lock that a forked child could wait for.
        self._begun = [(monitor, monitor._begin()) for monitor in found if monitor is not None]

    def done(self, bytes_done: int) -> int:
        """Takes the number of bytes, and returns it."""
        self.bytes_done = bytes_done
        return bytes_done

    def follow(self, future: Future) -> Future:
        """Ends with the future, which is returned."""
        self._continues = True
        future.add_done_callback(self.ended)
        return future

    def seen(self, future: Future) -> contextlib.AbstractContextManager[None]:
        """Ends the operation at the end of the context, if the future is done by then."""
        return self._seen(future)

    @contextlib.contextmanager
    def _seen(self, future: Future) -> Iterator[None]:
        try:
            yield
        finally:
            if future.done():
                self.ended(future)

    def ended(self, future: Any) -> None:
        """Ends with a future that has ended. Only the first call has an effect."""
        try:
            self.bytes_done = future.result(0)
        except Exception:
            self.is_failed = True
        self._end()

    def _end(self) -> None:
        while self._begun:
            try:
                monitor, begun = self._begun.pop()
            except IndexError:
                # Another thread ends it, too.
                return
            monitor._finish(begun, self)

    def __enter__(self) -> Operation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.is_failed, self.is_counted = True, issubclass(kind, CuFileError)
        if kind is not None or not self._continues:
            self._end()


_NOTHING = contextlib.nullcontext()


class _Uncounted(Operation):
    """Any operation while there is no monitor."""

    def __init__(self) -> None:
        pass

    def done(self, bytes_done: int) -> int:
        """Returns the number."""
        return bytes_done

    def follow(self, future: Future) -> Future:
        """Returns the future."""
        return future

    def seen(self, future: Future) -> contextlib.AbstractContextManager[None]:
        """Does nothing."""
        return _NOTHING

    def __exit__(self, *exception: object) -> None:
        pass


_uncounted = _Uncounted()


def operation(
    file: File, is_read: bool, buf: Any, size: Any, skipped: Any = 0, backend: str | None = None
) -> Operation:
    """Begins an operation on a file. ``skipped`` bytes of the buffer are before those of the transfer. Without a
    ``backend``, it is that of the file's route."""
    if not _monitors:
        return _uncounted
    return Operation(file, is_read, buf, size, skipped, backend)


def in_order(buf: Any) -> Any:
    """Returns an array whose bytes are in order. kvikio transfers the bytes of Fortran's order as they lie in memory."""
    flags = getattr(buf, "flags", None)
    return buf.T if getattr(flags, "f_contiguous", False) and not getattr(flags, "c_contiguous", True) else buf


def _memory_of(buf: Any) -> tuple[int, int | None]:
    try:
        return memory_of(buf)
    except Exception:
        # The transfer raises the error.
        return 0, None


def _requested(length: int, size: Any, skipped: Any) -> int:
    try:
        return max(length - operator.index(skipped), 0) if size is None else operator.index(size)
    except TypeError:
        # The transfer raises the error.
        return 0


def _uses_cufile(file: File) -> bool:
    try:
        return file.route().kind in _CUFILE
    except (OSError, ValueError):
        return False
