"""Lists of buffers and offsets."""

import asyncio
import errno
import random
from concurrent.futures import CancelledError

import gpufile
import numpy as np
import pytest


@pytest.fixture
def file(path):
    with gpufile.File(path, "r+") as file:
        yield file


def _bytes(buffer):
    return buffer.get() if hasattr(buffer, "get") else bytes(buffer)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_lists_fill_host_and_gpu_memory(file, content, device_array, asynchronous):
    random.seed(7)
    lengths = [random.randrange(0, 5000) for _ in range(300)]
    offsets = [random.randrange(0, len(content) - length) for length in lengths]
    make = [bytearray, device_array, np.empty]
    make[2] = lambda length: np.empty(length, np.uint8)
    buffers = [make[i % 3](length) for i, length in enumerate(lengths)]
    if asynchronous:
        total = file.read_many_async(buffers, offsets).result()
    else:
        total = file.read_many(buffers, np.array(offsets))
    assert total == sum(lengths)
    for buffer, offset, length in zip(buffers, offsets, lengths):
        assert _bytes(buffer) == content[offset : offset + length]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_lists_are_written(file, path, content, device_array, asynchronous):
    buffers = [b"one", device_array(5).set(b"three"), np.array([7], "<u4")]
    offsets = (10, 1000, 50)
    total = file.write_many_async(buffers, offsets).get() if asynchronous else file.write_many(buffers, offsets)
    assert total == 12
    expected = bytearray(content)
    expected[10:13], expected[1000:1005], expected[50:54] = b"one", b"three", b"\7\0\0\0"
    assert path.read_bytes() == expected


def test_failed_entries_are_named(file, content):
    buffers = [bytearray(10), bytearray(10), bytearray(10)]
    end = len(content) - 4
    with pytest.raises(gpufile.TransferError) as failed:
        file.read_many(buffers, [0, end, 5])
    assert (failed.value.entry, failed.value.bytes_done) == (1, 4)
    with pytest.raises(ValueError, match="3 buffers but 2 offsets"):
        file.read_many(buffers, [0, 1])
    with pytest.raises(ValueError, match="read-only"):
        file.read_many([b"abc"], [0])
    assert file.read_many([], []) == 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_entry_has_its_outcome(file, path, content, device_array, asynchronous):
    def read(*list):
        return file.read_many_each_async(*list).result() if asynchronous else file.read_many_each(*list)

    def write(*list):
        return file.write_many_each_async(*list).get() if asynchronous else file.write_many_each(*list)

    shared = np.zeros(10, np.uint8)
    buffers = [bytearray(10), shared, device_array(10), shared, bytearray(3), bytearray(7)]
    outcomes = read(buffers, [0, 5, len(content) - 4, 6, 2**63, 8])
    assert [outcomes[i] for i in (0, 2, 5)] == [10, 4, 7]
    assert [type(outcomes[i]) for i in (1, 3, 4)] == [gpufile.TransferError] * 3
    assert "overlaps" in str(outcomes[3])
    assert buffers[5] == content[8:15] and buffers[2].get()[:4] == content[-4:]
    written = write([b"ab", device_array(3).set(b"cde"), b"f"], [0, 4, 2**63])
    assert written[:2] == [2, 3] and isinstance(written[2], OSError)
    assert path.read_bytes()[:7] == b"ab" + content[2:4] + b"cde"
    assert write([], []) == read([], []) == []


def test_futures_return_their_outcomes_again(file, content):
    future = file.read_many_each_async([bytearray(10), bytearray(9)], [len(content) - 3, 2**63])

    async def awaited():
        return await future

    for outcomes in (asyncio.run(awaited()), future.result(), future.get()):
        assert outcomes[0] == 3 and isinstance(outcomes[1], gpufile.TransferError)


def test_cancelled_lists_have_an_outcome_for_each_entry(file, content):
    buffers = [bytearray(1000) for _ in range(2000)]
    future = file.read_many_each_async(buffers, [0] * 2000)
    if future.cancel():
        with pytest.raises(CancelledError) as cancelled:
            future.result()
        outcomes = cancelled.value.outcomes
    else:
        outcomes = future.result()
    for buffer, outcome in zip(buffers, outcomes, strict=True):
        if outcome == 1000:
            assert buffer == content[:1000]
        else:
            assert outcome.errno == errno.ECANCELED


class View:
    """A part of an emulated GPU's array."""

    def __init__(self, array, start, length):
        self._array = array
        data = (array.address + start, False)
        self.__cuda_array_interface__ = {"shape": (length,), "typestr": "|u1", "data": data, "version": 3}


def test_lists_ask_once_for_an_allocation(tmp_path, device_array, command):
    content = bytes(range(250)) * 4
    (tmp_path / "a").write_bytes(content)
    one, other = device_array(1000), device_array(1000)
    views = [View(one, start, 10) for start in range(0, 1000, 10)]
    offsets = list(range(990, -10, -10))
    with gpufile.File(tmp_path / "a") as file:
        file.read_many(views, offsets)
        before = command("calls cudaPointerGetAttributes")
        file.read_many(views, offsets)
        in_one = command("calls cudaPointerGetAttributes") - before
        assert in_one < 20, "a call for each buffer"
        assert one.get() == b"".join(content[offset : offset + 10] for offset in offsets)
        # Allocations take turns, and each claim is checked.
        mixed = [View(array, start, 10) for start in range(0, 1000, 10) for array in (one, other)]
        file.read_many(mixed, [offset for offset in offsets for _ in range(2)])
        assert one.get() == other.get()
        for start, length in [(995, 10), (0, 1001), (999, 2)]:
            with pytest.raises(ValueError, match=r"buffers\[1\]: the array claims .* the memory there is shorter"):
                file.read_many([views[0], View(one, start, length)], [0, 0])
