"""Indices of tensors: the part that must be read, and the index that then remains."""

from __future__ import annotations

import operator
from typing import Any

from . import _error

#: The types of torch whose values are masks. They convert to integers, too.
_MASKS = ("torch.bool", "torch.uint8")


def plan(index: Any, shape: list[int]) -> tuple[list[tuple[int, int]], tuple[Any, ...] | None] | None:
    """Returns the elements to read along each axis, and the index into them. None if the whole tensor is needed.

    The second is None if it would change nothing.
    """
    items = _items(index, shape)
    if items is None:
        return None
    bounds: list[tuple[int, int]] = []
    rest: list[Any] = []
    for item, axis in zip(items, shape):
        if isinstance(item, slice):
            start, stop, step = item.indices(axis)
            if step < 0:
                return None
            bounds.append((start, max(start, stop)))
            rest.append(slice(None, None, step))
        else:
            at = item + axis if item < 0 else item
            if not 0 <= at < axis:
                # The framework reports it.
                return None
            bounds.append((at, at + 1))
            rest.append(0)
    is_trivial = all(item == slice(None, None, 1) for item in rest)
    return bounds, None if is_trivial else tuple(rest)


def _items(index: Any, shape: list[int]) -> list[Any] | None:
    """Returns an integer or a slice for each axis. None if the index has anything else."""
    given = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in given) > 1:
        return None
    items: list[Any] = []
    for item in given:
        if item is Ellipsis:
            items += [slice(None)] * (len(shape) - len(given) + 1)
        elif isinstance(item, slice):
            items.append(item)
        elif isinstance(item, bool) or not hasattr(item, "__index__") or getattr(item, "shape", None):
            return None
        elif str(getattr(item, "dtype", None)) in _MASKS:
            return None
        else:
            try:
                items.append(operator.index(item))
            except TypeError:
                return None
    if len(items) > len(shape):
        return None
    return items + [slice(None)] * (len(shape) - len(items))


def check(index: Any, shape: list[int]) -> None:
    """Refuses the indices that safetensors refuses for numpy, with its texts."""
    if isinstance(index, list) and index:
        raise _error.SafetensorError("Non empty lists are not implemented")
    given = list(index) if isinstance(index, tuple) else [index]
    if any(item is Ellipsis for item in given):
        return
    for number, (item, axis) in enumerate(zip(given, shape)):
        beyond = None
        if isinstance(item, slice):
            for bound in (item.stop, item.start):
                if isinstance(bound, int) and bound > axis:
                    beyond = bound - 1 if bound is item.stop else bound
        elif isinstance(item, int):
            if item < -axis:
                raise _error.SafetensorError(f"Invalid index {item} for dimension {number} of size {axis}")
            if item >= axis:
                beyond = item
        if beyond is not None:
            raise _error.SafetensorError(
                f"Error during slicing [{', '.join(map(_text, given))}] with shape {shape}: index {beyond} out of"
                f" bounds for tensor dimension #{number} of size {axis}"
            )


def _text(item: Any) -> str:
    if not isinstance(item, slice):
        return str(item)
    bounds = ":".join("" if bound is None else str(bound) for bound in (item.start, item.stop))
    return bounds if item.step is None else f"{bounds}:{item.step}"
