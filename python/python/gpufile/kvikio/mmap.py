"""Reads within a region of a file."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from .. import File
from .._pickling import NotPickled
from . import defaults
from ._error import integer, not_negative, refused, translated
from ._operations import in_order, operation
from .cufile import IOFuture

if TYPE_CHECKING:
    from .._gpufile import _Memory as Memory

__all__ = ["Mmap", "MmapHandle"]


def __dir__() -> list[str]:
    return __all__


class Mmap(NotPickled):
    """A region of a file, for reading.

    kvikio maps the region. Here, reads take the fastest route of the file. Offsets count from the start of the file.
    """

    def __init__(
        self,
        file_path: os.PathLike[str] | str,
        flags: str = "r",
        initial_map_size: int | None = None,
        initial_map_offset: int = 0,
        mode: int = stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH,
        map_flags: int | None = None,
    ) -> None:
        if not isinstance(flags, str):
            raise TypeError(f"flags: expected a mode like 'r', not {type(flags).__name__}")
        if not flags or flags[0] not in "rwa":
            raise ValueError(f"Unknown file open flag {flags!r}")
        if flags.replace("b", "") != "r":
            raise refused(errno.ENOTSUP, f"only the flag 'r' can be used to map a file, not {flags!r}")
        for argument, value in (("initial_map_size", initial_map_size or 0), ("initial_map_offset", initial_map_offset)):
            if integer(argument, value) < 0:
                raise OverflowError(f"{argument} is {value}: it cannot be negative")
        with translated("Unable to open file"):
            self._file = File(file_path, engine=defaults.engine())
        self._file_size = self._file.size()
        if initial_map_offset >= self._file_size:
            raise IndexError(f"Offset must be less than the file size: {initial_map_offset} >= {self._file_size}")
        rest = self._file_size - initial_map_offset
        self._size = rest if initial_map_size is None else initial_map_size
        if self._size == 0:
            raise ValueError("Mapped region should not be zero byte")
        if self._size > rest:
            raise IndexError(f"Mapped region is past the end of file: {self._size} bytes of {rest}")
        self._offset = initial_map_offset

    def initial_map_size(self) -> int:
        """Returns the length of the region in bytes."""
        return 0 if self.closed() else self._size

    def initial_map_offset(self) -> int:
        """Returns the start of the region in the file."""
        return 0 if self.closed() else self._offset

    def file_size(self) -> int:
        """Returns the length of the file in bytes, and 0 after ``close``."""
        return 0 if self.closed() else self._file.size()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def closed(self) -> bool:
        """Returns whether the file is closed."""
        return self._file.closed

    def __repr__(self) -> str:
        return f"<gpufile.kvikio.Mmap {self._file.name!r}{' closed' if self.closed() else ''}>"

    def read(self, buf: Memory, size: int | None = None, offset: int = 0) -> int:
        """Reads ``size`` bytes from ``offset`` of the file, by default to the end of the region."""
        buf = in_order(buf)
        with operation(self._file, True, buf, size, backend="MMAP") as counted, translated():
            counted.bytes_requested = size = self._check(size, offset)
            return counted.done(self._file.read_into(buf, offset, size))

    def pread(
        self, buf: Memory, size: int | None = None, offset: int = 0, task_size: int | None = None
    ) -> IOFuture:
        """Starts a read like ``read``."""
        buf = in_order(buf)
        with operation(self._file, True, buf, size, backend="MMAP") as counted, translated():
            counted.bytes_requested = size = self._check(size, offset)
            not_negative("task_size", task_size or 0)
            file = self._file.with_chunk_bytes(task_size) if task_size else self._file
            return IOFuture(file.read_into_async(buf, offset, size), counted)

    def _check(self, size: int | None, offset: int) -> int:
        """Returns the length of a read, if it is within the region."""
        integer("size", size or 0)
        integer("offset", offset)
        if self.closed():
            raise refused(errno.EBADF, "Cannot read from a closed MmapHandle", self._file.name)
        if offset > self._file_size:
            raise IndexError(f"Offset is past the end of file: {offset} > {self._file_size}")
        end = self._offset + self._size
        size = end - offset if size is None else size
        if offset < self._offset or size < 0 or offset + size > end:
            raise IndexError(f"Read is out of bound: {size} bytes at {offset} of {self._offset} to {end}")
        return size


MmapHandle = Mmap
