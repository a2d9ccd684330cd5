"""Bytes between files and GPU or host memory, by the fastest route that this machine has.

>>> import gpufile, numpy
>>> with gpufile.File("data.bin", "w+") as file:
...     file.write_from(numpy.arange(10))
...     file.read_into(bytearray(8), 72)
80
8
"""

from ._error import TransferError
from ._gpufile import File

__all__ = ["File", "TransferError"]
