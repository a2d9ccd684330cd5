"""Loads of tensors chosen by patterns, and with another type."""

import functools
import math
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
framework, path, dtype = sys.argv[1:]
if framework == "pt":
    import torch
def status(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))
gs.load_model(path, framework=framework, dtype=dtype, only=["short.0"])
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")
start = status("VmRSS")
loaded = gs.load_model(path, framework=framework, dtype=dtype)
print(status("VmHWM") - start, sum(tensor.nbytes for tensor in loaded.values()))
"""


@pytest.mark.parametrize("framework", [*frameworks()])
@pytest.mark.parametrize("stored, dtype", [("float32", "float16"), ("float16", "float32"), ("float32", "float64")])
def test_a_conversion_takes_no_second_copy(tmp_path, framework, stored, dtype):
    if framework == "jax":
        pytest.skip("JAX copies arrays of the host to its device")
    path = tmp_path / "model.safetensors"
    long = np.ones(96 << 20 if stored == "float16" else 48 << 20, stored)
    on_numpy.save_file({"long": long, "rows": long.reshape(-1, 1 << 20)[:8].copy()} | {f"short.{n}": long[: 4 << 10] for n in range(50)}, path)
    command = [sys.executable, "-c", MEASURED, framework, str(path), dtype]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    peak, result = map(int, run.stdout.split())
    assert result == sum(math.prod(a.shape) for a in (long, long[: 8 << 20])) * np.dtype(dtype).itemsize + 50 * (4 << 10) * np.dtype(dtype).itemsize
    assert peak <= 1.05 * result + (64 << 20), (peak, result)
