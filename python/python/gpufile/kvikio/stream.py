"""Streams. cuFile asks programs to register them; gpufile does not."""

from __future__ import annotations

from ._error import integer

__all__ = ["stream_deregister", "stream_register"]


def __dir__() -> list[str]:
    return __all__


def stream_register(raw_stream: int, flags: int) -> None:
    """Does nothing: gpufile orders transfers with a stream without cuFile, and needs no registration."""
    for argument, value in (("raw_stream", raw_stream), ("flags", flags)):
        integer(argument, value)


def stream_deregister(raw_stream: int) -> None:
    """Does nothing, as ``stream_register``."""
    integer("raw_stream", raw_stream)
