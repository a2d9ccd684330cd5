"""Models of the Hugging Face Hub, from the cache of huggingface_hub."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")
hub = pytest.importorskip("huggingface_hub")
theirs = pytest.importorskip("safetensors.numpy")

import gpufile.safetensors as gs
import huggingface_hub.constants
from gpufile.safetensors import _hub
from gpufile.safetensors import numpy as ours

COMMITS = {"main": "a" * 40, "older": "b" * 40}
RANDOM = np.random.default_rng(7)


class Cache:
    """A cache of the Hub."""

    def __init__(self, folder):
        self.folder = folder

    def add(self, repo, name, tensors, revision="main"):
        """Adds a file of tensors, or an index of a dictionary of files."""
        at = self.folder / f"models--{repo.replace('/', '--')}"
        (at / "refs").mkdir(parents=True, exist_ok=True)
        (at / "refs" / revision).write_text(COMMITS[revision])
        path = at / "snapshots" / COMMITS[revision] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".json"):
            path.write_text(json.dumps({"metadata": {}, "weight_map": tensors}))
        else:
            theirs.save_file(tensors, path)
        return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert huggingface_hub.constants.HF_HUB_OFFLINE
    return Cache(tmp_path)


def tensors(*names):
    return {name: RANDOM.standard_normal((5, 7), np.float32) for name in names}


def equal(loaded, path):
    expected = theirs.load_file(path)
    return loaded.keys() == expected.keys() and all(loaded[name].tobytes() == expected[name].tobytes() for name in expected)


@pytest.mark.parametrize("repo", ["org/model", "gpt2"])
def test_names_offline_load_the_bits_of_their_files(cache, repo):
    path = cache.add(repo, "model.safetensors", tensors("a", "b"))
    for load in (ours.load_file, lambda path: gs.load_model(path, framework="np"), lambda path: dict(gs.LazyModel(path, framework="np"))):
        assert equal(load(f"hf://{repo}"), path) and equal(load(f"hf://{repo}/"), path)
    with gs.safe_open(f"hf://{repo}", "np") as model:
        assert equal(dict(model), path)


def test_an_index_loads_its_files_alone(cache):
    one = cache.add("org/model", "model-00001-of-00002.safetensors", tensors("a"))
    two = cache.add("org/model", "model-00002-of-00002.safetensors", tensors("b"))
    cache.add("org/model", "consolidated.safetensors", tensors("c"))
    cache.add("org/model", "model.safetensors.index.json", {"a": one.name, "b": two.name})
    loaded = ours.load_file("hf://org/model")
    assert loaded.keys() == {"a", "b"} and equal({"a": loaded["a"]}, one) and equal({"b": loaded["b"]}, two)
    two.unlink()
    with pytest.raises(FileNotFoundError):
        ours.load_file("hf://org/model")


def test_revisions_files_and_folders_are_found(cache):
    main = cache.add("org/model", "model.safetensors", tensors("a"))
    older = cache.add("org/model", "model.safetensors", tensors("a"), "older")
    adapter = cache.add("org/model", "sub/adapter_model.safetensors", tensors("b"))
    shard = cache.add("org/model", "unet/part.safetensors", tensors("c"))
    cache.add("org/model", "unet/diffusion_pytorch_model.safetensors.index.json", {"c": shard.name})
    for address, path in [
        ("hf://org/model@main", main),
        ("hf://org/model@older", older),
        (f"hf://org/model@{COMMITS['older']}", older),
        ("hf://org/model@older/model.safetensors", older),
        ("hf://org/model/sub", adapter),
        ("hf://org/model@main/sub/adapter_model.safetensors", adapter),
        ("hf://org/model/unet", shard),
        ("hf://org/model/unet/diffusion_pytorch_model.safetensors.index.json", shard),
    ]:
        assert equal(ours.load_file(address), path), address


def test_what_the_hub_fetches_is_that_of_one_commit(cache, monkeypatch):
    shard = cache.add("org/model", "model-00001-of-00001.safetensors", tensors("a"))
    cache.add("org/model", "model.safetensors.index.json", {"a": shard.name})
    asked = []
    monkeypatch.setattr(hub, "snapshot_download", lambda *arguments, **options: asked.append((*arguments, options)))
    ours.load_file("hf://org/model@main")
    assert asked == [("org/model", {"revision": COMMITS["main"], "allow_patterns": [shard.name]})]


def test_missing_models_and_wrong_addresses_raise(cache):
    cache.add("org/model", "README.json", {})
    with pytest.raises(FileNotFoundError, match="hf://org/model: found none of model.safetensors.index.json, model.safetensors"):
        ours.load_file("hf://org/model")
    for address in ("hf://", "hf://a b/c", "hf://datasets/org/x", "hf://org/model@", "hf:///x"):
        with pytest.raises(ValueError, match="expected hf://OWNER/NAME"):
            ours.load_file(address)
    with pytest.raises(ValueError, match="not for the Hub"):
        ours.load_file("hf://org/model", storage_options={"AWS_REGION": "x"})


def test_without_huggingface_hub_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="hf://org/model: install huggingface_hub"):
        ours.load_file("hf://org/model")


def test_a_server_that_does_not_answer_leaves_the_cache(tmp_path):
    path = Cache(tmp_path).add("org/model", "model.safetensors", tensors("a"))
    source = "import gpufile.safetensors.numpy as ours, sys; sys.stdout.buffer.write(ours.load_file('hf://org/model')['a'].tobytes())"
    environment = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", source], env=os.environ | environment, capture_output=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout == theirs.load_file(path)["a"].tobytes()


def test_only_texts_are_addresses(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(_hub, "local_path", lambda address: asked.append(address) or tmp_path)
    for path in (tmp_path, "HF://org/model", "hf://org/model"):
        with pytest.raises((OSError, ValueError)):
            gs.load_model(path)
    assert asked == ["hf://org/model"]


def test_names_are_verified_by_the_hashes_of_the_cache(cache):
    path = cache.add("org/model", "model.safetensors", tensors("a"))
    content = path.read_bytes()
    blob = cache.folder / "models--org--model" / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir()
    path.replace(blob)
    path.symlink_to(blob)
    assert gs.verify("hf://org/model", contents=True).hashed == 1
    assert equal(ours.load_file("hf://org/model", verify=True), path)
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(gs.SafetensorError, match=blob.name):
        ours.load_file("hf://org/model", verify=True)
