"""Models in safetensors files, to and from the memory of GPUs and of the host.

The modules ``torch``, ``numpy`` and ``flax`` (for JAX) have the same functions as in the package safetensors, so you
only need to change the import:

>>> from gpufile.safetensors import safe_open
>>> from gpufile.safetensors.torch import load_file, save_file
>>> weights = load_file("model.safetensors", device="cuda")

``install`` does that in a whole process, for programs that import safetensors themselves, such as transformers.
``safe_open(…).prefetch`` loads tensors, and parts of them, in the background.

``load_model`` loads a model of several files from its folder or index, to one device or, with a ``Placement``, to
several. ``LazyModel`` loads a model when a tensor is first used. ``verify`` reports what is wrong with a model.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, overload

from .._gpufile import parse_safetensors as _parse
from . import _convert, _error, _load
from ._arguments import Device, Path, Source, StorageOptions, flag_of, verifying
from ._error import ModelWarning
from ._names import chosen
from ._opened import bytes_of
from ._open import SafeSlice, framework_of, open_checkpoint, safe_open

if TYPE_CHECKING:
    from ._arguments import Buffer
    from ._error import SafetensorError
    from ._install import install, uninstall
    from ._lazy import LazyModel
    from ._placement import Placement, Share
    from ._prefetch import PrefetchLoader, TensorMeta
    from ._save import TensorSpec, serialize, serialize_file
    from ._verify import Verification, verify

__all__ = [
    "LazyModel",
    "ModelWarning",
    "Placement",
    "PrefetchLoader",
    "SafeSlice",
    "SafetensorError",
    "Share",
    "TensorMeta",
    "TensorSpec",
    "Verification",
    "deserialize",
    "install",
    "load_file",
    "load_model",
    "safe_open",
    "save_file",
    "serialize",
    "serialize_file",
    "uninstall",
    "verify",
]

#: The names that many programs do not use, and their modules, which are imported with the first use.
_LATER = {
    "LazyModel": "_lazy",
    "Placement": "_placement",
    "PrefetchLoader": "_prefetch",
    "SafetensorError": "_error",
    "Share": "_placement",
    "TensorMeta": "_prefetch",
    "TensorSpec": "_save",
    "Verification": "_verify",
    "install": "_install",
    "serialize": "_save",
    "serialize_file": "_save",
    "uninstall": "_install",
    "verify": "_verify",
}


if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _LATER:
            value = getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
            globals()[name] = value
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


#: The version of the package safetensors that has the same API.
__version__ = "0.9.0rc1"
#: The name of the class in that package.
PySafeSlice = SafeSlice

if "torch" in sys.modules:
    # The first load would take 1 ms longer.
    from . import _torch as _torch


@overload
def load_model(
    path: Source | Iterable[Path],
    device: Device = "cpu",
    *,
    placement: None = None,
    framework: str = "pt",
    only: Iterable[str] | None = None,
    dtype: Any = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    mapped: bool | None = None,
    shared: bool = False,
    verify: bool | Path = False,
    storage_options: StorageOptions = None,
) -> dict[str, Any]: ...
@overload
def load_model(
    path: Source | Iterable[Path],
    device: Sequence[Device],
    *,
    placement: Placement,
    framework: str = "pt",
    only: Iterable[str] | None = None,
    dtype: Any = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    mapped: bool | None = None,
    shared: bool = False,
    verify: bool | Path = False,
    storage_options: StorageOptions = None,
) -> list[dict[str, Any]]: ...
def load_model(
    path: Source | Iterable[Path],
    device: Any = "cpu",
    *,
    placement: Placement | None = None,
    framework: str = "pt",
    only: Iterable[str] | None = None,
    dtype: Any = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    mapped: bool | None = None,
    shared: bool = False,
    verify: bool | Path = False,
    storage_options: StorageOptions = None,
) -> dict[str, Any] | list[dict[str, Any]]:
    """Loads a model: a folder, an index (``model.safetensors.index.json``), a file, or several files.

    The file may also be open for reading bytes. All of it is read, wherever its position is; what has no descriptor of its own,
    such as ``io.BytesIO``, is copied first.

    A file or an index may be that of a server: ``https://…``, or ``s3://bucket/…`` with the credentials of the environment. So may
    a folder of a bucket, ``s3://bucket/folder/``, if its model has a usual name such as ``model.safetensors``. ``storage_options``
    come before the environment. ``hf://owner/name``, also with ``@revision`` and ``/file``, is a model of the Hugging Face Hub, which
    huggingface_hub fetches into its cache, or finds there without a network. Headers are those of a ``gpufile.RemoteFile``, which takes the place of the URL.

    The index says which file has which tensor. A ``ModelWarning`` names what is not loaded, such as tensors that are
    missing from the index.

    The files are read in parallel. On the host, each goes into one allocation, or into several of at most ``memory_budget``
    bytes. On a GPU, each tensor of torch is an allocation.
    ``only`` lists the tensors to load, by names and by patterns of names as in ``fnmatch``: ``["*.bias", "lm_head.*"]``. With
    ``dtype``, for example ``torch.bfloat16`` or ``"bfloat16"``, tensors of the types F16, BF16, F32 and F64 arrive with that type,
    and others with their own. The host reads and converts them in pieces of 8 MiB, so that no second copy of the model takes memory.
    ``progress=True`` shows a bar if tqdm is installed; a function as
    ``progress`` is called with the bytes loaded so far and the total.

    Tensors of torch on the host are in a private mapping of each file, as with safetensors. The call returns at once, the
    bytes are read when they are first used, and what the program changes stays in its memory. If another program shortens
    the file, the lost bytes become zeros, and the main thread raises ``OSError``. With ``mapped=False``, the bytes are read
    into memory of the process, as those of numpy are, unless ``mapped=True``. ``memory_budget`` has no effect on a mapping.

    With ``shared=True``, the tensors are in the memory of a process of this user that shares the model from the same device
    (``gpufile.safetensors.torch.SharedModel``): on a GPU, by CUDA IPC. If there is none, a ``ModelWarning`` says so, and the
    files are read.

    With ``verify``, each file is compared with its SHA-256 meanwhile, and ``SafetensorError`` names one that differs or has none. True
    stands for the hashes in the names of a Hugging Face cache, a path for a list that ``sha256sum`` wrote.

    With a ``placement``, ``device`` is a list, and the result is a list with one dictionary per device. Each byte is
    read once, by one GPU. Tensors for all GPUs are copied between them while the rest is read. A group of processes
    uses ``gpufile.safetensors.torch.load_distributed``.
    """
    is_list = isinstance(device, (list, tuple))
    if placement is None:
        if is_list:
            raise ValueError("several devices need a placement, for example Placement.balanced()")
        checkpoint, made = open_checkpoint(path, storage_options), framework_of(framework, device)
        names = chosen(checkpoint, "only", only)
        if flag_of("shared", shared):
            if checkpoint.is_remote:
                raise ValueError("shared=True is for local files without packed tensors, not for those of a server")
            if dtype is not None:
                raise ValueError("shared=True is for tensors with the types of the files, and works without a dtype; convert them with .to(dtype)")
            if verify is not False:
                raise ValueError("verify is for loads that read the files, and works without shared=True")
            tensors = _shared_tensors(checkpoint, made, names)
            if isinstance(tensors, dict):
                return tensors
            warnings.warn(f"the files of {path!r} are read, not shared: {tensors}", ModelWarning, stacklevel=2)
        with verifying(path, verify):
            return _convert.load(checkpoint, made, names, dtype, memory_budget, progress, mapped)
    from ._placement import check_placement

    check_placement(placement)
    if mapped:
        raise ValueError("mapped=True is for one device, and works without a placement")
    if shared:
        raise ValueError("shared=True is for one device, and works without a placement")
    if not is_list or not device:
        raise ValueError(f"a placement needs a list of devices, not {device!r}")
    frameworks = [framework_of(framework, one) for one in device]
    for one, each in zip(device, frameworks):
        if each.copies:
            raise ValueError(f"a placement takes CUDA GPUs and the host, not {one} of framework {framework}")
    checkpoint = open_checkpoint(path, storage_options)
    names = chosen(checkpoint, "only", only)
    with verifying(path, verify):
        return _convert.load_placed(checkpoint, frameworks, placement, names, dtype, memory_budget, progress)


def _shared_tensors(checkpoint: Any, framework: Any, names: list[str] | None) -> dict[str, Any] | str:
    """Returns the tensors of a process that shares the model, or the reason why there are none."""
    if type(framework).__module__ != f"{__name__}._torch":
        raise ValueError("shared=True is for the framework pt")
    from ._handed import ask

    return ask(checkpoint, framework.device, names)


def load_file(
    filename: Source,
    device: Device = "cpu",
    *,
    framework: str = "pt",
    only: Iterable[str] | None = None,
    dtype: Any = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    mapped: bool | None = None,
    verify: bool | Path = False,
    storage_options: StorageOptions = None,
) -> dict[str, Any]:
    """Loads a file like :func:`load_model`."""
    return load_model(
        filename,
        device,
        framework=framework,
        only=only,
        dtype=dtype,
        memory_budget=memory_budget,
        progress=progress,
        mapped=mapped,
        verify=verify,
        storage_options=storage_options,
    )


def save_file(
    tensors: dict[str, Any],
    filename: Path,
    metadata: dict[str, str] | None = None,
    *,
    sync: bool = True,
    storage_options: StorageOptions = None,
    remove_old_model: bool = False,
    compress: bool = False,
) -> None:
    """Saves tensors of torch, numpy or JAX, like ``save_file`` of that framework's module."""
    from ._save import items_of
    from ._store import save_items

    save_items(filename, items_of(tensors), metadata, sync, storage_options, remove_old_model, compress)


def deserialize(data: Buffer) -> list[tuple[str, dict[str, Any]]]:
    """Returns the tensors in the bytes of a file: for each name the type, the shape and the bytes."""
    data = bytes_of(data)
    return _parse(data)[0].contents(data)


class _safe_open_handle(safe_open):
    """An open model, by a file object with a name. The bytes are read by the name."""

    def __init__(self, f: Any, framework: str, device: Device = "cpu", *, backend: str = "mmap") -> None:
        super().__init__(f.name, framework, device, backend=backend)
