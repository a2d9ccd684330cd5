"""Futures as `concurrent.futures` and asyncio use those of executors."""

import asyncio
import concurrent.futures
import copy
import gc
import pickle
import threading
import time
import weakref
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError, as_completed, wait

import gpufile
import pytest


@pytest.fixture
def file(path):
    with gpufile.File(path, "r+") as file:
        yield file


@pytest.fixture
def ended(file):
    future = file.read_into_async(bytearray(5))
    future.result()
    return future


@pytest.fixture
def failed(path):
    with gpufile.File(path) as file:
        return file.write_from_async(b"abc")


def test_functions_of_the_library_wait_for_transfers(file, device_array, let_copies_go, ended, failed):
    held = [file.read_into_async(device_array(100)) for _ in range(3)]
    assert isinstance(held[0], concurrent.futures.Future)
    assert wait([*held, ended], timeout=0).done == {ended}
    assert wait([*held, ended], return_when=FIRST_COMPLETED).not_done == set(held)
    assert failed in wait([*held, failed], return_when=FIRST_EXCEPTION).done
    with pytest.raises(TimeoutError):
        list(as_completed(held, timeout=0.01))
    threading.Timer(0.05, let_copies_go).start()
    assert wait(held, timeout=60, return_when=ALL_COMPLETED) == (set(held), set())
    assert set(as_completed([*held, ended, failed], timeout=60)) == {*held, ended, failed}


def test_waits_return_all_of_many_transfers(file, device_array):
    # Some end while `wait` counts those that have not.
    for _ in range(60):
        reads = [file.read_into_async(device_array(100)) for _ in range(100)]
        assert wait(reads, timeout=60) == (set(reads), set())


def test_transfers_mix_with_those_of_executors(file, device_array, let_copies_go):
    held = [file.read_into_async(device_array(100)) for _ in range(20)]
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        others = [executor.submit(pow, 2, number) for number in range(5)]
        executor.submit(let_copies_go)
        assert {future.result() for future in as_completed([*held, *others], timeout=60)} == {1, 2, 4, 8, 16, 100}


def test_callbacks_run_once_after_the_end(file, device_array, let_copies_go, ended, failed, caplog):
    called, threads = [], []

    def callback(future):
        called.append(future)
        threads.append(threading.current_thread())

    def wrong(future):
        raise ValueError("of a callback")

    held = file.read_into_async(device_array(100))
    for future in (held, ended, failed):
        future.add_done_callback(wrong)
        future.add_done_callback(callback)
        future.add_done_callback(callback)
    assert held not in called and called.count(ended) == 2
    let_copies_go()
    deadline = time.monotonic() + 60
    while len(called) < 6 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [called.count(future) for future in (held, ended, failed)] == [2, 2, 2]
    assert caplog.text.count("ValueError: of a callback") == 3
    # Workers of the engine run no code of Python.
    assert {thread.name for thread in threads} <= {"MainThread", "gpufile-futures"}


def test_exceptions_are_returned_or_raised(file, ended, failed, device_array, let_copies_go):
    assert ended.exception() is None and ended.exception(0) is None
    assert isinstance(failed.exception(), gpufile.TransferError) and not failed.cancelled()
    held = file.read_into_async(device_array(100))
    for call in (held.exception, held.result):
        with pytest.raises(TimeoutError):
            call(0.01)
    assert held.running() and not ended.running()


def test_cancel_returns_at_once(file, device_array, let_copies_go, command):
    array = device_array(100_000)
    alive, held = weakref.ref(array), file.read_into_async(array)
    del array
    called = []
    deadline = time.monotonic() + 60
    while command("held") == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    held.add_done_callback(called.append)
    start = time.monotonic()
    # The copy is held, so that nothing ends.
    assert held.cancel() and held.cancel()
    assert time.monotonic() - start < 30
    gc.collect()
    assert alive() is not None and not held.done() and not held.cancelled() and held.running() and not called
    let_copies_go()
    assert wait([held], 60).done == {held} and held.cancelled()
    for call in (held.result, held.exception, held.get):
        with pytest.raises(CancelledError, match="cancelled after"):
            call()
    deadline = time.monotonic() + 60
    while not called and time.monotonic() < deadline:
        time.sleep(0.001)
    assert called == [held] and "cancelled" in repr(held)


def test_stream_ordered_transfers_end_for_waits(file, device_array, command):
    command("fault cudaMemcpyAsync times=all delay_us=5000")
    reads = [file.read_into_on_stream(device_array(100), 0) for _ in range(3)]
    called = []
    for read in reads:
        read.add_done_callback(called.append)
        assert not read.cancel() or read.done()
    assert set(as_completed(reads, timeout=60)) == set(reads)
    assert [read.result() for read in reads] == [100] * 3


def test_asyncio_wraps_transfers(file, device_array, let_copies_go, failed):
    async def main():
        held = [file.read_into_async(device_array(100)) for _ in range(3)]
        wrapped = [asyncio.wrap_future(future) for future in held]
        wrapped[0].cancel()
        await asyncio.sleep(0.01)
        let_copies_go()
        assert await asyncio.wait_for(asyncio.gather(*wrapped[1:]), 60) == [100, 100]
        with pytest.raises(gpufile.TransferError):
            await asyncio.wrap_future(failed)
        # The task is not cancelled by the end of a transfer that was.
        with pytest.raises(CancelledError):
            await held[0]

    asyncio.run(main())


def test_callbacks_keep_a_dropped_read(file, device_array, let_copies_go, content):
    array, called = device_array(1000), threading.Event()
    file.read_into_async(array).add_done_callback(lambda future: called.set())
    gc.collect()
    let_copies_go()
    assert called.wait(60)
    assert array.get() == content[:1000]


def test_ended_futures_are_released(file, device_array):
    futures = [file.read_into_async(device_array(100)) for _ in range(100)]
    wait(futures)
    alive = [weakref.ref(future) for future in futures]
    del futures
    deadline = time.monotonic() + 60
    while any(reference() is not None for reference in alive):
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.001)


def test_futures_cannot_be_copied_to_processes(ended):
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            call(ended)
    with pytest.raises(AttributeError, match="no_such_name"):
        ended.no_such_name


def test_forked_children_wait_for_their_own_transfers(python):
    assert python("""
        from concurrent.futures import wait
        file, held = gpufile.File(path), []
        gpu.emulator_control(b"fault cudaMemcpyAsync times=all hold=1")
        held.append(file.read_into_async(conftest.DeviceArray(gpu, 100)))
        told = threading.Event()
        held[0].add_done_callback(lambda future: told.set())
        # No worker is in a call that has a lock.
        while gpu.emulator_control(b"held") == 0:
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            own = [gpufile.File(path).read_into_async(bytearray(100)) for _ in range(3)]
            own[0].add_done_callback(held.append)
            assert wait(own, 60).done == set(own)
            try:
                wait(held, 60)
            except RuntimeError as error:
                assert "forked" in str(error)
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        gpu.emulator_control(b"release")
        assert wait(held, 60).done == set(held) and told.wait(60)
    """) == ""
