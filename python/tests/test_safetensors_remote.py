"""Models of servers, by the calls for models of files."""

import pickle

import pytest

np = pytest.importorskip("numpy")

import gpufile
import gpufile.safetensors as gs
from gpufile import _gpufile
from gpufile.safetensors import Placement, SafetensorError, safe_open
from gpufile.safetensors import numpy as ours

from conftest import store_options

MODEL = {
    "a": np.arange(100_000, dtype=np.float32).reshape(400, 250),
    "b": np.arange(77, dtype=np.int64),
    "empty": np.zeros((0, 3), np.float16),
}


@pytest.fixture
def url(server, tmp_path):
    """Returns the address of a model in one file."""
    ours.save_file(MODEL, tmp_path / "model.safetensors", metadata={"format": "np"}, sync=False)
    server.files["/m/model.safetensors"] = (tmp_path / "model.safetensors").read_bytes()
    return f"{server.url}/m/model.safetensors?token=hidden"


@pytest.fixture
def index(server, tmp_path):
    """Returns the address of the index of a model in two files."""
    weights = {"a": "1.safetensors", "b": "2.safetensors", "empty": "2.safetensors"}
    for file in set(weights.values()):
        ours.save_file({name: MODEL[name] for name in weights if weights[name] == file}, tmp_path / file, sync=False)
        server.files[f"/m/{file}"] = (tmp_path / file).read_bytes()
    text = '{"weight_map": ' + str(weights).replace("'", '"') + "}"
    server.files["/m/model.safetensors.index.json"] = text.encode()
    return f"{server.url}/m/model.safetensors.index.json?token=hidden"


def equal(tensors):
    return tensors.keys() == MODEL.keys() and all(np.array_equal(tensors[name], MODEL[name]) for name in MODEL)


def test_files_and_indexes_are_loaded_by_address(url, index, server):
    assert equal(ours.load_file(url)) and equal(gs.load_file(url, framework="np"))
    assert equal(gs.load_model(index, framework="np", memory_budget=100_000))
    assert equal(gs.LazyModel(index, framework="np"))
    first, second = gs.load_model(index, ["cpu", "cpu"], framework="np", placement=Placement.all())
    assert equal(first) and equal(second)
    placed = gs.load_model(index, ["cpu", "cpu"], framework="np", placement=Placement.all(), dtype="float64")
    for loaded in (ours.load_file(url, dtype="float64"), gs.load_model(index, framework="np", dtype="float64"), *placed):
        assert equal(loaded) and loaded["a"].dtype == loaded["empty"].dtype == np.float64
    assert all("token=hidden" in request.path for request in server.requests)


def test_opened_models_read_what_is_asked_for(url, server):
    with safe_open(url, "np") as model:
        assert model.keys() == ["a", "b", "empty"] and model.metadata() == {"format": "np"}
        server.requests.clear()
        assert np.array_equal(model.get_slice("a")[3:5], MODEL["a"][3:5])
        (request,) = server.requests
        start, end = map(int, request.headers["Range"].partition("=")[2].split("-"))
        assert end + 1 - start == 2 * 250 * 4
        assert np.array_equal(model.get_tensor("b"), MODEL["b"])
        assert equal(dict(model)) and equal(model.get_tensors())
        with model.prefetch({"a": slice(7, 9)}, threads=2) as loader:
            assert np.array_equal(loader.take("a"), MODEL["a"][7:9])


def test_options_of_an_open_object_hold_for_all_files(index, server):
    engine = gpufile.Engine(threads=2)
    with gpufile.RemoteFile(index, headers={"X-Key": "hidden"}, tries=1) as file:
        for remote in (file, file.with_chunk_bytes(1000), file.with_engine(engine)):
            server.requests.clear()
            assert equal(gs.load_model(remote, framework="np"))
            assert [request.headers["X-Key"] for request in server.requests] == ["hidden"] * len(server.requests)
    assert engine.stats()["host"]["read_bytes"] > MODEL["a"].nbytes
    server.statuses = [503]
    with pytest.raises(OSError, match="503"):
        safe_open(file, "np")


def test_caches_keep_all_files_of_a_model(index, server, tmp_path):
    lengths = []
    for _ in range(2):
        with gpufile.RemoteFile(index, cache=(tmp_path / "cache", 1 << 30)) as file:
            server.requests.clear()
            assert equal(gs.load_model(file, framework="np"))
            lengths.append(len(server.requests))
    assert lengths[1] < lengths[0] and len(list((tmp_path / "cache").iterdir())) > 2


def test_torch_loads_models_of_servers(index):
    torch = pytest.importorskip("torch")
    tensors = gs.load_model(index)
    assert all(torch.equal(tensors[name], torch.from_numpy(array)) for name, array in MODEL.items())


def test_objects_of_s3_are_loaded_by_name(url, server, monkeypatch):
    for name, value in [
        ("AWS_ENDPOINT_URL", server.url), ("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "eu-north-1"),
        ("AWS_ACCESS_KEY_ID", "KEY"), ("AWS_SECRET_ACCESS_KEY", "hidden"),
    ]:  # fmt: skip
        monkeypatch.setenv(name, value)
    assert equal(ours.load_file("s3://m/model.safetensors"))
    assert all("X-Amz-Signature=" in request.path for request in server.requests)


def loads(address, options):
    """Returns the tensors by each function that opens a model, with the options of a store."""
    yield gs.load_model(address, framework="np", storage_options=options)
    (placed,) = gs.load_model(address, ["cpu"], framework="np", placement=Placement.all(), storage_options=options)
    yield placed
    yield gs.load_file(address, framework="np", storage_options=options)
    yield ours.load_file(address, storage_options=options)
    with safe_open(address, "np", storage_options=options) as model:
        yield dict(model)
    lazy = gs.LazyModel(address, framework="np", storage_options=options)
    yield lazy
    yield pickle.loads(pickle.dumps(lazy))


def test_storage_options_open_models(url, index, server):
    for name in list(server.files):
        server.files[f"/bucket{name}"] = server.files.pop(name)
    server.requests.clear()
    for address in ("s3://bucket/m/model.safetensors", "s3://bucket/m/model.safetensors.index.json"):
        assert [equal(tensors) for tensors in loads(address, options_of(server))] == [True] * 7
    assert all("X-Amz-Credential=KEY" in request.path for request in server.requests)


def test_torch_opens_models_with_storage_options(index, server):
    torch = pytest.importorskip("torch")
    from gpufile.safetensors.torch import load_file, load_model

    options = options_of(server)
    for tensors in (load_file("s3://m/", storage_options=options), gs.load_model("s3://m", storage_options=options)):
        assert all(torch.equal(tensors[name], torch.from_numpy(array)) for name, array in MODEL.items())
    module = torch.nn.Module()
    for name, array in MODEL.items():
        module.register_buffer(name, torch.from_numpy(np.zeros_like(array)))
    assert load_model(module, "s3://m/", storage_options=options) == (set(), [])
    assert equal({name: buffer.numpy() for name, buffer in module.named_buffers()})


def test_folders_of_buckets_are_models(url, index, server):
    options = options_of(server)
    whole = server.files.pop("/m/model.safetensors")
    assert equal(gs.load_model("s3://m/", framework="np", storage_options=options))
    server.files["/m/model.safetensors"] = whole
    with pytest.raises(SafetensorError, match="model.safetensors.index.json") as caught:
        gs.load_model("s3://m/", framework="np", storage_options=options)
    assert "s3://m/model.safetensors\"" in str(caught.value)
    del server.files["/m/model.safetensors.index.json"]
    assert equal(gs.load_model("s3://m/", framework="np", storage_options=options))
    with pytest.raises(FileNotFoundError, match="s3://m/none/.* has no safetensors files.*buckets are not listed"):
        gs.load_model("s3://m/none/", framework="np", storage_options=options)


def test_storage_options_are_checked(url, server, tmp_path):
    path = tmp_path / "model.safetensors"
    for call, error, text in [
        (lambda: gs.load_model(path, framework="np", storage_options={}), ValueError, "storage_options are for URLs"),
        (lambda: ours.load_file(path, storage_options=5), ValueError, "storage_options are for URLs"),
        (lambda: safe_open("s3://m/a", "np", storage_options=5), TypeError, "storage_options: expected a dict of strings"),
        (lambda: safe_open("s3://m/a", "np", storage_options={"NO": "hidden"}), ValueError, '"NO" is no option of S3'),
        (lambda: ours.load_file(gpufile.RemoteFile(url), storage_options={}), ValueError, "a RemoteFile has its own"),
    ]:
        with pytest.raises(error, match=text) as caught:
            call()
        assert "hidden" not in str(caught.value)


def test_missing_models_raise_the_error_of_a_file(url, index, server):
    with pytest.raises(FileNotFoundError, match="status 404") as caught:
        ours.load_file(f"{server.url}/none?token=hidden")
    assert caught.value.filename == f"{server.url}/none" and "hidden" not in str(caught.value)
    del server.files["/m/2.safetensors"]
    with pytest.raises(FileNotFoundError, match=f'1 of 2 files are missing: "{server.url}/m/2.safetensors"'):
        gs.load_model(index, framework="np")
    server.files["/m/model.safetensors"] = bytes(100)
    with pytest.raises(SafetensorError, match="/m/model.safetensors") as caught:
        safe_open(url, "np")
    assert "hidden" not in str(caught.value)


def test_calls_for_local_files_refuse_servers(url):
    for call, text in [
        (lambda: ours.load_file(url, mapped=True), "mapped=True is for local files"),
        (lambda: safe_open(url, "np", mapped=True), "mapped=True is for local files"),
        (lambda: gs.load_model([url, url], framework="np"), "several files of a server are opened by their index"),
        (lambda: gs.verify(url), "only models in local files are verified"),
        (lambda: gs.load_model("ftp://h/model?hidden", framework="np"), 'the scheme "ftp" is not known'),
    ]:
        with pytest.raises(ValueError, match=text) as caught:
            call()
        assert "hidden" not in str(caught.value)


def test_shared_models_are_local(url):
    pytest.importorskip("torch")
    from gpufile.safetensors.torch import SharedModel

    for call in (lambda: gs.load_model(url, shared=True), lambda: SharedModel(url, {})):
        with pytest.raises(ValueError, match="local files"):
            call()


def test_mappings_by_default_are_for_local_files(url, tmp_path):
    from gpufile.safetensors import _mapped

    _mapped.map_by_default(True)
    try:
        assert equal(ours.load_file(url)) and equal(ours.load_file(tmp_path / "model.safetensors"))
    finally:
        _mapped.map_by_default(None)


def options_of(server):
    return store_options(server.url)["s3"]


LONG = {"long": np.arange(5 << 20, dtype=np.float32), "short": np.arange(7, dtype=np.int8)}


def saved(tensors, tmp_path):
    """Returns the bytes of a file with these tensors."""
    ours.save_file(tensors, tmp_path / "expected", {"format": "np"}, sync=False)
    return (tmp_path / "expected").read_bytes()


def test_models_are_saved_to_objects(server, tmp_path, monkeypatch):
    options = options_of(server)
    for tensors, requests in [(MODEL, 1), (LONG, 5)]:
        server.requests.clear()
        gs.save_file(tensors, "s3://bucket/m/a b", {"format": "np"}, storage_options=options)
        assert server.files["/bucket/m/a%20b"] == saved(tensors, tmp_path)
        assert len(server.requests) == requests and not server.uploads
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    ours.save_file(MODEL, "s3://bucket/m/a b", {"format": "np"})
    assert server.files["/bucket/m/a%20b"] == saved(MODEL, tmp_path)
    assert equal(ours.load_file("s3://bucket/m/a b"))


def test_models_are_saved_to_google(server, tmp_path, monkeypatch, google):
    for name, value in google.items():
        monkeypatch.setenv(name, value)
    for tensors in (MODEL, LONG):
        ours.save_file(tensors, "gs://bucket/a", {"format": "np"})
        assert server.files["/bucket/a"] == saved(tensors, tmp_path)
    assert all(request.headers["Authorization"].startswith("Bearer ") for request in server.requests)
    loaded = gs.load_model("gs://bucket/a", framework="np")
    assert loaded.keys() == LONG.keys() and all(np.array_equal(loaded[name], LONG[name]) for name in LONG)


def test_modules_of_torch_are_saved_to_objects(server):
    torch = pytest.importorskip("torch")
    from gpufile.safetensors.torch import load_model, save_model

    module, other = torch.nn.Linear(300, 200), torch.nn.Linear(300, 200)
    save_model(module, "s3://bucket/a", storage_options=options_of(server))
    with gpufile.RemoteFile("s3://bucket/a", storage_options=options_of(server)) as file:
        load_model(other, file)
    assert torch.equal(module.weight, other.weight) and torch.equal(module.bias, other.bias)


def test_gpu_memory_is_saved_to_objects(server, device_array, tmp_path):
    host = np.frombuffer(bytes(range(256)) * 80_000, np.uint8)
    device = device_array(host.nbytes).set(host.tobytes())
    item = ("a", "U8", list(host.shape), device)
    _gpufile.save_safetensors_url("s3://bucket/a", [item], {"format": "np"}, options_of(server))
    assert server.files["/bucket/a"] == saved({"a": host}, tmp_path)


def test_failed_saves_keep_the_older_object(server):
    server.files["/bucket/a"] = b"old"
    for status, error in [(403, PermissionError), (404, FileNotFoundError), (400, OSError)]:
        server.statuses = [status] * 9
        with pytest.raises(error, match=f"status {status}") as caught:
            ours.save_file(LONG, "s3://bucket/a", storage_options=options_of(server))
        server.statuses = []
        text = f"{caught.value} {caught.value!r}"
        assert "s3://bucket/a" in text and "hidden" not in text and "KEY" not in text
        assert server.files == {"/bucket/a": b"old"} and not server.uploads
    for call, text in [
        (lambda: ours.save_file(MODEL, f"{server.url}/a?hidden"), "objects are written only to addresses with s3, s3a, az"),
        (lambda: ours.save_file(MODEL, "s3://bucket/a/", storage_options=options_of(server)), "after the last slash"),
        (lambda: ours.save_file(MODEL, "s3://bucket/a", storage_options={"AWS_NO": "hidden"}), "no option of S3"),
        (lambda: ours.save_file(MODEL, "a", storage_options=options_of(server)), "storage_options are for URLs"),
    ]:
        with pytest.raises(ValueError, match=text) as caught:
            call()
        assert "hidden" not in str(caught.value)
    with pytest.raises(TypeError, match="storage_options"):
        ours.save_file(MODEL, "s3://bucket/a", storage_options=5)


def test_interrupted_saves_leave_nothing(python):
    printed = python("""
        import numpy as np
        from gpufile.safetensors.numpy import save_file
        server = conftest.Server()
        server.files["/bucket/a"] = b"old"
        server.go_on.clear()
        def interrupt():
            while not any(request.command == "PUT" for request in server.requests):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        options = {"AWS_ENDPOINT_URL": server.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-north-1"}
        options |= {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "hidden"}
        start = time.monotonic()
        try:
            save_file({"a": np.zeros(40 << 20, np.uint8)}, "s3://bucket/a", storage_options=options)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - start < 20, server.files, server.uploads)
    """)
    assert printed == "interrupted True {'/bucket/a': b'old'} {}\n"
