"""Copies of tensors for saves, made on a stream of their own for each GPU.

The streams of the program wait for a copy on the GPU, or not at all, and the program does not wait for it on the host.
"""

from __future__ import annotations

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


def copy_on_stream(tensor: torch.Tensor, stream: Any) -> torch.Tensor:
    """Returns a copy in the memory of the same GPU, which that stream makes. The program may drop the tensor at once."""
    tensor.record_stream(stream)
    with _cuda.stream(stream):
        return tensor.detach().clone()


class Early:
    """Copies of the long tensors of a state on GPUs, started before a save looks at anything else.

    A save takes some microseconds for each tensor until it knows what to do with it. The GPUs copy meanwhile.
    """

    #: Shorter tensors are copied in less time than it takes to start.
    LONG_BYTES = 1 << 20

    def __init__(self, state: Any) -> None:
        #: The copies, by the addresses and bytes of what they are of.
        self._copies: dict[tuple[int, int], torch.Tensor] = {}
        streams: dict[torch.device, Any] = {}
        with torch.no_grad():
            for tensor in _tensors_in(state, set()):
                local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                if not (_is_on_gpu(local) and _memory.is_plain(local) and _has_its_bytes(local)):
                    continue
                key = (local.data_ptr(), local.nbytes)
                if local.nbytes < self.LONG_BYTES or key in self._copies:
                    continue
                stream = streams.get(local.device)
                if stream is None:
                    follow([local.device])
                    stream = streams[local.device] = stream_of(local.device)
                self._copies[key] = copy_on_stream(local, stream)
        #: The GPUs that copy.
        self.devices = set(streams)

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the copy with the bytes of a tensor, if it was made. Its shape and type may be others."""
        return self._copies.get((tensor.data_ptr(), tensor.nbytes)) if _has_its_bytes(tensor) else None


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


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
