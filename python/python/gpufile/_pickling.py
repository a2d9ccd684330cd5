"""Objects that belong to their process, and refuse to be pickled or copied."""

from __future__ import annotations

from typing import Any, NoReturn


class NotPickled:
    """An object of the process that made it. Its class says in ``_instead`` what a program does in another process."""

    __slots__ = ()

    _instead = "open it in the process that uses it"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to its process, and cannot be pickled or copied; {self._instead}")
