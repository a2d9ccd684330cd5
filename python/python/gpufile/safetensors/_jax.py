"""Arrays of JAX. The bytes arrive in memory of numpy, and JAX takes them from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .._gpufile import Group
from . import _numpy
from ._error import SafetensorError


class Framework:
    """Arrays of JAX on one device, by default JAX's own default."""

    is_strict = True
    copies = True
    is_host = False
    maps_files = False

    def __init__(self, device: Any) -> None:
        self._device = _device(device)
        self._numpy = _numpy.Framework("cpu")

    def check(self, code: str) -> None:
        """Refuses a type that numpy lacks."""
        self._numpy.check(code)

    def allocate(self, len_bytes: int, is_read: bool = True) -> np.ndarray[Any, Any]:
        """Returns memory of numpy."""
        return self._numpy.allocate(len_bytes, is_read)

    def memory(self, group: Group) -> np.ndarray[Any, Any]:
        """Returns memory of numpy for the arrays of a group."""
        return self._numpy.memory(group)

    def fill(self, tensors: dict[str, Any], base: np.ndarray[Any, Any], table: list[Any]) -> None:
        """Adds the arrays of a table."""
        arrays: dict[str, Any] = {}
        self._numpy.fill(arrays, base, table)
        for name, array in arrays.items():
            tensors[name] = self.put(array)

    def check_descr(self, descr: str) -> None:
        """Refuses types that are no numbers, and numbers of big-endian bytes."""
        if np.dtype(descr).kind not in "biufc" or descr.startswith(">"):
            raise ValueError(f"JAX has no type for {descr}")

    def of_descr(self, base: np.ndarray[Any, Any], descr: str, shape: Sequence[int], is_fortran: bool) -> jax.Array:
        """Returns the only array of the memory, of a type by the text of numpy's files."""
        return self.put(self._numpy.of_descr(base, descr, shape, is_fortran))

    def join(self, parts: list[jax.Array], axis: int) -> jax.Array:
        """Returns an array of parts along an axis."""
        return jax.numpy.concatenate(parts, axis)

    def whole(self, base: np.ndarray[Any, Any], code: str, shape: list[int]) -> jax.Array:
        """Returns the only array of the memory."""
        return self.put(self._numpy.whole(base, code, shape))

    @property
    def near(self) -> _numpy.Framework:
        """The framework of the memory that files are read into."""
        return self._numpy

    def name_of(self, dtype: Any) -> str:
        """Returns the name of a type of JAX."""
        return self._numpy.name_of(dtype)

    def put(self, array: np.ndarray[Any, Any]) -> jax.Array:
        """Returns an array of numpy on the device."""
        return jax.numpy.asarray(array) if self._device is None else jax.device_put(array, self._device)


def _device(device: Any) -> Any:
    """Returns the device of a name such as ``cuda:1``. ``None`` and ``cpu`` leave the choice to JAX, as safetensors."""
    if device in (None, "cpu"):
        return None
    if not isinstance(device, str):
        return device
    platform, _, number = device.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        raise SafetensorError(f"device {device} is invalid: {error}") from None
