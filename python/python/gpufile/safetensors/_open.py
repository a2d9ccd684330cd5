"""Open models, whose tensors are read when they are asked for."""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .._gpufile import Checkpoint, visible
from .._paths import address_of, paths_of
from .._pickling import NotPickled
from . import _error, _load, _mapped
from ._arguments import Device, Path, Source, StorageOptions, budget_of, check_backend, threads_of
from ._dtypes import stored_shape
from ._names import chosen
from ._opened import is_opened, path_of_opened

if TYPE_CHECKING:
    from . import _plan, _prefetch

#: The modules of the frameworks, by all of their names.
FRAMEWORKS = {
    "pt": "_torch",
    "torch": "_torch",
    "pytorch": "_torch",
    "np": "_numpy",
    "numpy": "_numpy",
    "jax": "_jax",
    "flax": "_jax",
}


#: The names of models on a hub, such as ``gpt2`` and ``openai-community/gpt2``.
_NAME_ON_A_HUB = r"[\w-][\w.-]*(/[\w-][\w.-]*)?"
_HUB_HINT = (
    "It is no path of a file or a folder. gpufile downloads no models by name alone: the address hf://{} stands for the model"
    " of this name on the Hugging Face Hub."
)
#: The modules that move each tensor to its device, without a write to its memory before.
MOVING = ("diffusers.models.model_loading_utils", "transformers.modeling_utils")


def framework_of(name: str, device: Any) -> Any:
    """Returns the framework of that name."""
    module = FRAMEWORKS.get(name)
    if module is None:
        raise _error.SafetensorError(f"framework {name} is invalid; use one of {', '.join(FRAMEWORKS)}")
    return importlib.import_module(f".{module}", __package__).Framework(device)


def open_checkpoint(path: Source | Iterable[Path], storage_options: StorageOptions = None) -> Checkpoint:
    """Opens a file, a folder or an index, or several files; a file or an index of a server, or a folder of a bucket; or a model of the
    Hub. Or an open file."""
    if is_opened(path):
        if storage_options is not None:
            raise ValueError("storage_options are for URLs such as s3://bucket/key, not for open files")
        with path_of_opened(path) as name:
            return Checkpoint([name])
    paths = paths_of("path", path)
    if isinstance(paths[0], str) and paths[0].startswith("hf://"):
        from ._hub import local_path

        if storage_options is not None:
            raise ValueError("storage_options are for stores such as s3://bucket/key, not for the Hub")
        paths = [local_path(paths[0])]
    address = address_of(paths[0])
    if address is not None:
        checkpoint = Checkpoint.open_url(address, storage_options)
    elif storage_options is not None:
        raise ValueError("storage_options are for URLs such as s3://bucket/key")
    else:
        checkpoint = _open_files(paths)
    for text in checkpoint.warnings:
        warnings.warn(text, _error.ModelWarning, stacklevel=3)
    return checkpoint


def _open_files(paths: list[Any]) -> Checkpoint:
    try:
        return Checkpoint(paths)
    except FileNotFoundError:
        for path in paths:
            if not os.path.lexists(path):
                # Programs compare this text, so `filename`, which would add to it, stays unset.
                error = FileNotFoundError(f"No such file or directory: {os.fspath(path)}")
                error.errno = errno.ENOENT
                if re.fullmatch(_NAME_ON_A_HUB, os.fsdecode(path)):
                    error.add_note(_HUB_HINT.format(os.fsdecode(path)))
                raise error from None
        raise


class safe_open(NotPickled):
    """An open model: a safetensors file, a folder with one model, an index, or several files. A file or an index may be that of a
    server, by its URL or as a ``gpufile.RemoteFile``, whose options are then those of all files. A file may also be open.

    It works as ``safetensors.safe_open``, and iterates over names and tensors too:

    >>> with safe_open("model.safetensors", framework="pt", device="cuda") as model:
    ...     rows = model.get_slice("embedding")[:1000]
    ...     for name, tensor in model:
    ...         print(name, tensor.shape)

    An iteration reads ahead and yields the tensors in the order of the file. It uses at most 1 GiB in addition to the
    tensors that the program keeps; ``iter_tensors`` takes another limit. Each iteration reads the file again.
    """

    def __init__(
        self,
        filename: Source | Iterable[Path],
        framework: str,
        device: Device = "cpu",
        *,
        backend: str = "mmap",
        mapped: bool | None = None,
        storage_options: StorageOptions = None,
    ) -> None:
        """Opens a model and reads its header.

        ``backend`` exists for compatibility with safetensors, and has no effect. Tensors of torch on the host are in a
        private mapping of each file, and calls for the same tensor share its memory. With ``mapped=False``, each call reads
        its tensor into memory of its own, as for numpy, unless ``mapped=True``. A ``PrefetchLoader`` reads all of its tensors.
        ``storage_options`` are those of ``gpufile.RemoteFile``, for a URL.
        """
        check_backend(backend)
        self._checkpoint: Checkpoint | None = open_checkpoint(filename, storage_options)
        self._framework_name, self._framework = framework, framework_of(framework, device)
        is_mapped = _mapped.check(mapped, self._framework, self._checkpoint)
        self._mapped = _mapped.Mapped(self._checkpoint, self._framework) if is_mapped else None
        self._slice_type = _slice_type(framework, sys._getframe(1)) if is_mapped else SafeSlice

    def _open(self) -> Checkpoint:
        if self._checkpoint is None:
            raise _error.SafetensorError("File is closed")
        return self._checkpoint

    def keys(self) -> list[str]:
        """Returns the names of the tensors, sorted."""
        return sorted(self._open().names())

    def offset_keys(self) -> list[str]:
        """Returns the names of the tensors, in the order of the file."""
        return self._open().names()

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yields names and tensors, as an iteration over the model does."""
        return iter(self)

    def metadata(self) -> dict[str, str] | None:
        """Returns the metadata, or None if the file has none."""
        return self._open().metadata()

    def get_tensor(self, name: str) -> Any:
        """Reads one tensor."""
        checkpoint, framework = self._open(), self._framework
        if self._mapped is not None and (tensor := self._mapped.get(name)) is not None:
            return tensor
        if framework.is_host and (short := checkpoint.short(name)):
            return framework.short(*short)
        return self.get_slice(name)._whole()

    def get_tensors(self) -> dict[str, Any]:
        """Reads all tensors."""
        if self._mapped is not None:
            return _mapped.load(self._open(), self._framework)
        return _load.load(self._open(), self._framework)

    def get_slice(self, name: str) -> SafeSlice:
        """Returns a tensor that an index expression reads in part."""
        checkpoint = self._open()
        info = checkpoint.info(name)
        if info is None:
            raise _error.MissingTensorError(f"File does not contain tensor {visible(name)}")
        return self._slice_type(checkpoint, self._framework, name, *info[:2], self._mapped)

    def get_tensor_meta(self, name: str) -> _prefetch.TensorMeta:
        """Returns type, shape and offsets of a tensor, from the header of its file."""
        info = self._open().info(name)
        if info is None:
            raise _error.MissingTensorError(f"File does not contain tensor {visible(name)}")
        from . import _prefetch

        dtype, shape, offsets = info
        return _prefetch.TensorMeta(dtype, list(shape), offsets)

    def prefetch(
        self, plan: _plan.Plan | None = None, *, device: Device = None, threads: int | None = None
    ) -> _prefetch.PrefetchLoader:
        """Starts to load tensors in the background, and returns a ``PrefetchLoader`` that hands each out once.

        >>> plan = {"embedding": None, "layers.*.o_proj.weight": (slice(None), slice(0, 512))}
        >>> with model.prefetch(plan, device="cuda:1") as loader:
        ...     embedding = loader.take("embedding")
        ...     for name, tensor in loader:
        ...         print(name, tensor.shape)

        ``plan`` is a dict of names, or of patterns as in ``fnmatch``. A value is ``None`` for the whole tensor, a slice for
        rows, or a tuple with a slice for each axis, for example ``(slice(None), slice(0, 512))`` for columns. A list of
        slices for an axis joins them. Only the bytes of the plan are read. A name takes precedence over patterns, and
        a pattern over later ones. Without a plan, all tensors are loaded.

        ``device`` is where the tensors go, by default the device of this model. The host, numpy and JAX work, too.
        Loaders share the threads and the bounce buffers of the process; with ``threads``, this one gets an engine with
        at most so many. The loader reads the files on after this model is closed.

        Raises ``SafetensorError`` if a tensor or a slice does not exist, a step is not 1, or the framework lacks a type.
        """
        from . import _prefetch

        checkpoint = self._open()
        framework = self._framework if device is None else framework_of(self._framework_name, device)
        return _prefetch.start(checkpoint, framework, plan, threads_of(threads))

    def iter_tensors(
        self,
        names: Iterable[str] | None = None,
        *,
        memory_budget: int = _load.DEFAULT_BUDGET,
        progress: _load.Progress = False,
    ) -> Iterator[tuple[str, Any]]:
        """Yields names and tensors as they arrive, in the order of the file: all, or those with these names or patterns of names.

        In addition to the tensors that the program keeps, the iteration uses ``memory_budget`` bytes, or three times
        the longest tensor if that is more. On the host, tensors that were read together share memory,
        which is freed with the last of them.
        """
        names, budget = chosen(self._open(), "names", names), budget_of(memory_budget)
        if self._mapped is not None:
            return iter(_mapped.load(self._open(), self._framework, names, progress).items())
        return _load.stream(self._open(), self._framework, names, budget, progress)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self.iter_tensors()

    def __getitem__(self, name: str) -> Any:
        return self.get_tensor(name)

    def __len__(self) -> int:
        return len(self._open())

    def __contains__(self, name: str) -> bool:
        return name in self._open()

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *exception: object) -> None:
        self._checkpoint = self._mapped = None

    def __repr__(self) -> str:
        state = "closed" if self._checkpoint is None else f"{len(self._checkpoint)} tensors"
        return f"<gpufile.safetensors.safe_open: {state}>"


class SafeSlice(NotPickled):
    """A tensor of a file that is read in part: ``get_slice("embedding")[:, ::8]``."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        framework: Any,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        mapped: _mapped.Mapped | None = None,
    ) -> None:
        self._checkpoint, self._framework, self._mapped = checkpoint, framework, mapped
        self._name, self._dtype, self._shape = name, dtype, shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the file has for the tensor."""
        return tuple(self._shape)

    @property
    def dtype(self) -> str:
        """The type that the file has for the tensor, for example ``F32``."""
        return self._dtype

    def get_shape(self) -> list[int]:
        """Returns the shape that the file has for the tensor."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """Returns the type that the file has for the tensor, for example ``F32``."""
        return self._dtype

    def __repr__(self) -> str:
        return f"<gpufile.safetensors.SafeSlice {self._name!r}: {self._dtype} {list(self._shape)}>"

    def __getitem__(self, index: Any) -> Any:
        if index is Ellipsis:
            return self._whole()
        from . import _slices

        shape = self._stored_shape()
        if self._framework.is_strict:
            _slices.check(index, shape)
        plan = _slices.plan(index, shape)
        if plan is None:
            return self._whole()[index]
        bounds, rest = plan
        part = self._read(bounds)
        # The dots make numpy return an array of no axes, as safetensors does, not a scalar.
        return part if rest is None else part[(*rest, ...)]

    def _whole(self) -> Any:
        if self._mapped is not None and (whole := self._mapped.get(self._name)) is not None:
            return whole
        if self._framework.is_host and (short := self._checkpoint.short(self._name)):
            return self._framework.short(*short)
        return self._read([(0, axis) for axis in self._stored_shape()])

    def _stored_shape(self) -> list[int]:
        return stored_shape(self._framework, self._name, self._dtype, self._shape)

    def _read(self, bounds: list[tuple[int, int]]) -> Any:
        if self._mapped is not None and (whole := self._mapped.get(self._name)) is not None:
            # The dots make numpy return an array of no axes.
            return whole[(*(slice(start, stop) for start, stop in bounds), ...)]
        group = self._checkpoint.part(self._name, bounds)
        base = self._framework.allocate(group.len_bytes)
        if group.len_bytes:
            self._checkpoint.read_now(group, base)
        return self._framework.whole(base, self._dtype, [stop - start for start, stop in bounds])


def is_moving(frame: types.FrameType) -> bool:
    """Returns True if the code of a frame moves the tensors that it gets."""
    return frame.f_globals.get("__name__") in MOVING


def _slice_type(framework: str, frame: types.FrameType) -> type[SafeSlice]:
    """Returns the type of the slices on the host that the code of a frame gets."""
    if FRAMEWORKS[framework] != "_torch":
        return SafeSlice
    if not is_moving(frame):
        return SafeSlice
    from . import _moves

    return _moves.MovingSlice
