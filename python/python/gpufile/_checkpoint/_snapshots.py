"""Copies of state dicts for asynchronous saves."""

from __future__ import annotations

import copy
import threading
from typing import Any

import torch

from .. import _memory
from .._copies import Ends, follow, stream_of

#: Some versions of torch have no types for its parts.
_cuda: Any = torch.cuda


class Snapshots:
    """The copies that a writer makes, and their ends."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._ends = Ends()
        self._gate = Gate()

    def take(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy. On GPUs it may not have ended: call ``order`` before the originals change."""
        started: set[torch.device] = set()
        copies: dict[Any, Any] = {}
        self._gate = Gate()
        with torch.no_grad():
            made: dict[str, Any] = self._copy(state_dict, started, copies)
        for device in started:
            self._ends.mark(device)
        return made

    def order(self) -> None:
        """Lets the current streams of this thread wait for the copies, on the GPUs."""
        self._ends.order()

    def let_go(self) -> None:
        """Lets the thread that saves go on: the program's thread has what it needs."""
        self._gate.open()

    def wait(self) -> None:
        """Waits until the program's thread goes on, and the copies have ended."""
        self._gate.wait()
        self._ends.wait()

    def __getstate__(self) -> dict[str, Any]:
        # Streams belong to their process.
        self._ends.wait()
        return {"place": self.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

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
        if device not in started:
            started.add(device)
            follow([device])
        stream = stream_of(device)
        # The program may drop the tensor before the copy has ended.
        local.record_stream(stream)
        with _cuda.stream(stream):
            if self.place == "device":
                return tensor.clone() if local is tensor else _with_local(tensor, local)
            if not _memory.is_plain(tensor):
                # torch knows how to move the parts of its other classes.
                return tensor.to("cpu", non_blocking=False)
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            return pinned.copy_(tensor, non_blocking=True)


def _with_local(tensor: Any, local: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a DTensor with this part, in half the time of its ``clone``."""
    spec = getattr(tensor, "_spec", None)
    made: torch.Tensor = tensor.clone() if spec is None else type(tensor)(local.clone(), spec, requires_grad=False)
    return made


class Gate:
    """Keeps the thread that saves from Python's lock while the program's thread still needs it to go on.

    Each time that two threads compete for that lock, one may wait for 5 ms, as long as a copy of many gigabytes takes.
    """

    #: Seconds until the gate opens by itself, for programs that do not call ``async_save``.
    LIMIT = 1.0

    def __init__(self) -> None:
        self._owner = threading.get_ident()
        self._is_open = threading.Event()

    def open(self) -> None:
        """Opens the gate for good."""
        self._is_open.set()

    def wait(self) -> None:
        """Waits until the gate is open. The thread that made it never waits."""
        if threading.get_ident() != self._owner:
            self._is_open.wait(self.LIMIT)
