"""A program that other packages use safetensors in: `dependents.py make|theirs|before|after CASE FOLDER`.

`make` writes a tiny model with the package safetensors. The others load it, and save what they loaded: `theirs` with the
package safetensors, `before` and `after` with gpufile in its place, installed before or after the packages are imported. They
print a line of JSON: a digest of the loaded tensors, one of the saved ones, and the most bytes of memory that the load and a
use of each tensor took.
"""

import hashlib
import json
import os
import sys

import torch

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def digest(tensors):
    """Returns a hash of names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().contiguous().reshape(-1)
        found.update(memoryview(flat.view(torch.uint8).numpy()))
    return found.hexdigest()


def saved(folder):
    """Returns a hash of the tensors in the files of a folder, as the package safetensors reads them."""
    import gpufile.safetensors as gs

    gs.uninstall()
    from safetensors import safe_open

    tensors = {}
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            if name.endswith(".safetensors"):
                with safe_open(os.path.join(parent, name), "pt") as model:
                    relative = os.path.relpath(parent, folder)
                    tensors |= {f"{relative}/{name}/{key}": model.get_tensor(key) for key in model.keys()}
    assert tensors
    return digest(tensors)


def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def llama(**options):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=30_000, **config | options))


def loaded_llama(folder, **options):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **options)


@case
def transformers_whole(folder, make):
    if make:
        return llama().save_pretrained(folder)
    return loaded_llama(folder)


@case
def transformers_sharded_bf16(folder, make):
    if make:
        return llama().to(torch.bfloat16).save_pretrained(folder, max_shard_size="8MB")
    return loaded_llama(folder, dtype=torch.bfloat16, low_cpu_mem_usage=True)


@case
def transformers_tied_device_map(folder, make):
    if make:
        return llama(tie_word_embeddings=True).save_pretrained(folder, max_shard_size="12MB")
    model = loaded_llama(folder, device_map={"": "cpu"})
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return model


@case
def transformers_converted_device_map(folder, make):
    if make:
        return llama().to(torch.float16).save_pretrained(folder, max_shard_size="9MB")
    return loaded_llama(folder, dtype=torch.float32, device_map="auto")


@case
def peft_adapter(folder, make):
    from peft import LoraConfig, PeftModel, get_peft_model

    base = llama()
    if make:
        torch.manual_seed(2)
        adapted = get_peft_model(base, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, r=64))
        return adapted.save_pretrained(folder)
    return PeftModel.from_pretrained(base, folder)


class Eighths(torch.nn.Module):
    """A module with weights of 8 and of 32 bits."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        for number in range(24):
            weight = torch.randn(1024, 1024).to(torch.float8_e4m3fn)
            self.register_parameter(f"weight_{number}", torch.nn.Parameter(weight, requires_grad=False))
            self.register_parameter(f"scale_{number}", torch.nn.Parameter(torch.rand(1024)))

    def save_pretrained(self, folder):
        from accelerate import Accelerator

        Accelerator(cpu=True).save_model(self, folder, max_shard_size="7MB")


@case
def accelerate_sharded_fp8(folder, make):
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch

    if make:
        return Eighths().save_pretrained(folder)
    with init_empty_weights():
        model = Eighths()
    return load_checkpoint_and_dispatch(model, folder, device_map={"": "cpu"})


@case
def diffusers_sharded(folder, make):
    from diffusers import UNet2DModel

    if make:
        torch.manual_seed(4)
        model = UNet2DModel(sample_size=16, block_out_channels=(64, 128, 128, 256), norm_num_groups=8)
        return model.save_pretrained(folder, max_shard_size="20MB")
    return UNet2DModel.from_pretrained(folder, low_cpu_mem_usage=True)


@case
def sentence_transformers_pooled(folder, make):
    from sentence_transformers import SentenceTransformer

    try:
        from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
    except ImportError:
        from sentence_transformers.models import Dense, Pooling, Transformer
    if not make:
        return SentenceTransformer(folder, device="cpu", local_files_only=True)
    from tokenizers import Tokenizer, models
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(5)
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "b"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    base = f"{folder}-base"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(base)
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    BertModel(BertConfig(vocab_size=20_000, **sizes)).save_pretrained(base)
    modules = [Transformer(base), Pooling(256), Dense(256, 1024)]
    return SentenceTransformer(modules=modules, device="cpu").save_pretrained(folder)


def main(mode, name, folder):
    if mode == "make":
        return CASES[name](folder, True)
    import gpufile.safetensors as gs

    if mode == "before":
        gs.install()
    # The packages are imported, and have loaded something else once.
    first = CASES[name](folder, False)
    if mode in ("after", "read"):
        gs.install(mapped=False if mode == "read" else None)
    del first
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    start = memory("VmRSS")
    model = CASES[name](folder, False)
    # Mapped files count when their pages are used.
    found = digest(model.state_dict())
    peak = memory("VmHWM") - start
    other = f"{folder}-{mode}"
    model.save_pretrained(other)
    print(json.dumps({"loaded": found, "saved": saved(other), "peak_bytes": peak}))


if __name__ == "__main__":
    main(*sys.argv[1:])
