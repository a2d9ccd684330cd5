"""Parts of values, as zarr asks stores for them."""

from __future__ import annotations

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest


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
