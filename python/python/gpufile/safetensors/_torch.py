"""Memory and tensors of PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.dlpack

from .._gpufile import prefer_huge_pages
from ._dtypes import NAMES
from ._error import SafetensorError

#: The types of the format, by torch's types.
CODES = {getattr(torch, name): code for code, name in NAMES.items() if hasattr(torch, name)}

#: Allocations have a multiple of as many bytes, so that they can be viewed as each type.
_UNIT = 16
#: The length in bytes from which memory of the host may have huge pages.
_LONG = 4 << 20


class _Storages:
    """The choice between a storage for each tensor and one for all tensors of an allocation.

    Packages such as accelerate and transformers take tensors of one storage for the same weight, and save only one. So they
    need separate ones, which take some microseconds for each tensor.
    """

    are_separate = False


_storages = _Storages()


def separate_storages(are_separate: bool) -> None:
    """Gives the tensors of later loads storages of their own, or one storage for each allocation."""
    _storages.are_separate = are_separate


def _separate(part: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with a storage of its own, which keeps the memory."""
    dlpack: Any = torch.utils.dlpack
    # DLPack lacks some of the types.
    own: torch.Tensor = dlpack.from_dlpack(dlpack.to_dlpack(part.view(torch.uint8)))
    return own.view(part.dtype)


def dtype_of(code: str) -> torch.dtype:
    """Returns torch's type for a type of the format."""
    name = NAMES.get(code)
    dtype: torch.dtype | None = getattr(torch, name, None) if name else None
    if dtype is None:
        raise SafetensorError(f"torch {torch.__version__} has no type for {code}")
    return dtype


class Framework:
    """Tensors of PyTorch on one device."""

    is_strict = False

    def __init__(self, device: Any) -> None:
        try:
            self.device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError) as error:
            raise SafetensorError(f"device {device} is invalid: {error}") from None
        kind = self.device.type
        #: True if bytes arrive on the host, and torch copies them to the device.
        self.copies = not (kind == "cpu" or (kind == "cuda" and torch.version.cuda))
        #: True if the tensors are on the host.
        self.is_host = kind == "cpu"
        #: True if calls that say nothing map the files.
        self.maps_files = self.is_host
        #: The streams for copies from other devices: that of this device and that of the other.
        self._streams: dict[torch.device, list[torch.cuda.Stream]] = {}

    def check(self, code: str) -> None:
        """Refuses a type that the framework lacks."""
        dtype_of(code)

    def allocate(self, len_bytes: int) -> torch.Tensor:
        """Returns memory from torch's allocator."""
        len_bytes = -(-len_bytes // _UNIT) * _UNIT
        memory = torch.empty(len_bytes, dtype=torch.uint8, device="cpu" if self.copies else self.device)
        if len_bytes >= _LONG and memory.is_cpu:
            prefer_huge_pages(memory)
        return memory

    def copy(self, target: torch.Tensor, source: torch.Tensor, start: int, stop: int) -> None:
        """Starts to copy bytes from the same place in the memory of another device.

        torch orders a copy with the current streams of both devices. So each pair of devices has streams of its own,
        or each copy would wait for another.
        """
        if not (target.is_cuda and source.is_cuda):
            target[start:stop].copy_(source[start:stop])
            return
        streams = self._streams.get(source.device)
        if streams is None:
            new_stream: Any = torch.cuda.Stream
            streams = [new_stream(tensor.device) for tensor in (target, source)]
            for stream in streams:
                stream.wait_stream(torch.cuda.current_stream(stream.device))
            self._streams[source.device] = streams
        with torch.cuda.stream(streams[0]), torch.cuda.stream(streams[1]):
            target[start:stop].copy_(source[start:stop], non_blocking=True)

    def finish(self) -> None:
        """Waits for the copies."""
        for stream in itertools.chain(*self._streams.values()):
            stream.synchronize()
        self._streams.clear()

    def fill(self, tensors: dict[str, Any], base: torch.Tensor, table: list[Any]) -> None:
        """Adds the tensors of a table, which share the memory of ``base``."""
        if self.copies:
            base = base.to(self.device)
        for code, start, lens, names, shapes in table:
            run = base.view(dtype_of(code))[start : start + sum(lens)]
            if run.is_cpu:
                # `torch.save` refuses tensors of several types in one storage. Besides, resizing this one by a tensor would
                # empty the others, and is an error.
                run = _separate(run)
            # One call makes all tensors. Views of one tensor would have one count of changes for autograd; these are
            # none. `resize_` changes their shapes alone, faster than a view does.
            parts = torch.unsafe_split_with_sizes(run, lens)
            if _storages.are_separate and base.device.type in ("cpu", "cuda"):
                parts = tuple(map(_separate, parts))
            shaped = [part if len(shape) == 1 else part.resize_(shape) for part, shape in zip(parts, shapes)]
            tensors.update(zip(names, shaped))
        # The gaps between tensors.
        tensors.pop(None, None)  # type: ignore[call-overload]

    def wrap(self, mapping: Any) -> torch.Tensor:
        """Returns the bytes of a mapping, in a storage that cannot be resized."""
        return _separate(torch.frombuffer(mapping, dtype=torch.uint8))

    def view(self, base: torch.Tensor, code: str, shape: Sequence[int], start: int) -> torch.Tensor:
        """Returns the tensor that starts at a byte of the memory, in a storage of its own.

        Views would share one count of changes for autograd, and what sends one of them to a process would send all.
        """
        dtype = dtype_of(code)
        part = base[start : start + math.prod(shape) * dtype.itemsize].view(dtype)
        return _separate(part).resize_(shape)

    def short(self, code: str, shape: Sequence[int], data: bytearray) -> torch.Tensor:
        """Returns the tensor of these bytes on the host, which nothing else has."""
        if not data:
            return torch.empty(shape, dtype=dtype_of(code), device=self.device)
        return torch.frombuffer(data, dtype=dtype_of(code)).view(shape)

    def join(self, parts: list[torch.Tensor], axis: int) -> torch.Tensor:
        """Returns a tensor of parts along an axis. torch joins bytes of all types."""
        return torch.cat([part.view(torch.uint8) for part in parts], axis).view(parts[0].dtype)

    def whole(self, base: torch.Tensor, code: str, shape: list[int]) -> torch.Tensor:
        """Returns the only tensor of the memory."""
        dtype = dtype_of(code)
        length = 1
        for axis in shape:
            length *= axis
        return base.view(dtype)[:length].view(shape).data.to(self.device)
