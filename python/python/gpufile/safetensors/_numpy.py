"""Memory and arrays of numpy, with the types of ml_dtypes if it is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .._gpufile import Group
from ._dtypes import NAMES
from ._error import SafetensorError

#: The types that need ml_dtypes. Its smaller ones take a byte for each element, so they are not those of the format.
_OF_ML_DTYPES = ("BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
#: The types that numpy lacks.
MISSING = (*_OF_ML_DTYPES, "F4")


def dtype_of(code: str) -> np.dtype[Any]:
    """Returns numpy's type for a type of the format."""
    name = NAMES.get(code)
    if name is None or code == "F4":
        raise SafetensorError(f"numpy has no type for {code}, not even with ml_dtypes")
    if code not in _OF_ML_DTYPES:
        native: np.dtype[Any] = np.dtype(name)
        return native
    try:
        import ml_dtypes
    except ImportError:
        raise SafetensorError(f"numpy has no type for {code}; install ml_dtypes, which has one") from None
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype


class Framework:
    """Arrays of numpy."""

    is_strict = True
    copies = False
    is_host = True
    maps_files = False
    step_bytes = None

    def __init__(self, device: Any) -> None:
        if device not in (None, "cpu"):
            raise SafetensorError(f"Device {device} is not supported for framework numpy")

    def check(self, code: str) -> None:
        """Refuses a type that the framework lacks."""
        dtype_of(code)

    def allocate(self, len_bytes: int, is_read: bool = True) -> np.ndarray[Any, Any]:
        """Returns memory of numpy."""
        return np.empty(len_bytes, dtype=np.uint8)

    def memory(self, group: Group) -> np.ndarray[Any, Any]:
        """Returns memory for the arrays of a group."""
        return self.allocate(group.len_bytes)

    def memories(self, groups: list[Group]) -> Iterator[np.ndarray[Any, Any]]:
        """Yields memory for the arrays of each group."""
        yield from map(self.memory, groups)

    def copy(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any], start: int, stop: int) -> None:
        """Copies bytes from the same place in other memory."""
        target[start:stop] = source[start:stop]

    def finish(self) -> None:
        """Does nothing: copies have ended."""

    def fill(self, tensors: dict[str, Any], base: np.ndarray[Any, Any], table: list[Any]) -> None:
        """Adds the arrays of a table, which share the memory of ``base``."""
        ndarray = np.ndarray
        for code, start, lens, names, shapes in table:
            dtype = dtype_of(code)
            start_bytes = start * dtype.itemsize
            for name, shape, length in zip(names, shapes, lens):
                tensors[name] = ndarray(shape, dtype, base, start_bytes)
                start_bytes += length * dtype.itemsize
        # The gaps between tensors.
        tensors.pop(None, None)  # type: ignore[call-overload]

    @property
    def near(self) -> Framework:
        """The framework of the memory that files are read into."""
        return self

    def name_of(self, dtype: Any) -> str:
        """Returns the name of a type of numpy, or of ml_dtypes."""
        try:
            name: str = np.dtype(dtype).name
        except TypeError:
            return ""
        return name

    def empty(self, shape: Sequence[int], code: str) -> np.ndarray[Any, Any]:
        """Returns an array whose bytes are to be written."""
        return np.empty(shape, dtype_of(code))

    def put(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the array."""
        return array

    def wrap(self, mapping: Any) -> np.ndarray[Any, Any]:
        """Returns the bytes of a mapping."""
        return np.frombuffer(mapping, np.uint8)

    def view(self, base: np.ndarray[Any, Any], code: str, shape: Sequence[int], start: int) -> np.ndarray[Any, Any]:
        """Returns the array that starts at a byte of the memory."""
        return np.ndarray(shape, dtype_of(code), base, start)

    def short(self, code: str, shape: Sequence[int], data: bytearray) -> np.ndarray[Any, Any]:
        """Returns the array of these bytes, which nothing else has."""
        return np.ndarray(shape, dtype_of(code), data)

    def check_descr(self, descr: str) -> None:
        """Does nothing: numpy has the types of its files."""

    def of_descr(self, base: np.ndarray[Any, Any], descr: str, shape: Sequence[int], is_fortran: bool) -> np.ndarray[Any, Any]:
        """Returns the only array of the memory, of a type by the text of numpy's files."""
        return np.ndarray(shape, np.dtype(descr), base, order="F" if is_fortran else "C")

    def join(self, parts: list[np.ndarray[Any, Any]], axis: int) -> np.ndarray[Any, Any]:
        """Returns an array of parts along an axis."""
        return np.concatenate(parts, axis)

    def whole(self, base: np.ndarray[Any, Any], code: str, shape: list[int]) -> np.ndarray[Any, Any]:
        """Returns the only array of the memory."""
        return np.ndarray(shape, dtype_of(code), base)
