"""`gpufile.vllm` against a stand-in with the parts of vLLM's default loader that it uses.

`run_vllm_tests.py` tries it in vLLM itself.
"""

import dataclasses
import importlib.metadata
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import gpufile._engines
import gpufile.vllm
from gpufile._deferred import Deferred
from gpufile.safetensors import SafeSlice
from gpufile.safetensors.torch import save_file


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "gpufile"
    model_loader_extra_config: dict | None = None
    use_tqdm_on_load: bool = False
    safetensors_load_strategy: str | None = None


@dataclasses.dataclass
class OldSource:
    model_or_path: str
    revision: str | None
    prefix: str = ""
    fall_back_to_pt: bool = True
    allow_patterns_overrides: list | None = None


@dataclasses.dataclass
class NewSource(OldSource):
    subfolder: str | None = None
    is_unused_weight: object = None


class OldLoader:
    counter_before_loading_weights = 0.0

    def __init__(self, load_config):
        assert load_config.load_format == "safetensors" and not load_config.model_loader_extra_config
        self.load_config = load_config

    def _prepare_weights(self, model_name_or_path, revision, fall_back_to_pt, allow_patterns_overrides):
        assert (revision, fall_back_to_pt, allow_patterns_overrides) == ("main", True, None)
        files = sorted(str(path) for path in model_name_or_path.glob("*.safetensors"))
        return str(model_name_or_path), files, bool(files)


class NewLoader(OldLoader):
    local_expert_ids = _encoder_only_lm_prefixes = _encoder_only_weights_mapper = None

    def _prepare_weights(self, model_name_or_path, subfolder, revision, fall_back_to_pt, allow_patterns_overrides):
        assert subfolder is None
        found = super()._prepare_weights(model_name_or_path, revision, fall_back_to_pt, allow_patterns_overrides)
        return *found, "model.safetensors.index.json"


def without_language_model(files, folder, index, prefixes, *, weights_mapper):
    assert (index, prefixes, weights_mapper) == ("model.safetensors.index.json", ("lm.",), "mapper")
    return [file for file in files if not file.endswith("lm.safetensors")]


@pytest.fixture(params=[(OldLoader, OldSource), (NewLoader, NewSource)])
def version(request, monkeypatch):
    """Returns the registered loaders of a stand-in for vLLM, and its class of sources."""
    loader, source = request.param
    registered = {}

    def register_model_loader(name):
        return lambda added: registered.setdefault(name, added)

    default = types.ModuleType("vllm.model_executor.model_loader.default_loader")
    default.DefaultModelLoader = loader
    filters = types.ModuleType("vllm.model_executor.model_loader.ep_weight_filter")
    filters.should_skip_weight = lambda name, experts: name.startswith("e") and int(name[1:]) not in experts
    monkeypatch.setitem(sys.modules, filters.__name__, filters)
    default.__package__ = "vllm.model_executor.model_loader"
    if loader is NewLoader:
        default.filter_mm_encoder_only_safetensors_files = without_language_model
        default.decode_csf_scale_streams = lambda weights: ((name, tensor + 0) for name, tensor in weights)
    package = types.ModuleType("vllm.model_executor.model_loader")
    package.default_loader, package.register_model_loader = default, register_model_loader
    for name, module in (("vllm", types.ModuleType("vllm")), (package.__name__, package), (default.__name__, default)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "vllm.model_executor", types.ModuleType("vllm.model_executor"))
    gpufile.vllm.register()
    return registered, source


@pytest.mark.parametrize("extra", [None, {"memory_budget": 3000}])
def test_weights_arrive_with_their_prefix(version, tmp_path, extra):
    registered, source = version
    expected = {f"w{number}": torch.full((number, 3), number) for number in range(1, 20)}
    half = dict(list(expected.items())[:9])
    save_file(half, tmp_path / "1.safetensors", sync=False)
    save_file({name: value for name, value in expected.items() if name not in half}, tmp_path / "2.safetensors")
    config = LoadConfig(model_loader_extra_config=extra)
    loader = registered["gpufile"](config)
    weights = dict(loader._get_weights_iterator(source(tmp_path, "main", prefix="model.")))
    assert weights.keys() == {f"model.{name}" for name in expected}
    # With a GPU, the weights are there.
    assert all(torch.equal(weights[f"model.{name}"].cpu(), value) for name, value in expected.items())
    assert loader.counter_before_loading_weights > 0
    # The configuration of the caller stays.
    assert (config.load_format, config.model_loader_extra_config) == ("gpufile", extra)


def test_unused_weights_are_not_read(version, tmp_path):
    registered, source = version
    save_file({name: torch.ones(2) for name in "abc"}, tmp_path / "x.safetensors", sync=False)
    options = {"is_unused_weight": lambda name: name == "b"} if source is NewSource else {}
    weights = registered["gpufile"](LoadConfig())._get_weights_iterator(source(tmp_path, "main", **options))
    assert sorted(name for name, _ in weights) == (["a", "c"] if options else ["a", "b", "c"])


def test_experts_of_others_are_not_read(version, tmp_path):
    registered, source = version
    save_file({name: torch.ones(2) for name in ("e0", "e1", "e2", "norm")}, tmp_path / "x.safetensors", sync=False)
    loader = registered["gpufile"](LoadConfig())
    loader.local_expert_ids = {0, 2}
    assert [name for name, _ in loader._get_weights_iterator(source(tmp_path, "main"))] == ["e0", "e2", "norm"]


def test_files_of_the_language_model_are_left_out(version, tmp_path):
    registered, source = version
    if source is OldSource:
        return
    for name in ("lm", "vision"):
        save_file({f"{name}.weight": torch.ones(2)}, tmp_path / f"{name}.safetensors", sync=False)
    loader = registered["gpufile"](LoadConfig())
    loader._encoder_only_lm_prefixes, loader._encoder_only_weights_mapper = ("lm.",), "mapper"
    assert [name for name, _ in loader._get_weights_iterator(source(tmp_path, "main"))] == ["vision.weight"]
    (tmp_path / "vision.safetensors").unlink()
    with pytest.raises(RuntimeError, match="no file with other weights than those of the language model"):
        loader._get_weights_iterator(source(tmp_path, "main"))


def test_tensors_of_torchao_are_put_together(version, tmp_path, monkeypatch):
    registered, source = version
    for number in (10, 9):
        parts = {f"{name}.{number}": torch.full((2,), number) for name in ("a", "b")}
        save_file(parts, tmp_path / f"model-{number}.safetensors", {"number": str(number)}, sync=False)
    seen = []

    def unflatten(parts, metadata):
        seen.append((sorted(parts), metadata["number"]))
        return {name: part for name, part in parts.items() if name[0] == "a"}, {"b.9": parts["b.9"]}

    support = types.ModuleType("torchao.prototype.safetensors.safetensors_support")
    support.unflatten_tensor_state_dict = unflatten
    for name in ("torchao", "torchao.prototype", "torchao.prototype.safetensors"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, support.__name__, support)
    loader = registered["gpufile"](LoadConfig(safetensors_load_strategy="torchao"))
    weights = dict(loader._get_weights_iterator(source(tmp_path, "main", prefix="model.")))
    assert seen == [(["a.9", "b.9"], "9"), (["a.10", "b.10", "b.9"], "10")]
    assert list(weights) == ["model.a.9", "model.a.10"] and weights["model.a.10"].tolist() == [10, 10]


def test_workers_read_their_slices(version, tmp_path, monkeypatch):
    registered, source = version
    monkeypatch.setattr(gpufile._engines, "SLICED_BYTES", 4000)
    distributed = types.ModuleType("vllm.distributed")
    distributed.get_tensor_model_parallel_world_size = lambda: 2
    monkeypatch.setitem(sys.modules, distributed.__name__, distributed)
    expected = {"long": torch.randn(40, 50), "other": torch.randn(1000), "short": torch.randn(999)}
    save_file(expected, tmp_path / "x.safetensors", sync=False)
    read, index = [], SafeSlice.__getitem__
    monkeypatch.setattr(SafeSlice, "__getitem__", lambda tensor, item: (read.append(item), index(tensor, item))[1])
    found = {}
    for name, weight in registered["gpufile"](LoadConfig())._get_weights_iterator(source(tmp_path, "main")):
        assert isinstance(weight, Deferred) == (name != "short" and source is OldSource)
        found[name] = weight.narrow(0, 10, 20).clone()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name].cpu(), weight[10:30])
    if source is OldSource:
        assert read == [(slice(10, 30), slice(0, 50)), (slice(10, 30),)]


def test_models_without_safetensors_are_refused(version, tmp_path):
    registered, source = version
    with pytest.raises(ValueError, match="no safetensors files"):
        registered["gpufile"](LoadConfig())._get_weights_iterator(source(tmp_path, "main"))


def test_vllm_finds_the_plugin_if_installed():
    found = importlib.metadata.entry_points(group="vllm.general_plugins", name="gpufile")
    if not found:
        pytest.skip("gpufile is not installed, only on the path")
    assert [entry.load() for entry in found] == [gpufile.vllm.register]
