"""The rule that tells which files are a model: each folder of the zoo, by each way to open it from Python.

``testkit/src/zoo.rs`` describes the file of the folders, which the tests in Rust read, too.
"""

import functools
import hashlib
import json
import pathlib
import struct
import threading
import warnings

import pytest

pytest.importorskip("numpy")

import gpufile.safetensors as gs
import gpufile.safetensors.numpy
import gpufile._engines

CASES = json.loads(
    (pathlib.Path(__file__).parents[2] / "testkit/src/zoo.json").read_text(encoding="utf-8")
)


def safetensors(file, names):
    """Returns the bytes of a file whose tensors have the bytes ``FILE:NAME``."""
    header, data = {}, b""
    for name in names:
        content = f"{file}:{name}".encode()
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": offsets}
        data += content
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


def make(root, file, value):
    """Makes a file, a link or a folder."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, list):
        path.write_bytes(safetensors(file, value))
    elif isinstance(value, dict):
        path.write_text(json.dumps({"metadata": {}, "weight_map": value}))
    elif value.startswith("-> "):
        path.symlink_to(value[3:])
    else:
        kind, rest = value.split(":", 1)
        number, _, names = rest.partition(" ")
        if kind == "dir":
            path.mkdir()
        elif kind == "text":
            path.write_bytes(rest.encode())
        elif kind == "hex":
            path.write_bytes(bytes.fromhex(rest))
        elif kind == "zeros":
            path.write_bytes(bytes(int(number)))
        elif kind == "cut":
            path.write_bytes(safetensors(file, names.split(" "))[: -int(number)])
        else:
            path.write_bytes(safetensors(file, names.split(" ")) + bytes(int(number)))


def by_safe_open(path):
    with gs.safe_open(path, "np") as model:
        return {name: model.get_tensor(name) for name in model.keys()}


def by_loader_for_vllm(path):
    files = sorted(str(file) for file in path.glob("*.safetensors"))
    with gs.safe_open(gpufile._engines.model_of(str(path), files), "np") as model:
        return dict(model.iter_tensors())


def ways(case, root):
    """Returns the ways to open a case, each with what it takes."""
    path = root / case.get("open", "")
    yield lambda: gs.load_model(path, framework="np")
    yield lambda: by_safe_open(path)
    yield lambda: dict(gs.LazyModel(path, framework="np"))
    if path.is_dir():
        yield lambda: by_loader_for_vllm(path)
    files = case.get("list") or sorted(set(case.get("want", {}).values()))
    if "list" in case or (len(files) > 1 and not any("/" in file for file in files)):
        yield lambda: by_safe_open([root / file for file in files])
        yield lambda: gs.load_model([root / file for file in files], framework="np")


def check_words(words, texts):
    text = "\n".join(texts)
    assert bool(words) == bool(texts), text
    for word in words:
        assert word in text


@pytest.mark.parametrize("case", CASES, ids=[f"{case['clause']}: {case['name']}" for case in CASES])
def test_each_folder_opens_by_the_rule(case, tmp_path):
    for file, value in case["folder"].items():
        make(tmp_path, file, value)
    for open_it in ways(case, tmp_path):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if "want" not in case:
                with pytest.raises((gs.SafetensorError, OSError)) as error:
                    open_it()
                check_words(case["error"], [str(error.value)])
                continue
            loaded = open_it()
        found = {name: bytes(tensor).decode() for name, tensor in loaded.items()}
        assert found == {name: f"{file}:{name}" for name, file in case["want"].items()}
        assert all(warning.category is gs.ModelWarning for warning in caught)
        check_words(case.get("warn", []), [str(warning.message) for warning in caught])
    found = gs.verify(tmp_path / case.get("open", ""))
    assert bool(found) == ("want" in case)
    check_words(case.get("warn" if found else "error", []), found.warnings if found else found.problems)


def test_ranks_open_by_the_rule(tmp_path):
    torch = pytest.importorskip("torch")
    from gpufile.safetensors.torch import load_distributed

    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        for number, case in enumerate(CASES):
            root = tmp_path / str(number)
            root.mkdir()
            for file, value in case["folder"].items():
                make(root, file, value)
            path = root / case.get("open", "")
            load = functools.partial(load_distributed, path, gs.Placement.all())
            if "want" not in case:
                with pytest.raises((gs.SafetensorError, OSError)) as error:
                    load()
                check_words(case["error"], [str(error.value)])
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", gs.ModelWarning)
                found = {name: bytes(tensor.numpy()).decode() for name, tensor in load().items()}
            assert found == {name: f"{file}:{name}" for name, file in case["want"].items()}
    finally:
        dist.destroy_process_group()


def test_contents_are_compared_with_hashes(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(safetensors(file.name, ["a"]))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    hashes = tmp_path / "SHA256SUMS"
    hashes.write_text(f"{digest}  ./model.safetensors\n")
    found = gs.verify(tmp_path, hash_list=hashes)
    assert found and (found.hashed, found.tensors, found.warnings) == (1, 1, [])
    assert gs.verify(tmp_path).hashed == 0
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert gs.verify(tmp_path)
    assert digest in gs.verify(tmp_path, hash_list=hashes).problems[0]
    with pytest.raises(FileNotFoundError):
        gs.verify(tmp_path, hash_list=tmp_path / "none")
    hashes.write_text("x\n")
    with pytest.raises(gs.SafetensorError, match="64 digits"):
        gs.verify(tmp_path, hash_list=hashes)


def test_missing_names_show_no_hidden_characters(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(safetensors(file.name, ["a"]))
    with gs.safe_open(file, "np") as model:
        for get in (model.get_tensor, lambda name: gs.load_model(file, framework="np", only=[name])):
            with pytest.raises(gs.SafetensorError, match="b\\\\u{202e}"):
                get("b\u202e")


@pytest.fixture
def hashed(tmp_path):
    """Returns a model of two files, and the list of their hashes."""
    folder = tmp_path / "hashed"
    folder.mkdir()
    files = [folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, name in zip(files, "ab"):
        file.write_bytes(safetensors(file.name, [name]))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {name: file.name for name, file in zip("ab", files)}})
    )
    hashes = tmp_path / "SHA256SUMS"
    hashes.write_text("".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files))
    return folder, files, hashes


def loads_of(folder, **options):
    """Returns loads of a folder, by all functions that compare files with hashes."""
    return [
        lambda: gs.load_model(folder, framework="np", **options),
        lambda: gs.load_file(folder, framework="np", **options),
        lambda: gs.load_model(folder, ["cpu", "cpu"], placement=gs.Placement.balanced(), framework="np", **options)[0],
        lambda: gs.numpy.load_file(folder, **options),
    ]


def test_loads_compare_the_files_with_hashes(hashed):
    folder, files, hashes = hashed
    threads = threading.active_count()
    for load, plain in zip(loads_of(folder, verify=hashes), loads_of(folder)):
        assert {name: array.tobytes() for name, array in load().items()} == {name: array.tobytes() for name, array in plain().items()}
    content = bytearray(files[1].read_bytes())
    content[-1] ^= 1
    files[1].write_bytes(content)
    for load in loads_of(folder, verify=hashes):
        with pytest.raises(gs.SafetensorError, match=files[1].name):
            load()
    assert threading.active_count() == threads


def test_loads_refuse_files_without_a_hash(hashed):
    folder, files, hashes = hashed
    for load in loads_of(folder, verify=True):
        with pytest.raises(gs.SafetensorError, match="verify: 2 of 2 files have no hash in the names of a Hugging Face cache"):
            load()
    hashes.write_text(hashes.read_text().splitlines()[0] + "\n")
    with pytest.raises(gs.SafetensorError, match="SHA256SUMS"):
        gs.load_model(folder, framework="np", verify=hashes)
    with pytest.raises(FileNotFoundError, match="none"):
        gs.load_model(folder, framework="np", verify=folder / "none")
    with open(files[0], "rb") as file, pytest.raises(TypeError, match="use its path"):
        gs.load_model(file, framework="np", verify=hashes)
    with pytest.raises(TypeError, match="verify"):
        gs.load_model(folder, framework="np", verify=5)
    # A failed load has its own error.
    files[0].write_bytes(b"x")
    with pytest.raises(gs.SafetensorError, match="model-00001"):
        gs.load_model(folder, framework="np", verify=hashes)


def test_files_of_a_hugging_face_cache_have_their_hashes(tmp_path):
    content = safetensors("model.safetensors", ["a"])
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    blob = blobs / hashlib.sha256(content).hexdigest()
    blob.write_bytes(content)
    (snapshot / "model.safetensors").symlink_to(blob)
    assert list(gs.load_model(snapshot, framework="np", verify=True)) == ["a"]
    blob.write_bytes(content[:-1] + b"!")
    with pytest.raises(gs.SafetensorError, match="model.safetensors"):
        gs.load_model(snapshot, framework="np", verify=True)
