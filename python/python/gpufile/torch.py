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
import copy
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from . import _gpufile
from ._budget import Budget
from ._copies import PLACES
from ._gpufile import File
from ._log import timed
from ._pickling import NotPickled
from ._pieces import Pieces
from ._plans import Changed, Leaves, Plan, plan_of
from ._paths import path_of, text_of
from ._saves import Progress as Progress
from ._saves import Save as Save
from ._saves import Saves
from ._states import restore
from ._streams import Ends

if TYPE_CHECKING:
    from ._checkpoint import StorageReader as StorageReader
    from ._checkpoint import StorageWriter as StorageWriter
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


class _Target(NamedTuple):
    """The file or the object that a save writes."""

    #: The path, as the caller named it.
    shown: str
    #: The name that all saves of it have.
    file: str
    write: Callable[[list[Any], dict[str, str] | None, Iterator[Any]], int]


class Saver(NotPickled):
    """A saver of checkpoints, which writes safetensors files while the program continues.

    Saves run one at a time, in the order of the calls, or ``files_at_once`` of them; those of one file keep their order.
    Each replaces an existing file as a whole: if it fails or the process dies, the old file stays.

    Each failure is raised once: by the future of the save, or else by the next ``save``, or at the end of the ``with``
    block, which waits for all saves.

    The program may change tensors after ``save`` has returned, because the saver writes a copy. With
    ``snapshot="device"``, the copies are on the tensors' device: fast, but they need as much GPU memory again. With
    ``"host"``, they are in pinned host memory. With ``None`` there is no copy, and the tensors must stay unchanged until
    the save has ended.

    GPUs copy on a stream of their own, which waits for the current stream. ``save`` returns before the copy has ended,
    and the current stream waits for it. With ``overlap=True`` it does not: call ``synchronize`` before anything changes
    the tensors, for example before ``optimizer.step``.

    ``memory_budget`` limits the bytes of the copies of all saves. If a state is longer, or other copies take the room,
    ``save`` copies it in pieces of at most half the budget, and waits until earlier pieces are written.

    With ``compress=True``, tensors are packed, as ``save_file`` packs them.

    A state may be nested: dicts, lists and tuples of tensors, arrays of numpy, types of torch, numbers, texts and None, for
    example the states of a model and its optimizer. The tensors get names like ``optimizer.state.0.exp_avg``, and the file's metadata has the rest.
    Names of one tensor, as of tied weights, share its bytes. ``load_state`` returns the same state, but a dict for an
    ``OrderedDict``, and a tuple for a ``torch.Size``. Named tuples are refused.

    A forked child cannot use its parent's saver: it counts the parent's saves as failed, and needs a new saver.
    """

    _instead = "make another there"

    def __init__(
        self,
        *,
        snapshot: Literal["device", "host"] | None = "device",
        sync: bool = True,
        memory_budget: int | None = None,
        files_at_once: int = 1,
        overlap: bool = False,
        compress: bool = False,
    ) -> None:
        """Creates a saver. With ``sync=False``, a crash of the machine may leave an incomplete file."""
        # The package takes longer to import than this module.
        from .safetensors._arguments import flag_of, integer_of, limit_of

        if snapshot not in (*PLACES, None):
            raise ValueError(f'snapshot must be "device", "host" or None, but is {snapshot!r}')
        limit = limit_of(memory_budget)
        if limit == 0:
            raise ValueError("memory_budget is 0: a copy needs at least 1 byte")
        threads = integer_of("files_at_once", files_at_once)
        if threads < 1:
            raise ValueError(f"files_at_once is {threads}: expected at least 1")
        self._snapshot, self._sync, self._has_overlap = snapshot, sync, overlap
        self._compress = flag_of("compress", compress)
        self._budget, self._ends = Budget(limit), Ends()
        #: That of the last save.
        self._plan: Plan | None = None
        # Two threads that waited for the room that the other's copies take would wait for ever.
        self._turn = threading.Lock()
        self._saves = Saves(threads)

    def save(
        self,
        tensors: dict[Any, Any],
        path: str | os.PathLike[str],
        metadata: dict[str, str] | None = None,
        *,
        storage_options: StorageOptions = None,
    ) -> Save:
        """Starts to save a state, and returns a future of the file's length in bytes.

        Its ``result`` raises the failure of the save, its ``cancel`` cancels a save that has not begun, and its
        ``progress`` has the bytes. Tensors that cannot be saved raise here, as in ``gpufile.safetensors.torch.save_file``,
        and values that are none of these kinds raise ``TypeError``. If an earlier save has failed and no call raised its
        failure, this call raises it, and saves nothing.

        The path may be the URL of an object of a store, with ``storage_options``, as for ``save_file``.
        """
        self._saves.check()
        if not isinstance(tensors, dict):
            raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
        if not isinstance(metadata, (dict, type(None))):
            raise TypeError(f"metadata: expected a dict of texts, not {type(metadata).__name__}")
        target, leaves = self._target(path, storage_options), Leaves(tensors)
        # Another thread may save, and change it.
        plan = self._plan
        if plan is not None and plan.may_fit(leaves):
            try:
                return self._save(plan, leaves, target, metadata)
            except Changed:
                pass
        try:
            made = plan_of(tensors, metadata, leaves)
        except RecursionError:
            raise ValueError("state: it is nested too deeply to be saved") from None
        return self._save(made, leaves, target, metadata)

    def _target(self, path: Any, storage_options: StorageOptions) -> _Target:
        """Returns what a path stands for. Raises ``TypeError`` for what is no path."""
        if isinstance(path, str) and _gpufile.is_address(path):
            if self._compress:
                raise ValueError("compress is for files: objects of a store cannot have packed tensors")
            options = copy.copy(storage_options)
            upload = _gpufile.save_safetensors_pieces_url
            return _Target(path, path, lambda specs, content, pieces: upload(path, specs, content, pieces, options))
        if storage_options is not None:
            raise ValueError("storage_options are for URLs such as s3://bucket/key")
        text = text_of("path", path)
        # The program may change its folder before the thread writes.
        file, sync, compress = os.path.abspath(text), self._sync, self._compress

        def write(specs: list[Any], content: dict[str, str] | None, pieces: Iterator[Any]) -> int:
            return _gpufile.save_safetensors_pieces(file, specs, content, sync, pieces, compress)

        return _Target(text, os.path.realpath(file), write)

    def _save(self, known: Plan, leaves: Leaves, target: _Target, metadata: dict[str, str] | None) -> Save:
        """Starts a save by a plan. Raises ``Changed`` if the plan is one of other tensors."""
        pieces = Pieces(functools.partial(known.sources, leaves), known.total_bytes, self._snapshot, self._budget)
        save = Save(target.shown, pieces)

        def start() -> None:
            # The copies run.
            plan = known.updated(leaves, metadata)
            self._plan = plan if plan.order is not None else None
            # The thread keeps no tensor of the program.
            specs, content, total = plan.specs, plan.metadata, plan.total_bytes

            def write() -> int:
                try:
                    with timed(f"save to {target.shown!r}", total):
                        return target.write(specs, content, iter(pieces))
                finally:
                    pieces.end()

            self._saves.start(save, target.file, write)

        with self._turn:
            try:
                has_started = pieces.copy(start)
                self._ends = pieces.ends
                if not self._has_overlap:
                    self._ends.order()
                # From here on, the thread of the save competes with this one for the interpreter.
                if not has_started:
                    start()
            except BaseException as error:
                # This call raises it. Other threads must know before the thread of the save fails.
                save._is_seen = True
                pieces.end(error)
                raise
        # A cancelled save waits in the queue for its turn.
        save.add_done_callback(lambda _: pieces.end())
        return save

    @property
    def pending(self) -> list[Save]:
        """The saves that run or wait, in their order."""
        return self._saves.pending()

    @property
    def progress(self) -> Progress:
        """The bytes of the saves in ``pending``: those that were written, and all. Both are 0 if there are none."""
        done, total = 0, 0
        for save in self._saves.pending():
            done, total = done + save.progress.done_bytes, total + save.progress.total_bytes
        return Progress(done, total)

    def synchronize(self) -> None:
        """Orders the current streams of the calling thread after the copies of the last ``save``, without a wait on the
        host."""
        self._ends.order()

    def close(self) -> None:
        """Waits for all saves, and raises the first failure that was not raised yet. A cancelled save is not a failure."""
        for error in self._saves.end():
            raise error

    def __repr__(self) -> str:
        return f"<gpufile.torch.Saver: {len(self.pending)} saves pending>"

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # The exception of the program comes first.
            self._saves.end()


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
