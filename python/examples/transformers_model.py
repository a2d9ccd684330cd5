"""Loads a model of Hugging Face's transformers by gpufile.

    python transformers_model.py FOLDER [DEVICE]

FOLDER has config.json and the safetensors files of a model. transformers takes the tensors as they are, so the model is
in memory once. Its tensors share the allocations that gpufile.safetensors loaded them into. The model is lazy, because
transformers reserves memory for the tensors before it asks for them.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import transformers

from gpufile.safetensors import LazyModel


def from_pretrained(folder: str, device: str, **options: Any) -> Any:
    """Returns a model with the weights of the folder, on the device. ``options`` are those of transformers."""
    config = transformers.AutoConfig.from_pretrained(folder)
    architecture = getattr(transformers, config.architectures[0])
    # This is the line. The path is None, because transformers takes either a path or a state_dict. Its classes AutoModel…
    # take no None.
    model = architecture.from_pretrained(
        None, config=config, state_dict=LazyModel(folder, device), device_map=device, **options
    )
    if model.can_generate():
        try:
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        except OSError:
            pass  # The folder has none.
    return model


if __name__ == "__main__":
    start = time.perf_counter()
    loaded = from_pretrained(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cuda")
    bytes_ = sum(parameter.nbytes for parameter in loaded.parameters())
    print(f"{type(loaded).__name__}: {bytes_ / 1e9:.2f} GB in {time.perf_counter() - start:.2f} s")
