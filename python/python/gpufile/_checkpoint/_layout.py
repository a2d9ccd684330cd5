"""The places of items in a new file, and the pieces of memory to write there.

The bytes of large tensors stay where they are, and start at blocks of storage. Everything else, also small tensors, is
put together in host memory between them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _records

#: Tensors of fewer bytes are put together in host memory.
SMALL_BYTES = 64 << 10
#: Large tensors start at multiples of this in a file.
BLOCK_BYTES = 4096


@dataclass
class Pieces:
    """Pieces of memory, and their offsets in the file in bytes."""

    buffers: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


class Layout:
    """The places in one file, in the order of the calls."""

    def __init__(self) -> None:
        self._end = 0
        #: Host bytes behind the last piece.
        self._host = bytearray()
        self._pieces = Pieces()

    @property
    def end(self) -> int:
        """The length of the file in bytes so far."""
        return self._end

    def add(self, content: bytes | memoryview) -> tuple[int, int]:
        """Places bytes. Returns their offset and length."""
        start = self._end
        self._host += content
        self._end += len(content)
        return start, len(content)

    def add_record(self, memory: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        """Places the record of a tensor around its bytes. Returns the offset and length of the record."""
        header, trailer = _records.wrapper(dtype, shape)
        is_small = memory.nbytes < SMALL_BYTES
        alignment = _records.ALIGNMENT if is_small else BLOCK_BYTES
        self.add(bytes(-(self._end + len(header)) % alignment))
        start, _ = self.add(header)
        if is_small:
            self.add(ctypes.string_at(memory.data_ptr(), memory.nbytes))
        else:
            self._flush()
            self._place(memory, self._end)
            self._end += memory.nbytes
        self.add(trailer)
        return start, self._end - start

    def take(self) -> Pieces:
        """Returns the pieces since the last call."""
        self._flush()
        pieces, self._pieces = self._pieces, Pieces()
        return pieces

    def _flush(self) -> None:
        if self._host:
            self._place(self._host, self._end - len(self._host))
            self._host = bytearray()

    def _place(self, buffer: Any, offset: int) -> None:
        self._pieces.buffers.append(buffer)
        self._pieces.offsets.append(offset)
