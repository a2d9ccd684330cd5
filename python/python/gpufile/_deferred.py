"""Tensors of a file that are read when something uses their values, and then only in part.

A loader that divides a model over processes takes a slice of each tensor that it gets: with ``narrow``, ``chunk`` or an
index. A slice of a deferred tensor is a deferred tensor, so that only its bytes are read.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .safetensors import SafeSlice

_aten: Any = torch.ops.aten
#: Versions of torch differ in the types of its methods.
_Base: Any = torch.Tensor

#: The part along an axis of the file: start and stop, or the only element.
Index = tuple[int, int] | int


class Deferred(_Base):  # type: ignore[misc]
    """A tensor without memory. Operations other than slices and transpositions read it first."""

    _source: SafeSlice
    _index: list[Index]
    #: The axes of the file that are axes of this tensor, in its order.
    _axes: list[int]
    _made: torch.Tensor | None

    @staticmethod
    def __new__(
        cls: Any, source: SafeSlice, index: list[Index], axes: list[int], dtype: torch.dtype, device: torch.device
    ) -> Deferred:
        bounds = (index[axis] for axis in axes)
        shape = [bound[1] - bound[0] for bound in bounds if isinstance(bound, tuple)]
        deferred: Deferred = _Base._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        deferred._source, deferred._index, deferred._axes, deferred._made = source, index, axes, None
        return deferred

    # Python's own methods, which do not come to `__torch_dispatch__`.

    def __repr__(self, **_: Any) -> str:
        return f"Deferred(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"

    def tolist(self) -> Any:
        """Returns the values as Python numbers."""
        return self._read().tolist()

    def numpy(self, **options: Any) -> Any:
        """Returns the values as an array."""
        return self._read().numpy(**options)

    # Results would be of this class, too.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        this, kwargs = args[0] if args else None, kwargs or {}
        # Values that were read may have been changed.
        if isinstance(this, Deferred) and this._made is None:
            part = this._parts.get(func)
            # torch reports what a tensor of this shape does not allow.
            with contextlib.suppress(IndexError, ValueError):
                if part is not None:
                    return part(this, *args[1:], **kwargs)
        args, kwargs = tree_map_only(Deferred, Deferred._read, (args, kwargs))
        return func(*args, **kwargs)

    def _with(self, index: list[Index], axes: list[int]) -> Deferred:
        return Deferred(self._source, index, axes, self.dtype, self.device)

    def _same(self) -> Deferred:
        return self._with(self._index, self._axes)

    def _slice(
        self, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
    ) -> Deferred:
        if step != 1:
            raise ValueError("the elements do not follow each other")
        first, stop, _ = slice(start, end).indices(self.shape[dim])
        index, axis = list(self._index), self._axes[dim]
        bound = index[axis]
        assert isinstance(bound, tuple)
        index[axis] = bound[0] + first, bound[0] + max(first, stop)
        return self._with(index, self._axes)

    def _select(self, dim: int, at: int) -> Deferred:
        index, axis = list(self._index), self._axes[dim]
        bound = index[axis]
        assert isinstance(bound, tuple)
        index[axis] = range(*bound)[at]
        return self._with(index, [other for other in self._axes if other != axis])

    def _split(self, size: int, dim: int = 0) -> list[Deferred]:
        return [self._slice(dim, at, at + size) for at in range(0, self.shape[dim], size) or [0]]

    def _split_with_sizes(self, sizes: list[int], dim: int = 0) -> list[Deferred]:
        ends = list(itertools.accumulate(sizes))
        if min(sizes, default=-1) < 0 or ends[-1] != self.shape[dim]:
            raise ValueError("the sizes are not those of the axis")
        return [self._slice(dim, end - size, end) for size, end in zip(sizes, ends)]

    def _transpose(self, dim: int = 0, other: int = 1) -> Deferred:
        axes = list(self._axes)
        axes[dim], axes[other] = axes[other], axes[dim]
        return self._with(self._index, axes)

    def _permute(self, dims: list[int]) -> Deferred:
        axes = [self._axes[dim] for dim in dims]
        if sorted(axes) != sorted(self._axes):
            raise ValueError("an axis is missing, or there twice")
        return self._with(self._index, axes)

    _parts: dict[Any, Any] = {
        _aten.slice.Tensor: _slice,
        _aten.select.int: _select,
        _aten.split.Tensor: _split,
        _aten.split_with_sizes.default: _split_with_sizes,
        _aten.t.default: _transpose,
        _aten.transpose.int: _transpose,
        _aten.permute.default: _permute,
        _aten.detach.default: _same,
        _aten.alias.default: _same,
    }

    def _read(self) -> torch.Tensor:
        """Returns the values, which are read once."""
        if self._made is None:
            index: Any = tuple(slice(*bound) if isinstance(bound, tuple) else bound for bound in self._index)
            in_file = sorted(self._axes)
            self._made = self._source[index].permute([in_file.index(axis) for axis in self._axes])
        assert self._made is not None
        return self._made


def deferred(source: SafeSlice, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a whole tensor of a file, deferred. ``dtype`` is its type."""
    shape = source.get_shape()
    return Deferred(source, [(0, length) for length in shape], list(range(len(shape))), dtype, device)
