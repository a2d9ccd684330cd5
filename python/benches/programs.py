#!/usr/bin/env python3
"""Programs that load models by other packages, from the start of Python to the first forward pass.

`programs.py make FOLDER NAMES` writes the models of programs. `programs.py run FOLDER NAME --mode gpufile` loads the model of one
twice, and prints a line of JSON:

- `start`: seconds from the start of Python to the end of the first forward pass
- `first`, `again`: seconds of the first and of the second load
- `host`, `gpu`: the most bytes of memory until the end of the first load
- `sum`: a digest of all loaded tensors and of what the forward pass returned, the same for both loads

In the mode `gpufile`, the program begins with `gpufile.safetensors.install()`. Nothing else differs from the mode `plain`.

`programs.py fork FOLDER NAMES` imports the packages once, and runs each program in forks of this process, in turn. Their `start`
begins at the fork. `--budget` ends it before a turn that would take longer. `--device cpu` and `--small` are for tries without
a GPU.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODES = ("plain", "gpufile")


@dataclass(frozen=True)
class Place:
    """The folder of the models, the device, and the size of the models."""

    folder: Path
    device: str
    is_small: bool

    def of(self, name: str) -> str:
        return str(self.folder / name)


#: Returns the loaded model, and a function that does a forward pass.
Load = Callable[[Place], tuple[Any, Callable[[], Any]]]


@dataclass(frozen=True)
class Program:
    """A program, and the name of the model that it loads."""

    load: Load
    model: str


PROGRAMS: dict[str, Program] = {}
#: Write the models by their names.
MAKERS: dict[str, Callable[[Place, str], None]] = {}


def program(model: str) -> Callable[[Load], Load]:
    def add(load: Load) -> Load:
        PROGRAMS[load.__name__.replace("_", "-")] = Program(load, model)
        return load

    return add


def maker(make: Callable[[Place, str], None]) -> Callable[[Place, str], None]:
    MAKERS[make.__name__.removeprefix("make_").replace("_", "-")] = make
    return make


# The models.


def llama_config(place: Place, **options: Any) -> Any:
    from transformers import LlamaConfig

    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "vocab_size": 64_000}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8}
    if place.is_small:
        sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 2_000}
    return LlamaConfig(**sizes | heads | options)


def write_llama(place: Place, folder: str, dtype: str, shard: str, **options: Any) -> None:
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(1)
    with torch.device(place.device):
        model = LlamaForCausalLM(llama_config(place, **options)).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="1MB" if place.is_small else shard)


@maker
def make_llama(place: Place, folder: str) -> None:
    write_llama(place, folder, "bfloat16", "1GB")


@maker
def make_llama_wide(place: Place, folder: str) -> None:
    options = {} if place.is_small else {"num_hidden_layers": 12}
    write_llama(place, folder, "float32", "1GB", **options)


@maker
def make_llama_tied(place: Place, folder: str) -> None:
    options = {} if place.is_small else {"num_hidden_layers": 12}
    write_llama(place, folder, "bfloat16", "1GB", tie_word_embeddings=True, **options)


@maker
def make_llama_fp8(place: Place, folder: str) -> None:
    """Writes what transformers writes for a quantised model, without the GPU that it needs for that."""
    import torch
    from safetensors.torch import save_file
    from transformers import FineGrainedFP8Config, LlamaForCausalLM

    torch.manual_seed(8)
    block = 128
    with torch.device(place.device):
        model = LlamaForCausalLM(llama_config(place)).to(torch.bfloat16)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("_proj.weight"):
            rows, columns = (length // block for length in tensor.shape)
            blocks = tensor.view(rows, block, columns, block).float()
            scale = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
            scaled = blocks / scale[:, None, :, None]
            tensors[name] = scaled.to(torch.float8_e4m3fn).view(tensor.shape).cpu()
            tensors[f"{name}_scale_inv"] = scale.cpu()
        else:
            tensors[name] = tensor.cpu()
    model.config.quantization_config = FineGrainedFP8Config(weight_block_size=(block, block)).to_dict()
    model.config.save_pretrained(folder)
    save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})


@maker
def make_adapter(place: Place, folder: str) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    torch.manual_seed(2)
    with torch.device(place.device):
        base = LlamaForCausalLM(llama_config(place)).to(torch.bfloat16)
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        options = LoraConfig(target_modules=targets, init_lora_weights=False, r=8 if place.is_small else 256)
        get_peft_model(base, options).save_pretrained(folder)


@maker
def make_pipeline(place: Place, folder: str) -> None:
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

    torch.manual_seed(3)
    layers, heads = (2, 4) if place.is_small else (28, 24)
    with torch.device(place.device):
        blocks = {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}
        coder = AutoencoderKL(block_out_channels=[64, 128], latent_channels=4, sample_size=64, **blocks)
        sizes = {"num_layers": layers, "num_attention_heads": heads, "attention_head_dim": 72}
        transformer = DiTTransformer2DModel(**sizes, in_channels=4, out_channels=8, sample_size=32)
    pipeline = DiTPipeline(transformer, coder, DDIMScheduler())
    pipeline.to(torch.bfloat16).save_pretrained(folder, max_shard_size="1MB" if place.is_small else "1GB")


@maker
def make_sentences(place: Place, folder: str) -> None:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from tokenizers import Tokenizer, models
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(4)
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "b"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    base = f"{folder}-base"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(base)
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    if place.is_small:
        sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    with torch.device(place.device):
        BertModel(BertConfig(vocab_size=20_000, **sizes)).save_pretrained(base)
    encoder = Transformer(base)
    modules = [encoder, Pooling(sizes["hidden_size"])]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(folder)


@maker
def make_file(place: Place, folder: str) -> None:
    import torch
    from safetensors.torch import save_model

    os.makedirs(folder)
    save_model(stack(place, place.device).to(torch.bfloat16), f"{folder}/model.safetensors")


def stack(place: Place, device: str) -> Any:
    """Returns a module of linear layers."""
    import torch

    torch.manual_seed(5)
    width, count = (256, 8) if place.is_small else (4096, 100)
    with torch.device(device):
        return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))


# The programs.


def forward_of(model: Any, device: Any = None) -> Callable[[], Any]:
    import torch

    tokens = torch.tensor([[1, 2, 3]], device=device or model.device)

    def forward() -> Any:
        with torch.no_grad():
            return model(input_ids=tokens).logits

    return forward


def loaded_llama(place: Place, name: str, **options: Any) -> tuple[Any, Callable[[], Any]]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(place.of(name), **{"dtype": torch.bfloat16} | options)
    return model, forward_of(model, place.device)


@program("llama")
def transformers(place: Place) -> tuple[Any, Callable[[], Any]]:
    return loaded_llama(place, "llama", device_map=place.device)


@program("llama-wide")
def transformers_converted(place: Place) -> tuple[Any, Callable[[], Any]]:
    return loaded_llama(place, "llama-wide", device_map=place.device)


@program("llama")
def transformers_auto(place: Place) -> tuple[Any, Callable[[], Any]]:
    return loaded_llama(place, "llama", device_map="auto")


@program("llama")
def transformers_offloaded(place: Place) -> tuple[Any, Callable[[], Any]]:
    count = llama_config(place).num_hidden_layers
    devices = {f"model.layers.{number}": place.device for number in range(count)}
    devices |= {"model.layers.0": "cpu", "model.layers.1": "disk", "lm_head": place.device}
    devices |= {f"model.{name}": place.device for name in ("embed_tokens", "norm", "rotary_emb")}
    return loaded_llama(place, "llama", device_map=devices, offload_folder=place.of("offloaded"))


@program("llama")
def transformers_sequential(place: Place) -> tuple[Any, Callable[[], Any]]:
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    try:
        return loaded_llama(place, "llama", device_map=place.device)
    finally:
        del os.environ["HF_DEACTIVATE_ASYNC_LOAD"]


@program("llama-tied")
def transformers_tied(place: Place) -> tuple[Any, Callable[[], Any]]:
    model, forward = loaded_llama(place, "llama-tied", device_map=place.device)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return model, forward


@program("llama")
def transformers_fp8(place: Place) -> tuple[Any, Callable[[], Any]]:
    from transformers import FineGrainedFP8Config

    model, _ = loaded_llama(place, "llama", device_map=place.device, quantization_config=FineGrainedFP8Config())
    # Its forward pass fetches kernels.
    return model, lambda: None


@program("llama-fp8")
def transformers_quantized(place: Place) -> tuple[Any, Callable[[], Any]]:
    model, _ = loaded_llama(place, "llama-fp8", device_map=place.device)
    # Its forward pass fetches kernels, too.
    return model, lambda: None


@program("llama")
def transformers_on_host(place: Place) -> tuple[Any, Callable[[], Any]]:
    model, _ = loaded_llama(place, "llama")
    return model, forward_of(model, "cpu")


@program("llama")
def transformers_then_to(place: Place) -> tuple[Any, Callable[[], Any]]:
    model, _ = loaded_llama(place, "llama")
    return model.to(place.device), forward_of(model, place.device)


@program("llama")
def accelerate(place: Place) -> tuple[Any, Callable[[], Any]]:
    return dispatched(place, {"": place.device})


@program("llama")
def accelerate_by_module(place: Place) -> tuple[Any, Callable[[], Any]]:
    return dispatched(place, {"model": place.device, "lm_head": "cpu"})


def dispatched(place: Place, devices: dict[str, str]) -> tuple[Any, Callable[[], Any]]:
    import torch
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch
    from transformers import LlamaForCausalLM

    with init_empty_weights():
        model = LlamaForCausalLM(llama_config(place)).to(torch.bfloat16)
    model = timed(lambda: load_checkpoint_and_dispatch(model, place.of("llama"), device_map=devices))
    return model, forward_of(model, place.device)


@program("adapter")
def peft(place: Place) -> tuple[Any, Callable[[], Any]]:
    import torch
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    torch.manual_seed(6)
    with torch.device(place.device):
        base = LlamaForCausalLM(llama_config(place)).to(torch.bfloat16)
    model = timed(lambda: PeftModel.from_pretrained(base, place.of("adapter")))
    return model, forward_of(model)


@program("pipeline")
def diffusers(place: Place) -> tuple[Any, Callable[[], Any]]:
    return pipeline(place, device_map=place.device)


@program("pipeline")
def diffusers_then_to(place: Place) -> tuple[Any, Callable[[], Any]]:
    return pipeline(place)


def pipeline(place: Place, **options: Any) -> tuple[Any, Callable[[], Any]]:
    import torch
    from diffusers import DiTPipeline

    made = DiTPipeline.from_pretrained(place.of("pipeline"), torch_dtype=torch.bfloat16, **options).to(place.device)
    made.set_progress_bar_config(disable=True)
    model = torch.nn.ModuleDict({"transformer": made.transformer, "vae": made.vae})

    def forward() -> Any:
        noise = torch.Generator("cpu").manual_seed(7)
        return torch.from_numpy(made([1], generator=noise, num_inference_steps=1, output_type="np").images)

    return model, forward


@program("sentences")
def sentence_transformers(place: Place) -> tuple[Any, Callable[[], Any]]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(place.of("sentences"), device=place.device)
    return model, lambda: model.encode(["a b", "b"], convert_to_tensor=True)


@program("file")
def load_file_then_to(place: Place) -> tuple[Any, Callable[[], Any]]:
    from safetensors.torch import load_file

    loaded = load_file(place.of("file/model.safetensors"))
    model = stack(place, "meta")
    model.load_state_dict({name: tensor.to(place.device) for name, tensor in loaded.items()}, assign=True)
    return model, lambda: through(place, model)


@program("file")
def load_state_dict(place: Place) -> tuple[Any, Callable[[], Any]]:
    import torch
    from safetensors.torch import load_file

    model = stack(place, "meta").to(torch.bfloat16).to_empty(device=place.device)
    model.load_state_dict(load_file(place.of("file/model.safetensors"), device=place.device))
    return model, lambda: through(place, model)


@program("file")
def load_state_dict_of_host(place: Place) -> tuple[Any, Callable[[], Any]]:
    import torch
    from safetensors.torch import load_file

    model = stack(place, "meta").to(torch.bfloat16).to_empty(device=place.device)
    model.load_state_dict(load_file(place.of("file/model.safetensors")))
    return model, lambda: through(place, model)


# The last one, because the process is in a group from then on.
@program("llama")
def transformers_tensor_parallel(place: Place) -> tuple[Any, Callable[[], Any]]:
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    for name, value in ranks.items():
        os.environ.setdefault(name, value)
    model, _ = loaded_llama(place, "llama", tp_plan="auto")
    return model, forward_of(model)


def through(place: Place, model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.ones(1, model[0].in_features, dtype=torch.bfloat16, device=place.device))


# The figures.

_timed: list[float] = []


def timed(call: Callable[[], Any]) -> Any:
    """Does what a program measures, if that is not all of it."""
    synchronize()
    start = time.perf_counter()
    result = call()
    synchronize()
    _timed.append(time.perf_counter() - start)
    return result


def synchronize() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def digest(tensors: dict[str, Any | None]) -> str:
    """Returns a hash of names, types, shapes, and sums of the bits. A program that returns None has no tensor for it."""
    import torch

    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if tensor is None:
            continue
        tensor = getattr(tensor, "_local_tensor", tensor).detach()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.device.type != "meta":
            unit = {1: torch.uint8, 2: torch.int16}.get(tensor.dtype.itemsize, torch.int32)
            flat = tensor.contiguous().flatten().view(unit)
            # The halves, because the sum of all would not tell the order.
            found.update(str([int(half.sum(dtype=torch.int64)) for half in flat.chunk(2)]).encode())
    return found.hexdigest()


def memory(field: str) -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def run(place: Place, name: str, mode: str, started: float) -> dict[str, Any]:
    if mode == "gpufile":
        import gpufile.safetensors

        gpufile.safetensors.install()
    figures: dict[str, Any] = {"program": name, "mode": mode}
    sums = []
    for which in ("first", "again"):
        _timed.clear()
        start = time.perf_counter()
        model, forward = PROGRAMS[name].load(place)
        synchronize()
        figures[which] = _timed[0] if _timed else time.perf_counter() - start
        if which == "first":
            figures["host"], figures["gpu"] = memory("VmHWM"), gpu_memory()
        returned = forward()
        synchronize()
        figures.setdefault("start", time.time() - started)
        sums.append(digest(model.state_dict() | {"returned": returned}))
        del model, forward, returned
        if (torch := sys.modules["torch"]).cuda.is_initialized():
            torch.cuda.empty_cache()
    figures["sum"] = sums[0] if sums[0] == sums[1] else f"differs: {sums}"
    return figures


def gpu_memory() -> int:
    torch = sys.modules["torch"]
    return int(torch.cuda.max_memory_reserved()) if torch.cuda.is_initialized() else 0


def prepare(place: Place, name: str, is_first: bool, is_cold: bool) -> None:
    """Fills the page cache with a model before the first process, or drops the model from there before each."""
    for path in (place.folder / PROGRAMS[name].model).rglob("*"):
        if path.is_file() and (is_first or is_cold):
            with path.open("rb", buffering=0) as file:
                if is_cold:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    buffer = bytearray(16 << 20)
                    while file.readinto(buffer):
                        pass


def make(place: Place, names: list[str]) -> None:
    for model in dict.fromkeys(PROGRAMS[name].model for name in names):
        if not os.path.exists(place.of(model)):
            MAKERS[model](place, place.of(model))


def turns(names: list[str], rounds: int, seconds: float) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yields each program, the number of its turn and the order of the modes, round by round.

    Ends before a turn that would take longer than the rest of the seconds, as the one before took.
    """
    start = time.monotonic()
    took: dict[str, float] = {}
    for number in range(rounds):
        for name in names:
            begun = time.monotonic()
            rest = seconds - (begun - start)
            if took.get(name, 0) > rest or rest <= 0:
                print(f"the rest of {seconds:.0f} s is too short for turn {number + 1} of {name}", file=sys.stderr)
                return
            # The first process of a turn finds colder caches.
            yield name, number, MODES if number % 2 == 0 else MODES[::-1]
            took[name] = time.monotonic() - begun
        print(f"a round takes {sum(took.values()):.0f} s, all {rounds * sum(took.values()):.0f} s", file=sys.stderr)


def fork(place: Place, names: list[str], rounds: int, is_cold: bool, seconds: float) -> None:
    """Prints a line for each process."""
    # Forks cannot use CUDA if their parent did.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import accelerate, diffusers, peft, sentence_transformers, transformers  # noqa: E401, F401
    from diffusers import DiTPipeline  # noqa: F401
    from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401

    # accelerate collects garbage, which would take longer with the packages of other programs.
    gc.freeze()
    for name, number, modes in turns(names, rounds, seconds):
        for mode in modes:
            prepare(place, name, number == 0, is_cold)
            if (pid := os.fork()) == 0:
                try:
                    print(json.dumps(run(place, name, mode, time.time())), flush=True)
                except BaseException:
                    error = traceback.format_exc()
                    print(json.dumps({"program": name, "mode": mode, "error": error}), flush=True)
                os._exit(0)
            os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("make", "run", "fork"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", metavar="NAMES", help=f"with commas: {', '.join(PROGRAMS)}")
    parser.add_argument("--mode", choices=MODES, default="plain")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", metavar="N", type=int, default=1, help="forks of each mode (1)")
    parser.add_argument("--cold", action="store_true", help="drop the files from the page cache before each fork")
    parser.add_argument("--budget", metavar="S", type=float, default=math.inf, help="seconds for all forks")
    options = parser.parse_args()
    place = Place(options.folder, options.device, options.small)
    names = options.names.split(",")
    if unknown := [name for name in names if name not in PROGRAMS]:
        parser.error(f"there is no program `{unknown[0]}`")
    if options.action == "make":
        make(place, names)
    elif options.action == "fork":
        fork(place, names, options.rounds, options.cold, options.budget)
    else:
        started = float(os.environ.get("PROGRAMS_STARTED", time.time()))
        print(json.dumps(run(place, names[0], options.mode, started)))


if __name__ == "__main__":
    main()
