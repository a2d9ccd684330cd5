"""`gpufile.safetensors` with numpy, against the package safetensors."""

import errno
import gc
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

np = pytest.importorskip("numpy")
reference = pytest.importorskip("safetensors.numpy")

import safetensors as reference_package

import gpufile.safetensors as gs
from gpufile import _gpufile
from gpufile.safetensors import _load
from gpufile.safetensors import numpy as ours

SHAPES = [(), (0,), (1,), (3, 0, 5), (7,), (3, 5), (1, 1, 1), (2, 3, 4, 5), (1023,), (129, 257)]
TYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
TYPES += ["complex64"]


def arrays(seed=0):
    """Returns an array of every type in every shape."""
    random = np.random.default_rng(seed)
    made = {}
    for kind in TYPES:
        for shape in SHAPES:
            dtype = np.dtype(kind)
            length = int(np.prod(shape)) * dtype.itemsize
            content = random.integers(0, 2 if kind == "bool" else 256, length, np.uint8)
            made[f"{kind}{shape}"] = content.view(dtype).reshape(shape)
    return made


def same(one, other):
    """Asserts that two dictionaries have the same names, types, shapes and bytes."""
    assert list(one) == list(other)
    for name, array in one.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape), name
        assert array.tobytes() == other[name].tobytes(), name


def file_of(header, data=b""):
    """Returns the bytes of a file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture
def model(tmp_path):
    """Returns a file of the package safetensors."""
    path = tmp_path / "model.safetensors"
    reference.save_file(arrays(), path, metadata={"a": "1", "é": ""})
    return path


@pytest.fixture
def folder(tmp_path):
    """Returns the folder of a model in three files, and its arrays."""
    shards, every = {}, {}
    for number in range(3):
        part = {f"{number}.{name}": array for name, array in arrays(number).items()}
        reference.save_file(part, tmp_path / f"model-{number + 1:05}-of-00003.safetensors")
        shards |= dict.fromkeys(part, f"model-{number + 1:05}-of-00003.safetensors")
        every |= part
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return tmp_path, every


def test_loads_equal_those_of_safetensors(model):
    same(ours.load_file(model), reference.load_file(model))
    same(ours.load(model.read_bytes()), ours.load_file(model))
    loaded = gs.load_file(str(model), framework="np")
    assert all(array.flags.writeable and array.flags.aligned for array in loaded.values())


@pytest.mark.parametrize("budget", [1, 100, 4097, 10**6])
def test_budgets_and_progress_change_no_byte(model, budget, monkeypatch):
    monkeypatch.setattr(gs._load.Meter, "SHORTEST_STEP", 1000)
    seen = []
    loaded = ours.load_file(model, memory_budget=budget, progress=lambda done, total: seen.append((done, total)))
    same(loaded, reference.load_file(model))
    assert seen == sorted(seen) and len(seen) > 10
    assert seen[-1][0] == seen[-1][1] >= sum(array.nbytes for array in loaded.values())


def test_folders_indices_and_lists_load_at_once(folder):
    path, every = folder
    for source in (path, path / "model.safetensors.index.json", sorted(path.glob("*.safetensors"))):
        loaded = gs.load_model(source, framework="numpy", progress=True)
        assert set(loaded) == set(every)
        same(loaded, {name: every[name] for name in loaded})
    names = ["2.float32(7,)", "0.bool()", "2.uint64(3, 5)"]
    some = gs.load_model(path, framework="np", only=names)
    assert sorted(some) == sorted(names)
    same(some, {name: every[name] for name in some})
    with pytest.raises(gs.SafetensorError, match="does not contain tensor nothing"):
        gs.load_model(path, framework="np", only=["nothing"])


def test_iterations_repeat_and_stop_anywhere(folder):
    path, every = folder
    with gs.safe_open(path, "np") as model:
        assert len(model) == len(every) and "0.bool()" in model and "x" not in model
        for budget in (1, 5000, 1 << 30):
            arrived = list(model.iter_tensors(memory_budget=budget))
            assert [name for name, _ in arrived] == model.offset_keys()
            same(dict(arrived), {name: every[name] for name, _ in arrived})
        for taken in (1, 2, 50):
            for number, (name, array) in enumerate(model, 1):
                assert array.tobytes() == every[name].tobytes()
                if number == taken:
                    break
        assert dict(model.iter_tensors(["1.bool()"])).keys() == {"1.bool()"}


def test_opened_files_answer_as_those_of_safetensors(model):
    with gs.safe_open(model, "np") as own, reference_package.safe_open(model, "np") as other:
        assert own.keys() == other.keys() and own.offset_keys() == other.offset_keys()
        assert own.metadata() == other.metadata() == {"a": "1", "é": ""}
        for name in own.keys():
            one, two = own.get_slice(name), other.get_slice(name)
            assert (one.get_shape(), one.get_dtype()) == (two.get_shape(), two.get_dtype())
            assert own.get_tensor(name).tobytes() == other.get_tensor(name).tobytes()
        with pytest.raises(gs.SafetensorError, match="does not contain tensor x"):
            own.get_tensor("x")
    for call in (own.keys, own.metadata, own.get_tensors, lambda: own.get_tensor("bool()"), lambda: iter(own)):
        with pytest.raises(gs.SafetensorError, match="closed"):
            call()


@pytest.mark.parametrize("call", ["get_tensor", "get_slice", "get_tensor_meta", "__getitem__"])
def test_missing_tensors_are_missing_keys(model, call):
    with gs.safe_open(model, "np") as file:
        for expected in (KeyError, gs.SafetensorError):
            with pytest.raises(expected) as caught:
                getattr(file, call)("missing")
            assert str(caught.value) == "File does not contain tensor missing"
        other = pickle.loads(pickle.dumps(caught.value))
        assert (type(other), str(other)) == (type(caught.value), str(caught.value))


def test_opened_files_are_used_as_dicts(model):
    with gs.safe_open(model, "np") as file:
        found = dict(file.items())
        assert found.keys() == dict(file).keys() == set(file.keys())
        for name, array in found.items():
            part = file.get_slice(name)
            assert (list(part.shape), part.dtype) == (part.get_shape(), part.get_dtype()), name
            assert array.tobytes() == file[name].tobytes(), name


@pytest.mark.parametrize(
    ("metadata", "text"),
    [({"a": "b", "epoch": 3}, 'metadata\\["epoch"\\]: expected a string, not int'), ({3: "x"}, "a name in metadata"), ([1], "dict")],
)
def test_wrong_metadata_is_named(tmp_path, metadata, text):
    for call in (lambda: ours.save_file({}, tmp_path / "x", metadata), lambda: ours.save({}, metadata)):
        with pytest.raises(TypeError, match=text):
            call()


def test_slices_equal_those_of_numpy(model):
    array = arrays()["float32(2, 3, 4, 5)"]
    indices = [
        (), ..., 0, -1, slice(None), slice(1, None), slice(0, 0), slice(-1, None), slice(None, -1), slice(1, 0),
        (slice(None), 1), (0, slice(1, 3)), (1, 2, 3, 4), (..., 2), (0, ..., slice(None, None, 2)), (slice(None), ..., 0),
        (slice(None), slice(1, 2), slice(1, 3), slice(2, 4)), (0, slice(None), slice(None, None, 3), slice(4, 5)),
        (slice(None, None, 2), slice(None), 3), np.int64(1), (np.uint8(1), slice(0, 2)), [], None, (None, 1),
        slice(None, None, -1), (slice(None), [0, 2]), (slice(None), slice(None), slice(None), slice(0, 5)),
        np.array([True, False]),
    ]  # fmt: skip
    with gs.safe_open(model, "np") as opened:
        whole = opened.get_slice("float32(2, 3, 4, 5)")
        for index in indices:
            expected = array[index]
            part = whole[index]
            assert isinstance(part, np.ndarray) and part.shape == expected.shape, index
            assert part.tobytes() == expected.tobytes(), index
        for bad in (2, -3, (0, 3), (0, 0, 0, 0, 0), slice(0, 3), [0], (0, 0, 4)):
            with pytest.raises((gs.SafetensorError, IndexError)):
                whole[bad]
        for scalar in ((), ...):
            assert opened.get_slice("int32()")[scalar] == arrays()["int32()"]


def test_random_slices_read_the_right_bytes(tmp_path):
    random = np.random.default_rng(7)
    array = random.integers(0, 1 << 30, (5, 1, 7, 6), np.int32)
    ours.save_file({"x": array}, tmp_path / "x.safetensors", sync=False)
    with gs.safe_open(tmp_path / "x.safetensors", "np") as opened:
        whole = opened.get_slice("x")
        for _ in range(300):
            index = []
            for axis in array.shape[: random.integers(0, 5)]:
                start, stop = sorted(random.integers(0, axis + 1, 2))
                choices = [slice(start, stop), slice(start, stop, int(random.integers(1, 4))), int(random.integers(-axis, axis))]
                index.append(choices[random.integers(0, 3)])
            assert np.array_equal(whole[tuple(index)], array[tuple(index)]), index


def test_saved_files_equal_those_of_safetensors(tmp_path):
    for number, metadata in enumerate((None, {}, {"b": "x", "a": "\n"})):
        own, other = tmp_path / f"own{number}", tmp_path / f"other{number}"
        gs.save_file(arrays(), own, metadata, sync=False)
        reference.save_file(arrays(), other, metadata)
        same(reference.load_file(own), reference.load_file(other))
        with gs.safe_open(own, "np") as opened:
            assert opened.metadata() == (metadata or None)
        assert ours.save(arrays(), metadata) == own.read_bytes()
    assert ours.load(ours.save({})) == {}


def test_unusual_arrays_are_saved_by_their_values(tmp_path):
    array = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    read_only = array.copy()
    read_only.flags.writeable = False
    odd = {
        "big": array.astype(">i4"),
        "fortran": np.asfortranarray(array),
        "reversed": array[::-1],
        "transposed": array.T,
        "step": array[:, ::2],
        "read-only": read_only,
        "scalar": np.float32(3),
        "broadcast": np.broadcast_to(np.int8(1), (3, 3)),
    }
    path = tmp_path / "odd.safetensors"
    ours.save_file(odd, path, sync=False)
    loaded = ours.load_file(path)
    for name, value in odd.items():
        assert np.array_equal(loaded[name], value), name
    for wrong in (np.zeros(2, "datetime64[s]"), np.zeros(2, "complex128"), np.array(["a"]), np.array([{}])):
        with pytest.raises(gs.SafetensorError, match="Unknown dtype"):
            ours.save_file({"x": wrong}, path)
    with pytest.raises(TypeError):
        ours.save_file({"x": array}, path, metadata={"a": 1})
    same(ours.load_file(path), loaded)


def test_types_of_ml_dtypes_keep_their_bits(tmp_path):
    ml = pytest.importorskip("ml_dtypes")
    names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"]
    content = np.arange(512, dtype=np.uint16).view(np.uint8)
    odd = {name: content.view(getattr(ml, name)).reshape(2, -1) for name in names}
    path = tmp_path / "ml.safetensors"
    ours.save_file(odd, path, sync=False)
    loaded = ours.load_file(path)
    for name, value in odd.items():
        assert (loaded[name].dtype, loaded[name].shape) == (value.dtype, value.shape)
        assert loaded[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("code", ["F4", "F6_E2M3", "F6_E3M2"])
def test_types_without_equivalent_are_named(tmp_path, code):
    path = tmp_path / "packed.safetensors"
    data = bytes(4 if code == "F4" else 6)
    path.write_bytes(file_of({"w": {"dtype": code, "shape": [8], "data_offsets": [0, len(data)]}}, data))
    with pytest.raises(gs.SafetensorError, match=code):
        ours.load_file(path)
    with gs.safe_open(path, "np") as opened:
        assert opened.get_slice("w").get_dtype() == code
        with pytest.raises(gs.SafetensorError, match=code):
            opened.get_tensor("w")


def test_damaged_files_are_refused_with_their_fault(tmp_path, model):
    whole = model.read_bytes()
    head = 8 + struct.unpack("<Q", whole[:8])[0]
    entry = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
    damaged = {
        "empty": (b"", "header"),
        "short": (whole[:7], "header"),
        "cut header": (whole[: head - 1], "incomplete"),
        "cut data": (whole[:-1], "incomplete|bytes of data"),
        "more data": (whole + b"x", "belong to no tensor"),
        "long header": (struct.pack("<Q", 1 << 60) + whole[8:], "limit|header"),
        "no json": (file_of(b"{]"), "expected|key"),
        "no object": (file_of(b"[]"), "eight bytes"),
        "wrong type": (file_of({"w": {**entry, "dtype": "F33"}}, b"ab"), "F33"),
        "wrong size": (file_of({"w": {**entry, "shape": [3]}}, b"ab"), "3 bytes"),
        "backwards": (file_of({"w": {**entry, "data_offsets": [2, 0]}}, b"ab"), "offset|backwards|before"),
        "overlap": (file_of({"v": entry, "w": {**entry, "data_offsets": [1, 3]}}, b"abc"), "inside"),
        "huge": (file_of({"w": {"dtype": "F64", "shape": [1 << 62, 8], "data_offsets": [0, 2]}}, b"ab"), "bytes|large"),
    }
    path = tmp_path / "damaged.safetensors"
    for name, (content, text) in damaged.items():
        path.write_bytes(content)
        for load in (ours.load_file, lambda path: gs.safe_open(path, "np"), lambda path: ours.load(path.read_bytes())):
            with pytest.raises(gs.SafetensorError, match=text):
                load(path)
                pytest.fail(name)


def test_missing_files_have_an_errno(tmp_path):
    path = tmp_path / "nothing.safetensors"
    with pytest.raises(FileNotFoundError) as caught:
        ours.load_file(path)
    assert caught.value.errno == 2 and str(path) in str(caught.value)
    with pytest.raises(OSError):
        ours.save_file({}, tmp_path / "none" / "x.safetensors")
    with pytest.raises(OSError):
        ours.save_file({}, f"{tmp_path}/name-of-a-folder/")
    assert not os.path.exists(tmp_path / "name-of-a-folder")
    for wrong in ({"framework": "tf"}, {"framework": "np", "device": "cuda"}, {"framework": "np", "backend": "x"}):
        path.write_bytes(file_of({}))
        with pytest.raises(gs.SafetensorError, match="invalid|not supported"):
            gs.safe_open(path, **wrong)


def test_saves_without_free_descriptors_fail_at_once(tmp_path):
    program = """
    import os, resource, sys, time
    import numpy as np
    from gpufile.safetensors.numpy import load_file, save_file
    path = sys.argv[1]
    save_file({"x": np.zeros(10)}, path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    outcomes = []
    for free in range(8):
        begun = time.monotonic()
        try:
            save_file({"x": np.ones(10)}, path)
            outcomes.append(True)
        except OSError:
            outcomes.append(False)
        assert time.monotonic() - begun < 5, free
        os.close(taken.pop())
    assert not outcomes[0] and outcomes[-1], outcomes
    assert load_file(path)["x"].sum() == 10 and len(os.listdir(os.path.dirname(path))) == 1
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "x.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_failed_saves_name_the_file_and_the_outcome(tmp_path):
    saved, fifo = tmp_path / "saved.safetensors", tmp_path / "fifo"
    tensors = {"a": np.ones(1 << 20, np.uint8)}
    ours.save_file({"a": np.zeros(1, np.uint8)}, saved)
    old = saved.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError) as full:
            ours.save_file(tensors, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (full.value.errno, full.value.filename) == (errno.EFBIG, str(saved))
    assert "nothing was replaced" in str(full.value) and ".gpufile-tmp" not in str(full.value)
    assert saved.read_bytes() == old and os.listdir(tmp_path) == [saved.name]

    os.mkfifo(fifo)
    with pytest.raises(OSError, match="not a regular file but a FIFO") as refused:
        ours.save_file(tensors, fifo)
    assert refused.value.filename == str(fifo) and fifo.is_fifo()
    with pytest.raises(IsADirectoryError) as folder:
        ours.save_file(tensors, tmp_path)
    assert folder.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError) as missing:
        ours.save_file(tensors, tmp_path / "missing" / "m.safetensors")
    assert missing.value.filename == str(tmp_path / "missing" / "m.safetensors")


def test_saves_keep_the_mode_of_the_old_file(tmp_path):
    path = tmp_path / "private.safetensors"
    ours.save_file({"a": np.zeros(1, np.uint8)}, path)
    path.chmod(0o600)
    ours.save_file({"a": np.ones(1, np.uint8)}, path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_file_that_shrinks_fails_the_load(model):
    opened = gs.safe_open(model, "np")
    os.truncate(model, model.stat().st_size - 100_000)
    with pytest.raises(OSError, match="ends at byte"):
        opened.get_tensors()
    with pytest.raises(OSError, match="ends at byte"):
        for _ in opened:
            pass


def test_overwriting_keeps_loaded_and_opened_files(model):
    before = reference.load_file(model)
    opened, loaded = gs.safe_open(model, "np"), ours.load_file(model)
    for value in range(3):
        ours.save_file({"x": np.full(9, value)}, model, sync=False)
        assert ours.load_file(model)["x"].tolist() == [value] * 9
    ours.save_file({name: array for name, array in opened}, model, sync=False)
    same(loaded, before)
    same(opened.get_tensors(), before)
    same(ours.load_file(model), before)
    assert os.listdir(model.parent) == [model.name]


def test_threads_share_a_file(folder):
    path, every = folder
    opened = gs.safe_open(path, "np")
    failures = []

    def work(number):
        try:
            for _ in range(5):
                for name, array in opened.iter_tensors(memory_budget=10_000 * (number + 1)):
                    assert array.tobytes() == every[name].tobytes()
                    assert opened.get_tensor(name).tobytes() == every[name].tobytes()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_loads_and_drops_leak_nothing(tmp_path):
    path = tmp_path / "small.safetensors"
    content = {f"{number}": np.full((16, 16), number, np.float32) for number in range(64)}
    ours.save_file(content, path, sync=False)

    def work(times):
        for _ in range(times):
            loaded = ours.load_file(path)
            with gs.safe_open(path, "np") as opened:
                assert opened.get_slice("7")[3:5, ::2].shape == (2, 8)
                for name, array in opened:
                    assert array[0, 0] == loaded[name][0, 0]
                    break

    work(50)
    gc.collect()
    files, memory = len(os.listdir("/proc/self/fd")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work(int(os.environ.get("GPUFILE_TEST_LOADS", "500")))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files
    # 500 leaked loads would have 32 MiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 8 << 10


def test_specs_and_contents_equal_those_of_safetensors(tmp_path):
    array = np.arange(6, dtype=np.float32)
    fields = {"shape": [2, 3], "data_ptr": array.ctypes.data, "data_len": array.nbytes}
    own, other = (package.TensorSpec(dtype="float32", **fields) for package in (gs, reference_package))
    assert (own.dtype, own.shape, own.data_ptr, own.data_len) == (other.dtype, other.shape, other.data_ptr, other.data_len)
    assert gs.serialize({"x": own}, {"a": "b"}) == reference_package.serialize({"x": other}, {"a": "b"})
    gs.serialize_file({"x": own}, tmp_path / "x.safetensors")
    assert np.array_equal(reference.load_file(tmp_path / "x.safetensors")["x"], array.reshape(2, 3))
    data = ours.save({"x": array, "empty": array[:0]})
    assert sorted(gs.deserialize(data)) == sorted(reference_package.deserialize(data))
    assert gs.TensorSpec(dtype="float4_e2m1fn_x2", shape=[2, 3], data_ptr=0, data_len=6).shape == [2, 6]
    with pytest.raises(gs.SafetensorError, match="nonsense"):
        gs.TensorSpec(dtype="nonsense", shape=[1], data_ptr=0, data_len=0)
    with pytest.raises(TypeError, match="TensorSpec"):
        gs.serialize({"x": {"dtype": "float32"}})


def test_failures_of_the_program_end_a_load(model, monkeypatch):
    monkeypatch.setattr(gs._load.Meter, "SHORTEST_STEP", 1000)

    def fail(done, total):
        raise KeyError(done)

    for _ in range(3):
        with pytest.raises(KeyError):
            ours.load_file(model, progress=fail)
    with gs.safe_open(model, "np") as opened, pytest.raises(KeyError):
        for _ in opened.iter_tensors(memory_budget=1000, progress=fail):
            pass
    same(ours.load_file(model), reference.load_file(model))


def test_only_bytes_are_loaded(model):
    same(ours.load(model.read_bytes()), ours.load_file(model))
    for wrong in (5, [1, 2], None):
        with pytest.raises(TypeError):
            ours.load(wrong)


def test_lazy_models_load_once_at_their_first_use(model, monkeypatch):
    loads = []
    load = _load.load
    monkeypatch.setattr(_load, "load", lambda *arguments: loads.append(1) or load(*arguments))
    expected = reference.load_file(model)
    lazy = gs.LazyModel(model, framework="np")
    name = next(iter(lazy))
    assert (len(lazy), set(lazy), name in lazy, 5 in lazy) == (len(expected), set(expected), True, False)
    with pytest.raises(KeyError, match="nothing"):
        lazy["nothing"]
    assert lazy.get(5) is None
    assert loads == []
    with ThreadPoolExecutor(8) as threads:
        assert len({id(array) for array in threads.map(lazy.get, [name] * 99)}) == 1
    same(dict(lazy.items()), expected)
    assert loads == [1]


@pytest.mark.parametrize("end", ["", "del tensors", "tensors.close()", "raise SystemExit", "os.fork() or os._exit(0)"])
def test_interpreters_exit_during_an_iteration(model, end):
    program = f"""if True:
        import os
        from gpufile.safetensors import safe_open
        opened = safe_open({str(model)!r}, "np")
        tensors = opened.iter_tensors(memory_budget=30_000)
        name, array = next(tensors)
        assert array.nbytes and name in opened
        {end}
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # Python 3.12 and newer warn of forks beside threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_copies_let_other_threads_run():
    data = ours.save({f"{number}": np.full(1 << 20, number, np.float32) for number in range(32)})
    group, _ = _gpufile.parse_safetensors(data)
    items = [("x", "U8", [len(data)], data)]
    ticks, is_over = [0], threading.Event()

    def tick():
        while not is_over.is_set():
            ticks[0] += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    # The other thread runs only while a call has released the lock.
    sys.setswitchinterval(1000)
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for call in (lambda: group.copy(data, memory), lambda: _gpufile.serialize_safetensors(items, None)):
            memory, before = bytearray(group.len_bytes), ticks[0]
            call()
            assert ticks[0] > before
    finally:
        is_over.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert ours.load(data)["31"].sum() == 31 << 20
