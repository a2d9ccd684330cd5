"""The types of the format and the names that frameworks give them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import _error

#: The types of the format, by the names that frameworks give them.
CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
}
#: The types that a load converts into each other.
FLOATS = ("F16", "BF16", "F32", "F64")
#: The reverse.
NAMES = {code: name for name, code in CODES.items()}


def code_of(dtype: str) -> str:
    """Returns the type of the format for a framework's name."""
    code = CODES.get(dtype)
    if code is None:
        raise _error.SafetensorError(f"Unknown dtype {dtype!r}. Supported dtypes: {', '.join(CODES)}")
    return code


def stored_shape(framework: Any, name: str, dtype: str, shape: Sequence[int]) -> list[int]:
    """Returns the shape in memory. torch's type F4 has two elements in one."""
    framework.check(dtype)
    stored = list(shape)
    if dtype == "F4" and stored:
        if stored[-1] % 2:
            raise _error.SafetensorError(f"tensor {name!r}: the last axis of F4 must be even, but is {stored[-1]}")
        stored[-1] //= 2
    return stored


def file_shape(code: str, shape: Iterable[int]) -> list[int]:
    """Returns the shape that a file has for a tensor of a framework."""
    axes = list(shape)
    if code == "F4" and axes:
        axes[-1] *= 2
    return axes
