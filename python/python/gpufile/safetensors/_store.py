"""Saving to a path, or to the URL of an object store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .._gpufile import is_address, path_of, save_safetensors, save_safetensors_url
from ._arguments import StorageOptions, flag_of


def save_items(
    filename: str | os.PathLike[str],
    items: Sequence[Any],
    metadata: dict[str, str] | None,
    sync: bool,
    storage_options: StorageOptions,
    remove_old_model: bool = False,
    compress: bool = False,
) -> None:
    """Saves the items of tensors. Replaces an existing file or object as a whole."""
    removes, packs = flag_of("remove_old_model", remove_old_model), flag_of("compress", compress)
    if isinstance(filename, str) and is_address(filename):
        if removes:
            raise ValueError("remove_old_model is for files: objects of a store are never removed")
        if packs:
            raise ValueError("compress is for files: objects of a store cannot have packed tensors")
        save_safetensors_url(filename, items, metadata, storage_options)
    elif storage_options is not None:
        raise ValueError("storage_options are for URLs such as s3://bucket/key")
    else:
        if hasattr(filename, "write") and not isinstance(filename, os.PathLike):
            raise TypeError(
                f"filename: expected str, bytes or os.PathLike object, not {type(filename).__name__}: a save replaces a file as a"
                " whole; to write to an open file, use file.write(save(tensors))"
            )
        save_safetensors(path_of(filename, "filename"), items, metadata, sync, removes, packs)
