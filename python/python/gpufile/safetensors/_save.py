"""Saving: the items that the native module takes, from tensors of torch, numpy and JAX."""

from __future__ import annotations

import ctypes
import importlib
import math
import os
import re
from collections.abc import Iterable
from typing import Any, SupportsIndex

from .._gpufile import serialize_safetensors
from . import _error
from ._arguments import length_of, tensors_of
from ._dtypes import code_of, file_shape
from ._store import save_items

#: Name, type, shape as the file has it, and memory.
Item = tuple[str, str, list[int], Any]


class TensorSpec:
    """The address of a tensor to save, for ``serialize`` and ``serialize_file``.

    The type has the name that frameworks give it, for example ``float32``. The caller keeps the memory. The shape of
    ``float4_e2m1fn_x2`` counts pairs of elements along the last axis, as torch does.
    """

    __slots__ = ("_data_len", "_data_ptr", "_dtype", "_shape")

    def __init__(self, *, dtype: str, shape: Iterable[SupportsIndex], data_ptr: int, data_len: int) -> None:
        self._dtype = code_of(dtype)
        if not isinstance(shape, Iterable):
            raise TypeError(f"shape: expected integers in a list, not {type(shape).__name__}")
        self._shape = file_shape(self._dtype, map(int, shape))
        self._data_ptr = length_of("data_ptr", data_ptr)
        self._data_len = length_of("data_len", data_len)

    @property
    def dtype(self) -> str:
        """The type as the file has it, for example ``F32``."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """The shape as the file has it, in elements."""
        return list(self._shape)

    @property
    def data_ptr(self) -> int:
        """The address of the first byte."""
        return self._data_ptr

    @property
    def data_len(self) -> int:
        """The number of bytes."""
        return self._data_len

    def __repr__(self) -> str:
        return (
            f"TensorSpec(dtype={self._dtype!r}, shape={self._shape}, data_ptr={self._data_ptr},"
            f" data_len={self._data_len})"
        )


def spec_items(tensors: dict[str, TensorSpec]) -> list[Item]:
    """Returns the items of specs."""
    for name, spec in tensors_of(tensors).items():
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"tensor {name!r} must be a TensorSpec, but is a {type(spec).__name__}")
        digits = re.search("[0-9]+", spec.dtype)
        needed = math.prod(spec.shape) * (int(digits[0]) if digits else 8) // 8
        if spec.data_len != needed:
            raise _error.SafetensorError(f"tensor {name!r} needs {needed} bytes of memory, but has {spec.data_len}")
    return [
        (name, spec.dtype, spec.shape, (ctypes.c_ubyte * spec.data_len).from_address(spec.data_ptr) if spec.data_len else b"")
        for name, spec in tensors.items()
    ]


def serialize(tensors: dict[str, TensorSpec], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a safetensors file."""
    return serialize_safetensors(spec_items(tensors), metadata)


def serialize_file(
    tensors: dict[str, TensorSpec], filename: str | os.PathLike[str], metadata: dict[str, str] | None = None
) -> None:
    """Saves tensors to a file. Replaces an existing file as a whole."""
    save_items(filename, spec_items(tensors), metadata, True, None)


def items_of(tensors: dict[str, Any]) -> list[Item]:
    """Returns the items of tensors of any framework. The first tensor tells which."""
    first = next(iter(tensors.values()), None) if isinstance(tensors, dict) else None
    package = type(first).__module__.partition(".")[0]
    module = {"jax": "flax", "jaxlib": "flax", "numpy": "numpy", "builtins": "numpy"}.get(package, "torch")
    items: list[Item] = importlib.import_module(f".{module}", __package__).items(tensors)
    return items
