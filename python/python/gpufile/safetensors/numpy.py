"""Arrays of numpy in safetensors files, as ``safetensors.numpy`` has them.

>>> from gpufile.safetensors.numpy import load_file, save_file
>>> save_file({"ones": numpy.ones((2, 3))}, "ones.safetensors")
>>> load_file("ones.safetensors")["ones"].shape
(2, 3)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._gpufile import serialize_safetensors
from . import _convert, _load, _numpy
from ._arguments import Path, Source, StorageOptions, check_backend, tensors_of, verifying
from ._dtypes import CODES, code_of, file_shape
from ._names import chosen
from ._open import open_checkpoint
from ._open import safe_open as safe_open
from ._save import Item
from ._store import save_items

if TYPE_CHECKING:
    from ._arguments import Buffer

__all__ = ["load", "load_file", "save", "save_file"]


def __dir__() -> list[str]:
    return __all__

# Other packages import these names.
_getdtype = _numpy.dtype_of
_TYPES = {code: np.dtype(name).type for name, code in CODES.items() if code not in _numpy.MISSING}


def load_file(
    filename: Source,
    *,
    backend: str = "mmap",
    only: Iterable[str] | None = None,
    dtype: Any = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    mapped: bool | None = None,
    verify: bool | Path = False,
    storage_options: StorageOptions = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Loads a file, or a model of several files from its folder or index.

    The arrays of each file share one allocation, or several of at most ``memory_budget`` bytes. ``progress=True``
    shows a bar if tqdm is installed; a function as ``progress`` is called with the bytes loaded so far and the total.
    ``backend`` has no effect. ``only``, ``dtype`` and ``verify`` are those of :func:`gpufile.safetensors.load_model`. ``storage_options`` are those of ``gpufile.RemoteFile``, for a URL.

    With ``mapped=True``, the arrays are in a private mapping of each file. Their bytes are read when they are first used.
    """
    check_backend(backend)
    checkpoint = open_checkpoint(filename, storage_options)
    names = chosen(checkpoint, "only", only)
    with verifying(filename, verify):
        return _convert.load(checkpoint, _numpy.Framework("cpu"), names, dtype, memory_budget, progress, mapped)


def load(data: Buffer) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays in the bytes of a file. Objects with the buffer protocol are copied first, except ``bytes``."""
    return _load.load_bytes(data, _numpy.Framework("cpu"))


def _view2np(contents: list[tuple[str, dict[str, Any]]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays that ``deserialize`` found in the bytes of a file."""
    return {
        name: np.frombuffer(content["data"], _getdtype(content["dtype"])).reshape(content["shape"])
        for name, content in contents
    }


def save_file(
    tensor_dict: dict[str, np.ndarray[Any, Any]],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
    *,
    sync: bool = True,
    storage_options: StorageOptions = None,
    remove_old_model: bool = False,
    compress: bool = False,
) -> None:
    """Saves arrays to a file. Replaces an existing file as a whole.

    If the save fails or the process dies, the old file stays. With ``sync=False`` the call does not wait for storage,
    and a crash of the machine may leave an incomplete file.

    Other files of the folder stay. With ``remove_old_model=True``, the save then removes an older model of several files: the
    index of this name, and the shards that it names.

    With ``compress=True``, arrays are packed: in fewer bytes, from which ``gpufile`` loads each value with all its bits. Other
    loaders refuse such tensors.

    The filename may be the URL of an object of a store, such as ``s3://bucket/key``, which appears when all of its parts have
    arrived. ``storage_options`` come before the variables of the same names in the environment, as for ``RemoteFile``.
    """
    save_items(filename, items(tensor_dict), metadata, sync, storage_options, remove_old_model, compress)


def save(tensor_dict: dict[str, np.ndarray[Any, Any]], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a file with these arrays."""
    return serialize_safetensors(items(tensor_dict), metadata)


def items(tensors: dict[str, np.ndarray[Any, Any]]) -> list[Item]:
    """Returns the items of arrays. Copies those that are not in C order or not little-endian."""
    made: list[Item] = []
    for name, array in tensors_of(tensors).items():
        array = np.asarray(array)
        code = code_of(array.dtype.name)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        memory = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        made.append((name, code, file_shape(code, array.shape), memory))
    return made
