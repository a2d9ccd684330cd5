"""Tensors as bytes in memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch


#: The classes of tensors that are all in their memory.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_STRIDED = torch.strided


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is all in its memory: of no other class, dense, and not quantized."""
    return type(tensor) in _PLAIN and tensor.layout is _STRIDED and not tensor.is_quantized


def is_reachable(device: torch.device) -> bool:
    """Returns whether files are read into and written from the memory of this device."""
    return device.type == "cpu" or (device.type == "cuda" and torch.version.cuda is not None)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a contiguous tensor, in the same memory."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,)).view(torch.uint8)


def span(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes from the first element of a tensor to its last, in the same memory."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return torch.as_strided(tensor, (last + 1 if tensor.numel() else 0,), (1,)).view(torch.uint8)


class _DevicePart:
    """Bytes of GPU memory. It is much faster to make and to pass on than a tensor."""

    def __init__(self, owner: torch.Tensor, start: int, length: int, stream: int) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "data": (owner.data_ptr() + start, False),
            "shape": (length,),
            "typestr": "|u1",
            # Null is not a stream there, and 1 is the default stream.
            "stream": stream or 1,
            "version": 3,
        }


def parts(memory: torch.Tensor, starts: Sequence[int], length: int) -> list[Any]:
    """Returns parts of flat bytes, all of this length, as buffers that keep the memory alive."""
    if len(starts) == 1:
        return [memory[starts[0] : starts[0] + length]]
    if memory.device.type == "cpu":
        array: Any = (ctypes.c_ubyte * memory.nbytes).from_address(memory.data_ptr())
        array.owner = memory
        view = memoryview(array)
        return [view[start : start + length] for start in starts]
    stream = torch.cuda.current_stream(memory.device).cuda_stream
    return [_DevicePart(memory, start, length, stream) for start in starts]


def to_host(memories: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns flat bytes in host memory, with one copy for each device."""
    made = list(memories)
    devices: dict[Any, list[int]] = {}
    for number, memory in enumerate(memories):
        if memory.device.type != "cpu":
            devices.setdefault(memory.device, []).append(number)
    for numbers in devices.values():
        host = torch.cat([memories[number] for number in numbers]).cpu()
        start = 0
        for number in numbers:
            length = memories[number].nbytes
            made[number] = host[start : start + length]
            start += length
    return made
