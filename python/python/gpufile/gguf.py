"""Models in GGUF files, to and from llama.cpp and others, loaded to the memory of GPUs and of the host.

>>> from gpufile.gguf import load_file, metadata
>>> weights = load_file("llama-Q4_K_M.gguf", device="cuda")
>>> weights["output_norm.weight"].shape
torch.Size([4096])
>>> weights["blk.0.attn_q.weight"].type
'Q4_K'
>>> metadata("llama-Q4_K_M.gguf")["general.architecture"]
'llama'
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from ._gpufile import open_gguf
from ._paths import address_of
from .safetensors import _convert
from .safetensors._arguments import Device, Source, StorageOptions, names_of
from .safetensors._dtypes import FLOATS
from .safetensors._names import chosen
from .safetensors._open import framework_of
from .safetensors._opened import is_opened, path_of_opened

__all__ = ["QuantizedTensor", "load_file", "metadata"]


def __dir__() -> list[str]:
    return __all__


class _Names(dict[str, None]):
    """The names of the tensors of a model."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names))

    def names(self) -> list[str]:
        return list(self)


class QuantizedTensor(NamedTuple):
    """A tensor of blocks, whose type frameworks lack."""

    #: The name that ggml has for the type, such as ``Q4_K``.
    type: str
    #: The length of each axis in elements, the slowest first.
    shape: tuple[int, ...]
    #: The blocks as bytes, of the framework's type for them. The last axis counts bytes.
    data: Any


def load_file(
    filename: Source,
    device: Device = "cpu",
    *,
    framework: str = "pt",
    only: Iterable[str] | None = None,
    dtype: Any = None,
    storage_options: StorageOptions = None,
) -> dict[str, Any]:
    """Loads a file, or all files of a split model by the name of one, such as ``llama-00001-of-00003.gguf``.

    Each tensor is read into its own memory on the device. The axes are those of numpy, the slowest first, as the package gguf
    has them. Types of blocks are read as bytes into a :class:`QuantizedTensor`. ``framework`` is ``"pt"``, ``"np"`` or ``"jax"``.
    ``only`` lists the tensors to load, by names or by patterns as in ``fnmatch``. ``dtype`` is that of
    :func:`gpufile.safetensors.load_model`: types of blocks stay as they are. The file may be an address, with
    ``storage_options`` as for ``gpufile.RemoteFile``, or open for reading bytes.

    Raises ``ValueError`` if a file is no GGUF file, and ``SafetensorError`` if it lacks a tensor, or the framework a type.
    """
    made, only = framework_of(framework, device), names_of("only", only)
    code = None if dtype is None else _convert.code_of(made, dtype)
    files, _, rows = _open(filename, storage_options)
    names = chosen(_Names(row[0] for row in rows), "only", only)
    kept = None if names is None else set(names)
    listed = [row for row in rows if kept is None or row[0] in kept]
    for _, kind, _, packed, _, _ in listed:
        made.check("U8" if packed else kind)
    converted = {row[0] for row in listed if code is not None and row[1] in {*FLOATS} - {code}}
    bases = [None if name in converted else made.allocate(stop - start) for name, *_, (start, stop) in listed]
    with contextlib.ExitStack() as stack:
        futures = []
        for number, file in enumerate(files):
            stack.enter_context(file)
            own = [(base, row) for base, row in zip(bases, listed) if row[4] == number and base is not None]
            reads = [(base, row[5][0]) for base, row in own if row[5][0] < row[5][1]]
            if reads:
                futures.append(file.read_many_async([base for base, _ in reads], [offset for _, offset in reads]))
                # What has ended stays as it is.
                stack.callback(futures[-1].cancel)
        made_of = {row[0]: _converted(made, files[row[4]], row, code) for row in listed if row[0] in converted}
        for future in futures:
            future.result()
    loaded: dict[str, Any] = {}
    for base, (name, kind, shape, packed, _, _) in zip(bases, listed):
        if name in made_of:
            loaded[name] = made_of.pop(name)
        elif packed is None:
            loaded[name] = made.whole(base, kind, list(shape))
        else:
            loaded[name] = QuantizedTensor(kind, shape, made.whole(base, "U8", list(packed)))
    return loaded


def _converted(made: Any, file: Any, row: Any, code: Any) -> Any:
    """Reads a tensor in pieces, and returns it with another type."""
    _, kind, shape, _, _, (start, stop) = row
    tensor = made.near.empty(shape, code)
    flat = tensor.reshape(-1)
    element_bytes = (stop - start) // max(len(flat), 1) or 1
    most = _convert.PIECE_BYTES // element_bytes
    for first in range(0, len(flat), most):
        length = min(most, len(flat) - first)
        base = made.near.allocate(length * element_bytes)
        file.read_exact(base, start + first * element_bytes)
        flat[first : first + length] = made.near.whole(base, kind, [length])
    return made.put(tensor)


def metadata(filename: Source, *, storage_options: StorageOptions = None) -> dict[str, Any]:
    """Returns the metadata: numbers, truth values, texts and lists of these, by their keys."""
    values: dict[str, Any] = _open(filename, storage_options)[1]
    return values


def _open(filename: Any, storage_options: StorageOptions) -> Any:
    if is_opened(filename):
        with path_of_opened(filename) as path:
            return _open(path, storage_options)
    is_url = address_of(filename) is not None
    if storage_options is not None and not is_url:
        raise ValueError("storage_options are for URLs such as s3://bucket/key")
    return open_gguf(filename, is_url, storage_options)
