"""Exceptions of this package."""

from __future__ import annotations


class TransferError(OSError):
    """A failed transfer, or a failed call of CUDA or cuFile.

    ``errno`` is None if the cause has none, for example at the end of the file. ``filename`` is the path of the file,
    if there is one.
    """

    #: Bytes that were transferred, from the start of the range.
    bytes_done: int = 0
    #: The index of the failed entry, if the call had a list of them.
    entry: int | None = None

    def __str__(self) -> str:
        # The text of the error has the path and the cause already.
        return str(self.strerror)
