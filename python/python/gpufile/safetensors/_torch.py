"""Memory and tensors of PyTorch."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .._gpufile import Group, dlpack_parts, prefer_huge_pages
from .._memory import flat
from . import _error
from ._dtypes import NAMES

#: The types of the format, by torch's types.
CODES = {getattr(torch, name): code for code, name in NAMES.items() if hasattr(torch, name)}

#: The length in bytes from which memory of the host may have huge pages.
_LONG = 4 << 20
#: The bytes of a group of which each tensor is an allocation.
STEP_BYTES = 256 << 20
#: The most bytes that torch's allocator may keep unused for a load that is faster.
_MOST_UNUSED = 64 << 20
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
#: The types by the texts of numpy's files.
_DESCRS = {
    "|b1": torch.bool,
    "|u1": torch.uint8,
    "|i1": torch.int8,
    "<u2": torch.uint16,
    "<i2": torch.int16,
    "<u4": torch.uint32,
    "<i4": torch.int32,
    "<u8": torch.uint64,
    "<i8": torch.int64,
    "<f2": torch.float16,
    "<f4": torch.float32,
    "<f8": torch.float64,
    "<c8": torch.complex64,
    "<c16": torch.complex128,
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _parts(base: Any, dtype: torch.dtype, start: int, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Returns tensors that follow each other in the memory from a byte on, each in a storage of its own.

    Packages such as accelerate and transformers take tensors of one storage for the same weight, and save only one. What
    saves or copies a tensor takes its whole storage, and views of one tensor have one count of changes for autograd.
    """
    code, bits = _IMPORTED[_swapped(dtype)]
    tensors = list(map(from_dlpack, dlpack_parts(base, code, bits, start, shapes)))
    return tensors if dtype in _IMPORTED else [tensor.view(dtype) for tensor in tensors]


def dtype_of(code: str) -> torch.dtype:
    """Returns torch's type for a type of the format."""
    name = NAMES.get(code)
    dtype: torch.dtype | None = getattr(torch, name, None) if name else None
    if dtype is None:
        raise _error.SafetensorError(f"torch {torch.__version__} has no type for {code}")
    return dtype


def _swapped(dtype: torch.dtype) -> torch.dtype:
    """Returns the type, or an integer of its length, which DLPack has."""
    return dtype if dtype in _IMPORTED else _INTEGERS[dtype.itemsize]


#: Rows of a group's table: the type, the first element, and the lengths in elements, names and shapes of tensors.
Table = list[tuple[Any, ...]]


class Apart(list[tuple[int, torch.Tensor]]):
    """The memory of a group whose tensors are allocations of torch: the tensors with bytes, by their starts in the group."""

    def __init__(self, table: Table, device: torch.device) -> None:
        #: All of them, in the order of the table.
        self.tensors: list[torch.Tensor] = []
        for dtype, at, lens, names, shapes in table:
            at *= dtype.itemsize
            for length, name, shape in zip(lens, names, shapes):
                if name is not None:
                    tensor = torch.empty(shape, dtype=dtype, device=device)
                    self.tensors.append(tensor)
                    if length:
                        self.append((at, tensor if dtype in _IMPORTED else tensor.view(_swapped(dtype))))
                at += length * dtype.itemsize

    def ranges(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yields the parts of a range that lie in one tensor each."""
        first = bisect.bisect_right(self, start, key=itemgetter(0)) - 1
        for at, tensor in itertools.islice(self, max(first, 0), None):
            if at >= stop:
                return
            if at + tensor.nbytes > start:
                yield max(at, start), min(at + tensor.nbytes, stop)

    def bytes(self, start: int, stop: int) -> torch.Tensor:
        """Returns a range that lies in one tensor."""
        at, tensor = self[bisect.bisect_right(self, start, key=itemgetter(0)) - 1]
        return flat(tensor)[start - at : stop - at]


def _bytes(memory: Any, start: int, stop: int) -> torch.Tensor:
    return memory.bytes(start, stop) if isinstance(memory, Apart) else memory[start:stop]


def _reserve(tables: list[Table], device: torch.device) -> None:
    """Lets torch's allocator get memory for all long tensors from the driver in one call, which is faster. It then cuts
    them from that.

    It cuts allocations of more than 1 MiB, whose lengths are multiples of 512 bytes, from cached memory. Memory that was
    cached before is used first: it would stay unused beside the new memory.
    """
    lens_bytes = (length * row[0].itemsize for table in tables for row in table for length in row[2])
    rest = [-(-len_bytes // 512) * 512 for len_bytes in lens_bytes if len_bytes > 1 << 20]
    if len(rest) > 1 and device.type == "cuda" and _cached(device) <= _MOST_UNUSED:
        # The tensors may fit where their sum does not.
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            torch.empty(sum(rest), dtype=torch.uint8, device=device)


def _cached(device: torch.device) -> float:
    """Returns the number of cached bytes that torch's allocator can use for long tensors: infinite if it does not split blocks."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    if not stats:
        return 0
    # The allocator of CUDA itself says 0.
    if stats.get("max_split_size", -1) > 0:
        return math.inf
    reserved, active = (stats[name]["large_pool"]["current"] for name in ("reserved_bytes", "active_bytes"))
    return int(reserved - active)


class Framework:
    """Tensors of PyTorch on one device."""

    is_strict = False

    def __init__(self, device: Any) -> None:
        try:
            self.device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError) as error:
            if type(device) is int and device >= 0:
                # An older torch knows no numbers where there is no GPU.
                raise
            raise _error.SafetensorError(f"device {device} is invalid: {error}") from None
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

    def allocate(self, len_bytes: int, is_read: bool = True) -> torch.Tensor:
        """Returns memory from torch's allocator. Huge pages make reads from files faster, and other copies slower."""
        memory = torch.empty(len_bytes, dtype=torch.uint8, device="cpu" if self.copies else self.device)
        if is_read and len_bytes >= _LONG and memory.is_cpu:
            prefer_huge_pages(memory)
        return memory

    @property
    def is_apart(self) -> bool:
        """True if each tensor of a group is an allocation of torch: `record_stream`, CUDA IPC and `resize_` need that on a GPU."""
        return self.device.type == "cuda" and not self.copies

    @property
    def step_bytes(self) -> int | None:
        """The bytes of the groups of a load, if their memory takes long to allocate: one is allocated while others are read."""
        return STEP_BYTES if self.is_apart else None

    def memory(self, group: Group) -> Any:
        """Returns memory for the tensors of a group."""
        return next(self.memories([group]))

    def memories(self, groups: list[Group]) -> Iterator[Any]:
        """Yields memory for the tensors of each group."""
        if not self.is_apart:
            yield from (self.allocate(group.len_bytes) for group in groups)
            return
        tables: list[Table] = [[(dtype_of(code), *row) for code, *row in group.table()] for group in groups]
        _reserve(tables, self.device)
        yield from (Apart(table, self.device) for table in tables)

    def copy(self, target: Any, source: Any, start: int, stop: int) -> None:
        """Starts to copy bytes from the same place in the memory of another device."""
        apart = next((memory for memory in (target, source) if isinstance(memory, Apart)), None)
        for range_ in [(start, stop)] if apart is None else apart.ranges(start, stop):
            self._copy(_bytes(target, *range_), _bytes(source, *range_))

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Starts to copy bytes from another device.

        torch orders a copy with the current streams of both devices. So each pair of devices has streams of its own,
        or each copy would wait for another.
        """
        if not (target.is_cuda and source.is_cuda):
            target.copy_(source)
            return
        streams = self._streams.get(source.device)
        if streams is None:
            new_stream: Any = torch.cuda.Stream
            streams = [new_stream(tensor.device) for tensor in (target, source)]
            for stream in streams:
                stream.wait_stream(torch.cuda.current_stream(stream.device))
            self._streams[source.device] = streams
        with torch.cuda.stream(streams[0]), torch.cuda.stream(streams[1]):
            target.copy_(source, non_blocking=True)

    def finish(self) -> None:
        """Waits for the copies."""
        for stream in itertools.chain(*self._streams.values()):
            stream.synchronize()
        self._streams.clear()

    def fill(self, tensors: dict[str, Any], base: Any, table: list[Any]) -> None:
        """Adds the tensors of a table, over the memory of ``base``."""
        if isinstance(base, Apart):
            names = itertools.chain.from_iterable(row[3] for row in table)
            tensors.update(zip((name for name in names if name is not None), base.tensors))
            return
        for code, start, _, names, shapes in table:
            dtype = dtype_of(code)
            parts = _parts(base, dtype, start * dtype.itemsize, shapes)
            tensors.update(zip(names, [part.to(self.device) for part in parts] if self.copies else parts))
        # The gaps between tensors.
        tensors.pop(None, None)  # type: ignore[call-overload]

    @property
    def near(self) -> Framework:
        """The framework of the memory that files are read into."""
        return Framework("cpu") if self.copies else self

    def name_of(self, dtype: Any) -> str:
        """Returns the name of a type of torch."""
        return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else ""

    def empty(self, shape: Sequence[int], code: str) -> torch.Tensor:
        """Returns a tensor whose bytes are to be written."""
        return torch.empty(tuple(shape), dtype=dtype_of(code), device=self.device)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the memory that files are read into, on the device."""
        return tensor.to(self.device)

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

    def check_descr(self, descr: str) -> None:
        """Refuses types that torch lacks."""
        if descr not in _DESCRS:
            raise ValueError(f"torch has no type for {descr}; load it with framework='np'")

    def of_descr(self, base: torch.Tensor, descr: str, shape: Sequence[int], is_fortran: bool) -> torch.Tensor:
        """Returns the only tensor of the memory, of a type by the text of numpy's files."""
        axes = tuple(shape)
        tensor = base.view(_DESCRS[descr]).view(axes[::-1] if is_fortran else axes).data.to(self.device)
        return tensor.permute(*reversed(range(len(axes)))) if is_fortran else tensor

    def join(self, parts: list[torch.Tensor], axis: int) -> torch.Tensor:
        """Returns a tensor of parts along an axis. torch joins bytes of all types."""
        return torch.cat([part.view(torch.uint8) for part in parts], axis).view(parts[0].dtype)

    def whole(self, base: torch.Tensor, code: str, shape: list[int]) -> torch.Tensor:
        """Returns the only tensor of the memory."""
        return base.view(dtype_of(code)).view(shape).data.to(self.device)
