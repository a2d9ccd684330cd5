"""Runs gpufile's loader in SGLang's own classes, on the CPU: its plugins, default loader, Mixtral and parallel layers.

    pip install --no-deps sglang==0.5.23
    python python/tests/run_sglang_tests.py

It was written for SGLang 0.5.23, of which it needs no kernels, and the packages that `.ci/sglang` installs. gpufile must be
installed as a package, because SGLang finds it as a plugin. Two processes with a group of their own load a model of two
layers and four experts: with each expert divided, with two experts for each process, and with a layer for each process.
Each compares every parameter with what SGLang's own loader gives it, and counts the bytes that it read from the files.
"""

import json
import os
import pathlib
import sys
import tempfile
import types

WORKERS = 2
HIDDEN, VOCABULARY, EXPERTS, LAYERS = 1024, 8192, 4, 2
#: Bytes that a worker may read in addition to 1.05 times its share: headers, the index, and what torch opens.
SLACK = 256 << 10


def save(folder):
    """Saves a model in two files with an index."""
    import torch
    from gpufile.safetensors.torch import save_file

    torch.manual_seed(0)
    tensors = {"model.norm.weight": torch.randn(HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q_proj", HIDDEN), ("k_proj", 512), ("v_proj", 512), ("o_proj", HIDDEN)):
            tensors[f"{prefix}.self_attn.{name}.weight"] = torch.randn(rows, HIDDEN)
        tensors[f"{prefix}.block_sparse_moe.gate.weight"] = torch.randn(EXPERTS, HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = torch.randn(HIDDEN)
        for expert in range(EXPERTS):
            for name, shape in (("w1", (2048, HIDDEN)), ("w2", (HIDDEN, 2048)), ("w3", (2048, HIDDEN))):
                tensors[f"{prefix}.block_sparse_moe.experts.{expert}.{name}.weight"] = torch.randn(*shape)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.randn(VOCABULARY, HIDDEN)
    everything = list(tensors.items())
    files = {"model-1-of-2.safetensors": dict(everything[::2]), "model-2-of-2.safetensors": dict(everything[1::2])}
    for name, part in files.items():
        save_file(part, folder / name, sync=False)
    weight_map = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "hidden_size": HIDDEN,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": LAYERS,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "vocab_size": VOCABULARY,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))


def bytes_read():
    """Returns the bytes that this process has read from files, by calls of the kernel."""
    fields = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def worker(rank, folder, sizes):
    import torch
    from gpufile.safetensors import _mapped
    from sglang.srt import distributed, runtime_context
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader import get_model
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import prepare_server_args

    # SGLang imports this kernel where it has none of its own. Nothing calls it here.
    kernels = types.ModuleType("vllm._custom_ops")
    kernels.rotary_embedding = None
    sys.modules |= {"vllm": types.ModuleType("vllm"), kernels.__name__: kernels}
    load_plugins()
    arguments = ["--model-path", str(folder), "--load-format", "gpufile", "--device", "cpu", "--dtype", "float32"]
    arguments += ["--model-loader-extra-config", '{"memory_budget": 100000000}', *sizes]
    publish(prepare_server_args(arguments), role="scheduler", ranks=SpawnRanks(world_rank=rank))
    torch.set_num_threads(1)
    distributed.init_distributed_environment(WORKERS, rank, f"file://{folder}/group{''.join(sizes)}", rank, "gloo")
    distributed.initialize_model_parallel(backend="gloo")
    extra = {"gpufile": runtime_context.get_model().model_loader_extra_config, "safetensors": {}}
    assert runtime_context.get_model().load_format == "gpufile"
    models, counts = {}, {}
    # The first load also reads the modules of all models.
    for name in ("safetensors", "gpufile", "gpufile mapped"):
        load_format, _, way = name.partition(" ")
        # Files are mapped by default here, and read if tensors go to a GPU, so that their bytes are counted.
        _mapped.map_by_default(way == "mapped")
        config = LoadConfig(load_format=load_format, model_loader_extra_config=extra[load_format])
        before = bytes_read()
        models[name] = get_model(
            model_config=ModelConfig(str(folder), dtype="float32"),
            load_config=config,
            device_config=DeviceConfig("cpu"),
        )
        counts[name] = bytes_read() - before
    ours, theirs, mapped = (dict(models[name].named_parameters()) for name in ("gpufile", "safetensors", "gpufile mapped"))
    assert ours.keys() == theirs.keys() == mapped.keys()
    for name, parameter in theirs.items():
        assert torch.equal(ours[name], parameter) and torch.equal(mapped[name], parameter), name
    # The parameters have the type that the files have.
    share = sum(parameter.nbytes for parameter in ours.values())
    assert share <= counts["gpufile"] <= 1.05 * share + SLACK, (counts, share)
    print(f"{' '.join(sizes)}, worker {rank}: read {counts['gpufile']:,} bytes, {counts['gpufile'] / share:.3f} times its share")
    distributed.destroy_model_parallel()
    distributed.destroy_distributed_environment()


def main():
    if len(sys.argv) != 1:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    import torch.multiprocessing as mp

    # SGLang would use NCCL, which needs a GPU.
    os.environ["SGLANG_NCCL_SO_PATH"] = "missing"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        save(folder)
        for sizes in (["--tp-size", "2"], ["--tp-size", "2", "--ep-size", "2"], ["--pp-size", "2"]):
            mp.spawn(worker, (folder, sizes), nprocs=WORKERS)
    print("passed")


if __name__ == "__main__":
    main()
