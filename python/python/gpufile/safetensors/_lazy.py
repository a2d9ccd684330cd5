"""Models whose tensors are loaded when one of them is first used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._gpufile import Lock
from .._paths import paths_of
from . import _convert
from ._arguments import Device, Model, Path, StorageOptions, names_of
from ._names import chosen
from ._open import framework_of, open_checkpoint


class LazyModel(Mapping[str, Any]):
    """A model as a mapping of names to tensors. The first use of a tensor loads all of them, as ``load_model`` does.

    A program can see the names, and plan its memory, before any tensor is loaded. transformers reserves memory for the
    whole model before it uses the tensors. The tensors then take the reserved memory, not additional memory.

    A process that unpickles the model opens it by its path, and loads its own tensors.
    """

    def __init__(
        self,
        path: Model | Iterable[Path],
        device: Device = "cpu",
        *,
        framework: str = "pt",
        only: Iterable[str] | None = None,
        dtype: Any = None,
        storage_options: StorageOptions = None,
    ) -> None:
        """Opens a model and reads its headers. The arguments are those of ``load_model``."""
        paths = paths_of("path", path)
        listed = names_of("only", only)
        self._arguments = (paths, device, framework, listed, dtype, storage_options)
        self._checkpoint = open_checkpoint(paths, storage_options)
        self._framework = framework_of(framework, device)
        self._dtype = dtype
        if dtype is not None:
            _convert.code_of(self._framework, dtype)
        self._chosen = chosen(self._checkpoint, "only", listed)
        names = self._checkpoint.names()
        self._kept = frozenset(names if self._chosen is None else self._chosen)
        self._names = [name for name in names if name in self._kept]
        self._lock = Lock()
        self._tensors: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _opened, (type(self), *self._arguments)

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        tensors = self._tensors
        return (self._lock.run(self._load) if tensors is None else tensors)[name]

    def _load(self) -> dict[str, Any]:
        # Another thread may have loaded them.
        if self._tensors is None:
            self._tensors = _convert.load(self._checkpoint, self._framework, self._chosen, self._dtype)
        return self._tensors

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        state = "not loaded" if self._tensors is None else "loaded"
        return f"<gpufile.safetensors.LazyModel: {len(self)} tensors, {state}>"


def _opened(
    kind: type[LazyModel],
    paths: list[Any],
    device: Any,
    framework: str,
    only: list[str] | None,
    dtype: Any,
    options: StorageOptions,
) -> LazyModel:
    """Returns a model that was pickled."""
    return kind(paths, device, framework=framework, only=only, dtype=dtype, storage_options=options)
