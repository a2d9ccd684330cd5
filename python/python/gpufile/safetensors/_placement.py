"""Placements: which device gets which part of a tensor. The native module applies the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ._arguments import integer_of

Cut = Literal["chunks", "even"]


class Share(NamedTuple):
    """The part of a tensor that each device gets."""

    kind: Literal["balanced", "on", "slice", "all"]
    device: int = 0
    axis: int = 0
    cut: Cut = "even"

    @staticmethod
    def balanced() -> Share:
        """Returns the whole tensor on one device, chosen so that all devices get about the same number of bytes."""
        return Share("balanced")

    @staticmethod
    def on(device: int) -> Share:
        """Returns the whole tensor on the device at this position in the list."""
        if integer_of("device", device) < 0:
            raise ValueError(f"device is {device}: expected a position in the list of devices, from 0 on")
        return Share("on", device=device)

    @staticmethod
    def slice(axis: int, cut: Cut = "even") -> Share:
        """Returns one slice for each device: a range of indices along an axis. Negative axes count from the last one.

        If the length is not a multiple of the number of devices, ``"even"`` makes the first slices longer by one, as
        ``torch.tensor_split`` does. ``"chunks"`` makes the last ones shorter or empty, as ``torch.chunk`` and PyTorch's
        ``Shard`` do. For example, 10 indices on 4 devices become 3, 3, 2, 2 (even) or 3, 3, 3, 1 (chunks).
        """
        integer_of("axis", axis)
        if cut not in ("even", "chunks"):
            raise ValueError(f'cut is {cut!r}: use "even" or "chunks"')
        return Share("slice", axis=axis, cut=cut)

    @staticmethod
    def all() -> Share:
        """Returns the whole tensor on every device."""
        return Share("all")


@dataclass(frozen=True)
class _Always:
    """The rule that gives each tensor the same share. Unlike a function, it can be pickled for other processes."""

    share: Share

    def __call__(self, name: str, dtype: str, shape: tuple[int, ...]) -> Share:
        return self.share


@dataclass(frozen=True)
class Placement:
    """A rule that assigns each tensor of a model to one or more devices, by their positions in a list.

    >>> def rule(name, dtype, shape):
    ...     if name.endswith(("q_proj.weight", "up_proj.weight")):
    ...         return Share.slice(axis=0)
    ...     return Share.slice(axis=1) if name.endswith(("o_proj.weight", "down_proj.weight")) else Share.all()
    >>> load_model("Llama-3.1-8B", ["cuda:0", "cuda:1"], placement=Placement.by(rule))
    """

    _rule: Callable[[str, str, tuple[int, ...]], Share]

    @staticmethod
    def by(rule: Callable[[str, str, tuple[int, ...]], Share]) -> Placement:
        """Returns the placement that calls ``rule`` once for each tensor, with its name, type (``"F32"``) and shape."""
        if not callable(rule):
            raise TypeError(f"rule: expected a function of name, type and shape, not {type(rule).__name__}")
        return Placement(rule)

    @staticmethod
    def balanced() -> Placement:
        """Returns a placement of whole tensors that gives all devices about the same number of bytes."""
        return Placement(_Always(Share.balanced()))

    @staticmethod
    def all() -> Placement:
        """Returns a placement that puts all tensors on every device."""
        return Placement(_Always(Share.all()))


def check_placement(placement: Any) -> None:
    """Refuses what is no placement."""
    if not isinstance(placement, Placement):
        raise TypeError(f"placement: expected a Placement, not {type(placement).__name__}")
