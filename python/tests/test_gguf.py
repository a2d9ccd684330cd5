"""Models in GGUF files: their tensors and metadata are those that the package gguf reads."""

import io

import pytest

np = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")

import gpufile
import gpufile.gguf as ours
from gpufile.safetensors import SafetensorError, _convert

try:
    import torch
except ImportError:
    torch = None
FRAMEWORKS = ["np", pytest.param("pt", marks=[] if torch else pytest.mark.skip(reason="torch is not installed"))]
RANDOM = np.random.default_rng(7)
Kind = gguf.GGMLQuantizationType
PLAIN = ["float16", "float32", "float64", "int8", "int16", "int32", "int64"]
#: The package has an old size of Q8_1.
BLOCKS = [kind for kind in Kind if gguf.GGML_QUANT_SIZES.get(kind, (1,))[0] > 1 and kind != Kind.Q8_1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Returns a file with values and tensors of every kind."""
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 1.5)
    writer.add_float64("f64", -2.25)
    writer.add_bool("bool", True)
    writer.add_string("string", "模型")
    writer.add_token_list(["<s>", "a", "模型"])
    writer.add_token_scores([0.5, -1.0, 2.0])
    writer.add_array("bools", [True, False])
    for name in PLAIN:
        writer.add_tensor(name, RANDOM.integers(-100, 100, (3, 2, 5)).astype(name))
    for kind in BLOCKS:
        _, size = gguf.GGML_QUANT_SIZES[kind]
        writer.add_tensor(kind.name, RANDOM.integers(0, 256, (4, 3 * size), np.uint8), raw_dtype=kind)
    rows = gguf.quants.quantize(RANDOM.standard_normal((4, 8), np.float32), Kind.BF16)
    writer.add_tensor("brain", rows, raw_dtype=Kind.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def theirs(path):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def as_numpy(tensor):
    return tensor if isinstance(tensor, np.ndarray) else tensor.view(torch.uint8 if tensor.dtype == torch.bfloat16 else tensor.dtype).numpy()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("piece_bytes", [8 << 20, 16])
def test_plain_tensors_arrive_converted(model, monkeypatch, framework, piece_bytes):
    monkeypatch.setattr(_convert, "PIECE_BYTES", piece_bytes)
    own = ours.load_file(model, framework=framework, only=PLAIN)
    for dtype in ("float16", "float32", "float64"):
        loaded = ours.load_file(model, framework=framework, only=[*PLAIN, "Q4_K"], dtype=dtype)
        for name in PLAIN:
            expected, found = (np.asarray(tensors[name]) for tensors in (own, loaded))
            expected = expected.astype(dtype if name.startswith("float") else name)
            assert found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes(), name
        assert loaded["Q4_K"].type == "Q4_K" and [*loaded] == [*ours.load_file(model, framework="np", only=[*PLAIN, "Q4_K"])]
    if framework == "pt":
        brain = ours.load_file(model, only=["brain", "float32"], dtype="bfloat16")
        assert torch.equal(brain["brain"], ours.load_file(model)["brain"])
        assert torch.equal(brain["float32"], own["float32"].to(torch.bfloat16))
        assert torch.equal(ours.load_file(model, dtype=torch.float32)["brain"], brain["brain"].float())
    with pytest.raises(ValueError, match="dtype: expected a type or a name of float16"):
        ours.load_file(model, framework=framework, dtype="Q4_K")


def test_open_files_are_loaded(model):
    expected = ours.load_file(model, framework="np", only=PLAIN)
    with open(model, "rb") as file:
        for opened in (file, io.BytesIO(model.read_bytes())):
            loaded = ours.load_file(opened, framework="np", only=PLAIN)
            assert all(np.array_equal(loaded[name], expected[name]) for name in PLAIN)
            assert ours.metadata(opened) == ours.metadata(model)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tensors_equal_those_of_the_package(model, framework):
    expected = theirs(model)
    kinds = [*PLAIN, *(kind.name for kind in BLOCKS)]
    loaded = ours.load_file(model, framework=framework, only=kinds)
    assert loaded.keys() == set(kinds) and len(BLOCKS) > 20
    for name, tensor in loaded.items():
        own = expected[name]
        if name in PLAIN:
            array = as_numpy(tensor)
        else:
            assert tensor.type == own.tensor_type.name and list(tensor.shape) == own.shape.tolist()[::-1]
            array = as_numpy(tensor.data)
        assert (array.dtype, array.shape) == (own.data.dtype, own.data.shape) and array.tobytes() == own.data.tobytes(), name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bfloat16_keeps_its_bits(model, framework):
    if framework == "np":
        pytest.importorskip("ml_dtypes")
    tensor = ours.load_file(model, framework=framework, only=["br*"])["brain"]
    assert str(tensor.dtype).endswith("bfloat16") and tuple(tensor.shape) == (4, 8)
    array = tensor if framework == "np" else as_numpy(tensor)
    assert array.tobytes() == theirs(model)["brain"].data.tobytes()


def test_metadata_equals_that_of_the_package(model):
    fields = gguf.GGUFReader(model).fields
    expected = {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata(model) == expected


def test_split_models_are_loaded_whole(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    arrays = {f"tensor.{number}": RANDOM.standard_normal((7, number), np.float32) for number in range(1, 6)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert len(list(tmp_path.iterdir())) == 3
    loaded = ours.load_file(tmp_path / "model-00001-of-00003.gguf", framework="np")
    assert {name: array.tobytes() for name, array in loaded.items()} == {name: array.tobytes() for name, array in arrays.items()}


def test_models_of_servers_are_loaded(model, server):
    server.files["/model.gguf"] = model.read_bytes()
    url = server.url + "/model.gguf"
    expected = ours.load_file(model, framework="np", only=["float*"])
    for address in (url, gpufile.RemoteFile(url)):
        loaded = ours.load_file(address, framework="np", only=["float*"])
        assert all(np.array_equal(loaded[name], array) for name, array in expected.items())
        assert ours.metadata(address) == ours.metadata(model)


def test_wrong_files_and_names_raise(model, tmp_path):
    path = tmp_path / "wrong.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    for call in (ours.metadata, ours.load_file):
        with pytest.raises(ValueError, match="wrong.gguf"):
            call(path)
        with pytest.raises(FileNotFoundError):
            call(tmp_path / "missing.gguf")
    with pytest.raises(SafetensorError, match="does not contain tensor x"):
        ours.load_file(model, framework="np", only=["x"])
    path.write_bytes(model.read_bytes()[:-64])
    with pytest.raises(ValueError, match="wrong.gguf"):
        ours.load_file(path, framework="np")


def test_a_read_that_fails_raises(model, server, monkeypatch):
    server.files["/model.gguf"] = model.read_bytes()

    def replaced(*arguments):
        opened = open_gguf(*arguments)
        server.etag = '"2"'
        return opened

    open_gguf = ours.open_gguf
    monkeypatch.setattr(ours, "open_gguf", replaced)
    with pytest.raises(gpufile.TransferError, match="model.gguf"):
        ours.load_file(server.url + "/model.gguf", framework="np", only=["float32"])
