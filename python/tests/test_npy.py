"""Arrays in ``.npy`` files: they are those that numpy loads."""

import io

import pytest

np = pytest.importorskip("numpy")

import gpufile
from gpufile.npy import load

try:
    import torch
except ImportError:
    torch = None
try:
    import jax
except ImportError:
    jax = None

RANDOM = np.random.default_rng(7)
NUMBERS = ["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]
OTHERS = [">f4", ">i2", "<U5", "|S3", "<M8[ns]", "|V6", ">c8"]
SHAPES = [(), (7,), (3, 5), (2, 3, 4), (0, 3), (5, 1)]


def arrays(dtypes):
    for dtype in dtypes:
        for shape in SHAPES:
            raw = RANDOM.integers(0, 2, (*shape, np.dtype(dtype).itemsize), np.uint8)
            array = raw.reshape(-1).view(dtype).reshape(shape)
            yield array
            if len(shape) > 1:
                yield np.asfortranarray(array)


def same(array, expected):
    return (array.dtype, array.shape, array.strides, array.tobytes()) == (expected.dtype, expected.shape, expected.strides, expected.tobytes())


def test_arrays_equal_those_of_numpy(tmp_path):
    path = tmp_path / "array.npy"
    for array in arrays(NUMBERS + OTHERS):
        np.save(path, array)
        assert same(load(path, framework="np"), np.load(path)), (array.dtype, array.shape)


def test_open_files_are_read(tmp_path):
    path, array = tmp_path / "array.npy", RANDOM.standard_normal((3, 5))
    np.save(path, array)
    with open(path, "rb") as file, gpufile.File(path) as own:
        for opened in (file, own, io.BytesIO(path.read_bytes())):
            assert same(load(opened, framework="np"), array)
    with pytest.raises(TypeError, match='open it with "rb"'), open(path) as text:
        load(text, framework="np")


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_tensors_equal_those_of_numpy(tmp_path):
    path = tmp_path / "array.npy"
    for array in arrays(NUMBERS):
        np.save(path, array)
        tensor, expected = load(path), torch.from_numpy(np.load(path))
        assert tensor.dtype == expected.dtype and torch.equal(tensor, expected)
        if array.size > 1:
            assert tensor.stride() == expected.stride()
    for array in arrays(OTHERS):
        np.save(path, array)
        with pytest.raises(ValueError, match=r"torch has no type for .*framework='np'"):
            load(path)


@pytest.mark.skipif(jax is None, reason="JAX is not installed")
def test_arrays_of_jax_equal_those_of_numpy(tmp_path):
    path = tmp_path / "array.npy"
    for array in arrays(["<f4", "?", "<i4", "<c8"]):
        np.save(path, array)
        loaded = load(path, framework="jax")
        assert isinstance(loaded, jax.Array) and np.array_equal(loaded, np.load(path))
    for array, descr in ((np.array(["text"]), "<U4"), (np.arange(3, dtype=">f4"), ">f4")):
        np.save(path, array)
        with pytest.raises(ValueError, match=f"JAX has no type for {descr}"):
            load(path, framework="jax")


def test_arrays_of_servers_are_loaded(tmp_path, server):
    array = RANDOM.standard_normal((300, 70))
    np.save(tmp_path / "array.npy", array)
    server.files["/array.npy"] = (tmp_path / "array.npy").read_bytes()
    url = server.url + "/array.npy"
    assert all(same(load(address, framework="np"), array) for address in (url, gpufile.RemoteFile(url)))


def test_wrong_files_raise(tmp_path):
    path = tmp_path / "wrong.npy"
    np.save(path, np.arange(100.0))
    whole = path.read_bytes()
    np.save(path, np.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")]))
    fields = path.read_bytes()
    for content in (b"", b"\x93NUMPY", whole[:-1], fields):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="wrong.npy"):
            load(path, framework="np")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.npy", framework="np")
