"""The package gpufile.kvikio, beside kvikio's own tests (see run_kvikio_tests.py)."""

import asyncio
import errno
import os
import subprocess
import sys

import numpy as np
import pytest

import gpufile
import gpufile.kvikio as kvikio
import gpufile.kvikio.cufile_driver
import gpufile.kvikio.defaults
import gpufile.kvikio.numpy
from gpufile._gpufile import kvikio_settings


def test_files_read_and_write_gpu_memory(path, content, device_array):
    array = device_array(5000)
    with kvikio.CuFile(path, "r+") as file:
        assert file.pread(array, file_offset=17).get() == 5000
        assert array.get() == content[17:5017]
        assert file.write(array, 100, file_offset=3) == 100
        assert file.pwrite(array, 50, 9000, task_size=13).get() == 50
        assert file.raw_read(array, 10, file_offset=3, dev_offset=4990) == 10
        assert array.get()[-10:] == content[17:27]
        with pytest.raises(ValueError, match="exceed the buffer of 5000"):
            file.read(array, 5001)
        assert asyncio.run(_await(file.pread(array))) == 5000
    assert path.read_bytes()[:110] == content[:3] + content[17:117] + content[103:110]


def test_bytes_of_any_order_are_those_of_memory(path, content, tmp_path):
    array = np.zeros((30, 20), np.uint8, order="F")
    with kvikio.CuFile(path) as file, kvikio.CuFile(tmp_path / "copy", "w") as copy:
        assert file.read(array) == file.pread(array).get() == 600
        assert array.tobytes(order="A") == content[:600]
        assert copy.write(array) == 600
    assert (tmp_path / "copy").read_bytes() == content[:600]


async def _await(future):
    return await future


def test_errors_are_those_of_kvikio_and_of_the_system(path, device_array):
    with pytest.raises(RuntimeError) as missing:
        kvikio.CuFile(path.with_name("missing"))
    error = missing.value
    assert (error.errno, error.filename) == (errno.ENOENT, str(path.with_name("missing")))
    assert "Unable to open file" in str(error) and "No such file" in str(error)
    file = kvikio.CuFile(path)
    with pytest.raises(RuntimeError, match="Operation not permitted") as refused:
        file.write(b"abc")
    assert isinstance(refused.value, OSError)
    with pytest.raises(ValueError, match="Non-CUDA"):
        file.raw_read(bytearray(3))
    file.close()
    with pytest.raises(kvikio.CuFileError, match="closed"):
        file.read(bytearray(3))


def test_settings_hold_for_open_files(path, content, device_array, command):
    array = device_array(300_000)
    with kvikio.CuFile(path) as file:
        for threads, length in [(1, 70_000), (3, 4096), (2, 199)]:
            with kvikio.defaults.set({"num_threads": threads, "task_size": length}):
                engine = kvikio.defaults.engine()
                assert (engine.threads, engine.chunk_bytes) == (threads, length)
                descriptor = file.fileno()
                assert file.read(array, 100_000, 5) == 100_000
                assert file.fileno() == descriptor and os.fstat(descriptor).st_size == len(content)
                assert array.get()[:100_000] == content[5:100_005]
        assert kvikio.defaults.engine().threads == gpufile.Engine.default().threads
        before = command("calls cuFileRead")
        with kvikio.defaults.set("compat_mode", kvikio.CompatMode.OFF):
            file.read(array)
        assert command("calls cuFileRead") > before
    with kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON):
        assert kvikio.defaults.is_compat_mode_preferred()


def test_each_setting_of_the_table_reaches_the_engine():
    # Another value than each engine of a test has, and what the engine then returns.
    values = {
        "compat_mode": (kvikio.CompatMode.ON, "posix"),
        "num_threads": (3, 3),
        "task_size": (70_000, 70_000),
        "gds_threshold": (5, 5),
        "bounce_buffer_size": (8192, 8192),
        "auto_direct_io_read": (False, "never"),
        "auto_direct_io_write": (False, "never"),
        "auto_direct_io_read_overread": (False, False),
    }
    arguments = kvikio_settings()
    assert arguments.keys() == values.keys()
    for name, (value, of_engine) in values.items():
        with kvikio.defaults.set(name, value):
            assert getattr(kvikio.defaults.engine(), arguments[name]) == of_engine
            assert kvikio.defaults.get(name) == value
        assert kvikio.defaults.get(name) != value


def test_wrong_settings_change_nothing():
    before = kvikio.defaults.get("num_threads")
    for name, value, error in [
        ("num_threads", 0, ValueError),
        ("task_size", -1, OverflowError),
        ("num_threads", 1.5, TypeError),
        ("no_such_setting", 1, KeyError),
        ("http_status_codes", ["a"], TypeError),
        ("compat_mode", 7, ValueError),
    ]:
        with pytest.raises(error):
            kvikio.defaults.set({"num_threads": 3, name: value})
    with pytest.raises(ValueError):
        kvikio.defaults.set("num_threads")
    assert kvikio.defaults.get("num_threads") == kvikio.defaults.num_threads() == before
    with pytest.raises(AttributeError):
        kvikio.defaults.no_such_setting


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "2 True True"),
        ({"KVIKIO_COMPAT_MODE": " Yes", "KVIKIO_AUTO_DIRECT_IO_READ": "off"}, "1 False True"),
        ({"KVIKIO_AUTO_DIRECT_IO_READ": "on", "GPUFILE_DIRECT_READ": "never"}, "2 False True"),
        ({"GPUFILE_COMPAT_MODE": "0", "GPUFILE_DIRECT_WRITE": "NO", "GPUFILE_DIRECT_READ": "always"}, "0 True False"),
        ({"KVIKIO_COMPAT_MODE": "bogus"}, "KVIKIO_COMPAT_MODE"),
    ],
)
def test_settings_follow_the_environment(variables, expected):
    program = """if True:
        import gpufile.kvikio.defaults as defaults
        names = ["compat_mode", "auto_direct_io_read", "auto_direct_io_write"]
        try:
            print(*(defaults.get(name) for name in names))
        except RuntimeError as error:
            print(error)
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUFILE_", "KVIKIO_"))}
    printed = subprocess.run([sys.executable, "-c", program], env=kept | variables, capture_output=True, text=True)
    assert expected in printed.stdout, printed.stderr


def test_regions_of_files_are_read(path, content, device_array):
    region = kvikio.MmapHandle(path, "r", 3000, 1001)
    array = device_array(3000)
    assert region.read(array, offset=1001) == 3000
    assert array.get() == content[1001:4001]
    assert region.pread(array, 500, 2000).get() == 500
    assert array.get()[:500] == content[2000:2500]
    for size, offset in [(1, 1000), (1, 4001), (3000, 1002), (-1, 1500)]:
        with pytest.raises(IndexError, match="out of bound"):
            region.read(array, size, offset)
    for size, offset in [(-1, 0), (None, -1)]:
        with pytest.raises(OverflowError, match="negative"):
            kvikio.MmapHandle(path, "r", size, offset)
    assert (region.initial_map_size(), region.initial_map_offset()) == (3000, 1001)
    with pytest.raises(ValueError, match="exceed the buffer"):
        region.read(device_array(2999), offset=1001)


def test_arrays_are_read_from_the_position_of_a_file(tmp_path):
    path = tmp_path / "numbers"
    numbers = np.arange(60, dtype="<i4").reshape(5, 12)
    kvikio.numpy.tofile(numbers.T, path)
    assert np.array_equal(np.fromfile(path, "<i4"), numbers.T.ravel())
    assert np.array_equal(kvikio.numpy.fromfile(path, "<i4", 7, offset=8), numbers.T.ravel()[2:9])
    with open(path, "rb") as file:
        file.seek(12)
        assert np.array_equal(kvikio.numpy.fromfile(file, "<i4", offset=4), numbers.T.ravel()[4:])
    like = kvikio.numpy.LikeWrapper(np.empty(()))
    assert np.array_equal(np.fromfile(path, "<i4", like=like), numbers.T.ravel())
    assert kvikio.numpy.fromfile(path, "<i4", offset=10_000).shape == (0,)
    with pytest.raises(FileNotFoundError):
        kvikio.numpy.fromfile(path.with_name("none"), "<i4")


def test_open_files_are_read_by_their_descriptors(tmp_path):
    path = tmp_path / "numbers"
    numbers = np.arange(10, dtype="<i4")
    with open(path, "w+b") as file:
        # These bytes are still in Python's buffer.
        file.write(numbers.tobytes() + b"!")
        path.rename(tmp_path / "renamed")
        path.write_bytes(bytes(40))
        for read in (kvikio.numpy.fromfile, np.fromfile):
            file.seek(4)
            assert np.array_equal(read(file, "<i4", 3, offset=4), numbers[2:5]) and file.tell() == 20
            assert np.array_equal(read(file, "<i4"), numbers[5:]) and file.tell() == 40
        kvikio.numpy.tofile(numbers[:2], file)
    assert (tmp_path / "renamed").read_bytes() == numbers[:2].tobytes() and path.read_bytes() == bytes(40)


@pytest.mark.parametrize("mode", ["rb", "r+b", "ab", "a+b"])
def test_the_access_of_open_files_does_not_matter(tmp_path, mode):
    path = tmp_path / "numbers"
    for numbers in (np.arange(10, dtype="<i4"), np.arange(3, dtype="<i4")):
        path.write_bytes(b"old bytes" * 9)
        with open(path, mode) as file:
            kvikio.numpy.tofile(numbers, file)
            file.seek(4)
            assert np.array_equal(kvikio.numpy.fromfile(file, "<i4"), numbers[1:])
        assert path.read_bytes() == numbers.tobytes()


def test_page_cache_is_counted_and_dropped(path, content):
    cached, pages = kvikio.get_page_cache_info(path)
    assert 0 <= cached <= pages == -(-len(content) // os.sysconf("SC_PAGESIZE"))
    kvikio.drop_file_page_cache(str(path))
    with open(path, "rb") as file:
        assert kvikio.get_page_cache_info(file, 5000, 10)[1] == 1
        assert kvikio.get_page_cache_info(file.fileno(), 10**9) == (0, 0)


def test_memory_is_registered_as_a_whole_allocation(path, content, device_array, command):
    array = device_array(100_000)
    part = device_array(100_000, shape=(1000,), data=(array.address + 5000, False))
    live = command("live buffers")
    gpufile.register(part)
    assert command("live buffers") == live + 1
    with pytest.raises(ValueError, match="already"):
        gpufile.register(array)
    with kvikio.defaults.set("compat_mode", kvikio.CompatMode.OFF), kvikio.CuFile(path) as file:
        assert file.read(array, 50_000, 3) == 50_000
        assert array.get()[:50_000] == content[3:50_003]
        future = file.pread(part, file_offset=9)
        gpufile.deregister(array)
        assert future.get() == 1000 and array.get()[5000:6000] == content[9:1009]
    del future
    assert command("live buffers") == live
    with pytest.raises(ValueError, match="not registered"):
        gpufile.deregister(part)
    with pytest.raises(ValueError, match="only GPU memory"):
        gpufile.register(bytearray(5))


def test_zarr_arrays_round_trip(tmp_path):
    zarr = pytest.importorskip("zarr")
    import gpufile.kvikio.zarr

    store = gpufile.kvikio.zarr.GDSStore(tmp_path)
    array = zarr.create_array(store, name="a", shape=(70, 33), chunks=(16, 11), dtype="<f4")
    values = np.random.default_rng(3).random((70, 33), dtype="f4")
    array[:] = values
    array[5:9, 2] = values[5:9, 2] = 7
    assert np.array_equal(zarr.open_array(tmp_path / "a")[:], values)
    assert np.array_equal(zarr.open_array(gpufile.kvikio.zarr.GDSStore(tmp_path), path="a")[3:40], values[3:40])
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("length", [10, 5000, None])
def test_stored_values_are_read_as_one_version(tmp_path, monkeypatch, length):
    pytest.importorskip("zarr")
    import gpufile.kvikio.zarr as module

    store = module.GDSStore(tmp_path)
    (tmp_path / "value").write_bytes(b"a" * 1000)
    (tmp_path / "folder").mkdir()

    def replace_and_open(path):
        if length is None:
            os.unlink(path)
        else:
            path.with_name("new").write_bytes(b"b" * length)
            path.with_name("new").replace(path)
        return kvikio.CuFile(path)

    for mode in (kvikio.CompatMode.ON, kvikio.CompatMode.OFF):
        with kvikio.defaults.set("compat_mode", mode):
            assert asyncio.run(store.get("folder")) is None
    monkeypatch.setattr(module, "CuFile", replace_and_open)
    value = asyncio.run(store.get("value"))
    assert (value and value.to_bytes()) == (length and b"b" * length)
