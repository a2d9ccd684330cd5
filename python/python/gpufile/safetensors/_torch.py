"""Memory and tensors of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from ._dtypes import NAMES
from ._error import SafetensorError

#: The types of the format, by torch's types.
CODES = {getattr(torch, name): code for code, name in NAMES.items() if hasattr(torch, name)}

#: Allocations have a multiple of as many bytes, so that they can be viewed as each type.
_UNIT = 16


def dtype_of(code: str) -> torch.dtype:
    """Returns torch's type for a type of the format."""
    name = NAMES.get(code)
    dtype: torch.dtype | None = getattr(torch, name, None) if name else None
    if dtype is None:
        raise SafetensorError(f"torch {torch.__version__} has no type for {code}")
    return dtype


class Framework:
    """Tensors of PyTorch on one device."""

    is_strict = False

    def __init__(self, device: Any) -> None:
        try:
            self.device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError) as error:
            raise SafetensorError(f"device {device} is invalid: {error}") from None
        kind = self.device.type
        #: True if bytes arrive on the host, and torch copies them to the device.
        self.copies = not (kind == "cpu" or (kind == "cuda" and torch.version.cuda))

    def check(self, code: str) -> None:
        """Refuses a type that the framework lacks."""
        dtype_of(code)

    def allocate(self, len_bytes: int) -> torch.Tensor:
        """Returns memory from torch's allocator."""
        len_bytes = -(-len_bytes // _UNIT) * _UNIT
        return torch.empty(len_bytes, dtype=torch.uint8, device="cpu" if self.copies else self.device)

    def fill(self, tensors: dict[str, Any], base: torch.Tensor, table: list[Any]) -> None:
        """Adds the tensors of a table, which share the memory of ``base``."""
        if self.copies:
            base = base.to(self.device)
        as_strided = torch.as_strided
        for code, rows in table:
            typed = base.view(dtype_of(code))
            for name, shape, strides, start in rows:
                # Without `data`, all would be views of one tensor for autograd, with one count of changes.
                tensors[name] = as_strided(typed, shape, strides, start).data

    def whole(self, base: torch.Tensor, code: str, shape: list[int]) -> torch.Tensor:
        """Returns the only tensor of the memory."""
        dtype = dtype_of(code)
        length = 1
        for axis in shape:
            length *= axis
        return base.view(dtype)[:length].view(shape).data.to(self.device)
