"""Loading with another type: the file is read in short pieces, and each is converted into the memory of the result."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from .._gpufile import Checkpoint, Group
from . import _load, _mapped
from ._arguments import limit_of
from ._dtypes import CODES, FLOATS

if TYPE_CHECKING:
    from ._placement import Placement
    from ._plan import Bounds

#: The most bytes of a piece, and the most pieces in memory.
PIECE_BYTES, PIECES = 8 << 20, 3

#: A group to read, its memory, and what takes its tensors.
Piece = tuple[Group, Any, Callable[[], None]]


def load(
    checkpoint: Checkpoint,
    framework: Any,
    names: list[str] | None = None,
    dtype: Any = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    mapped: bool | None = None,
) -> dict[str, Any]:
    """Returns the tensors by name, in the order of the file. Those of floating-point types get the type ``dtype``."""
    kept, converted, code = split(checkpoint, framework, names, dtype)
    if not converted:
        return _mapped.load_or_map(checkpoint, framework, names, memory_budget, progress, mapped)
    limit_of(memory_budget)
    kept_bytes, maker = _mapped.len_bytes(checkpoint, kept), Maker(checkpoint, framework, dict.fromkeys(converted), code)
    with _load.Meter(progress, kept_bytes + maker.len_bytes) as meter:
        loaded = _mapped.load_or_map(checkpoint, framework, kept, memory_budget, mapped=mapped)
        meter.add(kept_bytes)
        make(checkpoint, [maker], meter)
    return _load.sort(checkpoint, loaded | maker.made)


def load_placed(
    checkpoint: Checkpoint,
    frameworks: list[Any],
    placement: Placement,
    names: list[str] | None,
    dtype: Any,
    memory_budget: int | None,
    progress: _load.Progress,
) -> list[dict[str, Any]]:
    """Returns the tensors of each device by name, in the order of the files. Those of floating-point types get the type ``dtype``."""
    from . import _placed

    kept, converted, code = split(checkpoint, frameworks[0], names, dtype)
    if not converted:
        return _placed.load(checkpoint, frameworks, placement, names, memory_budget, progress)
    parts, common = parts_of(checkpoint, converted, placement, len(frameworks))
    makers = [Maker(checkpoint, framework, of_device, code) for framework, of_device in zip(frameworks, parts)]
    kept_bytes = _mapped.len_bytes(checkpoint, kept)
    with _load.Meter(progress, kept_bytes + sum(maker.len_bytes for maker in makers)) as meter:
        loaded = _placed.load(checkpoint, frameworks, placement, kept, memory_budget)
        meter.add(kept_bytes)
        make(checkpoint, makers, meter)
    for number, name in enumerate(common):
        owner = makers[number % len(makers)]
        for maker in makers:
            if maker is not owner:
                maker.made[name] = maker.empty(name)
                maker.made[name][...] = owner.made[name]
    return [_load.sort(checkpoint, tensors | maker.made) for tensors, maker in zip(loaded, makers)]


def split(checkpoint: Checkpoint, framework: Any, names: list[str] | None, dtype: Any) -> tuple[list[str] | None, list[str], str]:
    """Returns the names of the tensors that keep their type, those of the others, and their new type."""
    if dtype is None:
        return names, [], ""
    code = code_of(framework, dtype)
    types = {name: _info(checkpoint, name)[0] for name in (checkpoint.names() if names is None else names)}
    converted = {name: None for name in checkpoint.names() if types.get(name, code) in {*FLOATS} - {code}}
    return [name for name in types if name not in converted], list(converted), code


def make(checkpoint: Checkpoint, makers: list[Maker], meter: _load.Meter) -> None:
    """Reads the tensors of all makers, and converts them. The makers take turns."""
    waiting: deque[Callable[[], None]] = deque()
    # Devices of the host share its memory.
    most = PIECES if makers[0].is_host else PIECES * len(makers)
    with _load.Readings(checkpoint) as readings:
        for piece in itertools.chain(_turns(makers), [None] * most):
            if waiting and (piece is None or len(waiting) == most):
                meter.add(readings.wait())
                waiting.popleft()()
            if piece is not None:
                group, base, finish = piece
                readings.start([(group, base, 0, group.len_bytes)], group.len_bytes)
                waiting.append(finish)
                del base, finish, piece


def _turns(makers: list[Maker]) -> Iterator[Piece]:
    left = deque(maker.pieces() for maker in makers)
    while left:
        pieces = left.popleft()
        for piece in pieces:
            yield piece
            left.append(pieces)
            break


def parts_of(
    checkpoint: Checkpoint, names: list[str], placement: Placement, devices: int
) -> tuple[list[dict[str, Bounds | None]], list[str]]:
    """Returns the part of each tensor that a device converts, for each device, and the names of the tensors that all devices get.

    Each of those is converted by one device, in turn, and then copied to the others.
    """
    plan = checkpoint.plan(names, placement._rule, devices)
    common = [name for name, _ in _shapes(plan.shared())]
    parts: list[dict[str, Bounds | None]] = []
    stops: dict[str, int] = {}
    for device in range(devices):
        parts.append(dict.fromkeys(common[device::devices]))
        for name, shape in _shapes(plan.own(device)):
            stored = _info(checkpoint, name)[1]
            box = [(0, axis) for axis in stored]
            for axis, (length, whole) in enumerate(zip(shape, stored)):
                # The slices of the devices follow each other along one axis.
                if length != whole:
                    start = stops.get(name, 0)
                    stops[name] = start + length
                    box[axis] = start, stops[name]
            parts[device][name] = None if shape == stored else box
    return parts, common


def _shapes(groups: list[Group]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for group in groups:
        for _, _, _, names, shapes in group.table():
            yield from ((name, shape) for name, shape in zip(names, shapes) if name is not None)


def code_of(framework: Any, dtype: Any) -> str:
    """Returns the type of the format for a floating-point type of the framework, or for its name."""
    name = dtype if isinstance(dtype, str) else framework.name_of(dtype)
    code = CODES.get(name)
    if code not in FLOATS:
        names = ", ".join(name for name, known in CODES.items() if known in FLOATS)
        kind = ValueError if name else TypeError
        raise kind(f"dtype: expected a type or a name of {names}, not {dtype!r}")
    framework.check(code)
    return code


def _info(checkpoint: Checkpoint, name: str) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    info = checkpoint.info(name)
    assert info is not None
    return info


class Maker:
    """The tensors of another type for one device, or parts of them."""

    def __init__(self, checkpoint: Checkpoint, framework: Any, parts: dict[str, Bounds | None], code: str) -> None:
        self._checkpoint, self._framework, self.code = checkpoint, framework, code
        #: The framework of the memory in which the tensors are converted.
        self._near = framework.near
        self.is_host = self._near.is_host
        self.made: dict[str, Any] = {}
        #: The elements of each tensor.
        self._boxes = {
            name: parts[name] or [(0, axis) for axis in _info(checkpoint, name)[1]]
            for name in checkpoint.names()
            if name in parts
        }
        lens_bytes = {name: _len_bytes(checkpoint, name, box) for name, box in self._boxes.items()}
        self._long = {name: len_bytes for name, len_bytes in lens_bytes.items() if len_bytes > PIECE_BYTES}
        short = [(name, parts[name]) for name in self._boxes if name not in self._long]
        self._groups = checkpoint.parts(short, PIECE_BYTES)
        #: The bytes to read.
        self.len_bytes = _load.total_bytes(self._groups) + sum(self._long.values())

    def pieces(self) -> Iterator[Piece]:
        """Yields what to read, and a function that then converts it."""
        for group in self._groups:
            base = self._near.memory(group)
            yield group, base, partial(self._convert_group, group, base)
            del base
        for name, len_bytes in self._long.items():
            code, _, _ = _info(self._checkpoint, name)
            starts = [start for start, _ in self._boxes[name]]
            tensor = self.empty(name)
            boxes = list(_boxes(shape := tuple(tensor.shape), len_bytes // math.prod(shape)))
            for box in boxes:
                yield self._part(name, code, starts, box, tensor, box is boxes[-1])
            del tensor

    def empty(self, name: str) -> Any:
        """Returns memory for a tensor: for the part that this device converts, or else for all of it."""
        box = self._boxes.get(name)
        shape = _info(self._checkpoint, name)[1] if box is None else [stop - start for start, stop in box]
        return self._near.empty(shape, self.code)

    def _convert_group(self, group: Group, base: Any) -> None:
        arrived: dict[str, Any] = {}
        self._near.fill(arrived, base, group.table())
        for name, tensor in arrived.items():
            made = self._near.empty(tensor.shape, self.code)
            made[...] = tensor
            self.made[name] = self._framework.put(made)

    def _part(self, name: str, code: str, starts: list[int], box: Bounds, tensor: Any, is_last: bool) -> Piece:
        group = self._checkpoint.part(name, [(first + start, first + stop) for first, (start, stop) in zip(starts, box)])
        base = self._near.allocate(group.len_bytes)

        def convert() -> None:
            shape = [stop - start for start, stop in box]
            tensor[tuple(slice(start, stop) for start, stop in box)] = self._near.whole(base, code, shape)
            if is_last:
                self.made[name] = self._framework.put(tensor)

        return group, base, convert


def _len_bytes(checkpoint: Checkpoint, name: str, box: Bounds) -> int:
    """Returns the bytes of a part of a tensor."""
    _, shape, (start, stop) = _info(checkpoint, name)
    return (stop - start) * math.prod(stop - start for start, stop in box) // max(math.prod(shape), 1)


def _boxes(shape: tuple[int, ...], element_bytes: int) -> Iterator[Bounds]:
    """Cuts a tensor into boxes of at most the bytes of a piece. A box is a part of one axis, at one index of each axis before."""
    inner = [element_bytes * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    cut = next(axis for axis, len_bytes in enumerate(inner) if len_bytes <= PIECE_BYTES)
    step = PIECE_BYTES // inner[cut]
    for outer in itertools.product(*map(range, shape[:cut])):
        for start in range(0, shape[cut], step):
            yield [
                *((at, at + 1) for at in outer),
                (start, min(start + step, shape[cut])),
                *((0, axis) for axis in shape[cut + 1 :]),
            ]
