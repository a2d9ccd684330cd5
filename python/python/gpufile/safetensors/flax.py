"""Arrays of JAX in safetensors files, as ``safetensors.flax`` has them.

>>> from gpufile.safetensors.flax import load_file, save_file
>>> save_file({"ones": jax.numpy.ones((2, 3))}, "ones.safetensors")
>>> load_file("ones.safetensors")["ones"].shape
(2, 3)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._gpufile import serialize_safetensors
from . import _convert, _jax, _load, numpy
from ._dtypes import code_of, file_shape
from ._arguments import Path, Source, StorageOptions, check_backend, tensors_of, verifying
from ._names import chosen
from ._open import open_checkpoint
from ._save import Item
from ._store import save_items

if TYPE_CHECKING:
    from ._arguments import Buffer

__all__ = ["load", "load_file", "save", "save_file"]


def __dir__() -> list[str]:
    return __all__


def load_file(
    filename: Source,
    device: jax.Device | str | None = None,
    *,
    backend: str = "mmap",
    only: Iterable[str] | None = None,
    dtype: Any = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    verify: bool | Path = False,
    storage_options: StorageOptions = None,
) -> dict[str, jax.Array]:
    """Loads a file, or a model of several files from its folder or index.

    The arrays go to ``device``, or to JAX's default device. On the way, they take at most ``memory_budget`` bytes of
    host memory (by default 1 GiB), or three times the longest. ``progress=True`` shows a bar if tqdm is installed; a
    function as ``progress`` is called with the bytes loaded so far and the total. ``backend`` has no effect.
    ``only``, ``dtype`` and ``verify`` are those of :func:`gpufile.safetensors.load_model`. ``storage_options`` are those of ``gpufile.RemoteFile``, for a URL.
    """
    check_backend(backend)
    checkpoint = open_checkpoint(filename, storage_options)
    names = chosen(checkpoint, "only", only)
    with verifying(filename, verify):
        return _convert.load(checkpoint, _jax.Framework(device), names, dtype, memory_budget, progress, False)


def load(data: Buffer) -> dict[str, jax.Array]:
    """Returns the arrays in the bytes of a file. Objects with the buffer protocol are copied first, except ``bytes``."""
    return _load.load_bytes(data, _jax.Framework(None))


def save_file(
    tensors: dict[str, jax.Array],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    sync: bool = True,
    storage_options: StorageOptions = None,
    remove_old_model: bool = False,
    compress: bool = False,
) -> None:
    """Saves arrays to a file, like :func:`gpufile.safetensors.numpy.save_file`. Replaces an existing file as a whole."""
    save_items(filename, items(tensors), metadata, sync, storage_options, remove_old_model, compress)


def save(tensors: dict[str, jax.Array], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a file with these arrays."""
    arrays = {name: np.asarray(array) for name, array in tensors_of(tensors).items()}
    return serialize_safetensors(numpy.items(arrays), metadata)


def items(tensors: dict[str, jax.Array]) -> list[Item]:
    """Returns the items of arrays. Those on one GPU are written from there."""
    made: list[Item] = []
    for name, array in tensors_of(tensors).items():
        if isinstance(array, jax.Array) and [device.platform for device in array.devices()] == ["gpu"]:
            code = code_of(array.dtype.name)
            made.append((name, code, file_shape(code, array.shape), array.block_until_ready()))
        else:
            made += numpy.items({name: np.asarray(array)})
    return made
