"""Engines, routes, and the file beside its transfers."""

import gc
import os
import sys
import time

import gpufile
import pytest
from gpufile._gpufile import memory_of


def test_routes_name_their_kind_and_reasons(path, gpu):
    with gpufile.File(path, engine=gpufile.Engine(policy="posix")) as file:
        posix = file.route()
    assert posix.kind == "posix" and posix.why_not
    assert "posix" in repr(posix) and str(posix).startswith("POSIX")
    with gpufile.File(path, engine=gpufile.Engine(policy="cufile")) as file:
        route = file.route()
        assert route.kind == "cufile-compat" and route != posix
        assert set(route.why_not) <= {"gds", "p2pdma"} and all(route.why_not.values())
        assert route == file.route()


def test_engines_take_settings_and_refuse_others(path, content):
    engine = gpufile.Engine(
        threads=3,
        chunk_bytes=5000,
        bounce_buffer_bytes=1 << 20,
        bounce_memory_bytes=64 << 20,
        gds_threshold_bytes=7,
        direct_read="never",
        direct_write="always",
        overread=False,
    )
    assert (engine.threads, engine.chunk_bytes, engine.gds_threshold_bytes) == (3, 5000, 7)
    assert (engine.bounce_buffer_bytes, engine.bounce_memory_bytes) == (1 << 20, 64 << 20)
    assert (engine.direct_read, engine.direct_write) == ("never", "always")
    assert not engine.overread
    for policy in ("auto", "cufile", "posix"):
        assert gpufile.Engine(policy=policy).policy == policy
    buffer = bytearray(300_000)
    with gpufile.File(path, engine=engine) as file:
        assert file.read_into(buffer) == 300_000 and buffer == content[:300_000]
        other = file.with_engine(gpufile.Engine(threads=1)).with_chunk_bytes(70_001)
    assert other.read_into(buffer, 9) == 300_000 and buffer == content[9:300_009]
    with pytest.raises(ValueError, match='"fast": use "auto", "cufile", "posix"'):
        gpufile.Engine(policy="fast")
    limits = {"threads": "1 to 1024", "chunk_bytes": "at least 1", "bounce_memory_bytes": "at least 1"}
    for name, limit in (limits | {"bounce_buffer_bytes": f"1 to {1 << 30}"}).items():
        with pytest.raises(ValueError, match=f"^{name} is 0: expected {limit}$"):
            gpufile.Engine(**{name: 0})
    for name, value in (("threads", 10**6), ("bounce_buffer_bytes", (1 << 30) + 1)):
        with pytest.raises(ValueError, match=f"^{name} is {value}: expected 1 to "):
            gpufile.Engine(**{name: value})
    for wrong in ({"policy": "fast"}, {"direct_read": "yes"}, {"threads": -1}, {"thread": 1}):
        with pytest.raises((ValueError, OverflowError, TypeError)):
            gpufile.Engine(**wrong)


def test_chunks_of_one_byte_grow(path, content):
    engine = gpufile.Engine(threads=1, chunk_bytes=1)
    buffer = bytearray(200_000)
    with gpufile.File(path, engine=engine) as file:
        assert file.read_into(buffer) == 200_000 and buffer == content[:200_000]


def test_released_buffers_are_allocated_again(path, content, device_array):
    engine, array = gpufile.Engine(), device_array(100_000)
    with gpufile.File(path, engine=engine) as file:
        file.read_into(array)
        assert engine.release_buffers() > 0
        assert engine.release_buffers() == 0
        assert file.read_into(array, 5) == 100_000 and array.get() == content[5:100_005]


def test_warm_engines_have_memory_for_the_first_read(path, content, device_array):
    engine, array = gpufile.Engine(threads=2), device_array(100_000)
    engine.warm_up([0])
    pinned = engine.stats()["pinned_bytes"]
    assert pinned > 0
    with gpufile.File(path, engine=engine) as file:
        assert file.read_into(array) == 100_000 and array.get() == content[:100_000]
    assert engine.stats()["pinned_bytes"] == pinned
    with pytest.raises(OSError, match="cuDeviceGet"):
        engine.warm_up([1000])


def test_stats_count_requests_by_route(path, content, device_array):
    engine, array = gpufile.Engine(), device_array(100_000)
    with gpufile.File(path, engine=engine) as file:
        file.read_into(array)
        file.read_into(bytearray(1000))
    stats = engine.stats()
    nothing = {"reads": 0, "read_bytes": 0, "writes": 0, "write_bytes": 0}
    assert stats["host"] == nothing | {"reads": 1, "read_bytes": 1000}
    assert stats["posix"] == nothing | {"reads": 1, "read_bytes": 100_000}
    assert [stats[name] for name in ("cufile-compat", "p2pdma", "gds")] == [nothing] * 3
    assert stats["pinned_bytes"] > 0 and stats["continued_calls"] == 0
    assert list(stats["fallbacks"].values()) == [1]


def test_files_have_length_descriptor_and_durability(path, content):
    with gpufile.File(path, "r+") as file:
        assert file.size() == len(content)
        file.truncate(10)
        file.sync()
        assert path.read_bytes() == content[:10]
        file.truncate(20)
        assert os.pread(file.fileno(), 30, 5) == content[5:10] + bytes(10)
        assert (file.name, file.mode) == (str(path), "r+")
        assert "data.bin" in repr(file) and "closed" not in repr(file)
    assert "closed" in repr(file)


def test_memory_of_each_gpu_is_found(path, content, gpu, device_array):
    assert gpu.cudaSetDevice(1) == 0
    second = device_array(4000)
    assert gpu.cudaSetDevice(0) == 0
    first = device_array(4000)
    assert (memory_of(first), memory_of(second), memory_of(b"abc")) == ((4000, 0), (4000, 1), (3, None))
    with gpufile.File(path) as file:
        assert file.read_many([second, first], [3, 9000]) == 8000
        assert file.read_into_on_stream(second, 0, 70).result() == 4000
    assert (first.get(), second.get()) == (content[9000:13_000], content[70:4070])


def test_ten_thousand_transfers_leak_nothing(path, device_array, command):
    array, host, engine = device_array(5000), bytearray(5000), gpufile.Engine(threads=2)

    def transfer(times):
        for i in range(times):
            with gpufile.File(path, engine=engine) as file:
                file.read_into(array, i)
                file.read_many([host, array], [i, i + 1])
                futures = [file.read_into_async(host), file.read_into_async(array), file.read_into_on_stream(array, 0)]
                futures[i % 3].result()
                futures[1].cancel()
                with pytest.raises(gpufile.TransferError):
                    file.write_from(array)
        del futures
        gc.collect()

    def held():
        # Workers may have made a lane each, or not yet. The call also drops the objects that workers have let go.
        engine.release_buffers()
        live = [command(f"live {what}") for what in ("allocations", "streams", "events", "handles", "pinned-bytes")]
        return live, sys.getrefcount(array), len(os.listdir("/proc/self/fd"))

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def settled():
        # Workers end the dropped reads, and then release what these held.
        now, later = held(), None
        while now != later:
            time.sleep(0.2)
            now, later = held(), now
        return now

    transfer(300)
    before, bytes_before = settled(), resident()
    transfer(1700)
    deadline = time.monotonic() + 30
    while settled() != before:
        assert time.monotonic() < deadline, (settled(), before)
    assert resident() < bytes_before + (8 << 20)
    host.append(1)
