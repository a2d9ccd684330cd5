"""`gpufile.safetensors` with JAX on the processor, against the package safetensors."""

import pytest

np = pytest.importorskip("numpy")
jax = pytest.importorskip("jax")
ml_dtypes = pytest.importorskip("ml_dtypes")
reference = pytest.importorskip("safetensors.numpy")

import gpufile.safetensors as gs
from gpufile.safetensors import flax as ours

TYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"]
TYPES += ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"]
SHAPES = [(), (0,), (1,), (3, 0, 5), (3, 5), (2, 3, 4, 5)]


@pytest.fixture
def arrays():
    """Returns an array of every type in every shape."""
    made, random = {}, np.random.default_rng(0)
    for name in TYPES:
        for shape in SHAPES:
            values = random.integers(0, 2 if name == "bool" else 100, shape)
            made[f"{name}{shape}"] = jax.numpy.asarray(np.asarray(values).astype(name))
    return made


def same(one, other):
    """Asserts that two dictionaries have the same names, types, shapes and bytes."""
    assert set(one) == set(other)
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape), name
        assert np.asarray(array).tobytes() == np.asarray(other[name]).tobytes(), name


@pytest.mark.parametrize("budget", [None, 1, 1000])
def test_arrays_round_trip_with_their_bits(tmp_path, arrays, budget):
    path = tmp_path / "arrays.safetensors"
    gs.save_file(arrays, path, {"a": "b"}, sync=False)
    steps = []
    loaded = ours.load_file(path, memory_budget=budget, progress=lambda *step: steps.append(step))
    assert all(isinstance(array, jax.Array) for array in loaded.values())
    same(loaded, arrays)
    assert steps[-1][0] == steps[-1][1] > 0
    same(ours.load(ours.save(arrays)), arrays)
    same(gs.load_model(path, framework="jax", device=jax.devices()[0]), arrays)
    with gs.safe_open(path, "flax") as opened:
        assert opened.metadata() == {"a": "b"}
        same(dict(opened.iter_tensors()), arrays)
        same(dict(opened), arrays)
        part = opened.get_slice("bfloat16(2, 3, 4, 5)")
        assert np.array_equal(part[1, :, 1:3], arrays["bfloat16(2, 3, 4, 5)"][1, :, 1:3])
        with pytest.raises(gs.SafetensorError, match="Non empty lists"):
            part[[0]]


def test_files_equal_those_of_safetensors(tmp_path, arrays):
    path = tmp_path / "arrays.safetensors"
    native = {name: array for name, array in arrays.items() if "float8" not in name}
    reference.save_file({name: np.asarray(array) for name, array in native.items()}, path)
    same(ours.load_file(path), native)
    assert ours.save(native) == path.read_bytes()
    ours.save_file(native, path)
    assert ours.save(native) == path.read_bytes()


def test_later_changes_of_a_file_leave_arrays_alone(tmp_path):
    path = tmp_path / "arrays.safetensors"
    ours.save_file({"x": jax.numpy.arange(1000)}, path)
    first = ours.load_file(path)["x"]
    ours.save_file({"x": first + 1}, path)
    again = ours.load_file(path)["x"]
    assert first.tolist() == list(range(1000)) and (again - first).tolist() == [1] * 1000


def test_unknown_devices_are_named(tmp_path):
    path = tmp_path / "x.safetensors"
    ours.save_file({"x": jax.numpy.ones(1)}, path)
    assert ours.load_file(path, device="cpu:0")["x"].tolist() == [1]
    for device in ("cpu:99", "nothing", "cpu:x"):
        with pytest.raises(gs.SafetensorError, match="invalid"):
            ours.load_file(path, device=device)
