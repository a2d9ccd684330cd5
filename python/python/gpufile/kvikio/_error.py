"""The errors of this package, which are those of kvikio."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterator
from typing import Any


class CuFileError(OSError, RuntimeError):
    """A failed operation on a file. kvikio raises ``RuntimeError``, and Python's own files ``OSError``."""

    #: Bytes that were transferred, from the start of the range.
    bytes_done: int = 0

    def __str__(self) -> str:
        return str(self.strerror)


def refused(errno: int, text: str, path: str | None = None) -> CuFileError:
    """Returns the exception for an operation that is refused with an errno."""
    return CuFileError(errno, f"{text}: {os.strerror(errno)}", path)


def integer(argument: str, value: Any) -> int:
    """Returns a number. Raises ``TypeError`` with the argument's name for another type."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{argument}: expected an integer, not {type(value).__name__}") from None


def not_negative(argument: str, value: Any) -> int:
    """Returns a number. Raises ``OverflowError``, as kvikio does, if it is negative."""
    number = integer(argument, value)
    if number < 0:
        raise OverflowError(f"{argument} is {number}: can't convert negative value to an unsigned number")
    return number


@contextlib.contextmanager
def translated(operation: str | None = None) -> Iterator[None]:
    """Raises ``CuFileError`` instead of ``OSError``; its text begins with the operation."""
    try:
        yield
    except CuFileError:
        raise
    except OSError as error:
        place = "" if error.filename is None else f" {error.filename!r}"
        text = f"{operation}{place}: {error.strerror}" if operation else str(error)
        translated = CuFileError(error.errno, text, error.filename)
        translated.bytes_done = getattr(error, "bytes_done", 0)
        raise translated from error
