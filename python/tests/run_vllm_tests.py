"""Runs gpufile's loader in vLLM's own classes, on the CPU: its registry, default loader, filters and parallel layers.

    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=0.33.0 pip download --no-deps --no-binary :all: vllm==0.33.0
    tar -xf vllm-0.33.0.tar.gz
    python python/tests/run_vllm_tests.py vllm-0.33.0

It was written for vLLM 0.33.0, of which it needs the sources and not the kernels, and the packages that these import.
Two processes with a group of their own load a model of two layers and four experts. Each compares every parameter with
what vLLM's own loader gives it, and counts the bytes that it read from the files.
"""

import json
import os
import pathlib
import sys
import tempfile

WORKERS = 2
HIDDEN, VOCABULARY, EXPERTS = 2048, 8192, 4
#: Bytes that a worker may read in addition to 1.05 times its share: headers, the index, and what torch opens.
SLACK = 256 << 10


def save(folder):
    """Saves a model in two files with an index. Returns the bytes that are divided, and those that each worker needs."""
    import torch
    from gpufile.safetensors.torch import save_file

    torch.manual_seed(0)
    divided, experts, whole = {}, {}, {"norm.weight": torch.randn(HIDDEN), "extra.weight": torch.randn(HIDDEN, 256)}
    for layer in range(2):
        for name, rows, columns in [
            ("q_proj", HIDDEN, HIDDEN),
            ("k_proj", 512, HIDDEN),
            ("v_proj", 512, HIDDEN),
            ("o_proj", HIDDEN, HIDDEN),
            ("gate_proj", 4096, HIDDEN),
            ("up_proj", 4096, HIDDEN),
            ("down_proj", HIDDEN, 4096),
        ]:
            divided[f"layers.{layer}.{name}.weight"] = torch.randn(rows, columns, dtype=torch.float32)
        for expert in range(EXPERTS):
            experts[f"layers.{layer}.experts.{expert}.w1.weight"] = torch.randn(512, HIDDEN)
            whole[f"layers.{layer}.experts.{expert}.w1.input_scale"] = torch.randn(1)
    divided["embed_tokens.weight"] = torch.randn(VOCABULARY, HIDDEN)
    divided["lm_head.weight"] = torch.randn(VOCABULARY, HIDDEN)
    everything = list((divided | experts | whole).items())
    files = {"model-1-of-3.safetensors": dict(everything[::2]), "model-2-of-3.safetensors": dict(everything[1::2])}
    # Vision models without the language model leave out files that have only its weights.
    files["model-3-of-3.safetensors"] = {"language_model.weight": torch.randn(1024, HIDDEN)}
    for name, tensors in files.items():
        save_file(tensors, folder / name, sync=False)
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tuple(sum(tensor.nbytes for tensor in tensors.values()) for tensors in (divided, experts, whole))


def model():
    """Returns a module with vLLM's parallel layers, which takes the weights as vLLM's models do."""
    import torch
    from vllm.model_executor.layers.linear import (
        MergedColumnParallelLinear,
        QKVParallelLinear,
        ReplicatedLinear,
        RowParallelLinear,
    )
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    stacked = [
        ("qkv_proj", "q_proj", "q"),
        ("qkv_proj", "k_proj", "k"),
        ("qkv_proj", "v_proj", "v"),
        ("gate_up_proj", "gate_proj", 0),
        ("gate_up_proj", "up_proj", 1),
    ]

    class Layer(torch.nn.Module):
        def __init__(self, prefix):
            super().__init__()
            self.qkv_proj = QKVParallelLinear(HIDDEN, 128, 16, 4, bias=False, prefix=f"{prefix}.qkv_proj")
            self.o_proj = RowParallelLinear(HIDDEN, HIDDEN, bias=False, prefix=f"{prefix}.o_proj")
            self.gate_up_proj = MergedColumnParallelLinear(HIDDEN, [4096] * 2, bias=False, prefix=f"{prefix}.gate_up_proj")
            self.down_proj = RowParallelLinear(4096, HIDDEN, bias=False, prefix=f"{prefix}.down_proj")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = VocabParallelEmbedding(VOCABULARY, HIDDEN)
            self.lm_head = ParallelLMHead(VOCABULARY, HIDDEN)
            self.layers = torch.nn.ModuleList([Layer(f"layers.{number}") for number in range(2)])
            self.norm = torch.nn.RMSNorm(HIDDEN)
            self.extra = ReplicatedLinear(256, HIDDEN, bias=False, prefix="extra")
            #: The weights that FusedMoE would take.
            self.experts = {}
            self.left_out = []

        def load_weights(self, weights):
            parameters, loaded = dict(self.named_parameters()), set()
            for name, weight in weights:
                if ".experts." in name:
                    self.experts[name] = weight.clone()
                    continue
                if name.startswith("language_model."):
                    self.left_out.append(name)
                    continue
                for layer, part, shard in stacked:
                    if part in name:
                        name = name.replace(part, layer)
                        parameters[name].weight_loader(parameters[name], weight, shard)
                        break
                else:
                    load = getattr(parameters[name], "weight_loader", default_weight_loader)
                    load(parameters[name], weight)
                loaded.add(name)
            return loaded

    return Model()


def bytes_read():
    """Returns the bytes that this process has read from files, by calls of the kernel."""
    fields = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def worker(rank, folder, sizes):
    import torch
    import vllm.config
    from vllm import distributed
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    import gpufile.vllm
    from gpufile.safetensors import _mapped

    divided, experts, whole = sizes
    gpufile.vllm.register()
    torch.set_num_threads(1)
    with vllm.config.set_current_vllm_config(vllm.config.VllmConfig()):
        distributed.init_distributed_environment(WORKERS, rank, f"file://{folder}/group", rank, "gloo")
        distributed.initialize_model_parallel(WORKERS, backend="gloo")
        models, counts = {}, {}
        for name in ("gpufile", "gpufile mapped", "safetensors", "gpufile filtered", "safetensors filtered"):
            load_format, _, way = name.partition(" ")
            # Files are mapped by default here, and read if tensors go to a GPU, so that their bytes are counted.
            _mapped.map_by_default(way == "mapped")
            loader = get_model_loader(LoadConfig(load_format=load_format, use_tqdm_on_load=False))
            if way == "filtered":
                # What vLLM sets for expert parallelism and for --mm-encoder-only.
                loader.local_expert_ids = {0, 1} if rank == 0 else {2, 3}
                loader._encoder_only_lm_prefixes = ("language_model.",)
            source = loader.Source(str(folder), None)
            models[name] = model()
            before = bytes_read()
            loaded = models[name].load_weights(loader._get_weights_iterator(source))
            counts[name] = bytes_read() - before
            assert loaded == {name for name, _ in models[name].named_parameters()}, loaded
    for way, their_way in (("", ""), (" mapped", ""), (" filtered", " filtered")):
        ours, theirs = models[f"gpufile{way}"], models[f"safetensors{their_way}"]
        for (name, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters()):
            assert torch.equal(one, other), name
        assert ours.experts.keys() == theirs.experts.keys() and ours.experts
        assert all(torch.equal(tensor, theirs.experts[name]) for name, tensor in ours.experts.items())
        assert ours.left_out == theirs.left_out == ([] if their_way else ["language_model.weight"])
    # The model does not use the weight of the language model, which is deferred, so that nobody reads it.
    share = divided // WORKERS + whole
    for name, expected in (("gpufile", share + experts), ("gpufile filtered", share + experts // WORKERS)):
        assert expected <= counts[name] <= 1.05 * expected + SLACK, (name, counts[name], expected)
        print(f"{name}, worker {rank}: read {counts[name]:,} bytes, {counts[name] / expected:.3f} times its share")
    distributed.destroy_model_parallel()
    distributed.destroy_distributed_environment()


def main():
    if len(sys.argv) != 2 or not (pathlib.Path(sys.argv[1]) / "vllm/model_executor").is_dir():
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    # The workers import it, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.argv[1], os.environ.get("PYTHONPATH")]))
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    sys.path.insert(0, sys.argv[1])
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        mp.spawn(worker, (folder, save(folder)), nprocs=WORKERS)
    print("passed")


if __name__ == "__main__":
    main()
