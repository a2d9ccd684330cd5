"""Tensors in private mappings of their files. The bytes come from the page cache when they are first used."""

from __future__ import annotations

from typing import Any

from .._gpufile import Checkpoint
from . import _load
from ._arguments import limit_of


class _Choice:
    """The choice of ``install`` for calls that do not choose. None leaves it to the framework."""

    mapped: bool | None = None


_choice = _Choice()


def map_by_default(mapped: bool | None) -> None:
    """Maps, or reads, tensors of the host in later calls that do not choose. None: tensors of torch are mapped, as
    safetensors maps them, and arrays of numpy are read."""
    _choice.mapped = mapped


def check(mapped: Any, framework: Any, checkpoint: Checkpoint) -> bool:
    """Returns the choice. Refuses a mapping for arrays that are not in memory of the host, of files of a server, and of files
    with packed tensors."""
    if mapped is None:
        chosen = framework.maps_files if _choice.mapped is None else _choice.mapped
        return chosen and framework.is_host and not checkpoint.is_remote
    if not isinstance(mapped, bool):
        raise TypeError(f"mapped: expected True or False, not {type(mapped).__name__}")
    if mapped and not framework.is_host:
        raise ValueError("mapped=True is for tensors of torch and numpy on the host")
    if mapped and checkpoint.is_remote:
        raise ValueError("mapped=True is for local files without packed tensors, not for those of a server")
    return mapped


def load_or_map(
    checkpoint: Checkpoint,
    framework: Any,
    names: list[str] | None = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    mapped: bool | None = None,
) -> dict[str, Any]:
    """Returns the tensors by name, in the order of the file."""
    if check(mapped, framework, checkpoint):
        limit_of(memory_budget)
        return load(checkpoint, framework, names, progress)
    return _load.load(checkpoint, framework, names, memory_budget, progress)


def load(
    checkpoint: Checkpoint, framework: Any, names: list[str] | None = None, progress: _load.Progress = False
) -> dict[str, Any]:
    """Returns the tensors by name, in the order of the file. Reads those that start between elements."""
    mappings, others = checkpoint.map(names)
    tensors: dict[str, Any] = {}
    with _load.Meter(progress, len_bytes(checkpoint, names)) as meter:
        for mapping, table in mappings:
            framework.fill(tensors, framework.wrap(mapping), table)
        if others:
            tensors |= _load.load(checkpoint, framework, others)
            tensors = _load.sort(checkpoint, tensors)
        meter.finish()
    return tensors


def len_bytes(checkpoint: Checkpoint, names: list[str] | None) -> int:
    """Returns the bytes of tensors. Those that do not exist have none."""
    if names is None:
        return checkpoint.len_bytes
    infos = map(checkpoint.info, set(names))
    return sum(offsets[1] - offsets[0] for _, _, offsets in filter(None, infos))


class Mapped:
    """The tensors of a model, one by one."""

    def __init__(self, checkpoint: Checkpoint, framework: Any) -> None:
        self._checkpoint, self._framework = checkpoint, framework
        #: The memory of each file, by its number.
        self._bases: dict[int, Any] = {}

    def get(self, name: str) -> Any:
        """Returns a tensor in the mapping of its file. None if there is no such tensor, or it must be read."""
        place = self._checkpoint.map_tensor(name)
        if place is None:
            return None
        number, mapping, code, shape, start = place
        base = self._bases.get(number)
        if base is None:
            base = self._bases.setdefault(number, self._framework.wrap(mapping))
        return self._framework.view(base, code, shape, start)
