"""Loads in the background that hand each tensor out once.

A loader reads its tensors in batches, each into one allocation, or into one for each tensor on a GPU of torch::

    plan → regions → boxes → batches: a group, its memory, its reads in flight
                                │ all reads have ended
                                ▼
                      take, iteration: the views of the batch, which then keep its memory
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from .._gpufile import Checkpoint, Engine, Flight, Group, Lock, visible
from .._pickling import NotPickled
from . import _plan
from ._error import SafetensorError
from ._load import STEP_READS

#: The bytes of a batch, or one longer tensor.
BATCH_BYTES = 256 << 20
#: The bytes for each thread of an engine. Short loads need fewer threads.
THREAD_BYTES = 4 << 20


class TensorMeta(NamedTuple):
    """A tensor as the header of its file describes it."""

    dtype: str
    """The type, for example ``F32``."""
    shape: list[int]
    """The length of each axis."""
    data_offsets: tuple[int, int]
    """Start and stop in the data of the file, in bytes."""


class _Reading(NamedTuple):
    """A read in flight, and the number of its ranges of the file."""

    future: Flight
    reads: int


class _Batch:
    """Tensors that are read together."""

    def __init__(self, group: Group, base: Any) -> None:
        self.group = group
        #: The memory. None when the tensors are there.
        self.base: Any = base
        #: The start of the next read.
        self.start = 0
        self.readings: deque[_Reading] = deque()
        #: The tensors of which this batch has the last box.
        self.names: list[str] = []

    @property
    def is_started(self) -> bool:
        return self.start >= self.group.len_bytes


class PrefetchLoader(NotPickled):
    """Tensors that are loaded in the background, from ``safe_open.prefetch``. Each is handed out once.

    A tensor is complete when it is handed out. On the host, tensors that were read together share memory, which is freed
    when all of them were taken and dropped. Those that nobody took keep theirs until ``close``. Threads may share a loader.
    """

    def __init__(
        self, checkpoint: Checkpoint, framework: Any, regions: list[_plan.Region], engine: Engine | None = None
    ) -> None:
        """Starts to load. Programs call ``safe_open.prefetch`` instead."""
        self._checkpoint, self._framework, self._engine = checkpoint, framework, engine
        self._lock = Lock()
        self._closed = False
        self._regions = {region.name: region for region in regions}
        boxes = [(region.name, box) for region in regions for box in region.boxes]
        groups = checkpoint.parts(boxes, BATCH_BYTES)
        self._batches = [_Batch(group, framework.memory(group)) for group in groups]
        self._unstarted = deque(self._batches)
        self._in_flight: deque[_Reading] = deque()
        self._start()
        #: The tensors of boxes, by their numbers, in the order of the files.
        self._boxes: dict[Any, Any] = {}
        #: The boxes of each tensor that was not taken: the first number, and the batches that have them.
        self._left: dict[str, tuple[int, list[_Batch]]] = {}
        # The bytes arrive while Python makes the views.
        self._number()

    def _number(self) -> None:
        """Numbers the boxes in the order of the batches, and makes the views that need no bytes."""
        owners: list[_Batch] = []
        self._tables: dict[_Batch, list[Any]] = {}
        for batch in self._batches:
            table = []
            for code, start, lens, names, shapes in batch.group.table():
                numbers: list[int | None] = []
                for name in names:
                    numbers.append(None if name is None else len(owners))
                    if name is not None:
                        owners.append(batch)
                table.append((code, start, lens, numbers, shapes))
            if self._framework.copies:
                self._tables[batch] = table
            else:
                self._framework.fill(self._boxes, batch.base, table)
        first = 0
        for region in self._regions.values():
            end = first + len(region.boxes)
            self._left[region.name] = first, list(dict.fromkeys(owners[first:end]))
            owners[end - 1].names.append(region.name)
            first = end

    def _start(self) -> None:
        """Starts reads, in the order of the files, as long as they have few ranges."""
        while self._in_flight and self._in_flight[0].future.done():
            self._in_flight.popleft()
        room = STEP_READS - sum(reading.reads for reading in self._in_flight)
        while self._unstarted:
            batch = self._unstarted[0]
            if batch.is_started:
                self._unstarted.popleft()
                continue
            if room <= 0:
                return
            len_bytes = batch.group.len_bytes
            stop, reads = batch.group.step(batch.start, len_bytes - batch.start, room)
            part = (batch.group, batch.base, batch.start, stop)
            reading = _Reading(self._checkpoint.read([part], self._engine), reads)
            batch.readings.append(reading)
            self._in_flight.append(reading)
            batch.start = stop
            room -= reads

    def names(self) -> list[str]:
        """Returns the names of the tensors that the loader hands out, in the order of the file."""
        return list(self._regions)

    def __len__(self) -> int:
        return len(self._regions)

    def take(self, name: str) -> Any:
        """Returns a tensor, or the part of it that the plan names. Waits until it is there.

        A tensor can be taken once. Raises ``SafetensorError`` if it was handed out before, if the plan does not name it,
        and after ``close``; ``OSError`` if the file cannot be read.
        """
        if name not in self._regions:
            raise SafetensorError(f"tensor {visible(str(name))} is not in the prefetch plan")
        taken = self._take(name)
        if not taken:
            raise SafetensorError(f"tensor {visible(name)} was already delivered by this loader")
        return taken[0]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        left = self._batches.copy()
        while left:
            batch = self._lock.run(partial(self._first_ready, left))
            left.remove(batch)
            for name in batch.names:
                taken = self._take(name)
                if taken:
                    # Only the caller keeps it.
                    yield name, taken.pop()

    def close(self) -> None:
        """Stops the load, and releases all tensors that were not taken. Those that were taken stay."""
        self._lock.run(self._close)

    def __enter__(self) -> PrefetchLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._left)} of {len(self)} tensors left"
        return f"<gpufile.safetensors.PrefetchLoader: {state}>"

    # These run under the lock.

    def _close(self) -> None:
        self._closed = True
        for batch in self._batches:
            batch.base = None
            batch.readings.clear()
        self._in_flight.clear()
        self._unstarted.clear()
        self._boxes.clear()
        self._tables.clear()

    def _first_ready(self, batches: list[_Batch]) -> _Batch:
        """Returns the first batch whose bytes are there, or the first that is read."""
        for batch in batches:
            if batch.is_started and all(reading.future.done() for reading in batch.readings):
                return batch
        return batches[0]

    def _next_reading(self, batch: _Batch) -> Flight | None:
        """Returns a read to wait for, or None if all tensors of the batch are there."""
        self._check_open()
        self._start()
        while batch.readings and batch.readings[0].future.done():
            # It stays in the list if it failed.
            batch.readings[0].future.result()
            batch.readings.popleft()
        if batch.readings:
            return batch.readings[0].future
        if not batch.is_started:
            # The reads before it have as many ranges as may be in flight.
            return self._in_flight[0].future
        if batch in self._tables:
            self._framework.fill(self._boxes, batch.base, self._tables.pop(batch))
        batch.base = None
        return None

    def _pop(self, name: str) -> list[Any]:
        """Returns the boxes of a tensor, as tensors. There are none if the tensor was taken."""
        self._check_open()
        if name not in self._left:
            return []
        first, _ = self._left.pop(name)
        return [self._boxes.pop(first + at) for at in range(len(self._regions[name].boxes))]

    def _check_open(self) -> None:
        if self._closed:
            raise SafetensorError("the prefetch loader is closed")

    # This one takes it.

    def _take(self, name: str) -> list[Any]:
        """Waits for a tensor, and returns it in a list, which is empty if another call took it."""
        _, batches = self._left.get(name, (0, []))
        for batch in batches:
            while (reading := self._lock.run(partial(self._next_reading, batch))) is not None:
                _settle(reading)
                del reading
        boxes = self._lock.run(partial(self._pop, name))
        return [_plan.joined(self._framework, self._regions[name], boxes)] if boxes else []


def _settle(reading: Flight) -> None:
    """Waits for the end of a read. Whoever needs its bytes asks whether it failed."""
    try:
        reading.result()
    except OSError:
        pass


def start(
    checkpoint: Checkpoint, framework: Any, plan: _plan.Plan | None, threads: int | None
) -> PrefetchLoader:
    """Starts a load."""
    regions = _plan.regions_of(checkpoint, framework, plan)
    engine = None
    if threads is not None:
        most = max(checkpoint.len_bytes // THREAD_BYTES, 1)
        engine = Engine(threads=min(threads, most, 1024))
    return PrefetchLoader(checkpoint, framework, regions, engine)
