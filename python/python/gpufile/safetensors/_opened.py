"""Open files, and bytes in memory, in the place of paths."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from .._gpufile import File, RemoteFile

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def is_opened(path: Any) -> TypeIs[IO[bytes]]:
    """Returns whether an argument is an open file, and not an object of a server."""
    if isinstance(path, File):
        return not isinstance(path, RemoteFile)
    return hasattr(path, "read") and not isinstance(path, (str, bytes, os.PathLike))


@contextlib.contextmanager
def path_of_opened(file: Any) -> Iterator[str]:
    """Yields the path of all bytes of an open binary file: of its descriptor, or of a copy in memory of what it reads.

    Objects that only pass a descriptor on, such as those of gzip, have other bytes than its file.
    """
    if isinstance(file, io.TextIOBase):
        raise TypeError('path: expected a file that is open for bytes, not for text; open it with "rb"')
    raw = getattr(file, "raw", file)
    if isinstance(raw, (io.FileIO, File)) and os.path.isfile(path := f"/proc/self/fd/{raw.fileno()}"):
        if isinstance(raw, io.FileIO) and raw.writable():
            file.flush()
        yield path
        return
    with open(os.memfd_create("gpufile"), "wb") as copy:
        if file.seekable():
            file.seek(0)
        while data := file.read(1 << 20):
            copy.write(data)
        copy.flush()
        yield f"/proc/self/fd/{copy.fileno()}"


def bytes_of(data: Any) -> bytes:
    """Returns the bytes of an object with the buffer protocol."""
    if isinstance(data, bytes):
        return data
    try:
        return memoryview(data).tobytes()
    except TypeError:
        hint = "; load_file takes open files" if is_opened(data) else ""
        kind = type(data).__name__
        raise TypeError(f"data: expected bytes or an object with the buffer protocol, not {kind}{hint}") from None
