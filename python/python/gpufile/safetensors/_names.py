"""Names of tensors, and patterns of names as in ``fnmatch``."""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Protocol

from .._gpufile import visible
from . import _error
from ._arguments import names_of


class Names(Protocol):
    """The names of the tensors of a model."""

    def names(self) -> list[str]: ...
    def __contains__(self, name: str, /) -> bool: ...


def chosen(model: Names, argument: str, names: Any) -> list[str] | None:
    """Returns the names of tensors that an argument lists, also by patterns. None stands for all."""
    listed = names_of(argument, names)
    if listed is None:
        return None
    found: dict[str, None] = {}
    for name in listed:
        if is_pattern(model, name):
            found |= dict.fromkeys(matching(model, name))
        elif name in model:
            found[name] = None
        else:
            raise _error.SafetensorError(f"File does not contain tensor {visible(name)}")
    return list(found)


def is_pattern(model: Names, name: str) -> bool:
    """Returns whether a text is a pattern for names, and not itself the name of a tensor."""
    return any(character in name for character in "*?[") and name not in model


def matching(model: Names, pattern: str) -> list[str]:
    """Returns the names that match a pattern, in the order of the files. There must be some."""
    found = list(filter(re.compile(fnmatch.translate(pattern)).match, model.names()))
    if not found:
        raise _error.SafetensorError(f"File does not contain a tensor that matches {visible(pattern)}")
    return found
