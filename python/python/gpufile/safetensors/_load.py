"""Loading: all tensors at once, or in groups that follow each other within a memory budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .._gpufile import Checkpoint, Flight, Group, parse_safetensors
from .._log import timed
from ._arguments import limit_of
from ._opened import bytes_of

if TYPE_CHECKING:
    from ._arguments import Buffer

#: The default bytes of a load that hands its tensors out one after the other.
DEFAULT_BUDGET = 1 << 30
#: The most ranges of a file that a step reads. Each takes some hundred bytes of memory while it is read.
STEP_READS = 1 << 18

Progress = bool | Callable[[int, int], None]

#: The bytes of a group from start to stop, and the group's memory.
Part = tuple[Group, Any, int, int]


def load_bytes(data: Buffer, framework: Any) -> dict[str, Any]:
    """Returns the tensors in the bytes of a file."""
    data = bytes_of(data)
    group, _ = parse_safetensors(data)
    base = framework.allocate(group.len_bytes, is_read=False)
    group.copy(data, base)
    tensors: dict[str, Any] = {}
    framework.fill(tensors, base, group.table())
    return tensors


def load(
    checkpoint: Checkpoint,
    framework: Any,
    names: list[str] | None = None,
    memory_budget: int | None = None,
    progress: Progress = False,
) -> dict[str, Any]:
    """Returns the tensors by name, in the order of the file."""
    memory_budget = limit_of(memory_budget)
    if framework.copies:
        # Each group takes memory twice, so few are loaded at once.
        return dict(stream(checkpoint, framework, names, memory_budget or DEFAULT_BUDGET, progress))
    step_bytes = framework.step_bytes
    groups = checkpoint.groups(names, min(memory_budget or step_bytes, step_bytes) if step_bytes else memory_budget)
    bases: list[Any] = []
    loaded: dict[str, Any] = {}
    total = total_bytes(groups)

    def allocated() -> Iterator[Any]:
        for base in framework.memories(groups):
            bases.append(base)
            yield base

    with timed("load", total), Meter(progress, total, step_bytes) as meter, Readings(checkpoint) as readings:
        # The bytes of a step arrive while Python allocates the memory of the next.
        for step in meter.steps(groups, allocated()):
            if len(readings) == meter.most_steps:
                meter.add(readings.wait())
            readings.start(*step)
        for group, base in zip(groups, bases):
            framework.fill(loaded, base, group.table())
        while readings:
            meter.add(readings.wait())
    return loaded


def stream(
    checkpoint: Checkpoint,
    framework: Any,
    names: list[str] | None = None,
    memory_budget: int = DEFAULT_BUDGET,
    progress: Progress = False,
) -> Iterator[tuple[str, Any]]:
    """Yields names and tensors as they arrive, in the order of the file.

    Three groups share the budget: the one whose last tensor the caller still has, the one that is handed out, and the
    one that is read.
    """
    groups = checkpoint.groups(names, max(memory_budget // 3, 1))
    with Meter(progress, total_bytes(groups)) as meter, Readings(checkpoint) as readings:
        waiting: tuple[Group, Any] | None = None
        for group in [*groups, None]:
            begun = None
            if group is not None:
                begun = group, framework.memory(group)
                readings.start([(*begun, 0, group.len_bytes)], group.len_bytes)
            if waiting is not None:
                meter.add(readings.wait())
                arrived: dict[str, Any] = {}
                framework.fill(arrived, waiting[1], waiting[0].table())
                waiting = None
                for name in list(arrived):
                    yield name, arrived.pop(name)
            waiting = begun
            del begun


def cut(groups: list[Group], bases: Iterable[Any], step_bytes: int) -> Iterator[list[Part]]:
    """Cuts groups into steps of ``step_bytes`` bytes. The last step and steps of thin slices are shorter."""
    parts: list[Part] = []
    room, reads = step_bytes, STEP_READS
    for group, base in zip(groups, bases):
        start = 0
        while start < group.len_bytes:
            stop, count = group.step(start, room, reads)
            parts.append((group, base, start, stop))
            room -= stop - start
            reads -= count
            start = stop
            if room == 0 or reads == 0:
                yield parts
                parts, room, reads = [], step_bytes, STEP_READS
    if parts:
        yield parts


def sort(checkpoint: Checkpoint, loaded: dict[str, Any]) -> dict[str, Any]:
    """Returns tensors in the order of the files."""
    return {name: loaded[name] for name in checkpoint.names() if name in loaded}


def total_bytes(groups: list[Group]) -> int:
    """Returns the bytes of groups."""
    return sum(group.len_bytes for group in groups)


class Readings:
    """Reads in flight, in their order. Leaving the context ends those that nobody waited for, without a wait."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._readings: list[tuple[Flight, int]] = []

    def start(self, parts: list[Part], len_bytes: int) -> None:
        """Starts to read the parts."""
        self._readings.append((self._checkpoint.read(parts), len_bytes))

    def wait(self) -> int:
        """Waits for the first read, and returns the number of its bytes."""
        reading, len_bytes = self._readings.pop(0)
        reading.result()
        return len_bytes

    def __len__(self) -> int:
        return len(self._readings)

    def __enter__(self) -> Readings:
        return self

    def __exit__(self, *exception: object) -> None:
        # Workers end the chunks that they have begun. The reads keep their memory until then.
        self._readings.clear()


class Meter:
    """The progress of a load, in bytes: for a function, or for a bar of tqdm if it is installed."""

    #: A load with progress has as many steps, unless they would be shorter than this.
    STEPS = 32
    SHORTEST_STEP = 256 << 20

    def __init__(self, progress: Progress, total: int, step_bytes: int | None = None) -> None:
        if not (progress is None or isinstance(progress, bool) or callable(progress)):
            raise TypeError(f"progress: expected True, False or a function, not {type(progress).__name__}")
        self._total = total
        self._step_bytes = step_bytes or max(total, 1)
        self._done = 0
        self._bar = None
        self._report = progress if callable(progress) else None
        if progress is True:
            self._bar = _bar(self._total)

    @property
    def most_steps(self) -> int | None:
        """The most steps in flight. They are few in a load that reports progress, so that steps end one after the other."""
        return None if self._report is None and self._bar is None else 2

    def steps(self, groups: list[Group], bases: Iterable[Any]) -> Iterator[tuple[list[Part], int]]:
        """Cuts groups into steps, each with its bytes."""
        step_bytes = self._step_bytes
        if self.most_steps is not None:
            step_bytes = max(self._total // self.STEPS, self.SHORTEST_STEP)
        # Loads without bytes report that, too.
        for parts in cut(groups, bases, step_bytes) if self._total else [[]]:
            yield parts, sum(stop - start for _, _, start, stop in parts)

    def add(self, len_bytes: int) -> None:
        """Reports more bytes."""
        self._done += len_bytes
        if self._report is not None:
            self._report(self._done, self._total)
        if self._bar is not None:
            self._bar.update(len_bytes)

    def finish(self) -> None:
        """Reports the bytes that are left."""
        self.add(self._total - self._done)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(total_bytes: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm(total=total_bytes, unit="B", unit_scale=True, desc="Loading")
