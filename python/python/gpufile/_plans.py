"""The plan of a save, which the next save of the same tensors uses again.

A program that trains saves the same tensors again and again, with other values. Names, checks and the order of the file
take longer than the calls that copy the tensors, and the program waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from . import _gpufile, _memory
from ._sources import Source
from ._states import Flat

#: A name, a type and a shape, as the file has them.
Spec = tuple[str, str, list[int]]

_TENSORS = (torch.Tensor, torch.nn.Parameter)
#: States may be nested as deep. Deeper ones may contain themselves.
_DEPTH = 100


class Leaves:
    """The tensors and the other values of a state, without names."""

    def __init__(self, state: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        #: The keys of the state, and the classes of all its parts.
        self.structure: list[Any] = []
        #: The numbers and texts of the state, each behind its text in Python.
        self.values: list[tuple[str, Any]] = []
        #: False for states with tensors or values of other classes, or without an end. Each of their saves needs a plan of
        #: its own.
        self.is_usual = True
        self._add(state, 0)

    def _add(self, value: Any, depth: int) -> None:
        if not self.is_usual:
            return
        kind = type(value)
        if kind in _TENSORS:
            self.structure.append(torch.Tensor)
            self.tensors.append(value)
        elif isinstance(value, dict) and depth < _DEPTH:
            # Keys of other classes may be equal, as 1 and True.
            self.structure += (kind, len(value), *value, *map(type, value))
            for item in value.values():
                self._add(item, depth + 1)
        elif kind in (list, tuple) and depth < _DEPTH:
            self.structure += (kind, len(value))
            for item in value:
                self._add(item, depth + 1)
        elif value is None or kind in (bool, int, float, str):
            # NaN is not equal to itself, and -0.0 is equal to 0.0.
            self.structure.append(kind)
            self.values.append((repr(value), value))
        else:
            self.is_usual = False


def place_of(t: torch.Tensor) -> tuple[Any, ...] | None:
    """Returns all properties of a tensor that a plan depends on. None if its address does not tell it from others."""
    if t.layout is not torch.strided:
        return None
    return t.data_ptr(), t.dtype, t.shape, t.stride(), t.device, t.is_conj(), t.is_neg()


def _has_place(t: torch.Tensor) -> bool:
    # Empty tensors have no address, and the bytes of some others are those of a tensor without their flag.
    is_usual = t.layout is torch.strided and t.numel() > 0 and _memory.is_reachable(t.device)
    return is_usual and not t.is_conj() and not t.is_neg()


class Changed(Exception):
    """A tensor is not the one of the plan."""


class Plan(NamedTuple):
    """The content of a file, except the tensors' bytes."""

    flat: Flat
    specs: list[Spec]
    metadata: dict[str, str] | None
    #: The bytes of all tensors.
    total_bytes: int
    #: The tensors in the order of the file, as numbers in ``Leaves.tensors``. None if only this save can use the plan.
    order: list[int] | None
    #: The tensors whose bytes are those of others.
    tied: set[int]
    #: The flat bytes of the tensors without ``order``.
    memories: list[torch.Tensor]
    structure: list[Any]
    values: list[tuple[str, Any]]
    places: list[Any]
    given: dict[str, str] | None

    def may_fit(self, leaves: Leaves) -> bool:
        """Returns whether a state has the same number of tensors in the same nesting. Its numbers and texts may differ."""
        return self.order is not None and leaves.is_usual and leaves.structure == self.structure

    def updated(self, leaves: Leaves, given: dict[str, str] | None) -> Plan:
        """Returns the plan with the numbers and texts of a state that fits, and its metadata. Raises what ``plan_of``
        raises.

        One thread at a time may call it, also for plans that came from one.
        """
        if leaves.values == self.values and given == self.given:
            return self
        self.flat.replace_values([value for _, value in leaves.values])
        metadata = self.flat.metadata(_copied(given))
        if given != self.given:
            # It checks the metadata, too. The order is the same.
            _gpufile.safetensors_order(self.specs, metadata)
        return self._replace(metadata=metadata, values=leaves.values, given=_copied(given))

    def sources(self, leaves: Leaves, backwards: bool) -> Iterator[Source]:
        """Yields the bytes of the tensors, in the order of the file or backwards. Raises ``Changed`` at a tensor that the
        plan does not have.

        The first tensors are copied before the last ones are compared.
        """
        step = -1 if backwards else 1
        if self.order is None:
            yield from map(Source, self.memories[::step])
            return
        for number in (*self.tied, *self.order[::step]):
            if place_of(leaves.tensors[number]) != self.places[number]:
                raise Changed
            if number not in self.tied:
                yield Source(leaves.tensors[number])


def plan_of(state: dict[Any, Any], given: dict[str, str] | None, leaves: Leaves) -> Plan:
    """Checks a state, and plans its file. Raises what ``Saver.save`` raises."""
    from .safetensors.torch import items

    flat = Flat(state)
    made = items(flat.tensors)
    specs = [(name, code, shape) for name, code, shape, _ in made]
    order = _gpufile.safetensors_order(specs, flat.metadata(_copied(given)))
    flat.is_flat = flat.is_flat and order == sorted(order)
    metadata = flat.metadata(_copied(given))
    memories = [made[number][3] for number in order]
    total = sum(memory.nbytes for memory in memories)
    numbers: list[int] | None = None
    tied: set[int] = set()
    places: list[Any] = []
    if leaves.is_usual and all(map(_has_place, leaves.tensors)):
        places = [place_of(tensor) for tensor in leaves.tensors]
        first = {id(tensor): number for number, tensor in reversed(list(enumerate(leaves.tensors)))}
        tensors = list(flat.tensors.values())
        numbers = [first[id(tensors[number])] for number in order]
        tied = set(range(len(leaves.tensors))).difference(numbers)
        # The plan keeps no tensor of the program.
        memories = []
        flat.forget_tensors()
    return Plan(flat, specs, metadata, total, numbers, tied, memories, leaves.structure, leaves.values, places, _copied(given))


def _copied(given: dict[str, str] | None) -> dict[str, str] | None:
    return None if given is None else dict(given)
