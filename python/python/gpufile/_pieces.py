"""The bytes of a save in pieces: a thread of the program copies them, and the thread of the save writes them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from . import _gpufile, _memory
from ._copies import Copying, Ends

#: Some versions of torch have no types for its parts.
_cuda: Any = torch.cuda

#: The most bytes of a piece.
PIECE_BYTES = 256 << 20
#: Shorter parts of a piece are copied together.
SHORT_BYTES = 1 << 20


class Source:
    """The bytes of a tensor. Torch makes no view of them before somebody needs one."""

    __slots__ = ("address", "device", "nbytes", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.address = tensor, tensor.data_ptr()
        self.device, self.nbytes = tensor.device, tensor.nbytes

    def part(self, start: int, stop: int) -> torch.Tensor:
        """Returns a range of the bytes, in the same memory."""
        memory = _memory.flat(self.tensor)
        return memory if stop - start == self.nbytes else memory[start:stop]


#: The bytes of a tensor, and the range of them that a piece has.
Part = tuple[Source, int, int]


class Budget:
    """The bytes that the copies of a saver take. The program's threads wait until there is room for more."""

    def __init__(self, limit: int | None) -> None:
        #: A piece is copied while another is written.
        self.piece_bytes = PIECE_BYTES if limit is None else max(min(PIECE_BYTES, limit // 2), 1)
        self._limit, self._taken = limit, 0
        self._changed = threading.Condition()

    def try_to_take(self, len_bytes: int) -> bool:
        """Takes bytes if there are as many."""
        with self._changed:
            has_room = self._limit is None or self._taken + len_bytes <= self._limit
            self._taken += len_bytes if has_room else 0
            return has_room

    def take(self, len_bytes: int, is_over: Callable[[], bool]) -> None:
        """Takes bytes when there are as many, or when it is over."""
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._limit is None or self._taken + len_bytes <= self._limit)
            self._taken += len_bytes

    def give(self, len_bytes: int) -> None:
        """Gives bytes back."""
        with self._changed:
            self._taken -= len_bytes
            self._changed.notify_all()


@dataclass
class Piece:
    """Adjacent bytes of the file."""

    buffers: list[torch.Tensor]
    #: The bytes taken from the budget.
    taken: int
    ends: Ends


class Pieces:
    """The pieces of one file. ``copy`` makes them, and an iteration hands them out and frees them."""

    def __init__(self, sources: Iterable[Source], total_bytes: int, place: str | None, budget: Budget) -> None:
        """Takes the tensors in the order of the file. Without a ``place`` for copies, they are written from their memory."""
        self.total_bytes, self.done_bytes = total_bytes, 0
        #: The ends of all copies so far.
        self.ends = Ends()
        self._sources, self._place, self._budget = sources, place, budget
        self._made: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
        self._is_over = False
        self._lock = threading.Lock()

    def copy(self, start: Callable[[], object]) -> bool:
        """Copies the tensors, and calls ``start`` before a wait that needs the thread of the save. Returns whether it did.

        Returns early if the save has ended.
        """
        has_started = False
        try:
            with torch.no_grad(), Copying() as copying:
                for parts in self._cut():
                    if self._is_over:
                        return has_started
                    len_bytes = _len_bytes(parts) if self._place is not None else 0
                    if not self._budget.try_to_take(len_bytes):
                        if not has_started:
                            start()
                            has_started = True
                        self._budget.take(len_bytes, lambda: self._is_over)
                    try:
                        piece = self._piece(parts, len_bytes, copying)
                    except BaseException:
                        self._budget.give(len_bytes)
                        raise
                    self._put(piece)
            self._made.put(None)
        except BaseException as error:
            self._made.put(error)
            raise
        finally:
            self._sources = []
        return has_started

    def end(self) -> None:
        """Frees the pieces that were not written, and those that come. An iteration that goes on raises."""
        failure: BaseException = RuntimeError("the save has ended")
        with self._lock:
            self._is_over = True
            self._sources = []
            while not self._made.empty():
                piece = self._made.get()
                if isinstance(piece, Piece):
                    self._budget.give(piece.taken)
                elif piece is not None:
                    failure = piece
            self._made.put(failure)
        self._budget.give(0)

    def __iter__(self) -> Iterator[list[Any]]:
        while (piece := self._made.get()) is not None:
            if isinstance(piece, BaseException):
                raise RuntimeError(f"the save was given up, because its tensors could not be copied: {piece!r}")
            len_bytes = sum(buffer.nbytes for buffer in piece.buffers)
            try:
                piece.ends.wait()
                yield [_Ended(buffer) if buffer.is_cuda else buffer for buffer in piece.buffers]
            finally:
                taken = piece.taken
                del piece
                self._budget.give(taken)
            self.done_bytes += len_bytes

    def _put(self, piece: Piece) -> None:
        with self._lock:
            if not self._is_over:
                self._made.put(piece)
                return
        self._budget.give(piece.taken)

    def _cut(self) -> Iterator[list[Part]]:
        """Yields the parts of each piece, all on one device."""
        parts: list[Part] = []
        room = self._budget.piece_bytes
        for source in self._sources:
            if parts and parts[0][0].device != source.device:
                yield parts
                parts, room = [], self._budget.piece_bytes
            start = 0
            while start < source.nbytes:
                stop = min(source.nbytes, start + room)
                parts.append((source, start, stop))
                room -= stop - start
                start = stop
                if room == 0:
                    yield parts
                    parts, room = [], self._budget.piece_bytes
        if parts:
            yield parts

    def _piece(self, parts: list[Part], taken: int, copying: Copying) -> Piece:
        device, ends = parts[0][0].device, Ends()
        if self._place is None:
            if device.type == "cuda":
                ends.mark(device, _cuda.current_stream(device))
            return Piece([source.part(start, stop) for source, start, stop in parts], taken, ends)
        if device.type != "cuda":
            return Piece([_copied_to_host(parts, pin=False)], taken, ends)
        stream = copying.on(device)
        for source, _, _ in parts:
            # The program may drop the tensor before the copy has ended.
            source.tensor.record_stream(stream)
        if self._place == "host":
            buffer = _copied_to_host(parts, pin=True)
        else:
            buffer = torch.empty(_len_bytes(parts), dtype=torch.uint8, device=device)
            ranges = [(source.address + start, stop - start) for source, start, stop in parts]
            _gpufile.copy_ranges(device.index, stream.cuda_stream, buffer.data_ptr(), ranges)
        ends.mark(device)
        self.ends.add(ends)
        return Piece([buffer], taken, ends)


class _Ended:
    """GPU memory that no stream uses any longer, so that nobody waits for a stream of the program."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "data": (memory.data_ptr(), False),
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "stream": None,
            "version": 3,
        }


def _len_bytes(parts: list[Part]) -> int:
    return sum(stop - start for _, start, stop in parts)


def _copied_to_host(parts: list[Part], *, pin: bool) -> torch.Tensor:
    """Returns the bytes of parts one after the other. The current stream may still be copying those of a GPU."""
    buffer = torch.empty(_len_bytes(parts), dtype=torch.uint8, pin_memory=pin)
    end = 0
    short: list[torch.Tensor] = []

    def copy_short() -> None:
        if short:
            len_bytes = sum(part.nbytes for part in short)
            torch.cat(short, out=buffer[end - len_bytes : end])
            short.clear()

    for source, start, stop in parts:
        part = source.part(start, stop)
        if part.nbytes < SHORT_BYTES and not part.is_cuda:
            short.append(part)
        else:
            copy_short()
            buffer[end : end + part.nbytes].copy_(part, non_blocking=True)
        end += part.nbytes
    copy_short()
    return buffer
