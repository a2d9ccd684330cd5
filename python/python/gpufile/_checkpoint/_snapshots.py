"""Copies of state dicts for asynchronous saves."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from .. import _forks
from .._streams import Copying, Ends
from ._copied import Copied


class Snapshots:
    """The copies that a writer makes, and their ends."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._ends = Ends()
        self._gate = Gate(self._ends)
        # Nothing is being copied.
        self._gate.open()

    def take(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy. On GPUs it may not have ended: call ``order`` before the originals change."""
        self._gate = Gate(self._ends)
        with torch.no_grad(), Copying() as copying:
            try:
                copy = Copied(self.place, copying).copy(state_dict)
            except BaseException:
                # No thread will save, so nobody waits for the ends of the copies that were started.
                self._ends.mark_all(copying)
                self._ends.let_go()
                self.let_go()
                raise
            self._ends.mark_all(copying)
        return copy

    def order(self) -> None:
        """Lets the current streams of this thread wait for the copies, on the GPUs, and lets the thread that saves go on."""
        self._ends.order()
        self.let_go()

    def let_go(self) -> None:
        """Lets the thread that saves go on: the program's thread has what it needs."""
        self._gate.open()

    def wait(self) -> None:
        """Waits until the program's thread goes on, and the copies have ended."""
        self._gate.wait()

    def __getstate__(self) -> dict[str, Any]:
        # Streams belong to their process.
        self._ends.wait()
        return {"place": self.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


class Gate:
    """Keeps the thread of the save away from Python's lock while the program's thread still needs the lock to go on.

    Each time that two threads compete for that lock, one may wait for 5 ms, as long as a copy of many gigabytes takes.
    """

    #: Seconds until the gate opens by itself, for programs that do not call ``async_save``.
    LIMIT = 1.0
    #: Seconds after the copies. The program's thread goes on in this time, if it waits for them, too.
    LEAD = 0.002

    def __init__(self, ends: Ends) -> None:
        self._owner, self._ends = threading.get_ident(), ends
        self._is_open = threading.Event()
        self._is_passed = False
        _forks.register(self)

    def _forked(self) -> None:
        # A thread of the parent may have held the lock of the event. No thread of the child makes copies.
        self._is_open = threading.Event()
        self._is_open.set()

    def open(self) -> None:
        """Opens the gate for good."""
        self._is_open.set()

    def wait(self) -> None:
        """Waits until the gate is open, and the copies have ended. The thread that made it waits only for the copies."""
        if not self._is_passed and threading.get_ident() != self._owner:
            self._is_open.wait(self.LIMIT)
            self._ends.wait()
            time.sleep(self.LEAD)
            self._is_passed = True
        self._ends.wait()
