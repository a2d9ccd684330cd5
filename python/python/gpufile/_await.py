"""The wait for futures in asyncio."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from ._gpufile import Watch

if TYPE_CHECKING:
    from ._future import Future


_Result = TypeVar("_Result")


async def outcome(future: Future[_Result]) -> _Result:
    """Waits until the future is done without blocking the loop, and returns its result."""
    loop = asyncio.get_running_loop()
    while not future.done():
        awaited = _of_loops.get(loop) or _Awaited(loop)
        if not await awaited.wait(future):
            # Stream-ordered transfers wake nobody.
            return await asyncio.to_thread(future.result)
    return future.result()


class _Awaited:
    """The futures that the tasks of one loop await. They share one descriptor."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._watch = loop, Watch()
        self._numbers = itertools.count()
        self._ended: dict[int, asyncio.Event] = {}
        loop.add_reader(self._watch.fileno(), self._wake)
        _of_loops[loop] = self

    async def wait(self, future: Future[Any]) -> bool:
        """Waits until the future is done. Returns False at once if its transfer cannot announce its end."""
        number = next(self._numbers)
        ended = self._ended[number] = asyncio.Event()
        try:
            tells = future._flight.watch(self._watch, number)
            # It may have ended before there was a watch.
            if tells and not future.done():
                await ended.wait()
            return tells
        finally:
            del self._ended[number]
            if not self._ended:
                _of_loops.pop(self._loop, None)
                # A closed loop has no readers, and refuses to remove one.
                if not self._loop.is_closed():
                    self._loop.remove_reader(self._watch.fileno())

    def _wake(self) -> None:
        for number in self._watch.take():
            # A task that was cancelled waits no more.
            if number in self._ended:
                self._ended[number].set()


#: The loops with tasks that wait. Each loop's thread uses only its own. A loop that is closed during a wait has no reader,
#: so nothing keeps it.
_of_loops: weakref.WeakValueDictionary[asyncio.AbstractEventLoop, _Awaited] = weakref.WeakValueDictionary()
