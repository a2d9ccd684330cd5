"""`gpufile.sglang` against a stand-in with the parts of SGLang that it uses.

`run_sglang_tests.py` tries it in SGLang itself.
"""

import dataclasses
import enum
import importlib.metadata
import re
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import gpufile._engines
import gpufile.sglang
from gpufile._deferred import Deferred
from gpufile.safetensors.torch import save_file


class LoadFormat(str, enum.Enum):
    SAFETENSORS = "safetensors"
    MODELOPT = "modelopt"


@dataclasses.dataclass
class LoadConfig:
    load_format: object = "gpufile"
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    draft_model_idx: int | None = None

    def __post_init__(self):
        self._verify_load_format()

    def _verify_load_format(self):
        if isinstance(self.load_format, str):
            self.load_format = LoadFormat(self.load_format)


@dataclasses.dataclass
class Source:
    model_or_path: str
    revision: str | None = None
    prefix: str = ""
    fall_back_to_pt: bool = True
    allow_patterns_overrides: list | None = None
    model_config: object = None


class DefaultModelLoader:
    _MTP_PATTERN = re.compile(r"model\.mtp\.layers\.(\d+)\.")
    counter_before_loading_weights = 0.0

    def __init__(self, load_config):
        assert load_config.load_format is LoadFormat.SAFETENSORS and not load_config.model_loader_extra_config
        self.load_config = load_config

    def _prepare_weights(self, path, revision, fall_back_to_pt, allow_patterns_overrides):
        files = sorted(str(file) for file in path.glob("*.safetensors"))
        return str(path), [file for file in files if not file.endswith("mtp.safetensors")], bool(files)

    def _filter_mtp_weights(self, weights, prefix, draft):
        for name, tensor in weights:
            layer = self._MTP_PATTERN.match(name)
            assert layer is None or int(layer[1]) == draft
            yield prefix + name, tensor

    def load_model(self, *, model_config, device_config):
        return type(self).__name__, dict(self._get_weights_iterator(Source(model_config.path)))


class ModelOptModelLoader(DefaultModelLoader):
    def _get_weights_iterator(self, source):
        raise AssertionError("SGLang reads the files")


@pytest.fixture
def sglang(monkeypatch):
    """Returns the registered hooks of a stand-in for SGLang, and its list of formats."""
    formats, hooks = ["auto"], {}

    def module(name, **members):
        made = types.ModuleType(name)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def get_model_loader(load_config, model_config):
        return {"modelopt": ModelOptModelLoader}.get(model_config.quantization, DefaultModelLoader)(load_config)

    def add_mtp(files, folder, index, hf_config):
        assert index == "model.safetensors.index.json"
        return [*files, f"{folder}/mtp.safetensors"] if hf_config == "mtp" else files

    class HookRegistry:
        @staticmethod
        def register(target, hook, kind):
            hooks[target] = hook, kind

    for name in ("sglang", "sglang.srt", "sglang.srt.arg_groups", "sglang.srt.plugins", "sglang.srt.configs"):
        module(name)
    loader = module(
        "sglang.srt.model_loader.loader", DefaultModelLoader=DefaultModelLoader, get_model_loader=get_model_loader
    )
    utils = module("sglang.srt.model_loader.weight_utils", maybe_add_mtp_safetensors=add_mtp)
    module("sglang.srt.model_loader", loader=loader, weight_utils=utils)
    module("sglang.srt.arg_groups.choices", add_load_format_choices=formats.extend)
    module("sglang.srt.plugins.hook_registry", HookRegistry=HookRegistry, HookType=types.SimpleNamespace(BEFORE="before"))
    module("sglang.srt.configs.load_config", LoadFormat=LoadFormat)
    parallel = types.SimpleNamespace(tp_size=1, pp_size=1)
    module("sglang.srt.distributed", model_parallel_is_initialized=lambda: True)
    module("sglang.srt.runtime_context", get_parallel=lambda: parallel)
    gpufile.sglang._loader_class.cache_clear()
    gpufile.sglang.register()
    target = "sglang.srt.configs.load_config.LoadConfig._verify_load_format"
    (hook, kind), verify = hooks.pop(target), LoadConfig._verify_load_format
    assert (kind, hooks) == ("before", {})
    monkeypatch.setattr(LoadConfig, "_verify_load_format", lambda config: (hook(config), verify(config))[1])
    yield types.SimpleNamespace(formats=formats, parallel=parallel)
    gpufile.sglang._loader_class.cache_clear()


def loader_of(**options):
    """Returns the loader that SGLang makes of a class in the place of a format."""
    config = LoadConfig(**options)
    return config.load_format(config)


def test_weights_arrive_with_their_prefix(sglang, tmp_path):
    expected = {f"w{number}": torch.full((number, 3), number) for number in range(1, 20)}
    save_file(dict(list(expected.items())[:9]), tmp_path / "1.safetensors", sync=False)
    save_file(dict(list(expected.items())[9:]), tmp_path / "2.safetensors", sync=False)
    loader = loader_of(model_loader_extra_config={"memory_budget": 3000})
    weights = dict(loader._get_weights_iterator(Source(tmp_path, prefix="model."), startup_prefetch_active=True))
    assert weights.keys() == {f"model.{name}" for name in expected}
    assert all(torch.equal(weights[f"model.{name}"].cpu(), value) for name, value in expected.items())
    assert loader.counter_before_loading_weights > 0


def test_other_formats_stay(sglang):
    assert sglang.formats == ["auto", "gpufile"]
    assert LoadConfig(load_format="safetensors").load_format is LoadFormat.SAFETENSORS


def test_files_that_only_sglang_names_are_read(sglang, tmp_path):
    for name in ("model", "mtp"):
        save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors", sync=False)
    index = '{"metadata": {}, "weight_map": {"model": "model.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    loader, model = loader_of(), types.SimpleNamespace(hf_config="mtp")
    assert [name for name, _ in loader._get_weights_iterator(Source(tmp_path))] == ["model"]
    with_mtp = Source(tmp_path, model_config=model)
    assert [name for name, _ in loader._get_weights_iterator(with_mtp)] == ["model", "mtp"]
    resolved = types.SimpleNamespace(
        hf_folder=str(tmp_path), weight_files=(f"{tmp_path}/mtp.safetensors",), use_safetensors=True
    )
    assert [name for name, _ in loader._get_weights_iterator(with_mtp, resolved_source=resolved)] == ["mtp"]


def test_layers_of_other_drafts_are_not_read(sglang, tmp_path):
    names = ["model.mtp.layers.0.w", "model.mtp.layers.1.w", "model.norm"]
    save_file({name: torch.ones(2) for name in names}, tmp_path / "x.safetensors", sync=False)
    weights = loader_of(draft_model_idx=1)._get_weights_iterator(Source(tmp_path, prefix="a."))
    assert [name for name, _ in weights] == ["a.model.mtp.layers.1.w", "a.model.norm"]


def test_loaders_for_quantizations_read_with_gpufile(sglang, tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "x.safetensors", sync=False)
    for quantization, name in (("modelopt", "ModelOptModelLoader"), (None, "GpufileModelLoader")):
        model = types.SimpleNamespace(path=tmp_path, quantization=quantization)
        found, weights = loader_of().load_model(model_config=model, device_config=None)
        assert (found, list(weights)) == (name, ["w"])


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (1, 2)])
def test_long_tensors_are_deferred_for_several_workers(sglang, tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(gpufile._engines, "SLICED_BYTES", 4000)
    sglang.parallel.tp_size, sglang.parallel.pp_size = sizes
    expected = {"long": torch.randn(40, 50), "short": torch.randn(999)}
    save_file(expected, tmp_path / "x.safetensors", sync=False)
    weights = dict(loader_of()._get_weights_iterator(Source(tmp_path)))
    assert [isinstance(weights[name], Deferred) for name in ("long", "short")] == [sizes != (1, 1), False]
    # SGLang's models may take slices after the last weight, on threads.
    for name, weight in expected.items():
        assert torch.equal(weights[name].narrow(0, 10, 20).clone().cpu(), weight[10:30])


def test_models_without_safetensors_are_refused(sglang, tmp_path):
    with pytest.raises(ValueError, match="no safetensors files"):
        loader_of()._get_weights_iterator(Source(tmp_path))


def test_sglang_finds_the_plugin_if_installed():
    found = importlib.metadata.entry_points(group="sglang.srt.plugins", name="gpufile")
    if not found:
        pytest.skip("gpufile is not installed, only on the path")
    assert [entry.load() for entry in found] == [gpufile.sglang.register]
