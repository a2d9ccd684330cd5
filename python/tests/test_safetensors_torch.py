"""`gpufile.safetensors` with torch, against the package safetensors."""

import copy
import gc
import json
import os
import threading

import pytest

torch = pytest.importorskip("torch")
reference = pytest.importorskip("safetensors.torch")

from safetensors import safe_open as reference_open

import gpufile.safetensors as gs
from gpufile import _engines
from gpufile.safetensors import _dtypes, _load, _placed, _torch
from gpufile.safetensors import torch as ours
from gpufile.safetensors._shared import _remove_duplicate_names, duplicate_names

SHAPES = [(), (0,), (1,), (3, 0, 5), (7,), (3, 5), (1, 1, 1), (2, 3, 4, 6), (1023,)]
#: The package safetensors reads and writes these.
TYPES = [dtype for dtype in _torch.CODES if dtype != getattr(torch, "float4_e2m1fn_x2", None)]


def tensor_of(dtype, shape, seed):
    """Returns a tensor of random bits."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty(0, dtype=dtype).element_size()
    length = size
    for axis in shape:
        length *= axis
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (length,), generator=generator, dtype=torch.uint8)
    return bits.view(dtype).reshape(shape)


def tensors(seed=0):
    """Returns a tensor of every type in every shape."""
    return {f"{dtype}{shape}": tensor_of(dtype, shape, seed) for dtype in TYPES for shape in SHAPES}


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(one, other):
    """Asserts that two dictionaries have the same names, types, shapes and bits."""
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert (tensor.dtype, tensor.shape) == (other[name].dtype, other[name].shape), name
        assert tensor.is_contiguous() and bits(tensor) == bits(other[name]), name


@pytest.fixture
def model(tmp_path):
    """Returns a file of the package safetensors."""
    path = tmp_path / "model.safetensors"
    reference.save_file(tensors(), path, metadata={"format": "pt"})
    return path


def test_torch_has_all_types_of_the_format():
    missing = {"F6_E2M3", "F6_E3M2"}
    # Older versions of torch lack some.
    known = {code for code, name in _dtypes.NAMES.items() if hasattr(torch, name)}
    newest = {"F4", "F8_E8M0"}
    assert set(_torch.CODES.values()) == known and set(_dtypes.NAMES) - known <= newest and not missing & set(_dtypes.NAMES)


@pytest.mark.parametrize("budget", [None, 1, 1000, 10**6])
def test_loads_equal_those_of_safetensors(model, budget, monkeypatch):
    expected = reference.load_file(model)
    same(ours.load_file(model), expected)
    same(ours.load_file(model, memory_budget=budget, mapped=False), expected)
    monkeypatch.setattr(gs._load.Meter, "SHORTEST_STEP", 1000)
    same(ours.load_file(str(model), torch.device("cpu"), memory_budget=budget, progress=True, mapped=False), expected)
    same(ours.load(model.read_bytes()), expected)
    with gs.safe_open(model, "pt", mapped=False) as own, reference_open(model, "pt") as other:
        assert own.offset_keys() == other.offset_keys() == list(own.get_tensors())
        same({name: own.get_tensor(name) for name in own.keys()}, expected)
        same(dict(own.iter_tensors(memory_budget=budget or 1 << 20)), expected)


def test_long_tensors_are_aligned_for_kernels(model):
    loaded = {name: tensor for name, tensor in ours.load_file(model, mapped=False).items() if tensor.nbytes >= 16}
    assert len(loaded) > 50
    assert all(tensor.data_ptr() % 16 == 0 for tensor in loaded.values())


def test_tensors_are_independent_for_autograd(model):
    loaded = ours.load_file(model)
    one, other = loaded["torch.float32(7,)"], loaded["torch.float32(3, 5)"]
    assert one._base is None and not one.requires_grad and one.is_leaf
    versions = one._version, other._version
    one.fill_(2)
    assert (one._version, other._version) == (versions[0] + 1, versions[1])
    one.requires_grad_()
    (one * other.sum().detach()).sum().backward()
    assert one.grad is not None
    with torch.inference_mode():
        assert ours.load_file(model)["torch.float32(7,)"].is_inference()


@pytest.mark.parametrize("mapped", [True, False])
def test_loaded_tensors_can_be_saved_by_torch(model, tmp_path, mapped):
    expected = reference.load_file(model)
    with gs.safe_open(model, "pt", mapped=mapped) as opened:
        one_by_one = {name: opened.get_tensor(name) for name in opened.keys()}
    for loaded in (ours.load_file(model, mapped=mapped), ours.load(model.read_bytes()), one_by_one):
        torch.save(loaded, tmp_path / "model.pt")
        same(torch.load(tmp_path / "model.pt"), expected)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no type of four bits")
def test_pairs_of_four_bits_keep_their_bits(tmp_path):
    path = tmp_path / "f4.safetensors"
    packed = {"w": torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4).view(torch.float4_e2m1fn_x2)}
    ours.save_file(packed, path, sync=False)
    assert path.read_bytes() == reference.save(packed)
    same(ours.load_file(path), packed)
    with gs.safe_open(path, "pt", mapped=False) as opened:
        part = opened.get_slice("w")
        assert part.get_shape() == [2, 3, 8]
        assert bits(part[1, 1:]) == bytes(range(16, 24)) and bits(part[:, 2, :1]) == bytes([8, 20])
    path.write_bytes(path.read_bytes().replace(b"[2,3,8]", b"[16,3] "))
    with pytest.raises(gs.SafetensorError, match="last axis"):
        ours.load_file(path)
    with gs.safe_open(path, "pt") as opened, pytest.raises(gs.SafetensorError, match="last axis"):
        opened.get_tensor("w")


def test_slices_equal_those_of_torch(model):
    tensor = tensors()["torch.bfloat16(2, 3, 4, 6)"]
    indices = [
        (), ..., 0, -1, slice(1, None), slice(0, 0), slice(0, 9), slice(-1, None), (slice(None), 1), (1, 2, 3, 4),
        (..., slice(None, None, 4)), (0, ..., 2), [0, 1], [], torch.tensor([1, 0]), torch.tensor(1), (None, 0),
        (slice(None), [0, 2]), True, torch.tensor([True, False]), torch.tensor(True), (torch.tensor(False),),
        torch.tensor(1, dtype=torch.int32),
    ]  # fmt: skip
    with gs.safe_open(model, "pt") as opened:
        part = opened.get_slice("torch.bfloat16(2, 3, 4, 6)")
        for index in indices:
            expected = tensor[index]
            assert part[index].shape == expected.shape and bits(part[index]) == bits(expected), index
        for bad in (2, -3, (0, 3), (0, 0, 0, 0, 0)):
            with pytest.raises(IndexError):
                part[bad]


def test_saved_files_equal_those_of_safetensors(tmp_path):
    made = tensors(3)
    for number, metadata in enumerate((None, {"format": "pt", "ü": "\x01"})):
        path = tmp_path / f"{number}.safetensors"
        ours.save_file(made, path, metadata, sync=False)
        same(reference.load_file(path), made)
        if metadata is None:
            assert path.read_bytes() == reference.save(made)
        assert ours.save(made, metadata) == path.read_bytes()


def test_unusual_tensors_are_saved_by_their_values(tmp_path):
    path = tmp_path / "odd.safetensors"
    base = torch.arange(12, dtype=torch.float32)
    complex_ = torch.tensor([1 + 2j, 3 - 4j])
    odd = {
        "gradient": torch.nn.Parameter(torch.ones(3)),
        "part": base[4:8],
        "other part": base[8:],
        "conjugate": complex_.conj(),
        "negative": torch.tensor([5 + 6j]).conj().imag,
        "frozen": torch.frombuffer(bytearray(b"abcd"), dtype=torch.uint8),
    }
    gs.save_file(odd, path, sync=False)
    loaded = ours.load_file(path)
    for name, value in odd.items():
        assert torch.equal(loaded[name], value.detach()), name


def test_wrong_tensors_are_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "kept.safetensors"
    ours.save_file({"x": torch.ones(2)}, path, sync=False)
    before = path.read_bytes()
    base = torch.zeros(4, 4)
    wrong = [
        (ValueError, "non contiguous", {"x": base.T}),
        (ValueError, "non contiguous", {"x": base[:, 1]}),
        (RuntimeError, "share memory", {"x": base, "y": base[1:]}),
        (RuntimeError, "share memory", {"x": base, "y": base[:1], "z": base[2:]}),
        (ValueError, "sparse", {"x": base.to_sparse()}),
        (ValueError, "expected torch.Tensor", {"x": 1}),
        (ValueError, "Expected a dict", [base]),
        (ValueError, "complex128", {"x": torch.zeros(1, dtype=torch.complex128)}),
        (RuntimeError, "meta", {"x": torch.zeros(1, device="meta")}),
        (TypeError, "str", {1: base}),
        (gs.SafetensorError, "__metadata__", {"__metadata__": base}),
    ]
    for error, text, content in wrong:
        with pytest.raises(error, match=text):
            ours.save_file(content, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


def test_modules_round_trip_with_tied_weights(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(5, 5) for _ in range(3))
            self.b.weight = self.a.weight

    path = tmp_path / "tied.safetensors"
    model, other = Tied(), Tied()
    ours.save_model(model, path)
    assert ours.load_model(other, path) == reference.load_model(Tied(), path) == (set(), [])
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert other.a.weight is other.b.weight
    torch.nn.Module.register_buffer(other, "extra", torch.zeros(1))
    with pytest.raises(RuntimeError, match='Missing key.*"extra"'):
        ours.load_model(other, path)
    assert ours.load_model(other, path, strict=False) == ({"extra"}, [])


def test_modules_of_loaded_tensors_save_and_load(tmp_path):
    def module():
        made = torch.nn.ModuleDict({name: torch.nn.Linear(5, 5) for name in "abc"})
        made.b.weight = made.a.weight
        return made

    first, second = tmp_path / "first", tmp_path / "second"
    model, other = module(), module()
    ours.save_model(model, first)
    other.load_state_dict(ours.load_file(first), assign=True, strict=False)
    other.b.weight = other.a.weight
    ours.save_model(other, second)
    assert second.read_bytes() == first.read_bytes()
    assert ours.load_model(other, first) == (set(), [])
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    buffer = torch.zeros(10)
    with pytest.raises(RuntimeError, match="None of the tensors"):
        duplicate_names({"a": buffer[:6], "b": buffer[4:]})
    # The functions with safetensors' name for it are stricter.
    for strict in (_remove_duplicate_names, reference._remove_duplicate_names):
        with pytest.raises(RuntimeError):
            strict({"a": buffer[:6]})


def test_folders_load_with_all_shards(tmp_path):
    parts = [{f"{number}.{name}": tensor for name, tensor in tensors(number).items()} for number in range(3)]
    places = {}
    for number, part in enumerate(parts):
        reference.save_file(part, tmp_path / f"{number}.safetensors")
        places |= dict.fromkeys(part, f"{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    loaded = gs.load_model(tmp_path, "cpu")
    same(loaded, parts[0] | parts[1] | parts[2])
    only = [name for name in loaded if "float16" in name]
    same(gs.load_model(tmp_path, only=only), {name: loaded[name] for name in only})
    (tmp_path / "1.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        gs.load_model(tmp_path)


def separate(loaded):
    """Asserts that each tensor has a storage of its own, which is no longer than the tensor."""
    storages = {name: tensor.untyped_storage() for name, tensor in loaded.items()}
    for name, tensor in loaded.items():
        assert (storages[name].nbytes(), storages[name].data_ptr()) == (tensor.nbytes, tensor.data_ptr()), name
    addresses = [storage.data_ptr() for storage in storages.values() if storage.nbytes()]
    assert len(set(addresses)) == len(addresses)


def one_by_one(path, **options):
    with gs.safe_open(path, "pt", **options) as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}


#: The ways to load a file.
WAYS = {
    "load_file": ours.load_file,
    "load_file read": lambda path: ours.load_file(path, mapped=False),
    "load_file in groups": lambda path: ours.load_file(path, mapped=False, memory_budget=3000),
    "load": lambda path: ours.load(path.read_bytes()),
    "load_model": gs.load_model,
    "safetensors.load_file": gs.load_file,
    "get_tensor": one_by_one,
    "get_tensor read": lambda path: one_by_one(path, mapped=False),
    "get_tensors": lambda path: gs.safe_open(path, "pt").get_tensors(),
    "get_tensors read": lambda path: gs.safe_open(path, "pt", mapped=False).get_tensors(),
    "get_slice": lambda path: {name: gs.safe_open(path, "pt").get_slice(name)[...] for name in tensors()},
    "iter_tensors": lambda path: dict(gs.safe_open(path, "pt")),
    "iter_tensors read": lambda path: dict(gs.safe_open(path, "pt", mapped=False).iter_tensors(memory_budget=3000)),
    "prefetch": lambda path: dict(gs.safe_open(path, "pt").prefetch()),
    "LazyModel": lambda path: dict(gs.LazyModel(path)),
    "placement": lambda path: gs.load_model(path, ["cpu"] * 2, placement=gs.Placement.all())[1],
    "engines": lambda path: {name: part.cpu() for name, part in _engines.weights([path], lambda name: True, 1)},
}


@pytest.mark.parametrize("way", WAYS)
def test_tensors_have_storages_of_their_own(model, way):
    loaded = WAYS[way](model)
    same(loaded, tensors())
    separate(loaded)


@pytest.fixture
def apart(monkeypatch):
    """Makes an allocation for each tensor on the host, as on a GPU."""
    monkeypatch.setattr(_torch.Framework, "is_apart", True)
    monkeypatch.setattr(_torch, "STEP_BYTES", 4096)


@pytest.mark.parametrize("way", [way for way in WAYS if "read" in way or way in ("prefetch", "placement")])
def test_tensors_are_allocations_of_torch(model, way, apart, monkeypatch):
    monkeypatch.setattr(_placed, "STEP_BYTES", 4096)
    loaded = WAYS[way](model)
    # Only a storage that torch allocated is resizable. `numpy` ends that.
    assert all(tensor.untyped_storage().resizable() for tensor in loaded.values()) or "get" in way
    same(loaded, tensors())
    separate(loaded)


def test_reads_begin_before_all_memory_is_there(model, apart, monkeypatch):
    order = []
    allocate, start = _torch.Apart.__init__, _load.Readings.start
    monkeypatch.setattr(_torch.Apart, "__init__", lambda *args: (order.append("memory"), allocate(*args))[1])
    monkeypatch.setattr(_load.Readings, "start", lambda *args: (order.append("read"), start(*args))[1])
    same(ours.load_file(model, mapped=False), tensors())
    assert order.index("read") <= 2 < order.count("read") and order[-1] == "read"


@pytest.mark.parametrize("step", [4096, 8192, 1 << 20])
def test_placed_slices_are_allocations_of_torch(tmp_path, apart, step, monkeypatch):
    monkeypatch.setattr(_placed, "STEP_BYTES", step)
    path, source = tmp_path / "model.safetensors", {f"{n}": torch.rand(9 + n, 31) for n in range(40)}
    # One whose elements do not follow those before it without a gap.
    source |= {"odd": torch.ones(3, dtype=torch.uint8), "pair": torch.rand(5).half(), "none": torch.ones(0, 3)}
    reference.save_file(source, path)
    rule = gs.Placement.by(lambda name, *_: gs.Share.slice(1) if len(name) == 1 else gs.Share.all())
    loaded = gs.load_model(path, ["cpu"] * 3, placement=rule)
    for device, found in enumerate(loaded):
        separate(found)
        expected = {name: t.tensor_split(3, 1)[device] if len(name) == 1 else t for name, t in source.items()}
        assert found.keys() == expected.keys() and all(found[name].equal(expected[name]) for name in found)


def test_what_follows_takes_one_tensor_alone(tmp_path):
    path = tmp_path / "model.safetensors"
    reference.save_file({f"{number}": torch.full((1000,), float(number)) for number in range(100)}, path)
    for way in ("load_file", "load_file read", "load", "get_tensor", "prefetch", "placement"):
        loaded = WAYS[way](path)
        torch.save(loaded["7"], tmp_path / "one.pt")
        assert (tmp_path / "one.pt").stat().st_size < 8000, way
        assert copy.deepcopy(loaded["7"]).untyped_storage().nbytes() == 4000
        versions = {name: tensor._version for name, tensor in loaded.items()}
        loaded["7"].requires_grad_().detach().add_(1)
        assert [name for name, tensor in loaded.items() if tensor._version != versions[name]] == ["7"]
        loaded["8"].share_memory_()
        assert loaded["8"].is_shared() and not loaded["9"].is_shared()
        assert loaded["6"].eq(6).all() and loaded["8"].eq(8).all()
        kept = loaded["5"]
        del loaded
        gc.collect()
        assert kept.eq(5).all(), way


def test_devices_that_torch_lacks_are_named(model):
    for device in ("nothing", "cpu:x", object()):
        with pytest.raises(gs.SafetensorError, match="invalid"):
            ours.load_file(model, device)
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError), match="(?i)cuda|nvidia"):
            ours.load_file(model, "cuda:0")


def test_iteration_stays_within_its_budget(tmp_path):
    path = tmp_path / "many.safetensors"
    ours.save_file({f"{number:03}": torch.full((1000,), number) for number in range(100)}, path, sync=False)
    live, peak = {}, 0
    allocate = _torch.Framework.allocate

    def counted(self, len_bytes):
        import weakref

        base = allocate(self, len_bytes)
        live[id(base.untyped_storage()._cdata)] = (weakref.ref(base), base.nbytes)
        return base

    sizes = []
    _torch.Framework.allocate = lambda self, len_bytes: (sizes.append(len_bytes), counted(self, len_bytes))[1]
    try:
        with gs.safe_open(path, "pt", mapped=False) as opened:
            for number, (name, tensor) in enumerate(opened.iter_tensors(memory_budget=240_000)):
                assert tensor.eq(int(name)).all() and number == int(name)
                # At most two more groups are allocated than have been handed out.
                handed_out = 8000 * (number + 1)
                assert sum(sizes) - handed_out < 240_000
    finally:
        _torch.Framework.allocate = allocate
    assert max(sizes) <= 80_000 and sum(sizes) == 800_000 and peak == 0


def test_threads_load_at_once(model):
    expected, failures = reference.load_file(model), []

    def work():
        try:
            for _ in range(3):
                same(ours.load_file(model), expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
