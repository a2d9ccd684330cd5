"""Files, and the futures of their transfers."""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from .. import File, Future
from .._gpufile import memory_of
from .._pickling import NotPickled
from . import defaults
from ._error import CuFileError, not_negative, refused, translated
from ._following import Following
from ._operations import Operation, in_order, operation
from .page_cache import (
    clear_page_cache,
    drop_file_page_cache,
    drop_system_page_cache,
    get_page_cache_info,
)

if TYPE_CHECKING:
    from .._gpufile import _Memory as Memory

__all__ = [
    "CuFile",
    "CuFileError",
    "IOFuture",
    "IOFutureStream",
    "clear_page_cache",
    "drop_file_page_cache",
    "drop_system_page_cache",
    "get_page_cache_info",
]


def __dir__() -> list[str]:
    return __all__


class IOFuture:
    """A transfer in flight."""

    __slots__ = ("_future", "_operation")

    def __init__(self, future: Future, operation: Operation) -> None:
        self._future, self._operation = operation.follow(future), operation

    def get(self) -> int:
        """Waits for the end, and returns the number of bytes."""
        with translated(), self._operation.seen(self._future):
            return self._future.result()

    def done(self) -> bool:
        """Returns whether the transfer has ended."""
        with self._operation.seen(self._future):
            return self._future.done()

    def __await__(self) -> Generator[Any, None, int]:
        with translated(), self._operation.seen(self._future):
            return (yield from self._future.__await__())

    def __repr__(self) -> str:
        return f"<gpufile.kvikio.IOFuture of {self._future!r}>"


class IOFutureStream:
    """A stream-ordered transfer. Keep it until the stream has passed the transfer."""

    __slots__ = ("_future", "_operation")

    def __init__(self, future: Future, operation: Operation) -> None:
        self._future, self._operation = operation.follow(future), operation

    def check_bytes_done(self) -> int:
        """Waits until the stream has passed the transfer, and returns the number of bytes."""
        with translated(), self._operation.seen(self._future):
            return self._future.result()

    def __repr__(self) -> str:
        return f"<gpufile.kvikio.IOFutureStream of {self._future!r}>"


class CuFile(NotPickled):
    """An open file. A buffer is any object with contiguous memory, on a GPU or on the host."""

    def __init__(self, file: pathlib.Path | str, flags: str = "r") -> None:
        engine = defaults.engine()
        with translated("Unable to open file"):
            self._file = File(file, str(flags), engine=engine)
        self._handle = Following(self._file, engine)
        access = self.open_flags() & os.O_ACCMODE
        self._reads, self._writes = access != os.O_WRONLY, access != os.O_RDONLY

    def close(self) -> None:
        """Closes the file. Transfers in flight keep it open until they end."""
        self._handle.close()

    @property
    def closed(self) -> bool:
        """Returns whether the file is closed."""
        return self._file.closed

    def fileno(self) -> int:
        """Returns the descriptor of the file, which stays the same until ``close``."""
        return self._file.fileno()

    def open_flags(self) -> int:
        """Returns the flags of the descriptor, as of ``open(2)``."""
        return fcntl.fcntl(self._file.fileno(), fcntl.F_GETFL)

    def is_direct_io_supported(self) -> bool:
        """Returns whether the file system takes ``O_DIRECT`` for this file, and a setting permits its use.

        Returns False once the file is closed.
        """
        if self.closed or not (defaults.get("auto_direct_io_read") or defaults.get("auto_direct_io_write")):
            return False
        access = self.open_flags() & os.O_ACCMODE
        try:
            os.close(os.open(f"/proc/self/fd/{self.fileno()}", access | os.O_DIRECT))
        except OSError as error:
            # Other errors come before the file system looks at the flag.
            return error.errno != errno.EINVAL
        return True

    def __enter__(self) -> CuFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpufile.kvikio.CuFile {self._file.name!r}{' closed' if self.closed else ''}>"

    def pread(
        self, buf: Memory, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        """Starts to read ``size`` bytes, by default as many as the buffer has."""
        buf = in_order(buf)
        with operation(self._file, True, buf, size) as counted, translated():
            file = self._for("read", task_size, size=size, file_offset=file_offset)
            return IOFuture(file.read_into_async(buf, file_offset, size), counted)

    def pwrite(
        self, buf: Memory, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        """Starts to write ``size`` bytes, by default as many as the buffer has."""
        buf = in_order(buf)
        with operation(self._file, False, buf, size) as counted, translated():
            file = self._for("write", task_size, size=size, file_offset=file_offset)
            return IOFuture(file.write_from_async(buf, file_offset, size), counted)

    def read(
        self, buf: Memory, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> int:
        """Reads like ``pread``, waits, and returns the number of bytes."""
        buf = in_order(buf)
        with operation(self._file, True, buf, size) as counted, translated():
            file = self._for("read", task_size, size=size, file_offset=file_offset)
            return counted.done(file.read_into(buf, file_offset, size))

    def write(
        self, buf: Memory, size: int | None = None, file_offset: int = 0, task_size: int | None = None
    ) -> int:
        """Writes like ``pwrite``, waits, and returns the number of bytes."""
        buf = in_order(buf)
        with operation(self._file, False, buf, size) as counted, translated():
            file = self._for("write", task_size, size=size, file_offset=file_offset)
            return counted.done(file.write_from(buf, file_offset, size))

    def raw_read(self, buf: Memory, size: int | None = None, file_offset: int = 0, dev_offset: int = 0) -> int:
        """Reads into GPU memory, starting at ``dev_offset``."""
        buf = in_order(buf)
        with operation(self._file, True, buf, size, dev_offset) as counted, translated():
            file = self._for("read", None, size=size, file_offset=file_offset, dev_offset=dev_offset)
            _check_device(buf)
            return counted.done(file.read_into(buf, file_offset, size, buffer_offset=dev_offset))

    def raw_write(self, buf: Memory, size: int | None = None, file_offset: int = 0, dev_offset: int = 0) -> int:
        """Writes GPU memory to the file, starting at ``dev_offset``."""
        buf = in_order(buf)
        with operation(self._file, False, buf, size, dev_offset) as counted, translated():
            file = self._for("write", None, size=size, file_offset=file_offset, dev_offset=dev_offset)
            _check_device(buf)
            return counted.done(file.write_from(buf, file_offset, size, buffer_offset=dev_offset))

    def raw_read_async(
        self,
        buf: Memory,
        raw_stream: int,
        size: int | None = None,
        file_offset: int = 0,
        dev_offset: int = 0,
    ) -> IOFutureStream:
        """Reads into GPU memory after the work already in the stream. Later work in the stream waits for the read."""
        buf = in_order(buf)
        with operation(self._file, True, buf, size, dev_offset) as counted, translated():
            file = self._for("read", None, size=size, file_offset=file_offset, dev_offset=dev_offset)
            _check_device(buf)
            read = file.read_into_on_stream(buf, raw_stream, file_offset, size, buffer_offset=dev_offset)
            return IOFutureStream(read, counted)

    def raw_write_async(
        self,
        buf: Memory,
        raw_stream: int,
        size: int | None = None,
        file_offset: int = 0,
        dev_offset: int = 0,
    ) -> IOFutureStream:
        """Writes GPU memory after the work already in the stream. Later work in the stream waits for the write."""
        buf = in_order(buf)
        with operation(self._file, False, buf, size, dev_offset) as counted, translated():
            file = self._for("write", None, size=size, file_offset=file_offset, dev_offset=dev_offset)
            _check_device(buf)
            write = file.write_from_on_stream(buf, raw_stream, file_offset, size, buffer_offset=dev_offset)
            return IOFutureStream(write, counted)

    def _for(self, operation: str, task_size: int | None, **numbers: int | None) -> File:
        """Returns the file for an operation by the present settings. The numbers are lengths and offsets in bytes."""
        for argument, number in (("task_size", task_size), *numbers.items()):
            if number is not None:
                not_negative(argument, number)
        if self._file.closed:
            raise refused(errno.EBADF, f"cannot {operation} a closed file", self._file.name)
        if not (self._reads if operation == "read" else self._writes):
            text = f"cannot {operation} {self._file.name!r}, because it was not opened for that"
            raise refused(errno.EPERM, text, self._file.name)
        return self._handle.file(task_size)


def _check_device(buf: Any) -> None:
    length, device = memory_of(buf)
    if device is None and length > 0:
        raise ValueError("Non-CUDA buffers not supported")
