"""Copies of the bytes that a save writes, in GPU memory or in host memory."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch

from . import _gpufile
from ._sources import Part, len_bytes_of
from ._streams import Copying, Ends

#: Some versions of torch have no types for its parts.
_cuda: Any = torch.cuda

#: The places of copies: the memory of the tensors' device, and pinned memory of the host.
PLACES = ("device", "host")
#: Shorter parts of a piece are copied together.
SHORT_BYTES = 1 << 20
#: A GPU takes as long for the copy of a shorter part as for one of this length. One kernel copies many of them.
TINY_BYTES = 64 << 10
MANY = 8


class Piece(NamedTuple):
    """Adjacent bytes of the file."""

    buffers: list[torch.Tensor]
    ends: Ends

    @property
    def nbytes(self) -> int:
        """The bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def wait(self) -> list[Any]:
        """Waits until the copy has ended, and returns its memory for a write."""
        self.ends.wait()
        return [_Ended(buffer) if buffer.is_cuda else buffer for buffer in self.buffers]


def piece_of(parts: list[Part], place: str | None, copying: Copying) -> Piece:
    """Returns a copy of the parts, or the parts themselves without a ``place``. Copies on GPUs may still be running."""
    device, ends = parts[0][0].device, Ends()
    if place is None:
        if device.type == "cuda":
            ends.mark(device, _cuda.current_stream(device))
        return Piece([source.part(start, stop) for source, start, stop in parts], ends)
    if device.type != "cuda":
        return Piece([_copied_to_host(parts, pin=False)], ends)
    stream = copying.on(device)
    copying.read[device] += [source.tensor for source, _, _ in parts]
    if place == "host":
        buffer = _copied_to_host(parts, pin=True)
    else:
        buffer = torch.empty(len_bytes_of(parts), dtype=torch.uint8, device=device)
        _copy_on_device(parts, buffer, stream.cuda_stream)
    ends.mark(device)
    return Piece([buffer], ends)


def _copy_on_device(parts: list[Part], buffer: torch.Tensor, stream: int) -> None:
    """Starts to copy the bytes of parts on the current stream, one after the other."""
    end = 0
    waiting: list[Part] = []

    def copy_waiting() -> None:
        if not waiting:
            return
        ranges = [(source.address + start, stop - start) for source, start, stop in waiting]
        _gpufile.copy_ranges(buffer.device.index, stream, buffer.data_ptr() + end - len_bytes_of(waiting), ranges)
        waiting.clear()

    for is_tiny, run in itertools.groupby(parts, lambda part: part[2] - part[1] < TINY_BYTES):
        run_parts = list(run)
        len_bytes = len_bytes_of(run_parts)
        if is_tiny and len(run_parts) >= MANY:
            copy_waiting()
            memory = [source.part(start, stop) for source, start, stop in run_parts]
            torch.cat(memory, out=buffer[end : end + len_bytes])
        else:
            waiting += run_parts
        end += len_bytes
    copy_waiting()


def _copied_to_host(parts: list[Part], *, pin: bool) -> torch.Tensor:
    """Returns the bytes of parts one after the other. The current stream may still be copying those of a GPU."""
    buffer = torch.empty(len_bytes_of(parts), dtype=torch.uint8, device="cpu", pin_memory=pin)
    end = 0
    short: list[torch.Tensor] = []

    def copy_short() -> None:
        if short:
            len_bytes = sum(part.nbytes for part in short)
            torch.cat(short, out=buffer[end - len_bytes : end])
            short.clear()

    for source, start, stop in parts:
        part = source.part(start, stop)
        if part.nbytes < SHORT_BYTES and not part.is_cuda:
            short.append(part)
        else:
            copy_short()
            buffer[end : end + part.nbytes].copy_(part, non_blocking=True)
        end += part.nbytes
    copy_short()
    return buffer


class _Ended:
    """GPU memory that no stream uses any longer, so that nobody waits for a stream of the program."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "data": (memory.data_ptr(), False),
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "stream": None,
            "version": 3,
        }
