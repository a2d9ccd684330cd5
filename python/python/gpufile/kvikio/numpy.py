"""``fromfile`` and ``tofile`` of numpy, for arrays of numpy, cupy and others."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .cufile import CuFile


class LikeWrapper:
    """A value for the argument ``like`` of ``numpy.fromfile``, which makes it return arrays of another library."""

    def __init__(self, like: Any) -> None:
        self._like = like

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.fromfile:
            return fromfile(*args, like=self._like, **kwargs)
        return func(*args, **kwargs)


def _place(file: Any) -> tuple[str, int]:
    """Returns the path of a file, and the position from which its reader would go on."""
    if hasattr(file, "fileno") and hasattr(file, "name"):
        return file.name, file.tell() if hasattr(file, "tell") else 0
    return os.fspath(file), 0


def fromfile(
    file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0, *, like: Any = None
) -> Any:
    """Returns the elements of a file from ``offset`` bytes on, as ``numpy.fromfile`` does for binary files.

    ``like`` is an array of the library whose array is returned.
    """
    if sep != "":
        raise NotImplementedError("Non-default value of the `sep` argument is not supported: text is not read")
    path, position = _place(file)
    offset += position
    available = max(0, os.stat(path).st_size - offset) // np.dtype(dtype).itemsize
    count = available if count == -1 else min(count, available)
    shape = (count,)
    array = np.empty(shape, dtype) if like is None else np.empty_like(like, shape=shape, dtype=dtype)
    with CuFile(path) as opened:
        opened.read(array, file_offset=offset)
    return array


def tofile(ary: Any, file: Any) -> None:
    """Replaces a file with the bytes of an array, in C's order."""
    path, _ = _place(file)
    with CuFile(path, "w") as opened:
        opened.write(np.ascontiguousarray(ary, like=ary))
