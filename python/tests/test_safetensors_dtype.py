"""Loads of tensors chosen by patterns, and with another type."""

import concurrent.futures
import functools
import itertools
import math
import os
import pickle
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")

import gpufile.safetensors as gs
from gpufile.safetensors import _convert
from gpufile.safetensors import numpy as on_numpy

try:
    import torch

    from gpufile.safetensors import torch as on_torch
except ImportError:
    torch = None
try:
    from gpufile.safetensors import flax
except ImportError:
    flax = None

RANDOM = np.random.default_rng(7)
ARRAYS = {
    "layers.0.weight": RANDOM.standard_normal((33, 70), np.float32) * 1e-3,
    "layers.0.bias": RANDOM.standard_normal(70),
    "layers.10.weight": RANDOM.standard_normal((3, 5, 7)).astype(np.float16),
    "layers.10.ids": RANDOM.integers(-9, 9, (5, 4)),
    "lm_head.weight": RANDOM.standard_normal((1, 1, 41), np.float32),
    "scale": np.float32(0.1),
    "empty": np.empty((0, 3), np.float32),
    "layers.[1].odd": np.arange(5, dtype=np.uint8),
}


@pytest.fixture(params=["whole", "pieces"])
def model(tmp_path, request, monkeypatch):
    """Returns a model of two files. The pieces of a conversion may be short."""
    if request.param == "pieces":
        monkeypatch.setattr(_convert, "PIECE_BYTES", 64)
    names = list(ARRAYS)
    paths = [str(tmp_path / f"{part}.safetensors") for part in ("one", "other")]
    for number, path in enumerate(paths):
        on_numpy.save_file({name: np.asarray(ARRAYS[name]) for name in names[number::2]}, path)
    return paths


def loads(framework):
    """Returns every load of a model of a framework to the host."""
    whole = [
        functools.partial(gs.load_model, framework=framework),
        functools.partial(gs.load_model, framework=framework, mapped=False),
        lambda model, **options: dict(gs.LazyModel(model, framework=framework, **options)),
        lambda model, **options: dict(pickle.loads(pickle.dumps(gs.LazyModel(model, framework=framework, **options)))),
    ]
    own = {"np": on_numpy, "pt": torch and on_torch, "jax": flax}[framework]
    return [*whole, own.load_file, functools.partial(gs.load_file, framework=framework)]


def frameworks():
    for name, module in (("np", np), ("pt", torch), ("jax", flax)):
        yield pytest.param(name, marks=[] if module else pytest.mark.skip(reason=f"{name} is not installed"))


@pytest.mark.parametrize("framework", [*frameworks()])
def test_patterns_choose_tensors_in_every_load(model, framework):
    for only, expected in [
        (["layers.*.weight"], {"layers.0.weight", "layers.10.weight"}),
        (["*.bias", "scale", "s*"], {"layers.0.bias", "scale"}),
        (["layers.?.*"], {"layers.0.weight", "layers.0.bias"}),
        # A name comes before a pattern.
        (["layers.[1].odd"], {"layers.[1].odd"}),
        (["layers.[0-9].bias"], {"layers.0.bias"}),
        ([], set()),
    ]:
        for load in loads(framework):
            assert set(load(model, only=iter(only))) == expected
    for load in loads(framework):
        for wrong, text in ((["x*"], "does not contain a tensor that matches x\\*"), (["*", "x"], "does not contain tensor x")):
            with pytest.raises(gs.SafetensorError, match=text):
                load(model, only=wrong)


def test_patterns_choose_tensors_of_iterations_and_placements(model):
    with gs.safe_open(model, "np") as opened:
        assert {name for name, _ in opened.iter_tensors(["*.weight", "scale"])} == {name for name in ARRAYS if name.endswith("weight")} | {"scale"}
    (placed,) = gs.load_model(model, ["cpu"], framework="np", placement=gs.Placement.all(), only=["lm_*"])
    assert set(placed) == {"lm_head.weight"}


def bits(array):
    return array.dtype, array.shape, array.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_arrays_arrive_as_numpy_converts_them(model, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
        from ml_dtypes import bfloat16 as target
    else:
        target = np.dtype(dtype)
    expected = {name: array.astype(target) if array.dtype.kind == "f" else array for name, array in ARRAYS.items()}
    for load in loads("np"):
        for given in (dtype, target, np.dtype(target)):
            loaded = load(model, dtype=given)
            assert {name: bits(array) for name, array in loaded.items()} == {name: bits(np.asarray(array)) for name, array in expected.items()}
            assert list(loaded) == list(load(model))
    assert list(on_numpy.load_file(model, dtype=dtype, only=["scale", "*.ids"])) == [n for n in loaded if n in ("scale", "layers.10.ids")]


@pytest.mark.skipif(torch is None, reason="torch is not installed")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_tensors_arrive_as_torch_converts_them(model, dtype):
    target = getattr(torch, dtype)
    own = {name: torch.from_numpy(np.asarray(array)) for name, array in ARRAYS.items()}
    expected = {name: tensor.to(target) if tensor.is_floating_point() else tensor for name, tensor in own.items()}
    for load in loads("pt"):
        for given in (dtype, target):
            loaded = load(model, dtype=given)
            assert loaded.keys() == expected.keys()
            for name, tensor in loaded.items():
                assert tensor.dtype == expected[name].dtype and torch.equal(tensor, expected[name]), name
                assert tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.is_contiguous()


SHARES = [gs.Share.on(1), gs.Share.all(), gs.Share.slice(0), gs.Share.slice(-1, "chunks")]


def converted(tensor, dtype):
    """Returns a tensor of numpy or torch as its own package converts it, if it is of a floating-point type."""
    if isinstance(tensor, np.ndarray):
        return bits(tensor.astype(dtype if tensor.dtype.kind == "f" else tensor.dtype))
    assert tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return bits(tensor.to(getattr(torch, dtype) if tensor.is_floating_point() else tensor.dtype).numpy())


@pytest.mark.parametrize("devices", [2, 3, 5])
@pytest.mark.parametrize("framework", [*frameworks()][:2])
def test_placed_tensors_arrive_converted(model, framework, devices):
    mixed = gs.Placement.by(lambda name, _, shape: SHARES[list(ARRAYS).index(name) % 4 if shape else 1])
    kinds = [gs.Placement.by(lambda *about, by=by: SHARES[by] if about[2] else gs.Share.all()) for by in range(4)]
    for placement, dtype in itertools.product([mixed, *kinds], ["float16", "float64"]):
        for only in (None, ["layers.*"], ["layers.10.ids"], []):
            load = functools.partial(gs.load_model, model, ["cpu"] * devices, framework=framework, placement=placement, only=only)
            seen = [(0, 0)]
            found, expected = load(dtype=dtype, progress=lambda *step: seen.append(step)), load()
            assert seen[-1][0] == seen[-1][1]
            for parts, originals in zip(found, expected, strict=True):
                assert [*parts] == [*originals]
                for name, original in originals.items():
                    assert converted(parts[name], dtype) == converted(original, dtype) == bits(np.asarray(parts[name])), name
    # Those with a type of their own are balanced apart.
    found = gs.load_model(model, ["cpu"] * devices, framework=framework, placement=gs.Placement.balanced(), dtype="float16")
    assert sorted(itertools.chain(*found)) == sorted(ARRAYS)
    for name, tensor in itertools.chain(*(parts.items() for parts in found)):
        assert bits(np.asarray(tensor)) == converted(np.asarray(ARRAYS[name]), "float16")


def test_failures_end_conversions_for_placements(tmp_path, monkeypatch):
    monkeypatch.setattr(_convert, "PIECE_BYTES", 4096)
    path = tmp_path / "model.safetensors"
    content = {f"{number}": RANDOM.standard_normal((100, 40)) for number in range(9)}
    on_numpy.save_file(content, path)

    def load(**options):
        return gs.load_model(path, ["cpu"] * 2, framework="np", placement=gs.Placement.all(), dtype="float32", **options)

    def stop(done, total):
        if done * 2 > total:
            os.truncate(path, 200_000)

    with pytest.raises(OSError, match="model.safetensors"):
        load(progress=stop)
    on_numpy.save_file(content, path)
    assert all(bits(array) == bits(content[name].astype("f4")) for arrays in load() for name, array in arrays.items())


def test_packed_tensors_arrive_converted(tmp_path, monkeypatch):
    monkeypatch.setattr(_convert, "PIECE_BYTES", 100_000)
    path, content = tmp_path / "model.safetensors", {"long": RANDOM.standard_normal((300, 700), np.float32), "short": ARRAYS["layers.0.weight"]}
    on_numpy.save_file(content, path, compress=True)
    assert path.stat().st_size < 0.95 * content["long"].nbytes
    placement = gs.Placement.by(lambda name, *_: gs.Share.slice(1))
    parts = gs.load_model(path, ["cpu"] * 3, framework="np", placement=placement, dtype="float16")
    for name, array in content.items():
        assert bits(on_numpy.load_file(path, dtype="float16")[name]) == bits(array.astype("f2"))
        assert bits(np.concatenate([part[name] for part in parts], 1)) == bits(array.astype("f2"))


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_tied_tensors_arrive_once_and_converted(tmp_path):
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(30, 30), "b": torch.nn.Linear(30, 30)})
    module["b"].weight = module["a"].weight
    on_torch.save_model(module, tmp_path / "model.safetensors")
    saved = on_torch.load_file(tmp_path / "model.safetensors")
    assert len(saved) == 3
    loads = [on_torch.load_file(tmp_path / "model.safetensors", dtype="bfloat16")]
    loads += gs.load_model(tmp_path / "model.safetensors", ["cpu"] * 2, placement=gs.Placement.all(), dtype="bfloat16")
    for loaded in loads:
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[name], saved[name].to(torch.bfloat16)) for name in saved)
    # Those of different devices share no memory.
    assert len({tensor.data_ptr() for loaded in loads for tensor in loaded.values()}) == 9


def test_threads_convert_at_once(model):
    expected = {name: bits(array) for name, array in on_numpy.load_file(model, dtype="float16").items()}

    def load(number):
        placed = gs.load_model(model, ["cpu"] * 3, framework="np", placement=gs.Placement.all(), dtype="float16")
        loaded = gs.load_file(model, framework="np", dtype="float16")
        return all({n: bits(a) for n, a in arrays.items()} == expected for arrays in [*placed, loaded])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(load, range(40)))


@pytest.mark.skipif(flax is None, reason="jax is not installed")
def test_arrays_of_jax_arrive_converted(model):
    import jax.numpy as jnp

    for dtype in (jnp.bfloat16, "float16", np.float16):
        loaded = flax.load_file(model, dtype=dtype)
        assert all(jnp.array_equal(array, jnp.asarray(ARRAYS[name].astype(dtype) if ARRAYS[name].dtype.kind == "f" else ARRAYS[name]))
                   for name, array in loaded.items())  # fmt: skip
        assert loaded["scale"].dtype == dtype


def test_progress_counts_the_bytes_of_the_files(model):
    seen = []
    gs.load_model(model, framework="np", dtype="float16", progress=lambda done, total: seen.append((done, total)))
    total = sum(np.asarray(array).nbytes for array in ARRAYS.values())
    # The gaps between tensors are read, too.
    assert seen[-1][0] == seen[-1][1] and total <= seen[-1][1] < total + 64 and seen == sorted(seen) and len(seen) > 1


@pytest.mark.parametrize("shape", [(5,), (1, 1, 100), (7, 100), (3, 2, 40), (100, 1, 1), (2, 1000, 3)])
def test_boxes_cover_each_element_once(monkeypatch, shape):
    monkeypatch.setattr(_convert, "PIECE_BYTES", 64)
    counts = np.zeros(shape, int)
    for box in _convert._boxes(shape, 8):
        part = counts[tuple(slice(*bounds) for bounds in box)]
        part += 1
        assert 0 < part.size * 8 <= 64
    assert (counts == 1).all()


MEASURED = """
import os, sys
import gpufile.safetensors as gs
framework, path, dtype, devices = sys.argv[1:]
if framework == "pt":
    import torch
def status(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))
placed = {"placement": gs.Placement.by(lambda *about: gs.Share.slice(0)), "device": ["cpu"] * int(devices)} if int(devices) else {}
gs.load_model(path, framework=framework, dtype=dtype, only=["short.0"], **placed)
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")
start = status("VmRSS")
loaded = gs.load_model(path, framework=framework, dtype=dtype, **placed)
print(status("VmHWM") - start, sum(tensor.nbytes for parts in (loaded if placed else [loaded]) for tensor in parts.values()))
"""


@pytest.mark.parametrize("framework", [*frameworks()])
@pytest.mark.parametrize("stored, dtype", [("float32", "float16"), ("float16", "float32"), ("float32", "float64")])
@pytest.mark.parametrize("devices", [0, 2])
def test_a_conversion_takes_no_second_copy(tmp_path, framework, stored, dtype, devices):
    if framework == "jax":
        pytest.skip("JAX copies arrays of the host to its device")
    path = tmp_path / "model.safetensors"
    long = np.ones(96 << 20 if stored == "float16" else 48 << 20, stored)
    on_numpy.save_file({"long": long, "rows": long.reshape(-1, 1 << 20)[:8].copy()} | {f"short.{n}": long[: 4 << 10] for n in range(50)}, path)
    command = [sys.executable, "-c", MEASURED, framework, str(path), dtype, str(devices)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    peak, result = map(int, run.stdout.split())
    assert result == sum(math.prod(a.shape) for a in (long, long[: 8 << 20])) * np.dtype(dtype).itemsize + 50 * (4 << 10) * np.dtype(dtype).itemsize
    assert peak <= 1.05 * result + (64 << 20), (peak, result)
