"""A model loader for SGLang: ``python -m sglang.launch_server --model-path MODEL --load-format gpufile``.

SGLang finds it through the entry point ``sglang.srt.plugins`` of this package. Each worker reads the safetensors files of
the model into the memory of its GPU, in groups that follow each other. The groups take 1 GiB in addition to the model,
or the number of bytes in ``--model-loader-extra-config '{"memory_budget": BYTES}'``.

With tensor, expert or pipeline parallelism, a worker gets each tensor of 1 MiB or more deferred, and reads only the part
that SGLang takes of it. So it does not read the experts and layers that SGLang leaves to other workers. The draft layers
that SGLang leaves out are not read either. SGLang's options for the page cache have no effect.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Iterator
from typing import Any

from . import _engines

__all__ = ["register"]


def __dir__() -> list[str]:
    return __all__


_FORMAT = "gpufile"


def register() -> None:
    """Adds the load format ``gpufile``. SGLang calls this in each of its processes."""
    from sglang.srt.arg_groups.choices import add_load_format_choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    add_load_format_choices([_FORMAT])
    HookRegistry.register("sglang.srt.configs.load_config.LoadConfig._verify_load_format", _resolve, HookType.BEFORE)


def _resolve(load_config: Any) -> None:
    """Replaces the name of the format with a class, which SGLang takes as a loader. SGLang cannot register names of
    formats."""
    if load_config.load_format == _FORMAT:
        load_config.load_format = _loader_class()


@functools.cache
def _loader_class() -> Any:
    """Returns SGLang's default loader with another way to read the files. It finds and downloads models as before."""
    from sglang.srt.configs.load_config import LoadFormat
    from sglang.srt.model_loader import loader, weight_utils

    class GpufileModelLoader(loader.DefaultModelLoader):  # type: ignore[misc]
        counter_before_loading_weights: float

        def __init__(self, load_config: Any) -> None:
            self._options, extra = _engines.options_of(load_config.model_loader_extra_config)
            # The default loader refuses names that it does not know.
            load_config = copy.copy(load_config)
            load_config.load_format, load_config.model_loader_extra_config = LoadFormat.SAFETENSORS, extra
            super().__init__(load_config)

        def load_model(self, *, model_config: Any, device_config: Any) -> Any:
            # SGLang has other loaders for some quantizations. They read weights as the default loader does.
            special = loader.get_model_loader(self.load_config, model_config)
            if type(special) is loader.DefaultModelLoader or not isinstance(special, loader.DefaultModelLoader):
                return super().load_model(model_config=model_config, device_config=device_config)
            special._get_weights_iterator = self._get_weights_iterator
            return special.load_model(model_config=model_config, device_config=device_config)

        def _get_weights_iterator(
            self, source: Any, *, resolved_source: Any = None, **_: Any
        ) -> Iterator[tuple[str, Any]]:
            is_added = False
            if resolved_source is not None:
                folder, files = resolved_source.hf_folder, list(resolved_source.weight_files)
                is_safetensors, is_added = resolved_source.use_safetensors, True
            else:
                folder, files, is_safetensors = self._prepare_weights(
                    source.model_or_path, source.revision, source.fall_back_to_pt, source.allow_patterns_overrides
                )
            if not is_safetensors:
                raise ValueError(f"{source.model_or_path} has no safetensors files; use another load format")
            if resolved_source is None and source.model_config is not None:
                # It may add a file that the index does not name.
                found, index = len(files), "model.safetensors.index.json"
                files = weight_utils.maybe_add_mtp_safetensors(files, folder, index, source.model_config.hf_config)
                is_added = len(files) != found
            if not self.counter_before_loading_weights:
                self.counter_before_loading_weights = time.perf_counter()
            is_exact = is_added or source.allow_patterns_overrides is not None
            model = files if is_exact else _engines.model_of(folder, files)
            draft = self.load_config.draft_model_idx
            weights = _engines.weights(model, functools.partial(self._is_needed, draft), _workers(), **self._options)
            if draft is not None:
                filtered: Iterator[tuple[str, Any]] = self._filter_mtp_weights(weights, source.prefix, draft)
                return filtered
            return ((source.prefix + name, tensor) for name, tensor in weights)

        def _is_needed(self, draft: int | None, name: str) -> bool:
            """Returns whether this worker needs the weight of a name. The filter of drafts would drop it after the read."""
            layer = self._MTP_PATTERN.match(name)
            return draft is None or layer is None or int(layer[1]) == draft

    return GpufileModelLoader


def _workers() -> int:
    """Returns the number of workers that divide the model."""
    from sglang.srt.distributed import model_parallel_is_initialized
    from sglang.srt.runtime_context import get_parallel

    if not model_parallel_is_initialized():
        return 1
    parallel = get_parallel()
    return int(parallel.tp_size * parallel.pp_size)
