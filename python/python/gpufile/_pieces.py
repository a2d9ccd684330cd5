"""The bytes of a save in pieces: a thread of the program copies them, and the thread of the save writes them.

A tensor gets a name (``_states``) and an order in the file (``_plans``). Its bytes are cut (``_sources``), wait for room
(``_budget``) and are copied (``_copies``, on a stream of ``_streams``). The thread (``_saves``) takes them from here.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ._budget import Budget
from ._copies import Piece, piece_of
from ._sources import Source, cut, len_bytes_of
from ._streams import Copying, Ends


class Pieces:
    """The pieces of one file. ``copy`` makes them, and an iteration hands them out and frees them."""

    def __init__(
        self, sources: Callable[[bool], Iterable[Source]], total_bytes: int, place: str | None, budget: Budget
    ) -> None:
        """Takes a function that returns the tensors in the order of the file, or backwards if its argument is true.

        Without a ``place`` for copies, the tensors are written from their memory.
        """
        self.total_bytes, self.done_bytes = total_bytes, 0
        #: The ends of all copies so far.
        self.ends = Ends()
        # Files begin with the tensors of the widest types, which are often small: a GPU would wait for large ones.
        # Copies to the host take long, and the thread of the save writes their beginning in that time.
        self._is_backwards = place == "device" and not budget.has_limit
        self._sources, self._place, self._budget = sources(self._is_backwards), place, budget
        self._made: queue.SimpleQueue[Piece | BaseException | None] = queue.SimpleQueue()
        self._is_over = False
        self._lock = threading.Lock()

    def copy(self, start: Callable[[], object]) -> bool:
        """Copies the tensors. Calls ``start`` before a wait for the thread of the save. Returns whether ``start`` was
        called.

        Returns early if the save has ended. If it raises, ``end`` must give the failure to the thread of the save.
        """
        has_started, copying = False, Copying()
        made: list[Piece] = []
        try:
            with torch.no_grad(), copying:
                backwards_from = self.total_bytes if self._is_backwards else None
                for parts in cut(self._sources, self._budget.piece_bytes, backwards_from):
                    if self._is_over:
                        return has_started
                    len_bytes = self._taken(len_bytes_of(parts))
                    if not self._budget.try_to_take(len_bytes):
                        if not has_started:
                            start()
                            has_started = True
                        self._budget.take(len_bytes, lambda: self._is_over)
                    try:
                        piece = piece_of(parts, self._place, copying)
                    except BaseException:
                        self._budget.give(len_bytes)
                        raise
                    made.append(piece)
                    if not self._is_backwards:
                        self._put(made.pop())
        finally:
            self.ends.mark_all(copying)
            if self._is_over:
                self.ends.let_go()
            while made:
                self._put(made.pop())
        self._made.put(None)
        self._sources = []
        return has_started

    def end(self, failure: BaseException | None = None) -> None:
        """Frees the pieces that were not written, and those that come later. An iteration that goes on raises the failure."""
        with self._lock:
            self._is_over = True
            self._sources = []
            while not self._made.empty():
                piece = self._made.get()
                if isinstance(piece, Piece):
                    self._budget.give(self._taken(piece.nbytes))
            self._made.put(failure or RuntimeError("the save has ended"))
        self._budget.give(0)
        self.ends.let_go()

    def __iter__(self) -> Iterator[list[Any]]:
        while (piece := self._made.get()) is not None:
            if isinstance(piece, BaseException):
                raise RuntimeError(f"the save was given up, because its tensors could not be copied: {piece!r}")
            len_bytes = piece.nbytes
            try:
                yield piece.wait()
            finally:
                del piece
                self._budget.give(self._taken(len_bytes))
                self.ends.look()
            self.done_bytes += len_bytes

    def _put(self, piece: Piece) -> None:
        with self._lock:
            if not self._is_over:
                self._made.put(piece)
                return
        self._budget.give(self._taken(piece.nbytes))

    def _taken(self, len_bytes: int) -> int:
        """Returns the bytes that a piece takes from the budget."""
        return len_bytes if self._place is not None else 0
