"""Arrays in ``.npy`` files, as numpy saves them, read into the memory of GPUs and of the host.

>>> from gpufile.npy import load
>>> load("array.npy", device="cuda").shape
torch.Size([1000, 768])
>>> load("array.npy", framework="np").dtype
dtype('float32')
"""

from __future__ import annotations

from typing import Any

from ._gpufile import open_npy
from ._paths import address_of
from .safetensors._arguments import Device, Source, StorageOptions
from .safetensors._open import framework_of
from .safetensors._opened import is_opened, path_of_opened

__all__ = ["load"]


def __dir__() -> list[str]:
    return __all__


def load(file: Source, device: Device = "cpu", *, framework: str = "pt", storage_options: StorageOptions = None) -> Any:
    """Returns the array of a file, in memory of its own on the device.

    ``framework`` is ``"pt"`` for torch, ``"np"`` for numpy, which has all types but objects, or ``"jax"``. An array that was saved
    in Fortran's order keeps it, as with ``numpy.load``. The file may be an address, with ``storage_options`` as for
    ``gpufile.RemoteFile``, or open for reading bytes; then all of it is read.

    Raises ``ValueError`` if the file is no ``.npy`` file, has objects or fields, or a type that the framework lacks.
    """
    if is_opened(file):
        with path_of_opened(file) as path:
            return load(path, device, framework=framework, storage_options=storage_options)
    made = framework_of(framework, device)
    is_url = address_of(file) is not None
    if storage_options is not None and not is_url:
        raise ValueError("storage_options are for URLs such as s3://bucket/key")
    opened, descr, is_fortran, shape, (start, stop) = open_npy(file, is_url, storage_options)
    with opened:
        made.check_descr(descr)
        base = made.allocate(stop - start)
        if start < stop:
            opened.read_exact(base, start)
    return made.of_descr(base, descr, shape, is_fortran)
