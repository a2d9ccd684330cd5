"""``fromfile`` and ``tofile`` of numpy, for arrays of numpy, cupy and others."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._gpufile import File
from . import defaults


class LikeWrapper:
    """A value for the argument ``like`` of ``numpy.fromfile``, which makes it return arrays of another library."""

    def __init__(self, like: Any) -> None:
        self._like = like

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.fromfile:
            return fromfile(*args, like=self._like, **kwargs)
        return func(*args, **kwargs)


def _open(file: Any, mode: str) -> File:
    """Opens a path, or returns the same open file for gpufile."""
    if not hasattr(file, "fileno"):
        return File(file, mode, engine=defaults.engine())
    if hasattr(file, "flush"):
        file.flush()
    return File.from_fd(file, engine=defaults.engine())


def fromfile(
    file: Any, dtype: Any = float, count: int = -1, sep: str = "", offset: int = 0, *, like: Any = None
) -> Any:
    """Returns the elements of a file from ``offset`` bytes on, as ``numpy.fromfile`` does for binary files.

    An open file is read from its position on, which then moves behind the elements.

    ``like`` is an array of the library whose array is returned.
    """
    if sep != "":
        raise NotImplementedError("Non-default value of the `sep` argument is not supported: text is not read")
    moves = hasattr(file, "fileno") and hasattr(file, "tell")
    if moves:
        offset += file.tell()
    itemsize = np.dtype(dtype).itemsize
    with _open(file, "r") as opened:
        available = max(0, opened.size() - offset) // itemsize
        shape = (available if count == -1 else min(count, available),)
        array = np.empty(shape, dtype) if like is None else np.empty_like(like, shape=shape, dtype=dtype)
        read = opened.read_into(array, offset)
    if read < array.nbytes:
        # Another program has shortened the file.
        array = array[: read // itemsize]
    if moves:
        file.seek(offset + array.nbytes)
    return array


def tofile(ary: Any, file: Any) -> None:
    """Replaces a file with the bytes of an array, in C's order."""
    with _open(file, "w") as opened:
        opened.truncate(0)
        opened.write_from(np.ascontiguousarray(ary, like=ary))
