"""Tensors in mappings of their files: the same bits, copies of changed pages, and files that become shorter."""

import ctypes
import gc
import importlib
import json
import mmap
import os
import struct
import subprocess
import sys
import textwrap

import pytest

np = pytest.importorskip("numpy")

import gpufile.safetensors as gs
from gpufile.safetensors import load_file, load_model, safe_open
from gpufile.safetensors import numpy as ours

ARRAYS = {
    "bytes": np.arange(13, dtype=np.uint8),
    "doubles": np.linspace(0, 1, 3000).reshape(30, 100),
    "flags": np.array([True, False, True]),
    "halves": np.arange(6, dtype=np.float16).reshape(1, 2, 3),
    "integers": np.arange(-5000, 5000, dtype=np.int64),
    "none": np.zeros((0, 7), np.float32),
    "scalar": np.array(7, np.int32),
}


@pytest.fixture(params=["np", "pt"])
def framework(request):
    if request.param == "pt":
        pytest.importorskip("torch")
    return request.param


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    ours.save_file(ARRAYS, path)
    return path


def assert_same(tensors):
    assert set(tensors) == set(ARRAYS)
    for name, array in ARRAYS.items():
        found = np.asarray(tensors[name])
        assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array), name


def is_mapped(path):
    with open("/proc/self/maps") as maps:
        return any(line.rstrip().endswith(str(path)) for line in maps)


def run(tmp_path, program, *options):
    """Runs a program that may end by a signal. It has the path of a file in which each tensor has two pages or more."""
    path = tmp_path / "model.safetensors"
    ours.save_file({"first": np.ones(5000, np.int32), "second": np.full(5000, 2, np.int32)}, path)
    start = f"import os\nimport numpy as np\nfrom gpufile.safetensors.numpy import load_file\npath = {str(path)!r}\n"
    source = start + textwrap.dedent(program)
    return subprocess.run([sys.executable, *options, "-c", source], capture_output=True, text=True, timeout=60)


def test_mapped_tensors_have_the_same_bits(path, framework):
    assert_same(load_file(path, framework=framework, mapped=True))
    assert list(load_file(path, framework=framework, mapped=True)) == list(load_file(path, framework=framework))
    with safe_open(path, framework, mapped=True) as model:
        assert_same(model.get_tensors())
        assert_same(dict(model))
        assert_same({name: model.get_tensor(name) for name in model.keys()})
        assert_same({name: model.get_slice(name)[...] for name in model.keys()})
        assert_same({name: model.get_slice(name)[:] for name in ARRAYS if name != "scalar"} | {"scalar": np.int32(7)})


@pytest.mark.parametrize("index", [3, -1, slice(2, 9), slice(0, 20, 3), (slice(None), 5), (..., slice(1, 4)), (1, 2)])
def test_slices_of_mapped_tensors(path, framework, index):
    with safe_open(path, framework, mapped=True) as model:
        part = model.get_slice("doubles")[index]
    assert np.array_equal(np.asarray(part), ARRAYS["doubles"][index])
    assert tuple(part.shape) == ARRAYS["doubles"][index].shape


def test_models_of_several_files_are_mapped(tmp_path, framework):
    ours.save_file({"a": np.arange(9)}, tmp_path / "model-00001-of-00002.safetensors")
    ours.save_file({"b": np.arange(5), "c": np.ones(2)}, tmp_path / "model-00002-of-00002.safetensors")
    done = []
    model = load_model(
        tmp_path, framework=framework, mapped=True, only=["c", "a"], progress=lambda *now: done.append(now)
    )
    assert {name: tensor.tolist() for name, tensor in model.items()} == {"a": list(range(9)), "c": [1, 1]}
    assert done[-1] == (88, 88)
    with pytest.raises(gs.SafetensorError, match="File does not contain tensor d"):
        load_model(tmp_path, framework=framework, mapped=True, only=["a", "d"])


def test_tensors_between_multiples_of_their_elements_are_read(tmp_path, framework):
    path = tmp_path / "odd.safetensors"
    header = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "odd": {"dtype": "I32", "shape": [2], "data_offsets": [1, 9]},
        "last": {"dtype": "U8", "shape": [2], "data_offsets": [9, 11]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\5" + struct.pack("<2i", -3, 70000) + b"\6\7")
    expected = {"byte": [5], "odd": [-3, 70000], "last": [6, 7]}
    loaded = load_file(path, framework=framework, mapped=True)
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == expected and list(loaded) == list(expected)
    with safe_open(path, framework, mapped=True) as model:
        assert {name: model.get_tensor(name).tolist() for name in expected} == expected
        assert model.get_slice("odd")[1:].tolist() == [70000]


def test_by_default_torch_maps_and_numpy_reads(path, framework):
    def opened(call):
        return lambda: call(safe_open(path, framework))

    calls = [
        lambda: load_file(path, framework=framework),
        lambda: load_model(path, framework=framework, only=["integers"]),
        lambda: gs.LazyModel(path, framework=framework)["integers"],
        opened(lambda model: model.get_tensor("integers")),
        opened(lambda model: model.get_tensors()),
        opened(lambda model: model.get_slice("integers")[3:]),
        opened(lambda model: dict(model)),
    ]
    for call in calls:
        found = call()
        assert is_mapped(path) == (framework == "pt")
        del found
        gc.collect()
        assert not is_mapped(path)


def test_changes_stay_in_the_process(path, framework):
    before = path.read_bytes()
    loaded = load_file(path, framework=framework, mapped=True)
    other = load_file(path, framework=framework, mapped=True)
    loaded["integers"][:] = 1
    assert path.read_bytes() == before and np.array_equal(np.asarray(other["integers"]), ARRAYS["integers"])
    assert loaded["integers"].tolist() == [1] * 10_000


def test_calls_for_a_mapped_tensor_share_its_memory(path, framework):
    with safe_open(path, framework, mapped=True) as model:
        first, again = model.get_tensor("integers"), model.get_slice("integers")[10:]
    first[12] = 55
    assert again[2] == 55


def test_mappings_end_with_their_last_tensor(path, framework):
    with safe_open(path, framework, mapped=True) as model:
        kept = model.get_tensor("scalar")
        loaded = load_file(path, framework=framework, mapped=True)
    del loaded
    gc.collect()
    assert is_mapped(path) and kept == 7
    del kept, model
    gc.collect()
    assert not is_mapped(path)


def test_replaced_files_leave_mapped_tensors_alone(path, framework):
    loaded = load_file(path, framework=framework, mapped=True)
    ours.save_file({"other": np.zeros(5)}, path)
    assert_same(loaded)


def resident(address, length):
    """Returns the pages of a mapping that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    found = (ctypes.c_ubyte * -(-(address + length - first) // mmap.PAGESIZE))()
    assert libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(address + length - first), found) == 0
    return sum(page & 1 for page in found)


def test_first_uses_read_as_far_ahead_as_safetensors(tmp_path):
    pytest.importorskip("torch")
    theirs = pytest.importorskip("safetensors.torch")
    pages = {}
    for module in (theirs, importlib.import_module("gpufile.safetensors.torch")):
        path, length = tmp_path / module.__name__, 256 << 20
        header = json.dumps({"a": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, 8 + len(header) + length)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        # Without its start, which the kernel read together with the header.
        half = module.load_file(path)["a"][length // 2 :]
        if resident(half.data_ptr(), half.nbytes):
            pytest.skip("the page cache keeps the files here")
        assert half[length // 4] == 0
        pages[module] = resident(half.data_ptr(), half.nbytes)
    assert pages[module] >= pages[theirs] > 0


def test_many_mapped_loads_leave_nothing(path, framework):
    def load():
        assert load_file(path, framework=framework, mapped=True)["scalar"] == 7

    def resources():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum(str(path) in line for line in maps)

    load()
    before = resources()
    for _ in range(500):
        load()
    assert resources() == before


def test_mapped_files_keep_no_descriptors(tmp_path):
    program = """
    import resource
    from gpufile.safetensors import load_model
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = []
    for number in range(1500):
        other = f"{path}-{number}"
        os.link(path, other)
        kept.append(load_file(other, mapped=True))
    assert sum(int(tensors["first"][0]) for tensors in kept) == 1500
    before = os.listdir("/proc/self/fd")
    kept.append(load_model([path, path + "-other"], framework="np", mapped=True))
    assert os.listdir("/proc/self/fd") == before
    """
    ours.save_file({"other": np.ones(5)}, tmp_path / "model.safetensors-other")
    done = run(tmp_path, program)
    assert done.returncode == 0, done.stderr


def test_lost_bytes_of_a_replaced_file_become_zeros(tmp_path):
    program = """
    loaded, file = load_file(path, mapped=True), open(path, "r+b")
    os.replace(path + "-other", path)
    os.chdir("/")
    file.truncate(4096)
    try:
        total = loaded["second"].sum()
        for _ in range(100):
            pass
    except OSError as error:
        print(error.errno, error.filename == path)
    assert loaded["first"][0] == 1 and not loaded["second"].any()
    assert load_file(path)["other"].sum() == 5
    """
    ours.save_file({"other": np.ones(5)}, tmp_path / "model.safetensors-other")
    done = run(tmp_path, program)
    assert done.stdout == "5 True\n", done.stderr


def test_storages_of_mapped_tensors_cannot_be_resized(path):
    pytest.importorskip("torch")
    with safe_open(path, "pt", mapped=True) as model:
        for tensor in (model.get_tensor("integers"), load_file(path, mapped=True)["doubles"]):
            with pytest.raises(RuntimeError, match="resiz"):
                tensor.untyped_storage().resize_(0)


def test_mapped_tensors_are_independent_for_torch(tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.safetensors"
    ours.save_file({"first": np.ones(5, np.float32), "second": np.ones(4096, np.float32), "count": np.array(3)}, path)
    model = safe_open(path, "pt")
    first, second, count = map(model.get_tensor, ("first", "second", "count"))
    versions = first._version, second._version
    first.add_(1)
    assert (first._version, second._version) == (versions[0] + 1, versions[1])
    first.share_memory_()
    assert first.is_shared() and not second.is_shared()
    assert [tensor.untyped_storage().nbytes() for tensor in (first, second, count)] == [20, 4096 * 4, 8]
    assert first.tolist() == [2] * 5 and count.item() == 3 and count.shape == ()


def test_torch_takes_mapped_tensors_without_a_warning(path, recwarn):
    torch = pytest.importorskip("torch")
    loaded = load_file(path, mapped=True)
    assert loaded["integers"].sum() == -5000 and torch.equal(loaded["doubles"], loaded["doubles"].clone())
    assert not recwarn.list


def test_modules_take_a_mapped_file(tmp_path):
    torch = pytest.importorskip("torch")
    from gpufile.safetensors.torch import load_model, save_model

    module, other = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
    save_model(module, tmp_path / "module.safetensors")
    assert load_model(other, tmp_path / "module.safetensors", mapped=True) == (set(), [])
    assert torch.equal(module.weight, other.weight)


def test_files_shortened_before_they_are_mapped(path, framework):
    with safe_open(path, framework, mapped=True) as model:
        os.truncate(path, 1000)
        with pytest.raises(OSError, match="model.safetensors"):
            model.get_tensor("integers")


def test_a_shortened_file_raises_on_the_main_thread(tmp_path):
    done = run(
        tmp_path,
        """
        loaded = load_file(path, mapped=True)
        loaded["first"][:3] = 9
        os.truncate(path, 4096)
        try:
            total = loaded["second"].sum()
            for _ in range(100):
                pass
        except OSError as error:
            print(error.errno, error.filename == path, "became shorter" in str(error))
        print(loaded["second"].sum(), loaded["first"][:3].tolist(), loaded["first"][3:2000].sum() < 1997)
        loaded["second"][:] = 4
        print(loaded["second"].sum())
        """,
    )
    assert done.stdout.splitlines() == ["5 True True", "0 [9, 9, 9] True", "20000"], done.stderr
    assert done.returncode == 0


def test_a_shortened_file_is_an_error_for_other_threads_too(tmp_path):
    done = run(
        tmp_path,
        """
        import threading
        loaded = load_file(path, mapped=True)
        os.truncate(path, 0)
        sums = []
        thread = threading.Thread(target=lambda: sums.append(loaded["first"].sum()))
        try:
            thread.start()
            while True:
                thread.join(0.01)
        except OSError as error:
            thread.join()
            print(error.filename == path, sums)
        """,
    )
    assert done.stdout.splitlines() == ["True [0]"] or done.stdout.splitlines() == ["True [np.int64(0)]"], done.stderr


def test_forked_children_survive_a_shortened_file(tmp_path):
    done = run(
        tmp_path,
        """
        loaded = load_file(path, mapped=True)
        child = os.fork()
        if child == 0:
            os.truncate(path, 0)
            try:
                loaded["first"].sum()
                for _ in range(100):
                    pass
            except OSError:
                os._exit(5)
            os._exit(6)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    )
    assert done.stdout == "5\n", done.stderr


def test_writes_of_several_threads_to_lost_pages_stay(tmp_path):
    pytest.importorskip("torch")
    program = """
    import torch
    from gpufile.safetensors.torch import load_file, save_file
    torch.set_num_threads(16)
    damaged = 0
    for _ in range(100):
        save_file({"a": torch.ones(1 << 20, dtype=torch.int32)}, path, sync=False)
        tensor = load_file(path)["a"][2048:]
        os.truncate(path, 4096)
        try:
            tensor.fill_(4)
            for _ in range(200):
                pass
        except OSError:
            pass
        damaged += not (tensor == 4).all()
    print(damaged)
    """
    done = run(tmp_path, program)
    assert done.stdout == "0\n", done.stderr


def test_children_of_threads_that_lose_pages_get_their_errors(tmp_path):
    program = """
    import ctypes, signal, threading, time
    from gpufile.safetensors.numpy import save_file
    os.chdir(os.path.dirname(path))
    libc, goes_on, length = ctypes.CDLL(None), threading.Event(), os.stat(path).st_size
    # A long path takes time to note.
    deep = "/".join(["d" * 250] * 12)
    os.makedirs(deep)

    def lose(name):
        name = f"{deep}/{name}"
        save_file({"a": np.ones(5000, np.int32)}, name, sync=False)
        length = os.stat(name).st_size
        while True:
            tensors = [load_file(name, mapped=True)["a"] for _ in range(100)]
            os.truncate(name, 4096)
            goes_on.wait()
            for tensor in tensors:
                libc.memset(ctypes.c_void_p(tensor.ctypes.data + 8192), 1, ctypes.c_size_t(4))
            os.truncate(name, length)

    def child():
        signal.alarm(20)
        tensor = None
        while tensor is None:
            # Errors that the parent had not raised come here.
            try:
                for _ in range(200):
                    pass
                tensor = load_file(path, mapped=True)["second"]
            except OSError:
                pass
        os.truncate(path, 4096)
        try:
            tensor.sum()
            for _ in range(200):
                pass
        except OSError as error:
            os._exit(0 if error.filename == path else 3)
        os._exit(4)

    def main():
        for name in "abc":
            threading.Thread(target=lose, args=(name,), daemon=True).start()
        ended = []
        for number in range(60):
            goes_on.clear()
            time.sleep(0.01)
            goes_on.set()
            time.sleep(0.0002 * (number % 10))
            if not (pid := os.fork()):
                try:
                    child()
                finally:
                    os._exit(5)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os.truncate(path, length)
        os.write(1, str(set(ended)).encode())
        os._exit(0)

    def stay(depth):
        while True:
            try:
                while True:
                    if depth:
                        stay(depth - 1)
            except OSError:
                pass

    # The thread that forks is the main thread of the child. That of the parent gets the parent's errors.
    threading.Thread(target=main).start()
    stay(20)
    """
    done = run(tmp_path, program, "-W", "ignore")
    assert done.stdout == "{0}", done.stderr


@pytest.mark.parametrize("put", ["faulthandler.enable()", "signal.signal(signal.SIGBUS, signal.SIG_DFL)"])
def test_the_next_mapping_puts_a_removed_handler_back(tmp_path, put):
    program = f"""
    import faulthandler, signal
    {put}
    first = load_file(path, mapped=True)
    faulthandler.disable()
    signal.signal(signal.SIGBUS, signal.SIG_DFL)
    loaded = load_file(path, mapped=True)
    os.truncate(path, 4096)
    try:
        loaded["second"].sum() + first["second"].sum()
        for _ in range(100):
            pass
    except OSError as error:
        print(error.errno)
    """
    done = run(tmp_path, program)
    assert done.stdout == "5\n", done.stderr


OTHER_FAULT = """
        import mmap
        loaded = load_file(path, mapped=True)
        with open(path, "r+b") as file:
            other = mmap.mmap(file.fileno(), 0)
        os.truncate(path, 0)
        other[5000]
        """


def test_faults_of_other_mappings_end_the_process(tmp_path):
    assert run(tmp_path, OTHER_FAULT).returncode == -7
    killed = run(tmp_path, "loaded = load_file(path, mapped=True)\nos.kill(os.getpid(), 7)\nprint(5)")
    assert (killed.returncode, killed.stdout) == (-7, "")


def test_faults_of_other_mappings_go_to_the_earlier_handler(tmp_path):
    done = run(tmp_path, OTHER_FAULT, "-X", "faulthandler")
    assert done.returncode == -7 and "Fatal Python error: Bus error" in done.stderr


def test_signals_that_a_process_ignores_stay_ignored(tmp_path):
    program = """
        import signal
        signal.signal(signal.SIGBUS, signal.SIG_IGN)
        loaded = load_file(path, mapped=True)
        os.kill(os.getpid(), signal.SIGBUS)
        print(loaded["first"].sum())
        """
    assert run(tmp_path, program).stdout == "5000\n"
