"""Names of tensors, and patterns of names as in ``fnmatch``."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from .._gpufile import Checkpoint, visible
from ._arguments import names_of
from ._error import SafetensorError


def chosen(checkpoint: Checkpoint, argument: str, names: Any) -> list[str] | None:
    """Returns the names of tensors that an argument lists, also by patterns. None stands for all."""
    listed = names_of(argument, names)
    if listed is None:
        return None
    found: dict[str, None] = {}
    for name in listed:
        if is_pattern(checkpoint, name):
            found |= dict.fromkeys(matching(checkpoint, name))
        elif name in checkpoint:
            found[name] = None
        else:
            raise SafetensorError(f"File does not contain tensor {visible(name)}")
    return list(found)


def is_pattern(checkpoint: Checkpoint, name: str) -> bool:
    """Returns whether a text stands for the names that match it. A tensor of that name comes first."""
    return any(character in name for character in "*?[") and name not in checkpoint


def matching(checkpoint: Checkpoint, pattern: str) -> list[str]:
    """Returns the names that match a pattern, in the order of the files. There must be some."""
    found = list(filter(re.compile(fnmatch.translate(pattern)).match, checkpoint.names()))
    if not found:
        raise SafetensorError(f"File does not contain a tensor that matches {visible(pattern)}")
    return found
