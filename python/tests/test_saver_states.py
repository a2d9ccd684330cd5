"""States that a `Saver` saves: nested, of optimizers, with tied weights, and those that it refuses."""

import collections
import json
import typing

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from gpufile._states import KEY
from gpufile.safetensors.torch import load_file, safe_open, save, save_file
from gpufile.torch import Saver, load_state


def saved(state, path, **options):
    with Saver(sync=False, **options) as saver:
        saver.save(state, path).result()
    return load_state(path)


def same(found, expected):
    if isinstance(expected, torch.Tensor):
        return isinstance(found, torch.Tensor) and found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[name], item) for name, item in expected.items())
    if isinstance(expected, (list, tuple)):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and (found == expected or found != found and expected != expected)


@pytest.mark.parametrize("snapshot", ["device", "host", None])
def test_states_of_models_and_optimizers_come_back(tmp_path, snapshot):
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.randn(4, 7)).sum().backward()
    optimizer.step()
    state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict(), "step": 3, "note": "é\n"}
    found = saved(state, tmp_path / "x.safetensors", snapshot=snapshot)
    assert same(found, state)
    # The optimizer takes what came back.
    other = torch.optim.AdamW(model.parameters(), foreach=False)
    other.load_state_dict(found["optimizer"])
    assert same(other.state_dict()["state"], optimizer.state_dict()["state"])
    assert "optimizer.state.0.exp_avg" in load_file(tmp_path / "x.safetensors")


@pytest.mark.parametrize("snapshot", ["device", "host", None])
def test_another_default_device_changes_no_save(tmp_path, snapshot):
    state = {"short": torch.ones(3), "long": torch.ones(300_000)}
    with torch.device("meta"):
        found = saved(state, tmp_path / "x.safetensors", snapshot=snapshot)
    assert same(found, state)


@pytest.mark.parametrize(
    "state",
    [
        {"a": torch.arange(3), 5: torch.ones(2), "5": torch.zeros(2), -1: None},
        {"a.b": torch.ones(1), "a": {"b": torch.zeros(1), "": torch.ones(2)}},
        {"a": [torch.ones(1), (torch.ones(2), [], (), {})], "n": [1.5, float("nan"), float("inf"), True, 2**70, None]},
        {"a": 3},
        {"n": torch.ones(2), "a": torch.ones(2, dtype=torch.int64), "m": torch.ones(2)},
        {"empty": torch.empty(0, 3), "other": torch.empty(0, 3), "scalar": torch.tensor(3)},
    ],
)
def test_nested_states_come_back(tmp_path, state):
    assert same(saved(state, tmp_path / "x.safetensors"), state)


ARRAYS = {
    "plain": np.arange(12.0).reshape(3, 4),
    "transposed": np.arange(12, dtype=np.int16).reshape(3, 4).T,
    "strided": np.arange(20)[::-3],
    "big": np.arange(5, dtype=">i4"),
    "fixed": np.frombuffer(b"0123", np.uint8),
    "scalar": np.array(3.5),
    "empty": np.zeros((0, 3), np.uint8),
    "bool": np.array([True, False]),
}


@pytest.mark.parametrize("snapshot", ["device", "host", None])
def test_arrays_and_types_come_back(tmp_path, snapshot):
    state = {"arrays": dict(ARRAYS), "types": [torch.float16, torch.bfloat16], "weight": torch.ones(3)}
    found = saved(state, tmp_path / "x.safetensors", snapshot=snapshot)
    assert found["types"] == state["types"] and same(found["weight"], state["weight"])
    for name, array in ARRAYS.items():
        other = found["arrays"][name]
        assert type(other) is np.ndarray and other.shape == array.shape and np.array_equal(other, array), name
        assert other.dtype == array.dtype.newbyteorder("="), name


def test_arrays_may_change_after_a_save(tmp_path):
    array = np.zeros(1 << 20)
    with Saver(sync=False) as saver:
        save = saver.save({"a": array}, tmp_path / "x.safetensors")
        array += 1
        save.result()
    assert not load_state(tmp_path / "x.safetensors")["a"].any()


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.ma.masked_array([1, 2], [0, 1])])
def test_other_arrays_are_refused_by_name(tmp_path, array):
    with Saver(sync=False) as saver, pytest.raises(TypeError, match="state 'x.a': cannot save a"):
        saver.save({"x": {"a": array}}, tmp_path / "x.safetensors")


@pytest.mark.parametrize("depth", [50, 150, 100_000])
def test_deep_states_come_back_or_are_refused(tmp_path, depth):
    state = leaf = {}
    for _ in range(depth):
        leaf["n"] = leaf = {}
    leaf["x"] = torch.ones(2)
    if depth < 1000:
        assert same(saved(state, tmp_path / "x.safetensors"), state)
        return
    with Saver(sync=False) as saver, pytest.raises(ValueError, match="nested too deeply"):
        saver.save(state, tmp_path / "x.safetensors")


def test_flat_states_have_no_structure(tmp_path):
    state = {"a": torch.ones(3), "b": torch.zeros(2)}
    assert same(saved(state, tmp_path / "x.safetensors"), state)
    save_file(state, tmp_path / "y.safetensors")
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()
    assert same(load_state(tmp_path / "y.safetensors"), state)


def test_tied_weights_are_saved_once_and_share_again(tmp_path):
    weight = torch.randn(1000)
    state = {"embed": weight, "head": weight.detach(), "nested": {"again": torch.nn.Parameter(weight)}}
    found = saved(state, tmp_path / "x.safetensors")
    assert same(found, {name: weight if name != "nested" else {"again": weight} for name in state})
    assert found["embed"] is found["head"] is found["nested"]["again"]
    assert list(load_file(tmp_path / "x.safetensors")) == ["embed"]
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata()["head"] == "embed"


def test_conjugates_are_not_tied(tmp_path):
    values = torch.randn(10, dtype=torch.complex64)
    with Saver(sync=False) as saver, pytest.raises(RuntimeError, match="share memory"):
        # One name would get the bytes of the other.
        saver.save({"values": values, "conjugates": values.conj()}, tmp_path / "x.safetensors")


def test_tensors_that_overlap_are_refused(tmp_path):
    values = torch.randn(10)
    with Saver() as saver, pytest.raises(RuntimeError, match="share memory"):
        saver.save({"a": values, "part": values[2:5]}, tmp_path / "x.safetensors")


class Pair(typing.NamedTuple):
    """A tuple with names, which a file cannot have."""

    weight: int
    step: int


def test_other_dicts_and_sizes_come_back_plain(tmp_path):
    state = {"dict": collections.OrderedDict(b=1, a=2), "size": torch.Size([2, 3])}
    assert same(saved(state, tmp_path / "x.safetensors"), {"dict": {"b": 1, "a": 2}, "size": (2, 3)})


class Distributed(torch.Tensor):
    """A stand-in for torch's class, which needs a group of ranks."""

    def full_tensor(self):
        return self


def test_tensors_without_all_their_bytes_are_refused_by_name(tmp_path):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(3)
    cases = [
        (fake, RuntimeError, "'model.weight' is a fake tensor"),
        (torch.empty(3, device="meta"), RuntimeError, "'model.weight' is on the device meta"),
        (torch.ones(3).as_subclass(Distributed), ValueError, r"'model.weight' is a DTensor.*`.full_tensor\(\)`"),
    ]
    for tensor, error, message in cases:
        with Saver() as saver, pytest.raises(error, match=message):
            saver.save({"model": {"weight": tensor}}, tmp_path / "x.safetensors")
        for function in (lambda state: save_file(state, tmp_path / "x.safetensors"), save):
            with pytest.raises(error, match=message):
                function({"model.weight": tensor})
    assert not list(tmp_path.iterdir())


def test_values_that_a_file_cannot_have_are_refused(tmp_path):
    circle = {"a": []}
    circle["a"].append(circle)
    cases = [
        ({"a": {"b": object()}}, TypeError, r"state 'a.b': cannot save a object"),
        ({"a": {(1, 2): 3}}, TypeError, r"state 'a': cannot save the key \(1, 2\)"),
        ({True: 3}, TypeError, "state: cannot save the key True"),
        ({"a": {1, 2}}, TypeError, "state 'a': cannot save a set"),
        ({"b": Pair(1, 2)}, TypeError, "state 'b': cannot save a Pair"),
        (circle, ValueError, "state 'a.0': the state contains itself"),
    ]
    with Saver() as saver:
        for state, error, message in cases:
            with pytest.raises(error, match=message):
                saver.save(state, tmp_path / "x.safetensors")
        with pytest.raises(ValueError, match="reserved"):
            saver.save({"a": 1}, tmp_path / "x.safetensors", {KEY: "mine"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "tree",
    [
        "{",
        "[]",
        "5",
        "{}",
        '{"tensor": "missing"}',
        '{"tensor": ["a"]}',
        '{"other": 3}',
        '{"dict": [["a"]]}',
        '{"dict": 5}',
        '{"list": [3]}',
        '{"value": 1, "list": []}',
        '{"list": [' * 100_000,
    ],
)
def test_damaged_structures_raise(tmp_path, tree):
    save_file({"a": torch.ones(3)}, tmp_path / "x.safetensors", {KEY: tree})
    with pytest.raises(ValueError, match="structure of the state in its metadata is damaged"):
        load_state(tmp_path / "x.safetensors")


def test_user_metadata_is_kept(tmp_path):
    with Saver(sync=False) as saver:
        saver.save({"a": {"b": torch.ones(1)}}, tmp_path / "x.safetensors", {"format": "pt"}).result()
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    assert json.loads(metadata[KEY]) == {"dict": [["a", {"dict": [["b", {"tensor": "a.b"}]]}]]}
