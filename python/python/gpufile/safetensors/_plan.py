"""Plans of prefetches: which tensors, and which parts of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._gpufile import Checkpoint, visible
from ._dtypes import stored_shape
from ._error import SafetensorError
from ._names import is_pattern, matching

#: The part of a tensor that a plan names: all of it, rows, or for each axis a slice or a list of slices.
Part = slice | tuple[slice | Sequence[slice], ...] | None
Plan = Mapping[str, Part]

#: The elements from start to stop along each axis.
Bounds = list[tuple[int, int]]


class Region(NamedTuple):
    """A tensor of a load, or a part of one."""

    name: str
    #: The boxes of elements to read, the last axis the fastest. None stands for the whole tensor.
    boxes: list[Bounds | None]
    #: The number of slices along each axis.
    grid: tuple[int, ...]


def regions_of(checkpoint: Checkpoint, framework: Any, plan: Plan | None) -> list[Region]:
    """Returns what a plan names, in the order of the files. None names all tensors."""
    if plan is not None and not isinstance(plan, Mapping):
        raise TypeError(f"plan: expected a dict of names and slices, or None, not {type(plan).__name__}")
    parts = dict.fromkeys(checkpoint.names()) if plan is None else _chosen(checkpoint, plan)
    if not parts and plan is not None:
        raise SafetensorError("the plan selects no tensors")
    return [_region(checkpoint, framework, name, part) for name, part in parts.items()]


def _chosen(checkpoint: Checkpoint, plan: Plan) -> dict[str, Part]:
    """Returns the part of each tensor that a plan names, in the order of the files.

    A name comes before patterns, and a pattern before later ones.
    """
    chosen: dict[str, Part] = {}
    patterns: list[tuple[str, Part]] = []
    for name, part in plan.items():
        if not isinstance(name, str):
            raise SafetensorError(f"the keys of the plan must be tensor names or patterns, not {type(name).__name__}")
        if name in checkpoint:
            chosen[name] = part
        elif is_pattern(checkpoint, name):
            patterns.append((name, part))
        else:
            raise SafetensorError(f"File does not contain tensor {visible(name)}")
    for pattern, part in patterns:
        for name in matching(checkpoint, pattern):
            chosen.setdefault(name, part)
    return {name: chosen[name] for name in checkpoint.names() if name in chosen}


def _region(checkpoint: Checkpoint, framework: Any, name: str, part: Part) -> Region:
    info = checkpoint.info(name)
    assert info is not None
    shape = stored_shape(framework, name, *info[:2])
    if part is None:
        return Region(name, [None], ())
    if isinstance(part, slice):
        if not shape:
            raise SafetensorError(f"the plan slices {visible(name)}, which is 0-d")
        part = (part,)
    if not isinstance(part, tuple):
        raise SafetensorError(
            f"the part of {visible(name)} in the plan must be None or a slice, or a tuple of one for each axis, not"
            f" {type(part).__name__}"
        )
    if len(part) > len(shape):
        raise SafetensorError(f"the plan slices {len(part)} axes of {visible(name)}, which has {len(shape)}")
    axes: list[Bounds] = [[(0, axis)] for axis in shape]
    for number, given in enumerate(part):
        slices = list(given) if isinstance(given, (list, tuple)) else [given]
        axes[number] = [_range(name, number, item, shape[number]) for item in slices] or [(0, 0)]
    boxes: list[Bounds | None] = [list(box) for box in itertools.product(*axes)]
    return Region(name, boxes, tuple(map(len, axes)))


def _range(name: str, axis: int, given: Any, length: int) -> tuple[int, int]:
    """Returns start and stop of a slice. They must exist: a plan names what it loads."""
    where = f"axis {axis} of {visible(name)} in the plan"
    if not isinstance(given, slice):
        raise SafetensorError(f"{where}: expected a slice or a list of slices, not {type(given).__name__}")
    try:
        _, _, step = given.indices(length)
    except (TypeError, ValueError) as error:
        raise SafetensorError(f"{where}: invalid prefetch plan slice: {error}") from None
    if step != 1:
        raise SafetensorError(f"{where}: slices must have step 1, not {step}")
    found = []
    for label, bound, default in (("start", given.start, 0), ("stop", given.stop, length)):
        at = default if bound is None else bound.__index__()
        if not -length <= at <= length:
            raise SafetensorError(f"{where}: {label} {at} is out of range for length {length}")
        found.append(at + length if at < 0 else at)
    return found[0], max(found)


def joined(framework: Any, region: Region, parts: list[Any]) -> Any:
    """Returns the tensor of a region, from those of its boxes."""
    for axis in reversed(range(len(region.grid))):
        count = region.grid[axis]
        if count > 1:
            parts = [framework.join(parts[at : at + count], axis) for at in range(0, len(parts), count)]
    (tensor,) = parts
    return tensor
