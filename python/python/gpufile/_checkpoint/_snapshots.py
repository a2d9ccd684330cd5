"""Copies of state dicts for asynchronous saves, made on streams of their own."""

from __future__ import annotations

import copy
from typing import Any

import torch

from . import _memory

#: Some versions of torch have no types for its parts.
_cuda: Any = torch.cuda

PLACES = ("device", "host")

#: The stream of each GPU. All writers use it, because torch keeps freed memory for the stream that it was made on.
_streams: dict[torch.device, Any] = {}


class Snapshots:
    """The ends of the copies."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._ends: dict[torch.device, Any] = {}

    def take(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy. On GPUs it may not have ended: call ``order`` before the originals change."""
        started: set[torch.device] = set()
        copies: dict[Any, Any] = {}
        with torch.no_grad():
            made: dict[str, Any] = self._copy(state_dict, started, copies)
        for device in started:
            event = self._ends[device] = _cuda.Event()
            event.record(_streams[device])
        return made

    def order(self) -> None:
        """Lets the current streams of this thread wait for the copies, on the GPUs."""
        for device, event in self._ends.items():
            _cuda.current_stream(device).wait_event(event)

    def wait(self) -> None:
        """Waits until the copies have ended."""
        for event in self._ends.values():
            event.synchronize()

    def __getstate__(self) -> dict[str, Any]:
        # Streams belong to their process.
        self.wait()
        return {"place": self.place, "_ends": {}}

    def _copy(self, value: Any, started: set[torch.device], copies: dict[Any, Any]) -> Any:
        if isinstance(value, torch.Tensor):
            # Names of the same memory get the same copy.
            key: Any = id(value)
            if _memory.is_plain(value) and value.device.type != "meta":
                key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
            if key not in copies:
                copies[key] = self._copy_tensor(value, started)
            return copies[key]
        if isinstance(value, dict):
            made = copy.copy(value)
            for name, item in value.items():
                made[name] = self._copy(item, started, copies)
            return made
        if isinstance(value, (list, tuple)):
            items = [self._copy(item, started, copies) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return copy.deepcopy(value)

    def _copy_tensor(self, tensor: torch.Tensor, started: set[torch.device]) -> torch.Tensor:
        local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        device = getattr(local, "device", tensor.device)
        if device.type != "cuda":
            return tensor.clone()
        stream = _streams.get(device)
        if stream is None:
            stream = _streams[device] = _cuda.Stream(device)
        if device not in started:
            started.add(device)
            stream.wait_stream(_cuda.current_stream(device))
        # The program may drop the tensor before the copy has ended.
        local.record_stream(stream)
        with _cuda.stream(stream):
            if self.place == "device":
                return tensor.clone()
            if not _memory.is_plain(tensor):
                # torch knows how to move the parts of its other classes.
                return tensor.to("cpu", non_blocking=False)
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            return pinned.copy_(tensor, non_blocking=True)
