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


def cut(sources: Iterable[Source], piece_bytes: int, backwards_from: int | None = None) -> Iterator[list[Part]]:
    """Yields the parts of each piece, all on one device.

    With ``backwards_from``, which is the length of all sources in bytes, the last source comes first. The pieces are the
    same in the reverse order, if all are on one device.
    """
    backwards = backwards_from is not None
    order = -1 if backwards else 1
    parts: list[Part] = []
    room = (backwards_from or 0) % piece_bytes or piece_bytes
    for source in sources:
        if parts and parts[0][0].device != source.device:
            yield parts[::order]
            parts, room = [], piece_bytes
        done = 0
        while done < source.nbytes:
            len_bytes = min(source.nbytes - done, room)
            start = source.nbytes - done - len_bytes if backwards else done
            parts.append((source, start, start + len_bytes))
            done += len_bytes
            room -= len_bytes
            if room == 0:
                yield parts[::order]
                parts, room = [], piece_bytes
    if parts:
        yield parts[::order]


def len_bytes_of(parts: list[Part]) -> int:
    """Returns the bytes of all parts."""
    return sum(stop - start for _, start, stop in parts)
