"""State that a forked child inherits from threads of its parent. Only this module runs code after a fork."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """A value that a forked child must change before it can use it."""

    def _forked(self) -> None:
        """Changes the value in the child. Must wait for no lock, which a thread of the parent may have held."""


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def register(value: Inherited) -> None:
    """Calls the method ``_forked`` of the value in children that are forked while it exists."""
    _inherited.add(value)


def _in_child() -> None:
    for value in list(_inherited):
        value._forked()


os.register_at_fork(after_in_child=_in_child)
