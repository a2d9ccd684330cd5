"""The wait for futures in asyncio."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._gpufile import Future


async def outcome(future: Future) -> int:
    """Waits until the future is done without blocking the loop, and returns its result."""
    while not future.done():
        descriptor = future._watch()
        if descriptor is None:
            # Stream-ordered transfers wake nobody.
            return await asyncio.to_thread(future.result)
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            # The transfer may have ended before there was a descriptor.
            if not future.done():
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return future.result()
