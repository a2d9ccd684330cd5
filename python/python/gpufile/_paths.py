"""Paths of local files: which arguments are paths, and which are addresses of objects on servers."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ._gpufile import RemoteFile, is_address, path_of

__all__ = ["address_of", "path_of", "paths_of", "text_of"]

#: Objects that only look like lists of paths.
_NO_LISTS = (Mapping, io.IOBase, bytearray, memoryview)


def address_of(path: Any) -> Any:
    """Returns the address that an argument is: a text that begins with a scheme, or a ``RemoteFile``. Returns None for others."""
    return path if isinstance(path, RemoteFile) or (isinstance(path, str) and is_address(path)) else None


def text_of(argument: str, path: Any) -> str:
    """Returns a path of a local file as text. Raises ``TypeError`` for what is no path, and ``ValueError`` for an address."""
    return os.fsdecode(path_of(path, argument))


def paths_of(argument: str, path: Any) -> list[Any]:
    """Returns the paths of a model: of one, or of several files. An address may take the place of one path.

    Raises ``TypeError`` for what is no path and no list of paths, and ``ValueError`` for an empty list and for addresses in it.
    """
    if address_of(path) is not None:
        return [path]
    if isinstance(path, (str, bytes, os.PathLike)):
        return [path_of(path, argument)]
    if isinstance(path, _NO_LISTS) or hasattr(path, "read") or not isinstance(path, Iterable):
        raise TypeError(_expected(argument, path))
    listed = list(path)
    if not listed:
        raise ValueError(f"{argument}: expected a path, or a list of paths, not an empty list")
    if len(listed) == 1 and address_of(listed[0]) is not None:
        return listed
    if any(address_of(one) is not None for one in listed):
        raise ValueError(
            f"{argument}: several files of a server are opened by their index, model.safetensors.index.json"
        )
    return [path_of(one, f"{argument}[{number}]") for number, one in enumerate(listed)]


def _expected(argument: str, path: Any) -> str:
    text = f"{argument}: expected str, bytes, os.PathLike or a list of these, not {type(path).__name__}"
    if hasattr(path, "read"):
        text += "; for an open file, use its path, or load its bytes: load(file.read())"
    return text
