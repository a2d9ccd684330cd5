"""The common parts of the loaders for inference engines: which tensors a worker reads, and how."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from .safetensors import safe_open

_BUDGET = "memory_budget"

#: Tensors of as many bytes are read in slices. Reading a shorter one whole takes no longer.
SLICED_BYTES = 1 << 20


def options_of(extra: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of ``weights`` in an engine's extra configuration, and the rest, which the engine checks."""
    rest = dict(extra or {})
    return ({_BUDGET: rest.pop(_BUDGET)} if _BUDGET in rest else {}), rest


def model_of(folder: str, files: list[str]) -> str | list[str]:
    """Returns what to open: the folder that an engine found, if it has all the files that the engine lists.

    An engine lists every safetensors file, or those that the index names. The folder opens by the rule that
    ``load_model`` has.
    """
    return folder if all(os.path.dirname(file) == os.fspath(folder) for file in files) else files


def device() -> Any:
    """Returns the device of this worker."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def weights(
    path: str | list[str], is_needed: Callable[[str], bool], workers: int, **options: Any
) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of a model, on the GPU of this process, or deferred if several workers divide the model."""
    from ._deferred import deferred
    from .safetensors._torch import dtype_of

    where = device()
    with safe_open(path, "pt", where) as model:
        names = list(filter(is_needed, model.offset_keys()))
        sliced: dict[str, Any] = {}
        if workers > 1:
            metas = {name: model.get_tensor_meta(name) for name in names}
            # torch's type of F4 has two elements in one, so that its axes are others.
            sliced = {
                name: meta
                for name, meta in metas.items()
                if meta.data_offsets[1] - meta.data_offsets[0] >= SLICED_BYTES and meta.dtype != "F4"
            }
        whole = model.iter_tensors([name for name in names if name not in sliced], **options)
        for name in names:
            if name in sliced:
                yield name, deferred(model.get_slice(name), dtype_of(sliced[name].dtype), where)
            else:
                yield next(whole)
