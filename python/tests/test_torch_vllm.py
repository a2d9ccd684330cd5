"""`gpufile.vllm` against a stand-in with the parts of vLLM's default loader that it uses. vLLM itself needs a GPU."""

import dataclasses
import importlib.metadata
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import gpufile.vllm
from gpufile.safetensors.torch import save_file


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "gpufile"
    model_loader_extra_config: dict | None = None
    use_tqdm_on_load: bool = False


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
    def _prepare_weights(self, model_name_or_path, subfolder, revision, fall_back_to_pt, allow_patterns_overrides):
        assert subfolder is None
        found = super()._prepare_weights(model_name_or_path, revision, fall_back_to_pt, allow_patterns_overrides)
        return *found, "model.safetensors.index.json"


@pytest.fixture(params=[(OldLoader, OldSource), (NewLoader, NewSource)])
def version(request, monkeypatch):
    """Returns the registered loaders of a stand-in for vLLM, and its class of sources."""
    loader, source = request.param
    registered = {}

    def register_model_loader(name):
        return lambda added: registered.setdefault(name, added)

    default = types.ModuleType("vllm.model_executor.model_loader.default_loader")
    default.DefaultModelLoader = loader
    if loader is NewLoader:
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


def test_models_without_safetensors_are_refused(version, tmp_path):
    registered, source = version
    with pytest.raises(ValueError, match="no safetensors files"):
        registered["gpufile"](LoadConfig())._get_weights_iterator(source(tmp_path, "main"))


def test_vllm_finds_the_plugin_if_installed():
    found = importlib.metadata.entry_points(group="vllm.general_plugins", name="gpufile")
    if not found:
        pytest.skip("gpufile is not installed, only on the path")
    assert [entry.load() for entry in found] == [gpufile.vllm.register]
