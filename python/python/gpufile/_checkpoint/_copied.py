"""Copies of the tensors in a state dict, in few calls: the program waits for each of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from .. import _memory
from .._streams import Copying
from ._layout import BLOCK_BYTES, SMALL_BYTES

#: The bytes of tensors that one call copies at first. The GPU starts soon.
FIRST_BYTES = 32 << 20
#: The bytes later. The GPU copies them while the next ones get their memory.
AT_ONCE = 512 << 20

#: Tensors that wait for memory, by device and type, and by shape or number: the numbers of the copies, the tensors, and
#: their parts in this process.
_Waiting = dict[Any, dict[Any, list[tuple[int, torch.Tensor, torch.Tensor]]]]


class Copied:
    """One copy of a state dict, while it is made."""

    def __init__(self, place: str, copying: Copying) -> None:
        self._is_on_device, self._copying = place == "device", copying
        #: The copies. Those that have no memory yet are missing.
        self._copies: list[Any] = []
        #: The number of the copy, for each tensor in the order of the state.
        self._order: list[int] = []
        #: The tensors with the numbers of their copies, by the addresses of plain tensors, or by the identities of others.
        self._known: dict[int, list[tuple[torch.Tensor, int]]] = {}
        #: The short tensors, which come last, in a call for each type.
        self._short: _Waiting = {}
        self._long: _Waiting = {}
        self._long_bytes, self._at_once = 0, FIRST_BYTES

    def copy(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns the copy. On GPUs, this only starts the copies of the bytes."""
        self._find(state_dict)
        self._fill(self._long)
        self._fill(self._short)
        made: dict[str, Any] = _rebuilt(state_dict, map(self._copies.__getitem__, self._order))
        return made

    def _find(self, value: Any) -> None:
        """Finds the tensors, and copies them."""
        if isinstance(value, torch.Tensor):
            self._order.append(self._number_of(value))
        elif isinstance(value, dict):
            for item in value.values():
                self._find(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._find(item)

    def _number_of(self, tensor: torch.Tensor) -> int:
        """Returns the number of the copy, the same one for names of the same memory."""
        is_whole = type(tensor) is DTensor
        local: Any = tensor._local_tensor if is_whole else tensor  # type: ignore[attr-defined]
        has_memory = _memory.is_plain(local) and not local.is_meta
        is_plain = has_memory and not is_whole
        known = self._known.setdefault(tensor.data_ptr() if is_plain else id(tensor), [])
        for other, number in known:
            if other is tensor or (is_plain and _is_same(other, tensor)):
                return number
        number = len(self._copies)
        known.append((tensor, number))
        self._copies.append(None)
        if has_memory and (self._is_on_device or not local.is_cuda):
            self._wait(number, tensor, local)
        else:
            self._copies[number] = self._copied_alone(tensor, local, is_plain)
        return number

    def _copied_alone(self, tensor: torch.Tensor, local: torch.Tensor, is_plain: bool) -> torch.Tensor:
        if getattr(local, "is_cuda", False):
            self._copying.on(local.device)
            self._copying.read[local.device].append(local)
            if not self._is_on_device:
                if not is_plain:
                    # torch knows how to move the parts of its other classes.
                    return tensor.to("cpu", non_blocking=False)
                pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
                return pinned.copy_(tensor, non_blocking=True)
        return tensor.clone()

    def _wait(self, number: int, whole: torch.Tensor, local: torch.Tensor) -> None:
        """Leaves a tensor to ``_fill``, which copies similar ones together."""
        len_bytes = local.nbytes
        is_long = len_bytes >= SMALL_BYTES
        # Files are written faster from the start of a block.
        has_blocks = not is_long or len_bytes % BLOCK_BYTES == 0
        by_shape = (self._long if is_long else self._short).setdefault((local.device, local.dtype), {})
        key = local.shape if has_blocks and local.is_contiguous() else number
        by_shape.setdefault(key, []).append((number, whole, local))
        if is_long:
            self._long_bytes += len_bytes
            if self._long_bytes >= self._at_once:
                self._fill(self._long)
                self._long_bytes, self._at_once = 0, min(2 * self._at_once, AT_ONCE)

    def _fill(self, all_waiting: _Waiting) -> None:
        """Copies tensors that wait: those of one type in one call, because torch copies a mixture one by one."""
        for (device, _), by_shape in all_waiting.items():
            is_on_gpu = device.type == "cuda"
            if is_on_gpu:
                self._copying.on(device)
            into: list[torch.Tensor] = []
            waiting: list[torch.Tensor] = []
            for alike in by_shape.values():
                tensors = [local for _, _, local in alike]
                one = tensors[0]
                made: Sequence[torch.Tensor]
                if is_on_gpu:
                    self._copying.read[device] += tensors
                is_long = is_on_gpu and one.nbytes >= SMALL_BYTES
                if is_long and len(alike) > 1:
                    # It copies faster than all other calls, and few of them are needed.
                    made = torch.stack(tensors).unbind()
                elif is_long:
                    made = [torch.empty_like(one).copy_(one, non_blocking=True)]
                else:
                    made = _blank(one, len(alike))
                    into += made
                    waiting += tensors
                for (number, whole, local), copied in zip(alike, made):
                    self._copies[number] = copied if local is whole else _whole(whole, copied)
            if into:
                torch._foreach_copy_(into, waiting, non_blocking=True)
        all_waiting.clear()


def _rebuilt(value: Any, copies: Iterator[torch.Tensor]) -> Any:
    """Returns a part of a state dict with the copies in the places of its tensors."""
    if isinstance(value, torch.Tensor):
        return next(copies)
    if isinstance(value, dict):
        made = copy.copy(value)
        for name, item in value.items():
            made[name] = _rebuilt(item, copies)
        return made
    if isinstance(value, (list, tuple)):
        items = [_rebuilt(item, copies) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return copy.deepcopy(value)


def _blank(tensor: torch.Tensor, count: int) -> Sequence[torch.Tensor]:
    """Returns memory for tensors like this one."""
    if count == 1:
        return [torch.empty_like(tensor)]
    # One allocation takes less time than many.
    return torch.empty((count, *tensor.shape), dtype=tensor.dtype, device=tensor.device).unbind()


def _whole(tensor: Any, local: torch.Tensor) -> torch.Tensor:
    """Returns a DTensor like another, with other memory."""
    # ``__init__`` does nothing, and takes longer than the rest.
    whole: torch.Tensor = DTensor.__new__(DTensor, local, tensor._spec, requires_grad=False)
    return whole


def _is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two plain tensors that begin at one address have the same values."""
    return (
        tensor.device == other.device
        and tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
        and tensor.is_conj() == other.is_conj()
        and tensor.is_neg() == other.is_neg()
    )
