"""Copies of state dicts for asynchronous saves."""

from __future__ import annotations

import copy
import threading
import time
from typing import Any

import torch

from .. import _memory
from .._streams import Copying, Ends

#: The bytes of tensors that one call copies. GPUs copy them while the next ones get their memory.
AT_ONCE = 256 << 20


class Snapshots:
    """The copies that a writer makes, and their ends."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._ends = Ends()
        self._gate = Gate(self._ends)
        # Nothing is being copied.
        self._gate.open()

    def take(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy. On GPUs it may not have ended: call ``order`` before the originals change."""
        self._gate = Gate(self._ends)
        with torch.no_grad(), Copying() as copying:
            taken = _Taken(self.place, copying)
            made: dict[str, Any] = taken.copy(state_dict)
            taken.fill()
        for device in copying.devices:
            self._ends.mark(device)
        return made

    def order(self) -> None:
        """Lets the current streams of this thread wait for the copies, on the GPUs, and lets the thread that saves go on."""
        self._ends.order()
        self.let_go()

    def let_go(self) -> None:
        """Lets the thread that saves go on: the program's thread has what it needs."""
        self._gate.open()

    def wait(self) -> None:
        """Waits until the program's thread goes on, and the copies have ended."""
        self._gate.wait()

    def __getstate__(self) -> dict[str, Any]:
        # Streams belong to their process.
        self._ends.wait()
        return {"place": self.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class _Taken:
    """One copy of a state dict, while it is made."""

    def __init__(self, place: str, copying: Copying) -> None:
        self._is_on_device, self._copying = place == "device", copying
        #: The copies, with their originals, by the addresses of plain tensors, or by the identities of others.
        self._copies: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._empty: dict[tuple[torch.device, torch.dtype], _Empty] = {}

    def copy(self, value: Any) -> Any:
        """Returns a copy of a part of the state dict."""
        if isinstance(value, torch.Tensor):
            return self._once(value)
        if isinstance(value, dict):
            made = copy.copy(value)
            for name, item in value.items():
                made[name] = self.copy(item)
            return made
        if isinstance(value, (list, tuple)):
            items = [self.copy(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return copy.deepcopy(value)

    def _once(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the same copy for names of the same memory."""
        is_plain = _memory.is_plain(tensor) and not tensor.is_meta
        found = self._copies.setdefault(tensor.data_ptr() if is_plain else id(tensor), [])
        for other, made in found:
            if other is tensor or (is_plain and _is_same(other, tensor)):
                return made
        made = self._copy_tensor(tensor)
        found.append((tensor, made))
        return made

    def _copy_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        local = _local_of(tensor)
        if getattr(local, "is_cuda", False):
            # The program may drop the tensor before the copy has ended.
            local.record_stream(self._copying.on(local.device))
            if not self._is_on_device:
                if not _memory.is_plain(tensor):
                    # torch knows how to move the parts of its other classes.
                    return tensor.to("cpu", non_blocking=False)
                pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
                return pinned.copy_(tensor, non_blocking=True)
        spec = getattr(tensor, "_spec", None)
        if not _memory.is_plain(local) or local.is_meta or (spec is None and local is not tensor):
            return tensor.clone()
        made = self._copy_plain(local)
        if local is tensor:
            return made
        of_parts: Any = type(tensor)
        whole: torch.Tensor = of_parts(made, spec, requires_grad=False)
        return whole

    def _copy_plain(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor that ``fill`` fills. This takes less time than ``clone``."""
        made = torch.empty_like(tensor)
        key = tensor.device, tensor.dtype
        empty = self._empty.get(key)
        if empty is None:
            empty = self._empty[key] = _Empty()
        if empty.add(made, tensor) >= AT_ONCE:
            self._fill(*key)
        return made

    def fill(self) -> None:
        """Copies the bytes of all tensors. On GPUs, this only starts the copies."""
        for key in list(self._empty):
            self._fill(*key)

    def _fill(self, device: torch.device, dtype: torch.dtype) -> None:
        empty = self._empty.pop((device, dtype))
        if device.type == "cuda":
            self._copying.on(device)
        torch._foreach_copy_(empty.made, empty.sources, non_blocking=True)


class _Empty:
    """New tensors without their bytes, and the tensors that have these, of one device and one type: torch copies others one by
    one."""

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []
        self.sources: list[torch.Tensor] = []
        self._bytes = 0

    def add(self, made: torch.Tensor, source: torch.Tensor) -> int:
        """Adds a tensor, and returns the bytes of all."""
        self.made.append(made)
        self.sources.append(source)
        self._bytes += made.nbytes
        return self._bytes


def _local_of(tensor: Any) -> torch.Tensor:
    """Returns the part of a DTensor, or the tensor itself."""
    local = getattr(tensor, "_local_tensor", None)
    if local is None:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    made: torch.Tensor = local
    return made


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


class Gate:
    """Keeps the thread that saves from Python's lock while the program's thread still needs it to go on.

    Each time that two threads compete for that lock, one may wait for 5 ms, as long as a copy of many gigabytes takes.
    """

    #: Seconds until the gate opens by itself, for programs that do not call ``async_save``.
    LIMIT = 1.0
    #: Seconds after the copies. The program's thread goes on in this time, if it waits for them, too.
    LEAD = 0.002

    def __init__(self, ends: Ends) -> None:
        self._owner, self._ends = threading.get_ident(), ends
        self._is_open = threading.Event()
        self._is_passed = False

    def open(self) -> None:
        """Opens the gate for good."""
        self._is_open.set()

    def wait(self) -> None:
        """Waits until the gate is open, and the copies have ended. The thread that made it waits only for the copies."""
        if not self._is_passed and threading.get_ident() != self._owner:
            self._is_open.wait(self.LIMIT)
            self._ends.wait()
            time.sleep(self.LEAD)
            self._is_passed = True
        self._ends.wait()
