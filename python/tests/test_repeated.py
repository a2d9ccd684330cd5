"""Calls repeated 2,000 times leave memory, descriptors, threads, mappings and pinned bytes as after 200."""

import gc
import os
import subprocess
import sys

import pytest

from test_methods import PLAIN

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

#: The growth of the resident memory that is no leak: arenas and caches of the interpreter and of torch.
SLACK_KIB = 2048
#: The most bytes that the engine's threads keep pinned. Calls that each kept 64 KiB would come to more.
PINNED = 100 << 20


def test_repeated_calls_keep_nothing(tmp_path):
    run = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert len(run.stdout.splitlines()) == 15 + len(PLAIN), run.stdout


def test_mapped_files_keep_no_descriptors(tmp_path):
    run = subprocess.run([sys.executable, __file__, str(tmp_path), "shards"], capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]


def state():
    import gpufile.kvikio

    gc.collect()
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    counts = {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
        "mappings": mappings,
    }
    return int(fields["VmRSS"].split()[0]), gpufile.kvikio.bounce_buffer_free(), counts


def calls(folder):
    """Yields the names of functions, and what calls each."""
    import numpy as np

    import gpufile
    import gpufile.safetensors as package
    from gpufile.safetensors import numpy as for_numpy
    from gpufile.safetensors import torch as for_torch

    path, raw = f"{folder}/model.safetensors", f"{folder}/raw"
    tensors = {f"w{number}": torch.randn(64, 33) for number in range(5)}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    for_torch.save_file(tensors, path)
    with open(path, "rb") as file:
        content = file.read()
    bytes_ = np.zeros(100_001, np.uint8)
    bytes_.tofile(raw)

    def opened():
        with package.safe_open(path, "pt") as model:
            return model.get_tensor("w1"), model.get_slice("w2")[3:5], list(model), model.metadata()

    def prefetched():
        with package.safe_open(path, "np") as model, model.prefetch() as loader:
            return list(loader)

    def with_file(mode, call):
        def body():
            with gpufile.File(f"{folder}/{mode}" if mode == "w" else raw, mode) as file:
                return call(file)

        return body

    def failed():
        with pytest.raises(package.SafetensorError):
            for_torch.load_file(raw)

    yield "torch.load_file", lambda: for_torch.load_file(path)
    yield "torch.load_file, read", lambda: for_torch.load_file(path, mapped=False)
    yield "torch.load", lambda: for_torch.load(content)
    yield "torch.save", lambda: for_torch.save(tensors)
    yield "torch.save_file", lambda: for_torch.save_file(tensors, f"{folder}/saved.safetensors")
    yield "numpy.load_file", lambda: for_numpy.load_file(path)
    yield "numpy.save_file", lambda: for_numpy.save_file(arrays, f"{folder}/arrays.safetensors")
    yield "load_model", lambda: package.load_model(path)
    yield "LazyModel", lambda: package.LazyModel(path)["w1"]
    yield "verify", lambda: package.verify(path)
    yield "deserialize", lambda: package.deserialize(content)
    yield "safe_open", opened
    yield "prefetch", prefetched
    yield "a file that is no model", failed
    for way in PLAIN:
        yield way.name, with_file("w" if way.is_write else "r", lambda file, way=way: way.call(file, [bytes_], [0]))
    yield "check", lambda: gpufile.File(raw).route


def repeat(folder):
    for name, call in calls(folder):
        for _ in range(200):
            call()
        memory, _, counts = state()
        for _ in range(1800):
            call()
        memory_now, pinned, counts_now = state()
        print(name, memory, memory_now, pinned, counts, counts_now, flush=True)
        assert counts_now == counts
        assert memory_now - memory <= SLACK_KIB
        assert pinned <= PINNED


def map_shards(folder):
    """Maps 1,500 files, one after the other, in a process that may have 64 open."""
    import resource

    from gpufile.safetensors import safe_open
    from gpufile.safetensors.torch import load_file, save_file

    for number in range(1500):
        save_file({"w": torch.full((7,), float(number))}, f"{folder}/{number}.safetensors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [load_file(f"{folder}/{number}.safetensors")["w"] for number in range(1500)]
    for number in range(1500):
        with safe_open(f"{folder}/{number}.safetensors", "pt") as model:
            kept.append(model.get_tensor("w"))
    assert all(tensor.eq(at % 1500).all() for at, tensor in enumerate(kept))


if __name__ == "__main__":
    map_shards(sys.argv[1]) if sys.argv[2:] == ["shards"] else repeat(sys.argv[1])
