"""Transfers in flight: waiting, cancelling, asyncio, and the life of buffers."""

import asyncio
import contextlib
import errno
import gc
import os
import threading
import time
import weakref
from concurrent.futures import CancelledError

import gpufile
import numpy as np
import pytest


@pytest.fixture
def file(path):
    with gpufile.File(path, "r+") as file:
        yield file


def test_futures_return_the_number_of_bytes(file, content, device_array):
    host, array = bytearray(1000), device_array(2000)
    futures = [file.read_into_async(host, 5), file.read_into_async(array, 7), file.read_into_async(host, 2**40)]
    assert [future.result() for future in futures] == [1000, 2000, 0]
    assert all(future.done() for future in futures)
    assert [future.get() for future in futures] == [1000, 2000, 0]
    assert (host, array.get()) == (content[5:1005], content[7:2007])


def test_written_futures_change_the_file(file, path, content, device_array):
    assert file.write_from_async(device_array(3).set(b"abc"), 9).result() == 3
    assert file.write_from_async(b"...", 1, 2, buffer_offset=1).result() == 2
    assert path.read_bytes()[:12] == content[:1] + b".." + content[3:9] + b"abc"


def test_failed_futures_raise_each_time(path):
    with gpufile.File(path) as file:
        future = file.write_from_async(b"abc")
    for _ in range(2):
        with pytest.raises(gpufile.TransferError) as failed:
            future.result()
        assert failed.value.errno == errno.EBADF


def test_results_time_out_while_in_flight(file, device_array, let_copies_go, content):
    array = device_array(100_000)
    future = file.read_into_async(array)
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    with pytest.raises(TimeoutError):
        future.result(0.05)
    assert not future.done() and "in flight" in repr(future)
    let_copies_go()
    assert future.result(timeout=60) == 100_000
    assert array.get() == content[:100_000]
    with pytest.raises(ValueError):
        future.result(float("inf"))


def test_buffers_live_until_the_transfer_ends(file, device_array, let_copies_go):
    array = device_array(5000)
    alive = weakref.ref(array)
    future = file.read_into_async(array)
    del array
    gc.collect()
    assert alive() is not None
    let_copies_go()
    future.result()
    gc.collect()
    assert alive() is None


def test_exported_buffers_cannot_move_in_flight(file, device_array, let_copies_go):
    host = bytearray(5000)
    # The list is in flight until its other entry has been copied.
    future = file.read_many_async([host, device_array(5000)], [0, 0])
    with pytest.raises(BufferError):
        host.append(1)
    let_copies_go()
    future.result()
    host.append(1)


def test_buffers_that_hold_their_future_are_freed(file, device_array, let_copies_go):
    for make in (device_array, lambda length: np.empty(length, np.uint8).view(type("Array", (np.ndarray,), {}))):
        array = make(5000)
        array.future = file.read_into_async(array)
        alive = weakref.ref(array)
        del array
        if make is device_array:
            gc.collect()
            assert alive() is not None
            let_copies_go()
        deadline = time.monotonic() + 20
        while alive() is not None:
            assert time.monotonic() < deadline
            gc.collect()


def test_dropped_reads_end_and_release_buffers(file, device_array, slow_copies):
    array = device_array(1_000_000)
    alive = weakref.ref(array)
    file.read_into_async(array)
    del array
    deadline = time.monotonic() + 20
    while alive() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_cancelled_reads_stop_early(tmp_path, device_array, slow_copies):
    path = tmp_path / "long"
    path.write_bytes(b"x" * 100_000_000)
    array = device_array(100_000_000)
    with gpufile.File(path, engine=gpufile.Engine(threads=1, chunk_bytes=100_000)) as file:
        future = file.read_into_async(array)
        assert future.cancel() and future.cancel()
        with pytest.raises(CancelledError) as cancelled:
            future.result()
        done = cancelled.value.bytes_done
        assert 0 <= done < 100_000_000 and str(done) in str(cancelled.value)
        assert array.get()[:done] == b"x" * done
        assert future.done() and future.cancelled() and future.cancel() and not future.running()
        with pytest.raises(CancelledError):
            future.exception()
        read = file.read_into_async(array, length=10)
        assert read.result() == 10 and not read.cancel() and not read.cancelled()


def test_asyncio_awaits_many_transfers_at_once(file, content, device_array):
    async def read():
        buffers = [bytearray(3000 + i) for i in range(20)] + [device_array(40_000) for _ in range(3)]
        futures = [file.read_into_async(buffer, i) for i, buffer in enumerate(buffers)]
        outcomes = await asyncio.gather(*futures)
        assert outcomes == [3000 + i for i in range(20)] + [40_000] * 3
        assert buffers[3] == content[3:3006] and buffers[20].get() == content[20:40_020]
        with pytest.raises(gpufile.TransferError):
            await file.read_into_async(bytearray(1), 2**63)

    asyncio.run(read())


def test_cancelling_wakes_the_tasks_that_await(file, device_array, let_copies_go):
    async def cancel():
        # No copy ends before the release, so the read is in flight.
        future = file.read_into_async(device_array(100_000))
        tasks = [asyncio.ensure_future(future) for _ in range(3)]
        await asyncio.sleep(0.05)
        # It returns at once, and the transfer has its buffer until the copy ends.
        assert future.cancel() and not future.done() and not future.cancelled()
        let_copies_go()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert [type(outcome) for outcome in outcomes] == [CancelledError] * 3

    asyncio.run(cancel())


def descriptors():
    """Counts the descriptors of loops that wait. Threads of other tests may have sockets."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventfd]"
    return found


def test_loops_that_close_during_a_wait_are_freed(file, device_array, let_copies_go):
    async def wait(future):
        await future

    before, loop = descriptors(), asyncio.new_event_loop()
    # The task that never ends is reported.
    loop.set_exception_handler(lambda *_: None)
    task = loop.create_task(wait(file.read_into_async(device_array(100_000))))
    loop.run_until_complete(asyncio.sleep(0))
    assert descriptors() > before
    loop.close()
    closed = weakref.ref(loop)
    del task, loop
    gc.collect()
    assert closed() is None
    let_copies_go()


def test_tasks_of_one_loop_share_a_descriptor(file, device_array, let_copies_go):
    async def read():
        first = asyncio.ensure_future(file.read_into_async(device_array(100)))
        await asyncio.sleep(0.05)
        before = descriptors()
        others = [asyncio.ensure_future(file.read_into_async(device_array(100))) for _ in range(50)]
        await asyncio.sleep(0.05)
        assert descriptors() <= before
        let_copies_go()
        assert await asyncio.gather(first, *others) == [100] * 51
        assert descriptors() < before
        # The second use.
        assert await file.read_into_async(device_array(100)) == 100

    asyncio.run(read())


def test_the_event_loop_runs_while_a_transfer_is_held(file, device_array, let_copies_go):
    async def read():
        future = file.read_into_async(device_array(100_000))
        task = asyncio.ensure_future(future)
        second = asyncio.ensure_future(future)
        await asyncio.sleep(0.05)
        assert not task.done()
        second.cancel()
        let_copies_go()
        assert await asyncio.wait_for(task, 60) == 100_000

    asyncio.run(read())


def test_threads_share_files_and_futures(file, content, device_array):
    wrong = []

    def work(seed):
        for i in range(20):
            buffer = bytearray(10_007 * seed + i) if seed % 2 else device_array(10_007 * seed + i)
            offset = 31 * seed + i
            future = file.read_into_async(buffer, offset)
            futures.append(future)
            length = future.result()
            got = bytes(buffer) if seed % 2 else buffer.get()
            if got != content[offset : offset + length]:
                wrong.append((seed, i))

    futures = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 7)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for future in list(futures):
            future.result()
    assert not wrong and len(futures) == 120


def test_streams_order_transfers(file, content, gpu, device_array):
    import ctypes

    stream = ctypes.c_void_p()
    assert gpu.cudaStreamCreate(ctypes.byref(stream)) == 0

    class Protocol:
        def __cuda_stream__(self):
            return (0, stream.value)

    class Torch:
        cuda_stream = stream.value

    class Cupy:
        ptr = stream.value

    for object_ in (stream.value, Protocol(), Torch(), Cupy(), np.uint64(stream.value), 0, None):
        array = device_array(70_000)
        read = file.read_into_on_stream(array, object_, 3)
        write = file.write_from_on_stream(array, object_, 100_000, 500, buffer_offset=10)
        assert (read.result(), write.get()) == (70_000, 500)
        assert array.get() == content[3:70_003]
        check = bytearray(500)
        file.read_into(check, 100_000)
        assert check == content[13:513]
    assert asyncio.run(_await(file.read_into_on_stream(device_array(100), stream.value))) == 100
    with pytest.raises(TypeError, match="not a CUDA stream"):
        file.read_into_on_stream(device_array(1), "stream")
    with pytest.raises(ValueError, match="PerThread"):
        file.read_into_on_stream(device_array(1), 2)
    assert gpu.cudaStreamDestroy(stream) == 0


async def _await(future):
    return await future
