"""The bytes of tensors, and the cuts between the pieces of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from . import _memory


class Source:
    """The bytes of a tensor. Torch makes no view of them before somebody needs one."""

    __slots__ = ("address", "device", "nbytes", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.address = tensor, tensor.data_ptr()
        self.device, self.nbytes = tensor.device, tensor.nbytes

    def part(self, start: int, stop: int) -> torch.Tensor:
        """Returns a range of the bytes, in the same memory."""
        memory = _memory.flat(self.tensor)
        return memory if stop - start == self.nbytes else memory[start:stop]


#: The bytes of a tensor, and the range of them that a piece has.
Part = tuple[Source, int, int]


def cut(sources: Iterable[Source], piece_bytes: int) -> Iterator[list[Part]]:
    """Yields the parts of each piece, all on one device."""
    parts: list[Part] = []
    room = piece_bytes
    for source in sources:
        if parts and parts[0][0].device != source.device:
            yield parts
            parts, room = [], piece_bytes
        start = 0
        while start < source.nbytes:
            stop = min(source.nbytes, start + room)
            parts.append((source, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield parts
                parts, room = [], piece_bytes
    if parts:
        yield parts


def len_bytes_of(parts: list[Part]) -> int:
    """Returns the bytes of all parts."""
    return sum(stop - start for _, start, stop in parts)
