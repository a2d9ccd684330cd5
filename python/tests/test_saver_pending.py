"""Saves under way: how far they are, how they fail, the memory that they take, and several at once."""

import ctypes
import itertools
import os
import random
import signal
import contextlib
import threading
import time
import types
import weakref

import pytest

torch = pytest.importorskip("torch")

from gpufile import _budget, _copies, _gpufile, _pieces, _saves, _sources, _streams
from gpufile.safetensors.torch import load_file
from gpufile.torch import Saver, load_state

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))]


#: The kills of savers.
KILLS = 40


def eventually(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def held(monkeypatch):
    """Holds each save until the event is set."""
    go_on, save = threading.Event(), _gpufile.save_safetensors_pieces

    def wait_and_save(*arguments):
        assert go_on.wait(60)
        return save(*arguments)

    monkeypatch.setattr(_gpufile, "save_safetensors_pieces", wait_and_save)
    yield go_on
    go_on.set()


@pytest.fixture
def steps(monkeypatch):
    """Writes a piece each time that the semaphore is released."""
    semaphore, wait = threading.Semaphore(0), _streams.Ends.wait

    def step(ends):
        assert semaphore.acquire(timeout=60)
        wait(ends)

    monkeypatch.setattr(_streams.Ends, "wait", step)
    return semaphore


@pytest.fixture
def copies(monkeypatch):
    """Returns a list of the bytes that all copies have whenever one was made."""
    make, live, found = _pieces.piece_of, [], []

    def piece(*arguments):
        made = make(*arguments)
        live.extend((weakref.ref(buffer), buffer.nbytes) for buffer in made.buffers)
        found.append(sum(nbytes for memory, nbytes in live if memory() is not None))
        return made

    monkeypatch.setattr(_pieces, "piece_of", piece)
    return found


@pytest.mark.parametrize(
    "snapshot, budget, is_backwards", [("device", None, True), ("device", 1 << 20, False), ("host", None, False)]
)
@pytest.mark.parametrize("others", [{}, {"empty": torch.empty(0)}], ids=["plan", "no plan"])
def test_without_a_budget_the_end_is_copied_first(tmp_path, monkeypatch, snapshot, budget, is_backwards, others):
    make, pieces = _pieces.piece_of, []
    monkeypatch.setattr(_pieces, "piece_of", lambda parts, *rest: (pieces.append(parts), make(parts, *rest))[1])
    monkeypatch.setattr(_budget, "PIECE_BYTES", 1000)
    # A file has the wide types first.
    state = {"half": torch.rand(1100).half(), "norm": torch.rand(3), "double": torch.rand(77).double()} | others
    with Saver(sync=False, snapshot=snapshot, memory_budget=budget) as saver:
        for path in (tmp_path / "first", tmp_path / "again"):
            pieces.clear()
            saver.save(state, path).result()
            # The bytes of a tensor, and the part of them.
            found = [[(source.nbytes, start, stop) for source, start, stop in parts] for parts in pieces]
            expected = [[(616, 0, 616), (12, 0, 12), (2200, 0, 372)], [(2200, 372, 1372)], [(2200, 1372, 2200)]]
            assert found == (expected[::-1] if is_backwards else expected)
            loaded = load_file(path)
            assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_pending_saves_are_known(tmp_path, held):
    with Saver(sync=False) as saver:
        assert saver.pending == []
        futures = [saver.save({"a": torch.ones(1)}, tmp_path / f"{number}.safetensors") for number in range(3)]
        assert saver.pending == futures
        assert futures[1].cancel() and saver.pending == [futures[0], futures[2]]
        held.set()
        futures[2].result()
        assert saver.pending == []


def test_programs_may_change_their_folder_while_saves_wait(tmp_path, monkeypatch, held):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with Saver(sync=False) as saver:
        saves = [saver.save({"a": torch.ones(1)}, name) for name in "xy"]
        monkeypatch.chdir("other")
        held.set()
    assert [save.path for save in saves] == ["x", "y"]
    assert sorted(os.listdir(tmp_path)) == ["other", "x", "y"] and not os.listdir(tmp_path / "other")


def test_progress_counts_written_bytes(tmp_path, steps, monkeypatch):
    monkeypatch.setattr(_budget, "PIECE_BYTES", 1000)
    with Saver(sync=False) as saver:
        assert saver.progress == (0, 0)
        saves = [saver.save({"a": torch.ones(400), "b": torch.ones(100)}, tmp_path / name) for name in "xy"]
        assert saver.progress == (0, 4000)
        steps.release()
        eventually(lambda: saver.progress.done_bytes == 1000)
        assert saves[0].progress == (1000, 2000) and saves[1].progress == (0, 2000)
        steps.release()
        eventually(lambda: saves[0].done() and saver.progress == (0, 2000))
        steps.release()
        steps.release()
        saves[1].result()
        assert saver.progress == (0, 0) and saves[1].progress == (2000, 2000)


def test_failures_raise_at_the_next_save(tmp_path):
    state, path = {"a": torch.ones(3)}, tmp_path / "x"
    saver = Saver(sync=False)
    failed = saver.save(state, tmp_path / "none" / "x")
    eventually(failed.done)
    with pytest.raises(FileNotFoundError) as raised:
        saver.save(state, path)
    assert raised.value.__notes__ == [f"It is the failure of an earlier save, to {str(tmp_path / 'none' / 'x')!r}."]
    assert not path.exists()
    # It was raised once, also for the end.
    assert saver.save(state, path).result() == path.stat().st_size
    seen = saver.save(state, tmp_path / "none" / "y")
    assert isinstance(seen.exception(), FileNotFoundError)
    saver.save(state, path)
    saver.close()
    with pytest.raises(RuntimeError, match="this saver is closed"):
        saver.save(state, path)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("snapshot", ["device", "host"])
def test_copies_keep_within_the_budget(tmp_path, copies, snapshot, device):
    state = {f"w{number}": torch.randn(size, device=device) for number, size in enumerate([3, 5000, 1, 700, 0, 20000])}
    state["scalar"], state["half"] = torch.tensor(3, device=device), torch.ones(77, dtype=torch.bfloat16, device=device)
    expected = {name: tensor.clone() for name, tensor in state.items()}
    with Saver(sync=False, snapshot=snapshot, memory_budget=10_000) as saver:
        for step in range(3):
            saver.save(state, tmp_path / str(step))
            for tensor in state.values():
                tensor.add_(1)
    assert max(copies) <= 10_000 and len(copies) > 30
    for step in range(3):
        loaded = load_file(tmp_path / str(step), device)
        assert loaded.keys() == expected.keys()
        for name, tensor in expected.items():
            for _ in range(step):
                tensor = tensor + 1
            assert torch.equal(loaded[name], tensor), (step, name)


def test_saves_wait_for_the_memory_of_others(tmp_path, steps, copies):
    saver, state = Saver(sync=False, memory_budget=1000), {"a": torch.ones(100)}
    saves = [saver.save(state, tmp_path / name) for name in "ab"]
    third = threading.Thread(target=lambda: saves.append(saver.save(state, tmp_path / "c")))
    third.start()
    third.join(0.1)
    assert third.is_alive() and max(copies) == 800
    steps.release()
    third.join(60)
    assert not third.is_alive() and max(copies) == 800
    steps.release()
    steps.release()
    saver.close()
    assert all(save.result() for save in saves) and len(saves) == 3


def test_threads_share_a_budget(tmp_path):
    state = {"a": torch.arange(10_000)}
    with Saver(sync=False, memory_budget=5000, files_at_once=2) as saver:
        threads = [threading.Thread(target=saver.save, args=(state, tmp_path / name)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert all(torch.equal(load_file(tmp_path / name)["a"], state["a"]) for name in "abcd")


def test_failed_saves_give_their_memory_back(tmp_path):
    state = {"a": torch.ones(100_000)}
    with Saver(sync=False, memory_budget=1000) as saver:
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                saver.save(state, tmp_path / "none" / "x").result()
        assert saver.save(state, tmp_path / "x").result() > 400_000
    assert saver._budget._taken == 0


def test_interrupted_copies_end_the_save(tmp_path, monkeypatch):
    path, state = tmp_path / "x", {"a": torch.ones(1000)}
    saver = Saver(sync=False, memory_budget=1000)
    saver.save({"a": torch.zeros(3)}, path).result()

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_budget.Budget, "take", interrupt)
        patch.setattr(_budget.Budget, "try_to_take", lambda budget, len_bytes: False)
        with pytest.raises(KeyboardInterrupt):
            saver.save(state, path)
    eventually(lambda: not saver.pending)
    assert torch.equal(load_file(path)["a"], torch.zeros(3)) and os.listdir(tmp_path) == ["x"]
    assert saver.save(state, path).result() > 4000
    saver.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_threads_start_after_all_that_the_program_needs(tmp_path, monkeypatch, overlap):
    steps = []
    for owner, name in ((_pieces.Pieces, "copy"), (_streams.Ends, "order"), (_saves.Saves, "start")):

        def step(*arguments, name=name, call=getattr(owner, name)):
            found = call(*arguments)
            steps.append(name)
            return found

        monkeypatch.setattr(owner, name, step)
    with Saver(sync=False, overlap=overlap) as saver:
        saver.save({"a": torch.ones(3)}, tmp_path / "x.safetensors")
    assert steps == (["copy", "start"] if overlap else ["copy", "order", "start"])
    assert load_file(tmp_path / "x.safetensors")["a"].sum() == 3


def test_a_save_without_a_thread_stops_no_other(tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    path = tmp_path / "x.safetensors"
    with Saver() as saver:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                saver.save({"x": torch.zeros(3)}, path)
        saver.save({"x": torch.ones(3)}, path).result(20)
        assert not saver.pending
    assert load_file(path)["x"].tolist() == [1, 1, 1]


def test_files_are_saved_at_once(tmp_path, monkeypatch):
    together, save, under_way = threading.Barrier(2), _gpufile.save_safetensors_pieces, []

    def meet(path, *arguments):
        assert path not in under_way
        under_way.append(path)
        together.wait(60)
        try:
            return save(path, *arguments)
        finally:
            under_way.remove(path)

    monkeypatch.setattr(_gpufile, "save_safetensors_pieces", meet)
    with Saver(sync=False, files_at_once=2) as saver:
        for step in range(3):
            for name in "ab":
                saver.save({"a": torch.full((10,), step)}, tmp_path / name)
    assert all(load_file(tmp_path / name)["a"][0] == 2 for name in "ab")


def test_wrong_limits_are_refused():
    for options, error, message in [
        ({"memory_budget": 0}, ValueError, "memory_budget is 0: a copy needs at least 1 byte"),
        ({"memory_budget": -1}, ValueError, "memory_budget is -1: it cannot be negative"),
        ({"memory_budget": "1 GB"}, TypeError, "memory_budget: expected an integer, not str"),
        ({"files_at_once": 0}, ValueError, "files_at_once is 0: expected at least 1"),
        ({"files_at_once": 1.5}, TypeError, "files_at_once: expected an integer, not float"),
    ]:
        with pytest.raises(error, match=message):
            Saver(**options)


class Gpu:
    """Streams and events, and what they do. An event has happened after so many looks."""

    def __init__(self, monkeypatch, looks):
        self.calls = []

        class Stream:
            def __init__(self, name):
                self.name = name

            def wait_stream(stream, other):
                self.calls.append((stream.name, "follows", other.name))

            def wait_event(stream, event):
                self.calls.append((stream.name, "waits for the end of", event.stream))

        class Event:
            def record(event, stream):
                event.stream, event.looks = stream.name, 0

            def query(event):
                self.calls.append(("host", "looks at", event.stream))
                event.looks += 1
                return event.looks > looks

        class Tensor:
            def record_stream(tensor, stream):
                self.calls.append(("memory", "waits for", stream.name))

        self.Tensor = Tensor
        cuda = type("Cuda", (), {"Stream": lambda device: Stream("copies"), "Event": Event})
        cuda.stream, cuda.current_stream = contextlib.nullcontext, lambda device: Stream("training")
        monkeypatch.setattr(_streams, "_cuda", cuda)
        monkeypatch.setattr(_streams, "_streams", {})

    def copied(self):
        """Returns the ends of a copy, and a reference to the tensor that it reads."""
        ends, device, tensor = _streams.Ends(), torch.device("cuda", 0), self.Tensor()
        with _streams.Copying() as copying:
            assert copying.on(device) is copying.on(device) is _streams.stream_of(device)
            copying.read[device].append(tensor)
        ends.mark_all(copying)
        return ends, weakref.ref(tensor)


def test_copies_have_a_stream_of_their_own(monkeypatch):
    gpu = Gpu(monkeypatch, looks=2)
    ends, _ = gpu.copied()
    ends.order()
    ends.wait()
    assert gpu.calls[:2] == [("copies", "follows", "training"), ("training", "waits for the end of", "copies")]
    assert gpu.calls[2:] == [("host", "looks at", "copies")] * 3


def test_tensors_stay_until_their_copies_have_ended(monkeypatch):
    gpu = Gpu(monkeypatch, looks=1)
    ends, tensor = gpu.copied()
    ends.look()
    assert tensor() is not None
    ends.look()
    assert tensor() is None and ("memory", "waits for", "copies") not in gpu.calls
    for forget in (_streams.Ends.let_go, lambda ends: None):
        gpu.calls.clear()
        ends, tensor = gpu.copied()
        forget(ends)
        del ends
        assert tensor() is None and gpu.calls[1:] == [("memory", "waits for", "copies")]


def test_runs_of_tiny_parts_take_one_copy(monkeypatch):
    calls = []

    def copy_ranges(device, stream, target, ranges):
        calls.append(len(ranges))
        for address, len_bytes in ranges:
            ctypes.memmove(target, address, len_bytes)
            target += len_bytes

    monkeypatch.setattr(_gpufile, "copy_ranges", copy_ranges)
    monkeypatch.setattr(_copies, "TINY_BYTES", 20)
    tiny, long = [16] * 9, [40, 20]
    for sizes, expected in [
        (long + tiny, [2]),
        (tiny + long, [2]),
        (tiny, []),
        (long, [2]),
        (tiny[:7] + long + tiny[:7], [16]),
        (tiny + long + tiny[:7] + long + tiny + long, [11, 2]),
    ]:
        tensors = [torch.randint(256, (size // 4,), dtype=torch.int32) for size in sizes]
        parts = [(_sources.Source(tensor), 0, tensor.nbytes) for tensor in tensors]
        buffer = torch.zeros(sum(sizes), dtype=torch.uint8)
        calls.clear()
        _copies._copy_on_device(parts, buffer, 0)
        assert torch.equal(buffer, torch.cat(tensors).view(torch.uint8)) and calls == expected


@pytest.mark.parametrize("device", DEVICES)
def test_long_and_short_tensors_are_saved_as_they_were(tmp_path, device):
    long = 1 << 18
    state = {f"w{number}": torch.arange(1.0 * (long + number % 3 * 7 - 7), device=device) for number in range(9)}
    state |= {"tied": state["w1"], "conjugate": torch.complex(state["w3"], state["w3"]).conj()}
    expected = {name: tensor.clone().cpu() for name, tensor in state.items()}
    with Saver(sync=False) as saver:
        for step in range(3):
            saver.save({"step": step, "model": state}, tmp_path / f"{step}")
            for number in range(9):
                state[f"w{number}"].add_(1)
    for step in range(3):
        found = load_state(tmp_path / f"{step}")["model"]
        assert found.keys() == expected.keys()
        assert torch.equal(found.pop("conjugate"), expected["conjugate"].resolve_conj())
        assert all(torch.equal(tensor, expected[name] + step) for name, tensor in found.items())


def test_killed_savers_leave_the_old_file_or_the_new(tmp_path):
    path, chance = tmp_path / "x", random.Random(39)
    Saver(sync=False).save({"a": torch.zeros(10_000)}, path).result()
    # torch starts threads for more elements, which the children lack.
    seen, kills = set(), 0
    while kills < KILLS or len(seen) < 4:
        kills += 1
        child = os.fork()
        if child == 0:
            with Saver(sync=False, memory_budget=8_000, files_at_once=2) as saver:
                for step in itertools.count(1):
                    saver.save({"a": torch.full((10_000,), step)}, path)
        time.sleep(chance.uniform(0, 0.001 * min(kills, 500)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        values = load_file(path)["a"].unique()
        assert len(values) == 1
        seen.add(int(values))
    # The next save removes what the others left.
    with Saver(sync=False) as saver:
        saver.save({"a": torch.ones(3)}, path)
    assert os.listdir(tmp_path) == ["x"]


def test_copies_on_gpus_are_written(tmp_path, device_array):
    content = os.urandom(4000)
    memory = device_array(4000).set(content)
    stand_in = types.SimpleNamespace(data_ptr=lambda: memory.address, nbytes=4000)
    pieces = iter([[_copies._Ended(stand_in)]])
    specs = [("a", "U8", [4000])]
    length = _gpufile.save_safetensors_pieces(tmp_path / "x", specs, None, False, pieces)
    assert length == (tmp_path / "x").stat().st_size
    assert bytes(load_file(tmp_path / "x")["a"].tolist()) == content


def test_iterators_that_raise_keep_the_old_file(tmp_path):
    def pieces():
        yield [b"123"]
        raise KeyError("mine")

    (tmp_path / "x").write_text("old")
    for given, error, message in [
        (pieces(), KeyError, "mine"),
        (iter([[b"123"]]), OSError, "1 bytes of the tensors are missing"),
        (iter([[b"123"], [b"45"]]), OSError, "the tensors lack 1 bytes, and 2 were given"),
        (iter([5]), TypeError, "not iterable"),
    ]:
        with pytest.raises(error, match=message):
            _gpufile.save_safetensors_pieces(tmp_path / "x", [("a", "U8", [4])], None, False, given)
    assert (tmp_path / "x").read_text() == "old" and os.listdir(tmp_path) == ["x"]
