"""The logger ``gpufile``: how long loads and saves take, and why a faster way was not taken."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from ._gpufile import Engine


def _logger() -> Any:
    """Returns the logger if a program wants its records. None for programs that have not imported ``logging``, which is slow."""
    logging: Any = sys.modules.get("logging")
    logger = None if logging is None else logging.getLogger("gpufile")
    return logger if logger is not None and logger.isEnabledFor(logging.DEBUG) else None


@contextlib.contextmanager
def timed(what: str, len_bytes: int) -> Iterator[None]:
    """Logs how long the block takes, and the reasons against better ways that applied in it to the default engine."""
    logger = _logger()
    if logger is None:
        yield
        return
    before, start = Engine.default().stats()["fallbacks"], time.perf_counter()
    yield
    logger.debug("%s: %d bytes in %.3f s", what, len_bytes, time.perf_counter() - start)
    for reason, count in Engine.default().stats()["fallbacks"].items():
        if count > before.get(reason, 0):
            logger.debug("%s: a better way was not taken: %s", what, reason)
