"""Loading to several devices from one process, and the pieces that a group of processes shares.

::

    own      tensors and slices for one device      read into its memory
    shared   tensors for all devices                each reads a part of each piece, and copies it to the others
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._gpufile import Checkpoint, Group
from ._arguments import limit_of
from ._load import Meter, Part, Progress, Readings, cut, sort, total_bytes
from ._placement import Placement

#: The bytes that each device reads in one step of a load.
STEP_BYTES = 256 << 20
#: The steps in flight. The engine works on all of them at once.
AT_ONCE = 2
#: Parts of a piece have a multiple of as many bytes.
UNIT = 4096


class Piece(NamedTuple):
    """Bytes of a shared group. Each device reads a part of them. All fields except ``group`` are in bytes."""

    group: int
    start: int
    stop: int
    part_bytes: int

    def part(self, device: int) -> tuple[int, int]:
        """Returns start and stop of the part that a device reads."""
        start = min(self.start + device * self.part_bytes, self.stop)
        return start, min(start + self.part_bytes, self.stop)


def pieces_of(groups: list[Group], devices: int) -> Iterator[Piece]:
    """Cuts the groups of the tensors for all devices into pieces."""
    for number, group in enumerate(groups):
        start = 0
        while start < group.len_bytes:
            part_bytes = min(-(-(group.len_bytes - start) // devices), STEP_BYTES)
            part_bytes = -(-part_bytes // UNIT) * UNIT
            stop = min(start + part_bytes * devices, group.len_bytes)
            yield Piece(number, start, stop, part_bytes)
            start = stop


class Step(NamedTuple):
    """A read for several devices, and the pieces that it completes."""

    parts: list[Part]
    pieces: list[Piece]

    def start(self, readings: Readings) -> None:
        """Starts the read."""
        readings.start(self.parts, sum(stop - start for _, _, start, stop in self.parts))


def load(
    checkpoint: Checkpoint,
    frameworks: list[Any],
    placement: Placement,
    names: list[str] | None = None,
    memory_budget: int | None = None,
    progress: Progress = False,
) -> list[dict[str, Any]]:
    """Returns the tensors of each device by name, in the order of the files."""
    memory_budget = limit_of(memory_budget)
    plan = checkpoint.plan(names, placement._rule, len(frameworks))
    shared = plan.shared(memory_budget)
    own = [plan.own(device, memory_budget) for device in range(len(frameworks))]
    shared_bases = [[framework.memory(group) for group in shared] for framework in frameworks]
    own_bases = [
        [framework.memory(group) for group in groups] for framework, groups in zip(frameworks, own)
    ]
    loaded: list[dict[str, Any]] = [{} for _ in frameworks]
    views = deque(
        (framework, tensors, base, group)
        for framework, tensors, bases, groups in zip(frameworks, loaded, map(list.__add__, shared_bases, own_bases), own)
        for base, group in zip(bases, shared + groups)
    )
    steps = itertools.chain(_shared_steps(shared, shared_bases), _own_steps(own, own_bases))
    groups = list(itertools.chain(shared, *own))
    with Meter(progress, total_bytes(groups)) as meter, Readings(checkpoint) as readings, contextlib.ExitStack() as copies:
        for framework in frameworks:
            copies.callback(framework.finish)
        in_flight: deque[Step] = deque()
        for step in itertools.islice(steps, AT_ONCE):
            step.start(readings)
            in_flight.append(step)
        while in_flight:
            # The bytes arrive while Python makes the views.
            if views:
                _fill(*views.popleft())
            meter.add(readings.wait())
            arrived = in_flight.popleft()
            # A read waits for the copies that were started before it, so it starts before the next ones.
            for step in itertools.islice(steps, 1):
                step.start(readings)
                in_flight.append(step)
            for piece in arrived.pieces:
                _copy(piece, frameworks, [bases[piece.group] for bases in shared_bases])
        for view in views:
            _fill(*view)
    return [sort(checkpoint, tensors) for tensors in loaded]


def _fill(framework: Any, tensors: dict[str, Any], base: Any, group: Group) -> None:
    framework.fill(tensors, base, group.table())


def _copy(piece: Piece, frameworks: list[Any], bases: list[Any]) -> None:
    """Starts the copies of a piece, from each device that read a part to all others. In each round, no two devices copy to
    the same one."""
    devices = len(bases)
    for distance in range(1, devices):
        for device in range(devices):
            start, stop = piece.part(device)
            if start < stop:
                target = (device + distance) % devices
                frameworks[target].copy(bases[target], bases[device], start, stop)


def _shared_steps(groups: list[Group], bases: list[list[Any]]) -> Iterator[Step]:
    """Yields the steps of the tensors for all devices."""
    step = Step([], [])
    for piece in pieces_of(groups, len(bases)):
        for device, of_device in enumerate(bases):
            start, stop = piece.part(device)
            if start < stop:
                step.parts.append((groups[piece.group], of_device[piece.group], start, stop))
        step.pieces.append(piece)
        if sum(piece.part_bytes for piece in step.pieces) >= STEP_BYTES:
            yield step
            step = Step([], [])
    if step.parts:
        yield step


def _own_steps(groups: list[list[Group]], bases: list[list[Any]]) -> Iterator[Step]:
    """Yields the steps of the tensors and slices for one device, with bytes for all devices in each."""
    devices = [cut(groups, bases, STEP_BYTES) for groups, bases in zip(groups, bases)]
    for lists in itertools.zip_longest(*devices, fillvalue=[]):
        yield Step(list(itertools.chain(*lists)), [])
