"""Copies of tensors for saves, made on a stream of their own for each GPU.

The streams of the program wait for a copy on the GPU, or not at all, and the program does not wait for it on the host.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from . import _memory

#: Some versions of torch have no types for its parts.
_cuda: Any = torch.cuda

#: The places of copies: the memory of the tensors' device, and pinned memory of the host.
PLACES = ("device", "host")

#: The stream of each GPU. All copies use it, because torch keeps freed memory for the stream that it was made on.
_streams: dict[torch.device, Any] = {}


def stream_of(device: torch.device) -> Any:
    """Returns the stream for the copies of a GPU's memory."""
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = _cuda.Stream(device)
    return stream


def follow(devices: Iterable[torch.device]) -> None:
    """Lets the streams for copies wait for the work of the program's current streams so far."""
    for device in devices:
        stream_of(device).wait_stream(_cuda.current_stream(device))


class Early:
    """Copies of the long tensors of a state on GPUs, started before a save looks at anything else.

    A save takes some microseconds for each tensor until it knows what to do with it. The GPUs copy meanwhile.
    """

    #: Shorter tensors are copied in less time than it takes to start.
    LONG_BYTES = 1 << 20
    #: The bytes of an allocation for copies, which is freed with the last of them.
    TOGETHER_BYTES = 256 << 20
    #: The elements that the start of each copy is a multiple of, so that GPUs copy several at a time.
    ALIGNMENT = 256

    def __init__(self, state: Any) -> None:
        #: The copies, by the addresses and bytes of what they are of.
        self._copies: dict[tuple[int, int], torch.Tensor] = {}
        originals: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        found: set[tuple[int, int]] = set()
        with torch.no_grad():
            for tensor in _tensors_in(state, set()):
                local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                if not (_is_on_gpu(local) and _memory.is_plain(local) and _has_its_bytes(local)):
                    continue
                key = (local.data_ptr(), local.nbytes)
                if local.nbytes >= self.LONG_BYTES and key not in found:
                    found.add(key)
                    originals.setdefault((local.device, local.dtype), []).append(local.detach())
            #: The GPUs that copy.
            self.devices = {device for device, _ in originals}
            follow(self.devices)
            for (device, _), tensors in originals.items():
                with _on(stream_of(device)):
                    self._copy(tensors)

    def _copy(self, tensors: list[torch.Tensor]) -> None:
        """Copies tensors of one type on the current stream."""
        copies: list[torch.Tensor] = []
        for group in self._groups(tensors):
            starts = [0, *itertools.accumulate(self._room(tensor) for tensor in group)]
            memory = torch.empty(starts[-1], dtype=group[0].dtype, device=group[0].device)
            for tensor, start in zip(group, starts):
                copies.append(memory.as_strided(tensor.shape, tensor.stride(), start))
                # The program may drop the tensor before the copy has ended.
                _keep_for_current_stream(tensor)
        torch._foreach_copy_(copies, tensors)
        self._copies |= {(tensor.data_ptr(), tensor.nbytes): copy for tensor, copy in zip(tensors, copies)}

    def _groups(self, tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """Yields the tensors of each allocation."""
        group: list[torch.Tensor] = []
        len_bytes = 0
        for tensor in tensors:
            if group and len_bytes + tensor.nbytes > self.TOGETHER_BYTES:
                yield group
                group, len_bytes = [], 0
            group.append(tensor)
            len_bytes += tensor.nbytes
        yield group

    def _room(self, tensor: torch.Tensor) -> int:
        return -(-tensor.numel() // self.ALIGNMENT) * self.ALIGNMENT

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the copy with the bytes of a tensor, if it was made. Its shape and type may be others."""
        return self._copies.get((tensor.data_ptr(), tensor.nbytes)) if _has_its_bytes(tensor) else None


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def _on(stream: Any) -> Any:
    return _cuda.stream(stream)


def _keep_for_current_stream(tensor: torch.Tensor) -> None:
    """Keeps freed memory from other use until the work of the current stream so far has ended."""
    tensor.record_stream(_cuda.current_stream(tensor.device))


def _has_its_bytes(tensor: torch.Tensor) -> bool:
    """Returns whether the bytes at the address of a tensor are its values, all and in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _tensors_in(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item, seen)


class Ends:
    """The ends of copies on GPUs."""

    #: Seconds between two looks. The program's thread gets the interpreter first, and no processor spins.
    BETWEEN_LOOKS = 0.002

    def __init__(self) -> None:
        self._events: dict[torch.device, Any] = {}

    def mark(self, device: torch.device, stream: Any = None) -> None:
        """Takes the end of the work so far, of the stream for copies or of another."""
        event = self._events[device] = _cuda.Event()
        event.record(stream or stream_of(device))

    def order(self) -> None:
        """Lets the current streams of this thread wait for the copies, on the GPUs."""
        for device, event in self._events.items():
            _cuda.current_stream(device).wait_event(event)

    def wait(self) -> None:
        """Waits on the host until the copies have ended."""
        for event in self._events.values():
            while not event.query():
                time.sleep(self.BETWEEN_LOOKS)
