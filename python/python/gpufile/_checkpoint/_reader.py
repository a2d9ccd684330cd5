"""The reader of checkpoints."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint.filesystem as torch_storage
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from .. import _memory
from .._future import Future
from .._gpufile import Engine, File
from .._tensors import refuse_without_memory
from . import _files, _records
from ._objects import Objects, at_once, file_system, go_to, shown
from ._ranges import Ranges, ranges

#: Bytes of intermediate memory that are filled by one call.
TEMPORARY_BYTES = 256 << 20
#: Larger parts are split before they pass through intermediate memory.
PART_BYTES = 64 << 20


class StorageReader(torch_storage.FileSystemReader):
    """A storage for ``torch.distributed.checkpoint.load`` that reads into GPU and host memory.

    >>> import torch.distributed.checkpoint as dcp
    >>> dcp.load(state_dict, storage_reader=gpufile.torch.StorageReader("checkpoint"))

    It reads the checkpoints of ``StorageWriter`` and of torch's ``FileSystemWriter``. Each rank reads only the bytes
    that its tensors need, straight into their memory. Runs of less than 16 KiB are read together with gaps of up to 32 KiB.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        _extension_registry: Any = None,
        *,
        engine: Engine | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a reader of a folder, which may be an address. The positional parameters are those of torch's reader.

        ``storage_options``, for an address, are those of ``gpufile.RemoteFile``.
        """
        if not isinstance(engine, (Engine, type(None))):
            raise TypeError(f"engine: expected a gpufile.Engine, not {type(engine).__name__}")
        fs, folder = file_system("path", path, storage_options, engine)
        super().__init__("", _extension_registry)
        self.fs, self.path = fs, fs.init_path(folder)
        self._engine, self._storage_options = engine, storage_options

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a load, from another folder if the argument is one."""
        super().reset()
        go_to(self, checkpoint_id)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The folder. torch logs it."""
        return self.fs.url if isinstance(self.fs, Objects) else super().checkpoint_id

    def __repr__(self) -> str:
        return f"<gpufile.torch.StorageReader {shown(self)!r}>"

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """Reads the items of this rank. Returns a completed future.

        Raises ``TransferError`` if a file ends early, and ``ValueError`` if it has another tensor than the metadata says.
        """
        of_files: dict[str, list[ReadItem]] = {}
        # The items that only torch knows how to read.
        others: list[ReadItem] = []
        for item in plan.items:
            stored = self.storage_data[item.storage_index]
            if getattr(stored, "transform_descriptors", None):
                others.append(item)
            else:
                of_files.setdefault(stored.relative_path, []).append(item)
        reads = list(map(_FileReads, self._open(of_files)))
        try:
            for read, items in zip(reads, of_files.values()):
                others += read.start(items, self.storage_data, planner)
            for read in reads:
                read.copy()
            for read in reads:
                read.finish(planner)
        finally:
            for read in reads:
                read.close()
        return super().read_data(LoadPlan(others), planner)

    def _open(self, names: Iterable[str]) -> list[File]:
        if isinstance(self.fs, Objects):
            return at_once(self.fs.open, names)
        return [File(Path(self.path) / name, engine=self._engine) for name in names]


@dataclass
class _Copy:
    """A part of a stored tensor that passes through intermediate memory to its target."""

    target: torch.Tensor
    dtype: torch.dtype
    start: int
    ranges: Ranges

    @property
    def nbytes(self) -> int:
        return len(self.ranges.starts) * self.ranges.length


@dataclass
class _FileReads:
    """The reads of one file."""

    file: File
    _flights: list[Future[int]] = field(default_factory=list)
    _copies: list[_Copy] = field(default_factory=list)
    _read: list[tuple[ReadItem, torch.Tensor]] = field(default_factory=list)

    def start(self, items: list[ReadItem], places: dict[Any, Any], planner: LoadPlanner) -> list[ReadItem]:
        """Starts the reads that go straight to their targets. Returns the items that only torch knows how to read."""
        self._read_bytes([item for item in items if item.type == LoadItemType.BYTE_IO], places, planner)
        items = [item for item in items if item.type != LoadItemType.BYTE_IO]
        records = self._records({(place.offset, place.length) for place in _places(items, places)})
        others = []
        buffers: list[Any] = []
        offsets: list[int] = []
        for item in items:
            place = places[item.storage_index]
            stored = records[place.offset, place.length]
            if stored is None:
                others.append(item)
                continue
            target = planner.resolve_tensor(item).detach()
            refuse_without_memory(item.dest_index.fqn, target)
            first = place.offset + stored.start + _offset_of(item, stored, self.file.name) * stored.dtype.itemsize
            if tuple(target.shape) != tuple(item.lengths):
                raise ValueError(
                    f"tensor {item.dest_index.fqn!r} has the shape {tuple(target.shape)}, but {tuple(item.lengths)} is"
                    " to be read"
                )
            self._read.append((item, target))
            if target.numel() == 0:
                continue
            strides = stored.strides
            found = ranges(tuple(target.shape), strides, target.stride(), stored.dtype.itemsize)
            is_direct = target.dtype == stored.dtype and _memory.is_plain(target) and _memory.is_reachable(target.device)
            if is_direct and found.targets is not None and not (target.is_conj() or target.is_neg()):
                buffers += _memory.parts(_memory.span(target), found.targets, found.length)
                offsets += [first + start for start in found.starts]
            else:
                self._copies += _parts(target, stored.dtype, first, strides)
        if buffers:
            self._flights.append(self.file.read_many_async(buffers, offsets))
        return others

    def copy(self) -> None:
        """Reads what passes through intermediate memory. While one group is copied, the next is read."""
        waiting: _Group | None = None
        for copies in _grouped(self._copies):
            group = self._start_group(copies)
            if waiting is not None:
                waiting.copy()
            waiting = group
        if waiting is not None:
            waiting.copy()
        self._copies.clear()

    def finish(self, planner: LoadPlanner) -> None:
        """Waits for the reads, and gives the tensors to the planner."""
        for flight in self._flights:
            flight.result()
        self._flights.clear()
        for item, target in self._read:
            planner.commit_tensor(item, target)

    def close(self) -> None:
        """Ends the reads that are in flight, after a failure, and closes the file."""
        for flight in self._flights:
            flight.cancel()
        for flight in self._flights:
            try:
                flight.result()
            except BaseException:
                # The first failure is the one to raise.
                continue
        self.file.close()

    def _read_bytes(self, items: list[ReadItem], places: dict[Any, Any], planner: LoadPlanner) -> None:
        found = [(places[item.storage_index].offset, places[item.storage_index].length) for item in items]
        buffers = [bytearray(length) for _, length in found]
        self.file.read_many(buffers, [offset for offset, _ in found])
        for item, buffer in zip(items, buffers):
            planner.load_bytes(item, io.BytesIO(buffer))

    def _records(self, places: set[tuple[int, int]]) -> dict[tuple[int, int], _records.Stored | None]:
        """Reads the fronts of records, by their offsets and lengths."""
        ordered = sorted(places)
        fronts = [bytearray(min(length, _records.FRONT_BYTES)) for _, length in ordered]
        self.file.read_many(fronts, [offset for offset, _ in ordered])
        return {place: _records.parse(bytes(front), place[1]) for place, front in zip(ordered, fronts)}

    def _start_group(self, copies: list[_Copy]) -> _Group:
        buffers: list[Any] = []
        offsets: list[int] = []
        memories = []
        for copy in copies:
            device = copy.target.device if _memory.is_reachable(copy.target.device) else torch.device("cpu")
            memory = torch.empty(copy.nbytes, dtype=torch.uint8, device=device)
            memories.append(memory)
            length = copy.ranges.length
            buffers += _memory.parts(memory, range(0, copy.nbytes, length), length)
            offsets += [copy.start + start for start in copy.ranges.starts]
        flight = self.file.read_many_async(buffers, offsets)
        # A failure ends it.
        self._flights.append(flight)
        return _Group(copies, memories, flight)


@dataclass
class _Group:
    """Copies whose intermediate memory is read together."""

    copies: list[_Copy]
    memories: list[torch.Tensor]
    flight: Future[int]

    def copy(self) -> None:
        """Waits for the read, and fills the targets."""
        self.flight.result()
        for copy, memory in zip(self.copies, self.memories):
            values = memory.view(copy.dtype).as_strided(tuple(copy.target.shape), copy.ranges.strides)
            copy.target.copy_(values)


def _grouped(copies: list[_Copy]) -> Iterator[list[_Copy]]:
    """Yields copies in groups of about ``TEMPORARY_BYTES``."""
    group: list[_Copy] = []
    nbytes = 0
    for copy in copies:
        if group and nbytes + copy.nbytes > TEMPORARY_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(copy)
        nbytes += copy.nbytes
    if group:
        yield group


def _places(items: list[ReadItem], places: dict[Any, Any]) -> Iterable[Any]:
    return (places[item.storage_index] for item in items)


def _offset_of(item: ReadItem, stored: _records.Stored, path: str) -> int:
    """Returns the place of a part in a stored tensor, in elements. Raises ``ValueError`` if it is not in there."""
    starts, lengths = tuple(item.storage_offsets), tuple(item.lengths)
    is_within = len(starts) == len(lengths) == len(stored.shape) and all(
        0 <= start and 0 <= length and start + length <= size
        for start, length, size in zip(starts, lengths, stored.shape)
    )
    if not is_within:
        raise ValueError(
            f"cannot read {item.storage_index.fqn!r} from {path!r}: the stored tensor has the shape"
            f" {stored.shape}, and {lengths} at {starts} is to be read"
        )
    return sum(start * stride for start, stride in zip(starts, stored.strides))


def _parts(target: torch.Tensor, dtype: torch.dtype, start: int, strides: tuple[int, ...]) -> list[_Copy]:
    """Returns the copies that fill a target, each with not much intermediate memory."""
    sizes = tuple(target.shape)
    made = _Copy(target, dtype, start, ranges(sizes, strides, target.stride(), dtype.itemsize))
    axis = max(range(len(sizes)), key=lambda axis: strides[axis] if sizes[axis] > 1 else -1, default=-1)
    if made.nbytes <= PART_BYTES or axis < 0 or sizes[axis] < 2:
        return [made]
    half = sizes[axis] // 2
    behind = start + half * strides[axis] * dtype.itemsize
    parts = _parts(target.narrow(axis, 0, half), dtype, start, strides)
    return parts + _parts(target.narrow(axis, half, sizes[axis] - half), dtype, behind, strides)
