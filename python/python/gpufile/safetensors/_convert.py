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
    code = None if dtype is None else code_of(framework, dtype)
    if code is None:
        return _mapped.load_or_map(checkpoint, framework, names, memory_budget, progress, mapped)
    types = {name: _info(checkpoint, name)[0] for name in (checkpoint.names() if names is None else names)}
    converted = [name for name, own in types.items() if own in FLOATS and own != code]
    if not converted:
        return _mapped.load_or_map(checkpoint, framework, names, memory_budget, progress, mapped)
    limit_of(memory_budget)
    apart = set(converted)
    kept = [name for name in types if name not in apart]
    kept_bytes, maker = _mapped.len_bytes(checkpoint, kept), _Maker(checkpoint, framework, converted, code)
    loaded: dict[str, Any] = {}
    with _load.Meter(progress, kept_bytes + maker.len_bytes) as meter, _load.Readings(checkpoint) as readings:
        loaded |= _mapped.load_or_map(checkpoint, framework, kept, memory_budget, mapped=mapped)
        meter.add(kept_bytes)
        waiting: deque[Callable[[], None]] = deque()
        for piece in itertools.chain(maker.pieces(), [None] * PIECES):
            if waiting and (piece is None or len(waiting) == PIECES):
                meter.add(readings.wait())
                waiting.popleft()()
            if piece is not None:
                group, base, finish = piece
                readings.start([(group, base, 0, group.len_bytes)], group.len_bytes)
                waiting.append(finish)
                del base, finish, piece
        loaded |= maker.made
    return {name: loaded[name] for name in checkpoint.names() if name in loaded}


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


class _Maker:
    """The tensors of another type."""

    def __init__(self, checkpoint: Checkpoint, framework: Any, names: list[str], code: str) -> None:
        self._checkpoint, self._framework, self._code = checkpoint, framework, code
        #: The framework of the memory in which the tensors are converted.
        self._near = framework.near
        self.made: dict[str, Any] = {}
        lens_bytes = {name: _mapped.len_bytes(checkpoint, [name]) for name in names}
        short = [name for name in names if lens_bytes[name] <= PIECE_BYTES]
        self._groups = checkpoint.groups(short, PIECE_BYTES)
        self._long = {name: len_bytes for name, len_bytes in lens_bytes.items() if len_bytes > PIECE_BYTES}
        #: The bytes to read.
        self.len_bytes = _load.total_bytes(self._groups) + sum(self._long.values())

    def pieces(self) -> Iterator[Piece]:
        """Yields what to read, and a function that then converts it."""
        for group in self._groups:
            base = self._near.memory(group)
            yield group, base, partial(self._convert_group, group, base)
            del base
        for name, len_bytes in self._long.items():
            code, shape, _ = _info(self._checkpoint, name)
            tensor = self._near.empty(shape, self._code)
            boxes = list(_boxes(shape, len_bytes // math.prod(shape)))
            for box in boxes:
                yield self._part(name, code, box, tensor, box is boxes[-1])
            del tensor

    def _convert_group(self, group: Group, base: Any) -> None:
        arrived: dict[str, Any] = {}
        self._near.fill(arrived, base, group.table())
        for name, tensor in arrived.items():
            made = self._near.empty(tensor.shape, self._code)
            made[...] = tensor
            self.made[name] = self._framework.put(made)

    def _part(self, name: str, code: str, box: Bounds, tensor: Any, is_last: bool) -> Piece:
        group = self._checkpoint.part(name, box)
        base = self._near.allocate(group.len_bytes)

        def convert() -> None:
            shape = [stop - start for start, stop in box]
            tensor[tuple(slice(start, stop) for start, stop in box)] = self._near.whole(base, code, shape)
            if is_last:
                self.made[name] = self._framework.put(tensor)

        return group, base, convert


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
