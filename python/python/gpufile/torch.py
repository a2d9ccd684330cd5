"""PyTorch storages to and from files, as in ``torch.cuda.gds``, and checkpoints that are saved during training.

>>> from gpufile.torch import GdsFile, Saver
>>> file = GdsFile("weights.bin", os.O_CREAT | os.O_RDWR)
>>> file.save_storage(weights.untyped_storage())
>>> with Saver() as saver:
...     saved = saver.save(model.state_dict(), "checkpoint.safetensors")
...     train(model)
...     saved.result()

``StorageWriter`` and ``StorageReader`` are the storage of ``torch.distributed.checkpoint``:

>>> dcp.save(state_dict, storage_writer=StorageWriter("checkpoint"))
>>> dcp.load(state_dict, storage_reader=StorageReader("checkpoint"))

``gpufile.safetensors.torch`` loads and saves safetensors files.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from . import _gpufile
from ._gpufile import File
from ._paths import path_of
from ._pickling import NotPickled

if TYPE_CHECKING:
    from ._checkpoint import StorageReader as StorageReader
    from ._checkpoint import StorageWriter as StorageWriter
    from ._saver import Progress as Progress
    from ._saver import Save as Save
    from ._saver import Saver as Saver
    from .safetensors._arguments import StorageOptions

    Storage = torch.UntypedStorage | torch.storage.TypedStorage

__all__ = [
    "GdsFile",
    "Saver",
    "StorageReader",
    "StorageWriter",
    "gds_deregister_buffer",
    "gds_register_buffer",
    "is_available",
    "load_state",
]


def __getattr__(name: str) -> Any:
    if name in ("Progress", "Save", "Saver"):
        from . import _saver

        return getattr(_saver, name)
    # torch.distributed.checkpoint takes long to import, and not every build of torch has it.
    if name in ("StorageReader", "StorageWriter"):
        from . import _checkpoint

        return getattr(_checkpoint, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


#: The registered storages, by their addresses.
_registered: dict[int, torch.Tensor] = {}


def is_available() -> bool:
    """Returns True: ``GdsFile`` works on every machine, by cuFile where that is faster."""
    return True


def gds_register_buffer(s: Storage) -> None:
    """Registers a storage of a GPU with cuFile, so that GPUDirect Storage need not pin it for each transfer.

    Raises ``RuntimeError`` if the storage is already registered or not on a GPU, or if cuFile refuses.
    """
    storage = _bytes_of(s)
    if storage.data_ptr() in _registered:
        raise RuntimeError("cannot register the storage: it is already registered")
    with _as_torch():
        _register(storage)
    _registered[storage.data_ptr()] = storage


def gds_deregister_buffer(s: Storage) -> None:
    """Ends the registration of a storage. Raises ``RuntimeError`` if it is not registered."""
    storage = _bytes_of(s)
    if _registered.pop(storage.data_ptr(), None) is None:
        raise RuntimeError("cannot deregister the storage: it is not registered")
    with _as_torch():
        _gpufile.deregister(storage)
        # An allocation of torch has many storages, and cuFile registers all of it. The others stay registered.
        for other in _registered.values():
            _register(other)


def _register(storage: torch.Tensor) -> None:
    try:
        _gpufile.register(storage)
    except ValueError as error:
        if "already" not in str(error):
            raise


class GdsFile(NotPickled):
    """An open file, for storages of GPUs and of the host.

    It works like ``torch.cuda.gds.GdsFile``, but on every file system, and without libcufile. ``O_DIRECT`` is not
    needed: gpufile chooses the route, and takes any length and offset. Transfers wait for the work in the current
    stream.
    """

    def __init__(self, filename: str | os.PathLike[str], flags: int) -> None:
        """Opens a file. ``flags`` are those of ``os.open``.

        With ``O_SYNC`` or ``O_DSYNC``, each save waits for the storage.
        ``O_APPEND`` and ``O_NOATIME`` raise ``ValueError``.
        """
        self.filename = path_of(filename, "filename")
        if not isinstance(flags, int):
            raise TypeError(f"flags: expected an integer, as os.O_RDONLY, not {type(flags).__name__}")
        self.flags = flags
        self.handle: File | None = None
        if flags & os.O_ACCMODE not in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            raise ValueError("flags must include one of O_RDONLY, O_WRONLY and O_RDWR")
        for name in ("O_APPEND", "O_NOATIME"):
            if flags & getattr(os, name):
                raise ValueError(f"flags must not include {name}, which gpufile does not support")
        self.fd: int = os.open(self.filename, flags & ~os.O_DIRECT)
        weakref.finalize(self, os.close, self.fd)
        self.register_handle()

    def register_handle(self) -> None:
        """Registers the file with cuFile if its route to GPU memory uses cuFile. Transfers need a registered file.

        Raises ``RuntimeError`` if a setting requires cuFile, and cuFile refuses the file.
        """
        if self.handle is not None:
            raise AssertionError("Cannot register a handle that is already registered.")
        with _as_torch():
            handle = File.from_fd(self.fd)
            # The first look at the route registers the file.
            handle.route()
        self.handle = handle

    def deregister_handle(self) -> None:
        """Ends the registration with cuFile. The descriptor stays open, but transfers fail until ``register_handle``."""
        if self.handle is None:
            raise AssertionError("Cannot deregister a handle that is not registered.")
        self.handle.close()
        self.handle = None

    def load_storage(self, storage: Storage, offset: int = 0) -> None:
        """Reads the whole storage from ``offset`` in bytes.

        Raises ``RuntimeError`` if the read fails or the file ends early.
        """
        if self.handle is None:
            raise AssertionError("Cannot load data from a file that is not registered.")
        memory = _bytes_of(storage)
        with _as_torch():
            read = self.handle.read_into(memory, offset)
        if read != memory.nbytes:
            raise RuntimeError(
                f"cannot read {memory.nbytes} bytes at {offset} of {os.fspath(self.filename)!r}: the file ends after"
                f" {read} of them"
            )

    def __repr__(self) -> str:
        return f"<gpufile.torch.GdsFile {os.fspath(self.filename)!r}{'' if self.handle else ' not registered'}>"

    def save_storage(self, storage: Storage, offset: int = 0) -> None:
        """Writes the whole storage to ``offset`` in bytes. Raises ``RuntimeError`` if the write fails."""
        if self.handle is None:
            raise AssertionError("Cannot save data to a file that is not registered.")
        with _as_torch():
            self.handle.write_from(_bytes_of(storage), offset)
            # O_SYNC has the bit of O_DSYNC.
            if self.flags & os.O_DSYNC:
                self.handle.sync()


def load_state(
    path: str | os.PathLike[str],
    device: torch.device | str | int | None = "cpu",
    *,
    storage_options: StorageOptions = None,
) -> Any:
    """Loads what ``Saver.save`` saved: the same dicts, lists, tuples, numbers and texts, with tensors on the device.

    Names that shared a tensor share one again. A file without a structure is a dict of tensors.

    Raises ``ValueError`` if the structure is damaged.
    """
    from ._states import restore
    from .safetensors.torch import load_file, safe_open

    with safe_open(path, "pt", storage_options=storage_options) as file:
        metadata = file.metadata()
    # A program changes what it resumes from, so a mapping would only delay the reads.
    tensors = load_file(path, device, mapped=False, storage_options=storage_options)
    return restore(tensors, metadata, os.fspath(path))


def _bytes_of(storage: Any) -> torch.Tensor:
    """Returns the bytes of a storage as a tensor."""
    if not isinstance(storage, (torch.UntypedStorage, torch.storage.TypedStorage)):
        raise TypeError(f"expected a torch storage, not a {type(storage).__name__}: call .untyped_storage()")
    either: Any = storage
    tensor: torch.Tensor = torch.empty(0, dtype=torch.uint8, device=either.device).set_(either.untyped())
    return tensor


@contextlib.contextmanager
def _as_torch() -> Iterator[None]:
    """Raises the exception that torch raises for failed transfers."""
    try:
        yield
    except (OSError, ValueError, BufferError) as error:
        raise RuntimeError(str(error)) from error
