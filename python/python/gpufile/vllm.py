"""A model loader for vLLM: ``vllm serve MODEL --load-format gpufile``.

vLLM finds it through the entry point ``vllm.general_plugins`` of this package. Each worker reads the safetensors files
of the model into the memory of its GPU, in groups that follow each other. The groups take 1 GiB in addition to the
model, or the number of bytes in ``--model-loader-extra-config '{"memory_budget": BYTES}'``.

With tensor parallelism, a worker reads only the slices that vLLM takes of each tensor of 1 MiB or more, when vLLM takes
them. So a host reads each divided tensor once. vLLM's own filters apply: experts of other workers, weights that the model
does not use, and the language model with ``--mm-encoder-only``.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import _engines
from .safetensors import safe_open

__all__ = ["register"]


def __dir__() -> list[str]:
    return __all__


def register() -> None:
    """Registers the load format ``gpufile``. vLLM calls this in each of its processes."""
    from vllm.model_executor.model_loader import default_loader, register_model_loader

    register_model_loader("gpufile")(_loader_class(default_loader))


def _loader_class(default_loader: Any) -> Any:
    """Returns vLLM's default loader with another way to read the files. It finds and downloads models as before."""

    class GpufileModelLoader(default_loader.DefaultModelLoader):  # type: ignore[misc]
        counter_before_loading_weights: float

        def __init__(self, load_config: Any) -> None:
            self._options, extra = _engines.options_of(load_config.model_loader_extra_config)
            # The default loader refuses names that it does not know.
            load_config = copy.copy(load_config)
            load_config.load_format, load_config.model_loader_extra_config = "safetensors", extra
            super().__init__(load_config)

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            arguments = {**vars(source), "model_name_or_path": source.model_or_path}
            taken = inspect.signature(self._prepare_weights).parameters
            folder, files, is_safetensors, *index = self._prepare_weights(
                **{name: value for name, value in arguments.items() if name in taken}
            )
            if not is_safetensors:
                raise ValueError(f"{source.model_or_path} has no safetensors files; use another load format")
            if not self.counter_before_loading_weights:
                self.counter_before_loading_weights = time.perf_counter()
            # Set by vLLM for this load, in the versions that have it.
            prefixes = getattr(self, "_encoder_only_lm_prefixes", None)
            needed = files
            if prefixes is not None:
                needed = default_loader.filter_mm_encoder_only_safetensors_files(
                    files, folder, *index, prefixes, weights_mapper=self._encoder_only_weights_mapper
                )
                if not needed:
                    raise RuntimeError(
                        f"{source.model_or_path} has no file with other weights than those of the language model"
                        f" {prefixes}, which --mm-encoder-only leaves out"
                    )
            is_needed = _filter(default_loader, source, getattr(self, "local_expert_ids", None))
            if getattr(self.load_config, "safetensors_load_strategy", None) == "torchao":
                weights = _unflattened(sorted(needed, key=_natural), is_needed)
            else:
                has_patterns = getattr(source, "allow_patterns_overrides", None)
                model = needed if has_patterns or needed != files else _engines.model_of(folder, files)
                progress = bool(self.load_config.use_tqdm_on_load)
                weights = _engines.weights(model, is_needed, _workers(), progress=progress, **self._options)
            # Later versions decode scales on the way.
            decode = getattr(default_loader, "decode_csf_scale_streams", iter)
            return ((source.prefix + name, tensor) for name, tensor in decode(weights))

    return GpufileModelLoader


def _filter(default_loader: Any, source: Any, experts: Any) -> Callable[[str], bool]:
    """Returns whether this worker needs the weight of a name. ``experts`` are its own, or None for all."""
    is_unused = getattr(source, "is_unused_weight", None) or (lambda name: False)
    if experts is None:
        return lambda name: not is_unused(name)
    skips = importlib.import_module(f"{default_loader.__package__}.ep_weight_filter").should_skip_weight
    return lambda name: not is_unused(name) and not skips(name, experts)


def _workers() -> int:
    """Returns the number of workers that divide each tensor."""
    try:
        from vllm.distributed import get_tensor_model_parallel_world_size

        return int(get_tensor_model_parallel_world_size())
    except (AssertionError, ImportError):
        # There is no group of workers.
        return 1


def _natural(path: str) -> list[int | str]:
    """Returns a key that sorts the numbers in names by their values."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]


def _unflattened(files: list[str], is_needed: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Yields the tensors of torchao, each made of several tensors in the files."""
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    left: dict[str, Any] = {}
    for file in files:
        with safe_open(file, "pt", _engines.device()) as model:
            parts = dict(model.iter_tensors(filter(is_needed, model.offset_keys())))
            # A tensor may have parts in several files.
            made, left = unflatten_tensor_state_dict(parts | left, model.metadata())
        yield from made.items()
