"""Loads into memory of the host: short tensors, huge pages, and what many loads leave behind."""

import gc
import os

import pytest

np = pytest.importorskip("numpy")

from gpufile.safetensors import load_file, safe_open
from gpufile.safetensors.numpy import save_file

SHORT = {f"short.{number}": np.arange(number, number + 500, dtype=np.int16) for number in range(300)}


@pytest.fixture
def short(tmp_path):
    """Returns a file of 300 short arrays."""
    path = tmp_path / "short.safetensors"
    save_file(SHORT, path)
    return path


@pytest.fixture(params=["np", "pt"])
def framework(request):
    if request.param == "pt":
        pytest.importorskip("torch")
    return request.param


def test_short_tensors_are_read_wherever_they_are(short, framework):
    def check():
        with safe_open(short, framework, mapped=False) as model:
            for name, array in SHORT.items():
                assert np.array_equal(model.get_tensor(name), array), name
                assert np.array_equal(model.get_slice(name)[...], array), name

    check()
    descriptor = os.open(short, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    check()


def test_each_short_tensor_has_its_own_memory(short, framework):
    with safe_open(short, framework, mapped=False) as model:
        first, again, next_ = (model.get_tensor(name) for name in ("short.0", "short.0", "short.1"))
        first[:] = -1
        assert np.array_equal(again, SHORT["short.0"]) and np.array_equal(next_, SHORT["short.1"])
        assert np.array_equal(model.get_tensor("short.0"), SHORT["short.0"])


def test_shortened_files_fail_for_short_tensors(short, framework):
    with safe_open(short, framework, mapped=False) as model:
        os.truncate(short, os.path.getsize(short) - 1)
        model.get_tensor("short.0")
        with pytest.raises(OSError, match="short.safetensors"):
            model.get_tensor(model.offset_keys()[-1])


def test_long_memory_of_torch_has_huge_pages(tmp_path):
    if not os.path.exists("/sys/kernel/mm/transparent_hugepage"):
        pytest.skip("this kernel has no huge pages")
    pytest.importorskip("torch")
    path = tmp_path / "long.safetensors"
    save_file({"long": np.ones(40 << 20, np.uint8)}, path)
    tensor = load_file(path, mapped=False)["long"]
    with safe_open(path, "pt", mapped=False) as model:
        other = model.get_tensor("long")
    assert "hg" in flags_of(tensor.data_ptr() + (20 << 20)) and "hg" in flags_of(other.data_ptr() + (20 << 20))


def flags_of(address):
    """Returns the kernel's flags of the mapping at an address."""
    with open("/proc/self/smaps") as smaps:
        inside = False
        for line in smaps:
            first, *rest = line.split()
            if not first.endswith(":"):
                start, stop = (int(end, 16) for end in first.split("-"))
                inside = start <= address < stop
            elif inside and first == "VmFlags:":
                return rest
    raise AssertionError(f"nothing is mapped at {address:#x}")


def resources():
    """Returns the resident bytes, the descriptors and the threads of this process."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def test_a_thousand_loads_leave_no_growth(short, framework):
    def load():
        loaded = load_file(short, framework=framework)
        with safe_open(short, framework) as model:
            assert len(loaded) == len(model) and model.get_tensor("short.7")[0] == 7
            next(iter(model))

    for _ in range(100):
        load()
    before = resources()
    for _ in range(1000):
        load()
    grown = [after - before for before, after in zip(before, resources())]
    # The header of the file alone has more than 20,000 bytes.
    assert grown[0] < 10 << 20 and grown[1:] == [0, 0], grown
