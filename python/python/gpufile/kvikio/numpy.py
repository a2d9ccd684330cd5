"""``fromfile`` and ``tofile`` of numpy, for arrays of numpy, cupy and others."""

from __future__ import annotations

import io
import os
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .._paths import text_of
from ._error import integer
from .cufile import CuFile

__all__ = ["FileLike", "LikeWrapper", "fromfile", "tofile"]


def __dir__() -> list[str]:
    return __all__


@runtime_checkable
class FileLike(Protocol):
    """An open file that has a descriptor and a name."""

    def fileno(self) -> int:
        """Returns the descriptor."""

    @property
    def name(self) -> str:
        """The path."""


class LikeWrapper:
    """A value for the argument ``like`` of ``numpy.fromfile`` that makes it return arrays of another library."""

    def __init__(self, like: Any) -> None:
        self._like = like

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.fromfile:
            return fromfile(*args, like=self._like, **kwargs)
        return func(*args, **kwargs)


def _path(file: Any) -> str:
    """Returns a path of a file, by which it is opened anew: its own access does not matter, as with kvikio.

    The path of an open file works for unnamed and replaced ones too.
    """
    if hasattr(file, "fileno"):
        if hasattr(file, "flush"):
            file.flush()
        try:
            return f"/proc/self/fd/{file.fileno()}"
        except io.UnsupportedOperation:
            kind = type(file).__name__
            raise TypeError(f"file: expected a path, or an open file with a descriptor, not {kind}") from None
    return text_of("file", file)


def fromfile(
    file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0, *, like: Any = None
) -> Any:
    """Returns the elements of a file from ``offset`` bytes on, as ``numpy.fromfile`` does for binary files.

    An open file is read from its current position, which then moves past the elements.

    ``like`` is an array of the library whose array is returned.
    """
    if sep != "":
        raise NotImplementedError("Non-default value of the `sep` argument is not supported: text is not read")
    integer("count", count)
    integer("offset", offset)
    moves = hasattr(file, "fileno") and hasattr(file, "tell")
    if moves:
        offset += file.tell()
    itemsize, path = np.dtype(dtype).itemsize, _path(file)
    # Raises FileNotFoundError, as kvikio does, where a CuFile raises another error.
    os.stat(path)
    with CuFile(path) as opened:
        available = max(0, os.fstat(opened.fileno()).st_size - offset) // itemsize
        shape = (available if count == -1 else min(count, available),)
        array = np.empty(shape, dtype) if like is None else np.empty_like(like, shape=shape, dtype=dtype)
        read = opened.read(array, file_offset=offset)
    if read < array.nbytes:
        # Another program has shortened the file.
        array = array[: read // itemsize]
    if moves:
        file.seek(offset + array.nbytes)
    return array


def tofile(ary: Any, file: Any) -> None:
    """Replaces a file with the bytes of an array, in C's order."""
    if not hasattr(ary, "__array_function__"):
        raise TypeError(f"ary: expected an array, not {type(ary).__name__}")
    with CuFile(_path(file), "w") as opened:
        opened.write(np.ascontiguousarray(ary, like=ary))
