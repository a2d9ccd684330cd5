"""A model loader for vLLM: ``vllm serve MODEL --load-format gpufile``.

vLLM finds it through the entry point ``vllm.general_plugins`` of this package. Each worker reads the safetensors files
of the model into the memory of its GPU, in groups that follow each other. The groups take 1 GiB in addition to the
model, or the number of bytes in ``--model-loader-extra-config '{"memory_budget": BYTES}'``.
"""

from __future__ import annotations

import copy
import inspect
import os
import time
from collections.abc import Iterator
from typing import Any

from .safetensors import safe_open

__all__ = ["register"]

_BUDGET = "memory_budget"


def register() -> None:
    """Registers the load format ``gpufile``. vLLM calls this in each of its processes."""
    from vllm.model_executor.model_loader import default_loader, register_model_loader

    register_model_loader("gpufile")(_loader_class(default_loader))


def _loader_class(default_loader: Any) -> Any:
    """Returns vLLM's default loader with another way to read the files. It finds and downloads models as before."""

    class GpufileModelLoader(default_loader.DefaultModelLoader):  # type: ignore[misc]
        counter_before_loading_weights: float

        def __init__(self, load_config: Any) -> None:
            extra = dict(load_config.model_loader_extra_config or {})
            self._options = {_BUDGET: extra.pop(_BUDGET)} if _BUDGET in extra else {}
            # The default loader refuses names that it does not know.
            load_config = copy.copy(load_config)
            load_config.load_format, load_config.model_loader_extra_config = "safetensors", extra
            super().__init__(load_config)

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            arguments = {**vars(source), "model_name_or_path": source.model_or_path}
            taken = inspect.signature(self._prepare_weights).parameters
            folder, files, is_safetensors, *_ = self._prepare_weights(
                **{name: value for name, value in arguments.items() if name in taken}
            )
            if not is_safetensors:
                raise ValueError(f"{source.model_or_path} has no safetensors files; use another load format")
            if not self.counter_before_loading_weights:
                self.counter_before_loading_weights = time.perf_counter()
            is_unused = getattr(source, "is_unused_weight", None)
            has_patterns = getattr(source, "allow_patterns_overrides", None)
            model = files if has_patterns else _model_of(folder, files)
            weights = _weights(model, is_unused, progress=bool(self.load_config.use_tqdm_on_load), **self._options)
            # Later versions decode scales on the way.
            decode = getattr(default_loader, "decode_csf_scale_streams", iter)
            return ((source.prefix + name, tensor) for name, tensor in decode(weights))

    return GpufileModelLoader


def _model_of(folder: str, files: list[str]) -> str | list[str]:
    """Returns what to open: the folder that vLLM found, if it has all the files that vLLM lists.

    vLLM lists every safetensors file, or those that the index names. The folder opens by the rule that ``load_model``
    has.
    """
    return folder if all(os.path.dirname(file) == os.fspath(folder) for file in files) else files


def _weights(path: str | list[str], is_unused: Any, **options: Any) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of a model, on the GPU of this process."""
    import torch

    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    with safe_open(path, "pt", device) as model:
        names = model.offset_keys()
        if is_unused is not None:
            names = [name for name in names if not is_unused(name)]
        yield from model.iter_tensors(names, **options)
