"""The plan that a `Saver` keeps for its next save of the same tensors."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from gpufile import _gpufile, _saver
from gpufile.safetensors.torch import load_file
from gpufile.torch import Saver, load_state


@pytest.fixture
def plans(monkeypatch):
    """Returns a list with each plan that is made."""
    made, plan_of = [], _saver.plan_of
    monkeypatch.setattr(_saver, "plan_of", lambda *arguments: (made.append(plan_of(*arguments)), made[-1])[1])
    return made


@pytest.mark.parametrize("snapshot", ["device", "host", None])
@pytest.mark.parametrize("budget", [None, 50_000])
def test_later_saves_have_the_new_values(tmp_path, plans, snapshot, budget):
    model = torch.nn.Sequential(torch.nn.Linear(100, 70), torch.nn.Linear(70, 3))
    tied = torch.arange(5)
    state = {"model": model.state_dict(), "list": [tied, (tied.detach(), 2.5, None)], "parameter": model[1].weight}
    state |= {"step": 0, "scheduler": {"lr": 0.1, "note": ""}}
    with Saver(sync=False, snapshot=snapshot, memory_budget=budget) as saver:
        for number in range(4):
            with torch.no_grad():
                model[0].weight.fill_(number)
            tied += 1
            state["model"] = model.state_dict()
            # The numbers and texts change, too.
            state |= {"step": number, "scheduler": {"lr": 0.1 / (number + 1), "note": "x" * number}}
            saver.save(state, tmp_path / f"{number}.safetensors").result()
            Saver(sync=False).save(state, tmp_path / "other.safetensors").result()
            assert (tmp_path / f"{number}.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()
            assert load_state(tmp_path / f"{number}.safetensors")["model"]["0.weight"][0, 0] == number
    # One of the saver, and one of each other saver.
    assert len(plans) == 5


def test_changed_tensors_are_saved_although_others_are_copied(tmp_path, plans):
    path, state = tmp_path / "x", {name: torch.full((10_000,), 1.0) for name in "abc"}
    # There is room for the copy of one tensor, so the others are compared while that one is written.
    with Saver(sync=False, memory_budget=80_000) as saver:
        saver.save(state, path).result()
        for number, name in enumerate("cba", 2):
            state[name] = torch.full((10_000,), float(number))
            saver.save(state, path).result()
            assert all(torch.equal(tensor, state[found]) for found, tensor in load_state(path).items())
        assert not saver.pending
    assert len(plans) == 4 and [file.name for file in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("snapshot", ["device", "host"])
def test_planned_saves_write_a_copy(tmp_path, plans, snapshot):
    state = {"large": torch.zeros(3 << 18), "small": torch.zeros(5), "parameter": torch.nn.Parameter(torch.zeros(7))}
    with Saver(sync=False, snapshot=snapshot) as saver:
        for number in range(5):
            with torch.no_grad():
                for tensor in state.values():
                    tensor.fill_(number)
                saver.save(state, tmp_path / f"{number}.safetensors")
                for tensor in state.values():
                    tensor.fill_(-1)
    for number in range(5):
        assert all((tensor == number).all() for tensor in load_file(tmp_path / f"{number}.safetensors").values())
    assert len(plans) == 1


memory = torch.arange(24, dtype=torch.float32)
complex_memory = torch.zeros(12, dtype=torch.complex64)
CHANGES = {
    "name": ({"a": memory}, {"b": memory}),
    "order": ({"a": memory[:12], "b": memory[12:]}, {"b": memory[:12], "a": memory[12:]}),
    "shape": ({"a": memory.view(4, 6)}, {"a": memory.view(6, 4)}),
    "length": ({"a": memory}, {"a": memory[:5]}),
    "type": ({"a": memory}, {"a": memory.view(torch.int32)}),
    "place": ({"a": memory}, {"a": memory + 1}),
    "number": ({"a": memory, "n": 1}, {"a": memory, "n": 2}),
    "type of a number": ({"a": memory, "n": 1}, {"a": memory, "n": True}),
    "sign of 0": ({"a": memory, "n": 0.0}, {"a": memory, "n": -0.0}),
    "key": ({1: memory}, {"1": memory}),
    "list": ({"a": [memory]}, {"a": (memory,)}),
    "nesting": ({"a": [memory, 3], "b": 3}, {"a": [3], "b": memory, "c": 3}),
    "swap": ({"a": memory, "b": 3}, {"a": 3, "b": memory}),
    "tie": ({"a": memory[:12], "b": memory[12:]}, {"a": memory[:12], "b": memory[:12]}),
    "empty ones": ({"a": (e := torch.empty(0)), "b": e}, {"a": torch.empty(0), "b": torch.empty(0)}),
    "conjugate": ({"a": complex_memory}, {"a": complex_memory.conj()}),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backwards", [False, True])
def test_changed_states_get_new_plans(tmp_path, change, backwards):
    first, second = reversed(CHANGES[change]) if backwards else CHANGES[change]
    with Saver(sync=False) as saver:
        for state in (first, first, second):
            saver.save(state, tmp_path / "warm.safetensors").result()
    with Saver(sync=False) as saver:
        saver.save(second, tmp_path / "cold.safetensors").result()
    assert (tmp_path / "warm.safetensors").read_bytes() == (tmp_path / "cold.safetensors").read_bytes()


@pytest.mark.parametrize("is_gone", [True, False])
def test_plans_of_other_threads_are_not_used(tmp_path, monkeypatch, is_gone):
    state, path = {"a": torch.ones(3), "b": torch.zeros(5)}, tmp_path / "x"
    with Saver(sync=False) as saver:
        saver.save({"a": state["a"]}, path).result()
        other, may_fit = saver._plan, _saver.Plan.may_fit
        saver.save(state, path).result()

        def change(plan, leaves):
            # Another thread saves another state after this question.
            saver._plan = None if is_gone else other
            return may_fit(plan, leaves)

        monkeypatch.setattr(_saver.Plan, "may_fit", change)
        saver.save(state, path).result()
    found = load_state(path)
    assert found.keys() == state.keys() and all(torch.equal(tensor, state[name]) for name, tensor in found.items())


def test_saves_that_begin_again_fail_no_others(tmp_path, monkeypatch):
    state, copy, others = {name: torch.ones(10_000) for name in "abcd"}, _saver.Pieces.copy, []

    def copy_and_pause(pieces, start):
        try:
            return copy(pieces, start)
        except _saver.Changed:
            # The thread of the given-up save goes on, and another thread saves.
            wait(saver.pending, timeout=0.5)
            others.append(threads.submit(saver.save, {"a": memory}, tmp_path / "other"))
            wait(others, timeout=0.5)
            raise

    monkeypatch.setattr(_saver.Pieces, "copy", copy_and_pause)
    # There is room for the copies of two tensors, so the save has begun to write when the last one is compared.
    with ThreadPoolExecutor() as threads, Saver(sync=False, memory_budget=80_000) as saver:
        saver.save(state, tmp_path / "x").result()
        state["d"] = torch.zeros(10_000)
        saver.save(state, tmp_path / "x").result()
        others[0].result().result()
    assert torch.equal(load_state(tmp_path / "x")["d"], state["d"])
    assert torch.equal(load_state(tmp_path / "other")["a"], memory)


def test_threads_save_their_own_numbers(tmp_path):
    def save(number):
        for turn in range(20):
            state = {"a": memory, "n": [number, turn], "m": {"text": str(number)}}
            path = tmp_path / f"{number}-{turn}.safetensors"
            saves.append((path, state, saver.save(state, path)))

    saves = []
    with Saver(sync=False) as saver:
        threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(saves) == 80
    for path, state, _ in saves:
        found = load_state(path)
        assert (found["n"], found["m"]) == (state["n"], state["m"])


def test_changed_metadata_is_saved(tmp_path):
    given = {"step": "1"}
    with Saver(sync=False) as saver:
        saver.save({"a": memory}, tmp_path / "1.safetensors", given).result()
        given["step"] = "2"
        saver.save({"a": memory}, tmp_path / "2.safetensors", given).result()
        saver.save({"a": memory}, tmp_path / "3.safetensors").result()
    assert [b'"step":"2"' in (tmp_path / f"{n}.safetensors").read_bytes() for n in (1, 2, 3)] == [False, True, False]


@pytest.mark.parametrize("wrong", [{"step": 1}, {1: "step"}, {"gpufile.state": "x"}])
def test_metadata_that_becomes_wrong_is_refused(tmp_path, wrong):
    state = {"a": memory, "n": [1]}
    with Saver(sync=False, memory_budget=1000) as saver:
        saver.save(state, tmp_path / "x.safetensors", {"step": "1"}).result()
        for _ in range(20):
            with pytest.raises((TypeError, ValueError)):
                saver.save(state, tmp_path / "x.safetensors", wrong)
        assert not saver.pending
        # The refused saves gave their memory back.
        saver.save(state, tmp_path / "x.safetensors", {"step": "2"}).result()
    assert b'"step":"2"' in (tmp_path / "x.safetensors").read_bytes()


def test_states_that_become_wrong_are_refused(tmp_path):
    good = {"a": memory.view(4, 6)}
    with Saver(sync=False) as saver:
        for wrong in ({"a": memory.view(4, 6)[:, :3]}, {"a": memory.view(4, 6).t()}, {"a": memory, "b": memory[1:]}):
            saver.save(good, tmp_path / "x.safetensors").result()
            with pytest.raises((RuntimeError, ValueError), match="non contiguous|share memory"):
                saver.save(wrong, tmp_path / "x.safetensors")
        deep = {}
        # Each level has two of the next.
        deep["a"] = deep["b"] = deep
        with pytest.raises(ValueError, match="contains itself"):
            saver.save(deep, tmp_path / "x.safetensors")


@pytest.mark.parametrize("others", [{}, {"empty": torch.empty(0)}])
def test_neither_plans_nor_saves_keep_tensors(tmp_path, monkeypatch, others):
    values = np.ones(1000)
    # The memory of a tensor ends with the array.
    state, seen = {"a": torch.from_numpy(values)} | others, weakref.ref(values)
    del values
    go_on, write = threading.Event(), _gpufile.save_safetensors_pieces
    monkeypatch.setattr(_gpufile, "save_safetensors_pieces", lambda *arguments: (go_on.wait(60), write(*arguments))[1])
    with Saver(sync=False) as saver:
        for _ in range(2):
            saver.save(state, tmp_path / "x.safetensors")
        del state
        gc.collect()
        has_ended = seen() is None
        go_on.set()
    assert has_ended
    assert load_file(tmp_path / "x.safetensors")["a"].sum() == 1000
