"""Tensors of PyTorch in safetensors files, as ``safetensors.torch`` has them.

>>> from gpufile.safetensors.torch import load_file, save_file
>>> save_file({"ones": torch.ones(2, 3)}, "ones.safetensors")
>>> load_file("ones.safetensors", device="cuda")["ones"].shape
torch.Size([2, 3])
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from .._gpufile import serialize_safetensors
from . import _convert, _load, _mapped, _torch
from ._arguments import Path, Source, StorageOptions, check_backend, verifying
from ._dtypes import file_shape, stored_shape
from ._error import DtypeError
from ._names import chosen
from ._open import is_moving, open_checkpoint
from ._open import safe_open as safe_open

if TYPE_CHECKING:
    from ._arguments import Buffer
    from ._distributed import load_distributed
    from ._handed import SharedModel
    from ._save import Item
    from ._shared import _end_ptr as _end_ptr
    from ._shared import _find_shared_tensors as _find_shared_tensors
    from ._shared import _is_complete as _is_complete
    from ._shared import _remove_duplicate_names as _remove_duplicate_names
    from ._shared import storage_ptr as storage_ptr
    from ._shared import storage_size as storage_size

__all__ = ["SharedModel", "load", "load_distributed", "load_file", "load_model", "save", "save_file", "save_model"]


#: The names that few programs use, and their modules, which are imported with the first use.
_LATER = {
    "SharedModel": "_handed",
    "_end_ptr": "_shared",
    "_find_shared_tensors": "_shared",
    "_is_complete": "_shared",
    "_remove_duplicate_names": "_shared",
    "load_distributed": "_distributed",
    "storage_ptr": "_shared",
    "storage_size": "_shared",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _LATER:
            return getattr(importlib.import_module(f".{_LATER[name]}", __package__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


# Other packages import these names.
_getdtype = _torch.dtype_of
_TYPES = {code: dtype for dtype, code in _torch.CODES.items()}
_SIZE = {dtype: dtype.itemsize for dtype in _torch.CODES}


def load_file(
    filename: Source,
    device: torch.device | str | int | None = "cpu",
    *,
    backend: str = "mmap",
    only: Iterable[str] | None = None,
    dtype: torch.dtype | str | None = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    mapped: bool | None = None,
    verify: bool | Path = False,
    storage_options: StorageOptions = None,
) -> dict[str, torch.Tensor]:
    """Loads a file, or a model of several files from its folder or index.

    Each tensor has a storage of its own. On the host, they are in a private mapping of each file, as with safetensors. Their
    bytes are read when they are first used. On a GPU, each is an allocation of torch. With ``mapped=False``, those of the host
    share one allocation for each file, or several of at most ``memory_budget`` bytes, which are freed with their last tensor.
    ``progress=True`` shows a bar if tqdm is installed; a function as ``progress`` is called with the bytes loaded so far
    and the total. ``only``, ``dtype`` and ``verify`` are those of :func:`gpufile.safetensors.load_model`. ``backend`` has no effect. ``storage_options`` are those of ``gpufile.RemoteFile``, for a URL.
    """
    check_backend(backend)
    checkpoint, framework = open_checkpoint(filename, storage_options), _torch.Framework(device)
    names = chosen(checkpoint, "only", only)
    moves = only is None and dtype is None and is_moving(sys._getframe(1)) and _mapped.check(mapped, framework, checkpoint)
    with verifying(filename, verify):
        if moves:
            from . import _moves

            return _moves.load(checkpoint, framework)
        return _convert.load(checkpoint, framework, names, dtype, memory_budget, progress, mapped)


def load(data: Buffer) -> dict[str, torch.Tensor]:
    """Returns the tensors in the bytes of a file. Objects with the buffer protocol are copied first, except ``bytes``."""
    return _load.load_bytes(data, _torch.Framework("cpu"))


def _view2torch(contents: list[tuple[str, dict[str, Any]]]) -> dict[str, torch.Tensor]:
    """Returns the tensors that ``deserialize`` found in the bytes of a file."""
    tensors = {}
    for name, content in contents:
        dtype, shape = _getdtype(content["dtype"]), content["shape"]
        empty = torch.empty(0, dtype=dtype)
        # torch refuses buffers without bytes.
        flat = torch.frombuffer(content["data"], dtype=dtype) if content["data"] else empty
        tensors[name] = flat.reshape(stored_shape(_torch.Framework("cpu"), name, content["dtype"], shape))
    return tensors


def save_file(
    tensors: dict[str, torch.Tensor],
    filename: Path,
    metadata: dict[str, str] | None = None,
    *,
    sync: bool = True,
    storage_options: StorageOptions = None,
    remove_old_model: bool = False,
    compress: bool = False,
) -> None:
    """Saves tensors of the host and of GPUs to a file. Replaces an existing file as a whole.

    If the save fails or the process dies, the old file stays. With ``sync=False`` the call does not wait for storage,
    and a crash of the machine may leave an incomplete file. Nothing may change the tensors during the call.

    Other files of the folder stay. With ``remove_old_model=True``, the save then removes an older model of several files: the
    index of this name, and the shards that it names.

    With ``compress=True``, tensors are packed: BF16 weights in 70 % of their bytes, from which ``gpufile`` loads each value with
    all its bits. Other loaders refuse such tensors.

    The filename may be the URL of an object of a store, such as ``s3://bucket/key``, which appears when all of its parts have
    arrived. ``storage_options`` come before the variables of the same names in the environment, as for ``RemoteFile``.

    Tensors that share memory raise ``RuntimeError``, and tensors that are not contiguous raise ``ValueError``.
    """
    from . import _store

    _store.save_items(filename, items(tensors), metadata, sync, storage_options, remove_old_model, compress)


def save(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Returns the bytes of a file with these tensors."""
    made = [(name, code, shape, memory.to("cpu")) for name, code, shape, memory in items(tensors)]
    return serialize_safetensors(made, metadata)


def items(tensors: dict[str, torch.Tensor]) -> list[Item]:
    """Checks tensors, and returns their items. The memory is that of the tensors, on their devices."""
    _check(tensors)
    made: list[Item] = []
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed. Save the tensor that"
                " it is a part of, or call `.contiguous()` before saving."
            )
        code = _torch.CODES.get(tensor.dtype)
        if code is None:
            raise DtypeError(f"tensor {name!r}: the format has no type for {tensor.dtype}; convert the tensor first")
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if not (tensor.is_cpu or tensor.is_cuda and torch.version.cuda):
            tensor = tensor.to("cpu")
        # Older versions of torch export no floats of one byte.
        memory = tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor
        made.append((name, code, file_shape(code, tensor.shape), memory))
    return made


def _check(tensors: Any) -> None:
    from .. import _tensors
    from . import _shared

    if not isinstance(tensors, dict):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
        _tensors.refuse_without_memory(name, tensor)
        _tensors.refuse_parts(name, tensor)
    sparse = [name for name, tensor in tensors.items() if tensor.layout != torch.strided]
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support. You can make it"
            " a dense tensor before saving with `.to_dense()` but be aware this might make a much larger file than"
            " needed."
        )
    shared = [names for names in _shared._find_shared_tensors(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"Some tensors share memory: {shared}. The file would hold the shared bytes several times, and the loaded"
            " tensors would no longer share them. `save_model` saves one of each group."
        )


def _check_model(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, not {type(model).__name__}")


def save_model(
    model: torch.nn.Module,
    filename: Path,
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
    *,
    storage_options: StorageOptions = None,
) -> None:
    """Saves the tensors of a module, as :func:`save_file` does. Of tensors that share memory, saves only one.

    The metadata maps the name of each omitted tensor to the name of the tensor that has its bytes.
    """
    from ._shared import duplicate_names

    _check_model(model)
    state = model.state_dict()
    for kept, dropped in duplicate_names(state).items():
        for name in dropped:
            metadata = {name: kept, **(metadata or {})}
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    try:
        save_file(state, filename, metadata, storage_options=storage_options)
    except ValueError as error:
        raise ValueError(f"{error} Or use save_model(..., force_contiguous=True), which copies such tensors.") from None


def load_model(
    model: torch.nn.Module,
    filename: Source,
    strict: bool = True,
    device: torch.device | str | int | None = "cpu",
    *,
    backend: str = "mmap",
    mapped: bool | None = None,
    storage_options: StorageOptions = None,
) -> tuple[set[str], list[str]]:
    """Loads the tensors of a file into a module, and returns the missing and the unexpected names.

    With ``strict``, such names raise ``RuntimeError``. A tensor that shares memory with a loaded one is not missing.
    The tensors are copied from a mapping of the file. With ``mapped=False``, they are read first.
    """
    from ._shared import duplicate_names

    _check_model(model)
    loaded = load_file(filename, device, backend=backend, mapped=mapped, storage_options=storage_options)
    duplicates = duplicate_names(model.state_dict(), preferred_names=list(loaded))
    keys, unexpected = model.load_state_dict(loaded, strict=False)
    missing = set(keys)
    for dropped in duplicates.values():
        for name in dropped:
            if name in missing:
                missing.remove(name)
            else:
                unexpected.append(name)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for kind, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                lines.append(f"{kind} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names)))
        raise RuntimeError("\n    ".join(lines))
    return missing, unexpected
