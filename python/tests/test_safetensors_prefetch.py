"""Loads in the background: what a plan names, and each tensor once."""

import gc
import os
import random
import re
import threading
import time
import weakref

import pytest

np = pytest.importorskip("numpy")

import gpufile
import gpufile.safetensors as gs
from gpufile.safetensors import SafetensorError, _prefetch, safe_open
from gpufile.safetensors import numpy as ours

RANDOM = np.random.default_rng(7)
SOURCE = {
    **{f"layers.{number}.weight": RANDOM.standard_normal((12, 9)).astype(np.float32) for number in range(7)},
    "half": RANDOM.standard_normal((5, 4, 6)).astype(np.float16),
    "bytes": RANDOM.integers(0, 99, 37, np.uint8),
    "scalar": np.float64(2.5).reshape(()),
    "empty": np.zeros((0, 5), np.int16),
}
#: The plan of the tensors with bytes, which have memory of their own in short batches.
FULL = {name: None for name, array in SOURCE.items() if array.size}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    ours.save_file(SOURCE, path, {"key": "value"}, sync=False)
    return path


@pytest.fixture
def model(path):
    return safe_open(path, "numpy")


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes(), name


def cut(array, part):
    """Returns what a plan names, by numpy's own indices."""
    part = part if isinstance(part, tuple) else () if part is None else (part,)
    for axis, given in enumerate(part):
        slices = given if isinstance(given, list) else [given]
        indices = [index for one in slices for index in range(*one.indices(array.shape[axis]))]
        array = np.take(array, np.array(indices, int), axis)
    return array


def test_a_load_without_a_plan_has_every_tensor(model):
    with model.prefetch() as loader:
        assert loader.names() == model.offset_keys() and len(loader) == len(SOURCE)
        assert_same(dict(loader), SOURCE)
        assert dict(loader) == {} and len(loader) == len(SOURCE)


@pytest.mark.parametrize("threads", [None, 1, 3, 100_000])
def test_parts_are_what_the_plan_names(model, threads):
    plan = {
        "layers.3.weight": slice(2, 5),
        "layers.*.weight": (slice(None), slice(-4, None)),
        "layers.[0-9].*": None,
        "half": ([slice(0, 1), slice(3, 5)], slice(1, 3), [slice(0, 2), slice(5, 6), slice(4, 4)]),
        "bytes": ([slice(9, 11), slice(0, 3)],),
        "scalar": (),
        "empty": (slice(0, 0), slice(2, 4)),
    }
    with model.prefetch(plan, threads=threads) as loader:
        expected = {name: cut(SOURCE[name], plan.get(name, plan["layers.*.weight"])) for name in SOURCE}
        assert loader.names() == model.offset_keys()
        taken = loader.take("layers.5.weight")
        assert_same(dict(loader) | {"layers.5.weight": taken}, expected)


def random_part(chance, shape):
    def one(length):
        start = chance.randint(0, length)
        return slice(start, chance.randint(start, length))

    def axis(length):
        return [one(length) for _ in range(chance.randint(0, 3))] if chance.random() < 0.5 else one(length)

    return tuple(axis(length) for length in shape[: chance.randint(0, len(shape))])


@pytest.mark.parametrize("batch_bytes", [1, 500, 1 << 30])
@pytest.mark.parametrize("step_reads", [1, 7, 1 << 18])
def test_random_plans_match_numpy(model, monkeypatch, batch_bytes, step_reads):
    monkeypatch.setattr(_prefetch, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(_prefetch, "STEP_READS", step_reads)
    chance = random.Random(batch_bytes + step_reads)
    for _ in range(20):
        names = chance.sample(sorted(SOURCE), chance.randint(1, len(SOURCE)))
        plan = {name: random_part(chance, SOURCE[name].shape) for name in names}
        loader = model.prefetch(plan)
        first = {name: loader.take(name) for name in chance.sample(names, len(names) // 2)}
        assert_same(dict(loader) | first, {name: cut(SOURCE[name], plan[name]) for name in names})


def test_a_tensor_is_handed_out_once(model):
    with model.prefetch({"half": None, "bytes": None}) as loader:
        assert_same({"half": loader.take("half")}, {"half": SOURCE["half"]})
        with pytest.raises(SafetensorError, match="half was already delivered"):
            loader.take("half")
        with pytest.raises(SafetensorError, match="scalar is not in the prefetch plan"):
            loader.take("scalar")
        assert_same(dict(loader), {"bytes": SOURCE["bytes"]})


def test_threads_share_a_loader(model):
    for _ in range(30):
        loader, taken, refused = model.prefetch(), {}, []

        def take(seed):
            for name in random.Random(seed).sample(sorted(SOURCE), len(SOURCE)):
                try:
                    taken[name] = loader.take(name)
                except SafetensorError:
                    refused.append(name)

        threads = [threading.Thread(target=take, args=(seed,)) for seed in range(3)]
        threads.append(threading.Thread(target=lambda: taken.update(loader)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert_same(taken, SOURCE)


def test_closed_loaders_refuse_and_keep_what_was_taken(model):
    loader = model.prefetch()
    walk = iter(loader)
    name, tensor = next(walk)
    loader.close()
    loader.close()
    for call in (lambda: next(walk), lambda: loader.take("half"), lambda: dict(loader)):
        with pytest.raises(SafetensorError, match="closed"):
            call()
    assert_same({name: tensor}, {name: SOURCE[name]})
    assert repr(loader) == "<gpufile.safetensors.PrefetchLoader: closed>"


def test_loaders_outlive_their_model(path):
    with safe_open(path, "numpy") as model:
        loaders = [model.prefetch(), model.prefetch({"half": slice(1, 2)})]
    with pytest.raises(SafetensorError, match="closed"):
        model.prefetch()
    assert_same(dict(loaders[0]), SOURCE)
    assert_same(dict(loaders[1]), {"half": SOURCE["half"][1:2]})


def assert_ends(memory):
    """Checks that memory is freed. A thread of its own may release what a worker used last."""
    end = time.monotonic() + 60
    while memory() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.001)
    assert memory() is None


def test_memory_lives_as_long_as_its_tensors(model, monkeypatch):
    monkeypatch.setattr(_prefetch, "BATCH_BYTES", 1)
    loader = model.prefetch(FULL)
    memory = weakref.ref(loader.take("half").base)
    assert_ends(memory)
    # The others wait in the loader.
    assert_same(dict(loader), {name: SOURCE[name] for name in FULL if name != "half"})


def test_iterations_keep_no_tensor(model, monkeypatch):
    monkeypatch.setattr(_prefetch, "BATCH_BYTES", 1)
    for _, tensor in model.prefetch(FULL):
        memory = weakref.ref(tensor.base)
        del tensor
        assert_ends(memory)


def test_models_of_several_files_are_loaded(tmp_path):
    names = sorted(SOURCE)
    ours.save_file({name: SOURCE[name] for name in names[::2]}, tmp_path / "model-00001-of-00002.safetensors")
    ours.save_file({name: SOURCE[name] for name in names[1::2]}, tmp_path / "model-00002-of-00002.safetensors")
    model = safe_open(tmp_path, "numpy")
    with model.prefetch() as loader:
        assert loader.names() == model.offset_keys()
        assert_same(dict(loader), SOURCE)


def test_files_that_become_shorter_are_errors(path, model):
    os.truncate(path, os.path.getsize(path) - 40)
    loader = model.prefetch()
    for _ in range(2):
        with pytest.raises(OSError, match=re.escape(str(path))):
            dict(loader)
    loader.close()


def test_only_the_bytes_of_the_plan_are_read(tmp_path):
    path = tmp_path / "long.safetensors"
    ours.save_file({"a": np.zeros((4096, 4096), np.uint8), "b": np.zeros((1 << 22,), np.uint8)}, path, sync=False)
    engine = gpufile.Engine(threads=2)
    model = safe_open(path, "numpy")
    regions = gs._plan.regions_of(model._checkpoint, model._framework, {"a": slice(1024, 2048)})
    loader = gs.PrefetchLoader(model._checkpoint, model._framework, regions, engine)
    assert loader.take("a").shape == (1024, 4096)
    read = sum(route["read_bytes"] for route in engine.stats().values() if isinstance(route, dict) and route)
    assert 4 << 20 <= read <= 1.05 * (4 << 20)


def test_headers_describe_tensors(model, path):
    meta = model.get_tensor_meta("half")
    assert (meta.dtype, meta.shape) == ("F16", [5, 4, 6])
    start, stop = meta.data_offsets
    data = path.read_bytes()
    data = data[8 + int.from_bytes(data[:8], "little") :]
    assert data[start:stop] == SOURCE["half"].tobytes()
    with pytest.raises(SafetensorError, match="does not contain tensor nope"):
        model.get_tensor_meta("nope")


def test_wrong_types_of_the_framework_are_refused(tmp_path):
    path = tmp_path / "odd.safetensors"
    header = b'{"x":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    with pytest.raises(SafetensorError, match="F6_E2M3"):
        safe_open(path, "numpy").prefetch()


def test_jax_joins_parts(path):
    pytest.importorskip("jax")
    plan = {"half": (slice(None), [slice(0, 1), slice(2, 4)])}
    (found,) = dict(safe_open(path, "jax").prefetch(plan)).values()
    assert (np.asarray(found) == cut(SOURCE["half"], plan["half"])).all()


def test_torch_joins_parts_of_every_type(tmp_path):
    torch = pytest.importorskip("torch")
    from gpufile.safetensors import _dtypes
    from gpufile.safetensors.torch import save_file

    types = [name for name in _dtypes.CODES if hasattr(torch, name) and "x2" not in name]
    base = torch.arange(48, dtype=torch.uint8) % 2
    source = {name: base.to(getattr(torch, name)).reshape(6, 8) for name in types}
    save_file(source, tmp_path / "types.safetensors", sync=False)
    plan = {"*": ([slice(0, 1), slice(4, 6)], [slice(7, 8), slice(0, 3)])}
    loader = safe_open(tmp_path / "types.safetensors", "pt").prefetch(plan, device="cpu")
    for name, tensor in loader:
        expected = torch.cat([base.reshape(6, 8)[[0, 4, 5]][:, [7, 0, 1, 2]]]).to(getattr(torch, name))
        assert tensor.dtype == expected.dtype and tensor.shape == expected.shape
        assert tensor.view(torch.uint8).equal(expected.view(torch.uint8)), name
