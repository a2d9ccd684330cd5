"""Tensors of the host that are read from their file when they move to a GPU.

Some programs take each tensor on the host, and then move it to its device. torch would copy it from the mapping of the file, page
after page. The methods ``to`` and ``cuda`` of these tensors let the engine read the file into the memory of the GPU instead.

In all else they are plain tensors of the mapping. What a program keeps has no such methods: results of ``to``, parameters, views,
copies and pickles.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .._gpufile import Checkpoint
from . import _mapped
from ._open import SafeSlice

#: The types between which GPUs convert as processors do. The bits of values that are no numbers may differ.
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: Types whose tensors offer their memory to others, in all versions of torch.
_EXPORTED = (*_FLOATS, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_LAYOUTS = (None, torch.preserve_format, torch.contiguous_format)
#: The bytes that are read at once to be converted. Four threads of transformers do that at the same time.
_PIECE = 8 << 20

#: The elements from start to stop along each axis.
Bounds = list[tuple[int, int]]
#: Reads elements to a device. They have the type.
Source = Callable[[torch.device, torch.dtype, Bounds], torch.Tensor]


def load(checkpoint: Checkpoint, framework: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors by name, in the order of the file."""
    mapped = _mapped.Mapped(checkpoint, framework)
    tensors = {}
    for name in checkpoint.names():
        info = checkpoint.info(name)
        assert info is not None
        tensors[name] = MovingSlice(checkpoint, framework, name, *info[:2], mapped)[...]
    return tensors


class MovingSlice(SafeSlice):
    """A tensor of a file on the host. Parts of it are read from the file when they move to a GPU."""

    def _whole(self) -> Any:
        return self._let_move(super()._whole(), [(0, axis) for axis in self._stored_shape()])

    def _read(self, bounds: Bounds) -> Any:
        return self._let_move(super()._read(bounds), bounds)

    def _let_move(self, tensor: torch.Tensor, bounds: Bounds) -> torch.Tensor:
        # Inference tensors have no count of changes.
        if not tensor.is_inference():
            vars(tensor).update(_Moves(tensor, bounds, self._read_to).methods())
        return tensor

    def _read_to(self, device: torch.device, dtype: torch.dtype, bounds: Bounds) -> torch.Tensor:
        """Reads elements to a device. Few calls of torch, because each lets other threads run before it goes on."""
        tensor = torch.empty([stop - start for start, stop in bounds], dtype=dtype, device=device)
        group = self._checkpoint.part(self._name, bounds)
        if group.len_bytes:
            self._checkpoint.read_now(group, tensor if dtype in _EXPORTED else tensor.view(torch.uint8))
        return tensor


def is_read_to(device: torch.device) -> bool:
    """Returns True for devices that the engine reads to."""
    return device.type == "cuda" and bool(torch.version.cuda)


class _Moves:
    """The methods of one tensor."""

    def __init__(self, tensor: torch.Tensor, bounds: Bounds, source: Source) -> None:
        # A cycle, which a move ends.
        self._tensor, self._version = tensor, tensor._version
        self._bounds, self._source = bounds, source

    def methods(self) -> dict[str, Any]:
        """Returns the methods by their names. The last two are here because a copy would have the others, too."""
        return {"to": self._to, "cuda": self._cuda, "__deepcopy__": self._deepcopy, "__reduce_ex__": self._reduce_ex}

    def _plain(self) -> Any:
        """Returns the tensor, without these methods."""
        for name in self.methods():
            vars(self._tensor).pop(name, None)
        return self._tensor

    def _to(self, *arguments: Any, **options: Any) -> torch.Tensor:
        tensor = self._tensor
        try:
            device, dtype, _, layout = torch._C._nn._parse_to(*arguments, **options)
        except RuntimeError:
            # It knows no `copy`.
            return torch.Tensor.to(self._plain(), *arguments, **options)
        dtype = dtype or tensor.dtype
        if device is None and dtype == tensor.dtype:
            return torch.Tensor.to(tensor, *arguments, **options)
        self._plain()
        is_known = dtype == tensor.dtype or (dtype in _FLOATS and tensor.dtype in _FLOATS)
        is_changed = tensor._version != self._version or tensor.requires_grad
        if device is None or not is_read_to(device) or not is_known or is_changed or layout not in _LAYOUTS:
            return torch.Tensor.to(tensor, *arguments, **options)
        if dtype == tensor.dtype:
            return self._source(device, dtype, self._bounds)
        return self._converted(device, dtype)

    def _cuda(self, device: Any = None, non_blocking: bool = False, **options: Any) -> torch.Tensor:
        return self._to("cuda" if device is None else device, non_blocking=non_blocking, **options)

    def _deepcopy(self, memo: Any) -> Any:
        return copy.deepcopy(self._plain(), memo)

    def _reduce_ex(self, protocol: Any) -> Any:
        return self._plain().__reduce_ex__(protocol)

    def _converted(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Reads the elements in pieces, because they would take the memory of the GPU twice."""
        tensor = self._tensor
        converted = torch.empty(tensor.shape, dtype=dtype, device=device)
        rest = converted.view(-1)
        for piece in pieces(self._bounds, _PIECE // tensor.itemsize):
            count = _count(piece)
            rest[:count].copy_(self._source(device, tensor.dtype, piece).view(-1))
            rest = rest[count:]
        return converted


def pieces(bounds: Bounds, most: int) -> Iterator[Bounds]:
    """Cuts elements into pieces that follow each other in memory, each of ``most`` elements or fewer."""
    axis = next((axis for axis, (start, stop) in enumerate(bounds) if stop - start > 1), None)
    if axis is None or _count(bounds) <= most:
        yield bounds
        return
    start, stop = bounds[axis]
    step = max(most // _count(bounds[axis + 1 :]), 1)
    for first in range(start, stop, step):
        yield from pieces([*bounds[:axis], (first, min(first + step, stop)), *bounds[axis + 1 :]], most)


def _count(bounds: Bounds) -> int:
    return math.prod(stop - start for start, stop in bounds)
