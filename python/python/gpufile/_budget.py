"""The memory that the copies of a saver may take."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: The most bytes of a piece.
PIECE_BYTES = 256 << 20


class Budget:
    """The bytes that the copies of a saver take. The program's threads wait until there is room for more."""

    def __init__(self, limit: int | None) -> None:
        #: A piece is copied while another is written.
        self.piece_bytes = PIECE_BYTES if limit is None else max(min(PIECE_BYTES, limit // 2), 1)
        self._limit, self._taken = limit, 0
        self._changed = threading.Condition()

    @property
    def has_limit(self) -> bool:
        """Returns whether copies may have to wait."""
        return self._limit is not None

    def try_to_take(self, len_bytes: int) -> bool:
        """Takes ``len_bytes`` bytes if they are left."""
        with self._changed:
            has_room = self._limit is None or self._taken + len_bytes <= self._limit
            self._taken += len_bytes if has_room else 0
            return has_room

    def take(self, len_bytes: int, is_over: Callable[[], bool]) -> None:
        """Waits until ``len_bytes`` bytes are left, or ``is_over`` returns True, and takes them."""
        with self._changed:
            self._changed.wait_for(lambda: is_over() or self._limit is None or self._taken + len_bytes <= self._limit)
            self._taken += len_bytes

    def give(self, len_bytes: int) -> None:
        """Gives bytes back."""
        with self._changed:
            self._taken -= len_bytes
            self._changed.notify_all()
