"""Reads of values and their parts, as zarr asks stores for them."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.buffer.core import default_buffer_prototype


class ReadStore(Store):
    """A store that reads values on threads."""

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Returns a value or the requested part of it, or None if there is no such key."""
        if not isinstance(key, str):
            raise TypeError(f"key: expected a str, not {type(key).__name__}")
        await self._ensure_open()
        return await asyncio.to_thread(self._read, key, prototype or default_buffer_prototype(), byte_range)

    @abstractmethod
    def _read(self, key: str, prototype: BufferPrototype, request: ByteRequest | None) -> Buffer | None:
        """Reads a value or the requested part of it, or returns None if there is no such key."""

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Returns parts of several values."""
        return await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges))


def range_of(size: int, request: ByteRequest | None) -> tuple[int, int]:
    """Returns the first byte of a request and the byte after the last one, within a value."""
    match request:
        case None:
            return 0, size
        case RangeByteRequest(start, end):
            return min(start, size), min(end, size)
        case OffsetByteRequest(offset):
            return min(offset, size), size
        case SuffixByteRequest(suffix):
            return max(0, size - suffix), size
        case _:
            raise TypeError(f"Unexpected byte_range, got {request}")
