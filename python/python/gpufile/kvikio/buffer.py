"""Registered GPU memory, and bounce buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import Engine, deregister, register
from . import defaults
from ._error import translated

if TYPE_CHECKING:
    from .._gpufile import _Memory as Memory

__all__ = ["bounce_buffer_free", "memory_deregister", "memory_register"]


def __dir__() -> list[str]:
    return __all__


def memory_register(buf: Memory) -> None:
    """Registers the whole allocation that a GPU buffer lies in with cuFile.

    The registration keeps the buffer alive. Without GPUDirect Storage, there is nothing to register.
    """
    _check(buf)
    if not defaults.is_compat_mode_preferred():
        with translated():
            register(buf)


def memory_deregister(buf: Memory) -> None:
    """Ends the registration of the allocation that a GPU buffer lies in."""
    _check(buf)
    if not defaults.is_compat_mode_preferred():
        with translated():
            deregister(buf)


def bounce_buffer_free() -> int:
    """Frees the bounce buffers that no transfer uses, and returns the number of bytes."""
    engines = {id(engine): engine for engine in (defaults.engine(), Engine.default())}
    return sum(engine.release_buffers() for engine in engines.values())


def _check(buf: Any) -> None:
    """Refuses an object without memory, also where nothing is registered."""
    if hasattr(buf, "__cuda_array_interface__") or hasattr(buf, "__dlpack__"):
        return
    try:
        memoryview(buf)
    except TypeError:
        raise TypeError(f"buf: {type(buf).__name__} has no memory: expected a buffer") from None
