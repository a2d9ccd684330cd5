"""Moves bytes between files and GPU or host memory, over the fastest route that this machine has.

>>> import gpufile, numpy
>>> with gpufile.File("data.bin", "w+") as file:
...     file.write_from(numpy.arange(10))
...     file.read_into(bytearray(8), 72)
80
8
"""

from __future__ import annotations

import os
import sys

from ._error import TransferError
from ._future import Future
from ._gpufile import Engine, File, RemoteFile, Route, deregister, keep_classes, main, register
from ._gpufile import __version__ as __version__
from ._paths import text_of

__all__ = ["Engine", "File", "Future", "RemoteFile", "Route", "TransferError", "check", "deregister", "register"]


def __dir__() -> list[str]:
    return __all__


keep_classes()


def check(path: str | os.PathLike[str] = ".") -> int:
    """Prints this machine's libraries, GPUs and kernel modules, and the route between a file or folder and a GPU.

    Returns the exit status of the command ``gpufile check``: 0 if bytes bypass host memory, 3 if they pass through
    it, 4 if there is no GPU, and 1 if a setting is wrong or the path cannot be used.
    """
    # The report goes to the standard output of the process, past Python's buffer.
    if sys.stdout is not None:
        sys.stdout.flush()
    return main(["gpufile", "check", "--", text_of("path", path)])


def _program() -> int:
    """Runs the program ``gpufile``."""
    return main(["gpufile", *sys.argv[1:]])
