"""The bytes that a part of a stored tensor needs, and the way from there to the target."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

#: Shorter runs of bytes are read together with the bytes between them.
SHORT_BYTES = 16 << 10
#: But only if those are not more than this. They take about as long as another range.
GAP_BYTES = 32 << 10


@dataclass(frozen=True)
class Ranges:
    """Ranges of one length in a file, and what they hold of a tensor."""

    #: From the first element of the tensor, in bytes.
    starts: list[int]
    #: In bytes.
    length: int
    #: The strides of the tensor in the ranges put together, in elements.
    strides: tuple[int, ...]
    #: The places of the ranges in the target, in bytes from its first element, if they have nothing else and the target
    #: has them in one piece each.
    targets: list[int] | None


def ranges(sizes: tuple[int, ...], strides: tuple[int, ...], target: tuple[int, ...], item_bytes: int) -> Ranges:
    """Returns the ranges of a part of a stored tensor.

    ``sizes`` are those of the part, and ``strides`` those of the stored tensor. ``target`` has the strides of the tensor
    to fill. All are in elements. No size is 0.
    """
    axes = sorted((axis for axis, size in enumerate(sizes) if size > 1), key=lambda axis: strides[axis])
    length, is_dense, is_same = 1, True, True
    while axes:
        axis = axes[0]
        gap = (strides[axis] - length) * item_bytes
        if gap and (gap < 0 or gap > GAP_BYTES or length * item_bytes >= SHORT_BYTES):
            break
        is_dense = is_dense and gap == 0
        is_same = is_same and target[axis] == strides[axis]
        length += (sizes[axis] - 1) * strides[axis]
        axes.pop(0)
    # The rows of the outermost axis are far from each other.
    axes.reverse()
    packed = list(strides)
    step = length
    for axis in reversed(axes):
        packed[axis] = step
        step *= sizes[axis]
    indices = list(itertools.product(*(range(sizes[axis]) for axis in axes)))

    def places(steps: tuple[int, ...]) -> list[int]:
        return [sum(index * steps[axis] for index, axis in zip(of, axes)) * item_bytes for of in indices]

    targets = places(target) if is_dense and is_same else None
    return Ranges(places(strides), length * item_bytes, tuple(packed), targets)
