"""Safetensors files to and from the memory of an emulated GPU."""

import contextlib
import gc
import os
import threading
import time
import weakref
from concurrent.futures import CancelledError

import pytest

np = pytest.importorskip("numpy")

from conftest import COPIES

from gpufile import TransferError, _gpufile
from gpufile.safetensors import _load, _numpy, _save
from gpufile.safetensors import numpy as ours


class OnDevice:
    """A framework whose memory is that of the emulated GPU."""

    copies = False
    step_bytes = None

    def __init__(self, device_array):
        self.allocate = device_array
        self.bases = []

    def memory(self, group):
        return self.allocate(group.len_bytes)

    def memories(self, groups):
        return map(self.memory, groups)

    def fill(self, tensors, base, table):
        self.bases.append(base)
        for code, start, lens, names, shapes in table:
            dtype = _numpy.dtype_of(code)
            for name, shape, length in zip(names, shapes, lens):
                tensors[name] = (base, dtype, shape, start * dtype.itemsize)
                start += length
        tensors.pop(None, None)

    @staticmethod
    def get(tensor):
        base, dtype, shape, start = tensor
        return np.ndarray(shape, dtype, bytearray(base.get()), start)


@pytest.fixture
def content():
    random = np.random.default_rng(1)
    made = {f"w{number}": random.standard_normal((number % 7, 33 + number)) for number in range(40)}
    made |= {f"b{number}": random.integers(0, 99, 1 + number, np.uint8) for number in range(40)}
    return made | {f"s{number}": np.float32(number) for number in range(21)} | {"large": random.bytes(9_000_001)}


@pytest.fixture
def model(tmp_path, content):
    content["large"] = np.frombuffer(content["large"], np.uint8)
    path = tmp_path / "model.safetensors"
    ours.save_file(content, path, sync=False)
    return path


@pytest.mark.parametrize("budget", [None, 1, 100_000])
def test_tensors_arrive_on_the_gpu(model, content, device_array, budget):
    framework = OnDevice(device_array)
    loaded = _load.load(_gpufile.Checkpoint([model]), framework, None, budget)
    arrived = dict(_load.stream(_gpufile.Checkpoint([model]), framework, None, budget or 1 << 20))
    assert set(loaded) == set(arrived) == set(content)
    for name, array in content.items():
        for tensor in (loaded[name], arrived[name]):
            assert OnDevice.get(tensor).tobytes() == array.tobytes(), name


def test_steps_with_progress_arrive_on_the_gpu(model, content, device_array, monkeypatch):
    monkeypatch.setattr(_load.Meter, "SHORTEST_STEP", 70_001)
    seen = []
    framework = OnDevice(device_array)
    loaded = _load.load(_gpufile.Checkpoint([model]), framework, progress=lambda *step: seen.append(step))
    assert len(seen) > 30 and seen[-1][0] == seen[-1][1]
    assert all(OnDevice.get(loaded[name]).tobytes() == array.tobytes() for name, array in content.items())


def test_tensors_of_the_gpu_are_saved(tmp_path, content, device_array):
    content.pop("large")
    items = _save.items_of({name: np.asarray(array) for name, array in content.items()})
    on_gpu = [(name, code, shape, device_array(len(memory)).set(memory.tobytes())) for name, code, shape, memory in items]
    path = tmp_path / "saved.safetensors"
    length = _gpufile.save_safetensors(path, on_gpu, {"a": "b"}, False, False, False)
    assert length == os.path.getsize(path)
    assert path.read_bytes() == ours.save({name: np.asarray(array) for name, array in content.items()}, {"a": "b"})


def test_memory_of_the_wrong_length_is_refused(model, device_array):
    checkpoint = _gpufile.Checkpoint([model])
    (group,) = checkpoint.groups()
    with pytest.raises(ValueError, match="exceed the buffer"):
        checkpoint.read([(group, device_array(group.len_bytes - 1), 0, group.len_bytes)])
    with pytest.raises(ValueError, match="read-only"):
        checkpoint.read([(group, bytes(group.len_bytes), 0, group.len_bytes)])
    with pytest.raises(ValueError, match="another checkpoint"):
        _gpufile.Checkpoint([model]).read([(group, bytearray(group.len_bytes), 0, group.len_bytes)])
    reading = checkpoint.read([(group, bytearray(group.len_bytes), 0, group.len_bytes)])
    reading.cancel()
    with contextlib.suppress(CancelledError):
        reading.result()
    assert reading.done()


def test_other_threads_run_while_cuda_finds_memory(model, content, device_array, command):
    checkpoint = _gpufile.Checkpoint([model])
    group = checkpoint.part("large", [(0, len(content["large"]))])
    memory = device_array(group.len_bytes)
    command("fault cudaPointerGetAttributes times=all hold=1")
    reader = threading.Thread(target=checkpoint.read_now, args=(group, memory))
    reader.start()
    # This thread would wait for Python's lock.
    while command("held") == 0:
        time.sleep(0.001)
    command("release")
    reader.join(60)
    assert not reader.is_alive() and memory.get() == content["large"].tobytes()


def test_threads_report_what_is_wrong_with_memory(model, content, device_array, command):
    checkpoint = _gpufile.Checkpoint([model])
    group = checkpoint.part("large", [(0, len(content["large"]))])
    raised = []

    def read(memory):
        def call():
            try:
                checkpoint.read_now(group, memory)
            except Exception as error:
                raised.append(type(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(60)

    read(device_array(group.len_bytes - 1))
    read(object())
    read(bytearray(10))
    command("fault cudaMemcpyAsync times=all err=2")
    read(device_array(group.len_bytes))
    assert raised == [ValueError, TypeError, ValueError, TransferError]


class Piece:
    """A part of a device array."""

    def __init__(self, array, start, length, stream=None):
        self.array = array
        self.fields = {"shape": (length,), "data": (array.address + start, False), "stream": stream}

    @property
    def __cuda_array_interface__(self):
        return self.array.__cuda_array_interface__ | self.fields


@pytest.fixture
def neighbours(tmp_path):
    """Returns a file of eight tensors of 1,000,000 bytes, its group, and the bytes."""
    content = {f"w{number}": np.frombuffer(os.urandom(1_000_000), np.uint8) for number in range(8)}
    path = tmp_path / "neighbours.safetensors"
    ours.save_file(content, path, sync=False)
    checkpoint = _gpufile.Checkpoint([path])
    (group,) = checkpoint.groups()
    return checkpoint, group, b"".join(array.tobytes() for array in content.values())


def test_neighbours_in_one_allocation_are_read_as_one(neighbours, device_array, command):
    (checkpoint, group, whole), count, length = neighbours, 8, 1_000_000

    def read(gap, streams=(None,)):
        """Returns the copies that it took."""
        arrays = [device_array((length + gap) * count).set(bytes((length + gap) * count))]
        starts = [number * (length + gap) for number in range(count)]
        pieces = [Piece(arrays[0], start, length, streams[at % len(streams)]) for at, start in enumerate(starts)]
        before = sum(command(f"calls {function}") for function in COPIES)
        parts = [(number * length, piece) for number, piece in enumerate(pieces)]
        checkpoint.read([(group, parts, 0, group.len_bytes)]).result()
        copies = sum(command(f"calls {function}") for function in COPIES) - before
        arrived = arrays[0].get()
        assert b"".join(arrived[start : start + length] for start in starts) == whole
        assert all(not any(arrived[start + length : start + length + gap]) for start in starts)
        return copies

    assert read(0) < read(1)
    assert read(0, (1, 2)) == read(1)


def test_owners_of_neighbours_live_until_the_read_ends(neighbours, device_array, let_copies_go):
    checkpoint, group, whole = neighbours
    array = device_array(len(whole))
    pieces = [Piece(array, start, 1_000_000) for start in range(0, len(whole), 1_000_000)]
    owners = [weakref.ref(piece) for piece in pieces]
    reading = checkpoint.read([(group, [(number * 1_000_000, piece) for number, piece in enumerate(pieces)], 0, len(whole))])
    del pieces
    gc.collect()
    assert not reading.done() and all(owner() is not None for owner in owners)
    let_copies_go()
    reading.result()
    assert array.get() == whole
    del reading
    gc.collect()
    assert all(owner() is None for owner in owners)
