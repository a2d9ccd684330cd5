"""Memory and tensors of PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .._gpufile import dlpack_parts, prefer_huge_pages
from ._dtypes import NAMES
from ._error import SafetensorError

#: The types of the format, by torch's types.
CODES = {getattr(torch, name): code for code, name in NAMES.items() if hasattr(torch, name)}

#: The length in bytes from which memory of the host may have huge pages.
_LONG = 4 << 20
#: DLPack's codes and bits of the types that every version of torch imports.
_IMPORTED = {
    torch.bool: (6, 8),
    torch.uint8: (1, 8),
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.float16: (2, 16),
    torch.bfloat16: (4, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.complex64: (5, 64),
}


def _parts(base: Any, dtype: torch.dtype, start: int, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Returns tensors that follow each other in the memory from a byte on, each in a storage of its own.

    Packages such as accelerate and transformers take tensors of one storage for the same weight, and save only one. What
    saves or copies a tensor takes its whole storage, and views of one tensor have one count of changes for autograd.
    """
    code, bits = _IMPORTED.get(dtype, (0, 8 * dtype.itemsize))
    tensors = list(map(from_dlpack, dlpack_parts(base, code, bits, start, shapes)))
    return tensors if dtype in _IMPORTED else [tensor.view(dtype) for tensor in tensors]


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
        """Adds the tensors of a table, over the memory of ``base``."""
        for code, start, _, names, shapes in table:
            dtype = dtype_of(code)
            parts = _parts(base, dtype, start * dtype.itemsize, shapes)
            tensors.update(zip(names, [part.to(self.device) for part in parts] if self.copies else parts))
        # The gaps between tensors.
        tensors.pop(None, None)  # type: ignore[call-overload]

    def wrap(self, mapping: Any) -> Any:
        """Returns the bytes of a mapping."""
        return mapping

    def view(self, base: Any, code: str, shape: Sequence[int], start: int) -> torch.Tensor:
        """Returns the tensor that starts at a byte of the memory."""
        return _parts(base, dtype_of(code), start, [shape])[0]

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
        return base.view(dtype_of(code)).view(shape).data.to(self.device)
