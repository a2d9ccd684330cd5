"""Checks of arguments, with errors that name them."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

from .._gpufile import RemoteFile
from . import _error

Path = str | os.PathLike[str]
#: The ways to name the file, the folder or the index of a model.
Model = Path | RemoteFile
#: The same, or an open binary file.
Source = Model | IO[bytes]
if TYPE_CHECKING:
    from typing import TypeAlias

    import jax
    import torch
    from typing_extensions import Buffer as Buffer

    #: A device of torch or JAX, or its name. torch has numbers for GPUs, too.
    Device: TypeAlias = torch.device | jax.Device | str | int | None
else:
    # Neither package need be installed.
    Device = Any
#: Options of a store by the names of the variables that they take the place of.
StorageOptions = Mapping[str, str] | None


def _not(value: Any) -> str:
    return f"not {type(value).__name__}"


def check_backend(backend: Any) -> None:
    """Refuses what safetensors does not take for the backend. Both of its backends read in the same way here."""
    if backend not in ("mmap", "pread"):
        raise _error.SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')


def names_of(argument: str, names: Any) -> list[str] | None:
    """Returns the names of tensors. None stands for all."""
    if names is None:
        return None
    # The characters of a name are no names.
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"{argument}: expected a list of names, {_not(names)}")
    listed = list(names)
    for number, name in enumerate(listed):
        if not isinstance(name, str):
            raise TypeError(f"{argument}[{number}]: expected a name, {_not(name)}")
    return listed


def integer_of(argument: str, value: Any) -> int:
    """Returns an integer of Python or numpy."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{argument}: expected an integer, {_not(value)}") from None


def flag_of(argument: str, value: Any) -> bool:
    """Returns True or False, and takes nothing else for them."""
    if not isinstance(value, bool):
        raise TypeError(f"{argument}: expected True or False, {_not(value)}")
    return value


def length_of(argument: str, value: Any) -> int:
    """Returns a number of bytes."""
    length = integer_of(argument, value)
    if length < 0:
        raise ValueError(f"{argument} is {length}: it cannot be negative")
    return length


def budget_of(memory_budget: Any) -> int:
    """Returns a number of bytes."""
    return length_of("memory_budget", memory_budget)


def limit_of(memory_budget: Any) -> int | None:
    """Returns a number of bytes, or None for no limit."""
    return None if memory_budget is None else budget_of(memory_budget)


def verifying(path: Source | Iterable[Path], verify: bool | Path) -> contextlib.AbstractContextManager[None]:
    """Returns what a load runs in, to compare its files with their hashes if ``verify`` asks for it."""
    if verify is False:
        return contextlib.nullcontext()
    if not isinstance(verify, (bool, str, bytes, os.PathLike)):
        raise TypeError(f"verify: expected True, False or the path of a list of hashes, {_not(verify)}")
    from ._verify import beside

    return beside(path, None if isinstance(verify, bool) else verify)


def tensors_of(tensors: Any) -> dict[Any, Any]:
    """Returns a dictionary of tensors to save."""
    if not hasattr(tensors, "items"):
        raise TypeError(f"tensors: expected a dict of names and tensors, {_not(tensors)}")
    made: dict[Any, Any] = tensors
    return made


def threads_of(threads: Any) -> int | None:
    """Returns a number of threads, or None for those of the process."""
    if threads is None:
        return None
    number = integer_of("threads", threads)
    if number < 1:
        raise ValueError(f"threads is {number}: expected at least 1")
    return number
