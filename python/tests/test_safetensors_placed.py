"""Models on several devices, against slices of numpy."""

import ctypes
import itertools
import os

import pytest

np = pytest.importorskip("numpy")

import gpufile.safetensors as gs
from gpufile import _gpufile
from gpufile.safetensors import Placement, Share, _load, _numpy, _placed
from gpufile.safetensors import numpy as ours

SHAPES = [(), (0,), (1,), (3, 0, 5), (7,), (5, 3), (1, 9), (2, 3, 4, 6), (1023, 3), (4, 20_001)]
TYPES = ["u1", "i2", "f4", "f8"]
SHARES = [Share.balanced(), Share.on(0), Share.all(), Share.slice(0), Share.slice(1, "chunks"), Share.slice(2)]


def arrays(seed):
    """Returns an array of each type in each shape."""
    random = np.random.default_rng(seed)
    return {
        f"{seed}.{dtype}.{'x'.join(map(str, shape))}": random.integers(0, 100, shape).astype(dtype)
        for dtype, shape in itertools.product(TYPES, SHAPES)
    }


@pytest.fixture
def model(tmp_path):
    """Returns three files, and the arrays in them."""
    paths, content = [], {}
    for seed in range(3):
        paths.append(tmp_path / f"{seed}.safetensors")
        ours.save_file(arrays(seed), paths[-1], sync=False)
        content |= arrays(seed)
    return paths, content


def mixed(name, dtype, shape):
    """Gives the tensors shares of all kinds."""
    share = SHARES[sum(map(ord, name)) % len(SHARES)]
    return share if share.kind != "slice" or share.axis < len(shape) else Share.all()


def pieces_of(array, share, devices):
    """Returns what each device gets of an array: None for nothing."""
    if share.kind == "all":
        return [array] * devices
    if share.kind == "on":
        return [array if device == share.device else None for device in range(devices)]
    if share.cut == "even":
        return np.array_split(array, devices, share.axis)
    length = -(-array.shape[share.axis] // devices)
    return [np.take(array, range(*slice(at * length, (at + 1) * length).indices(array.shape[share.axis])), share.axis)
            for at in range(devices)]  # fmt: skip


def expected(content, rule, devices):
    """Returns the arrays of each device, except the balanced ones, which one of them has."""
    placed, balanced = [{} for _ in range(devices)], []
    for name, array in content.items():
        share = rule(name, None, array.shape)
        if share.kind == "balanced":
            balanced.append(name)
            continue
        for arrays, piece in zip(placed, pieces_of(array, share, devices)):
            if piece is not None:
                arrays[name] = piece
    return placed, balanced


def check(loaded, content, rule, devices):
    """Compares what devices have with the arrays."""
    placed, balanced = expected(content, rule, devices)
    assert len(loaded) == devices
    for name in balanced:
        (device,) = (device for device in range(devices) if name in loaded[device])
        placed[device][name] = content[name]
    for arrays, tensors in zip(placed, loaded):
        # Shapes without elements are compared, too.
        assert {name: array.shape for name, array in arrays.items()} == {name: t.shape for name, t in tensors.items()}
        assert all((tensors[name] == array).all() and tensors[name].dtype == array.dtype for name, array in arrays.items())
        assert all(tensors[name].flags.c_contiguous for name in arrays)


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(("budget", "step"), [(None, 128 << 20), (None, 5000), (30_000, 8192), (1, 4096)])
def test_devices_get_the_slices_of_numpy(model, devices, budget, step, monkeypatch):
    monkeypatch.setattr(_placed, "STEP_BYTES", step)
    paths, content = model
    for rule in (mixed, lambda *_: Share.all(), lambda *_: Share.balanced()):
        loaded = gs.load_model(
            paths, ["cpu"] * devices, framework="np", placement=Placement.by(rule), memory_budget=budget
        )
        check(loaded, content, rule, devices)


def test_tensors_keep_the_order_of_the_file(model):
    paths, _ = model
    order = _gpufile.Checkpoint(paths).names()
    for tensors in gs.load_model(paths, ["cpu"] * 3, framework="np", placement=Placement.by(mixed)):
        assert list(tensors) == [name for name in order if name in tensors]


def test_balanced_tensors_fill_devices_evenly(tmp_path):
    content = {f"{number}": np.zeros(number * number % 41, np.uint8) for number in range(60)}
    ours.save_file(content, tmp_path / "m", sync=False)
    for devices in range(1, 9):
        loaded = gs.load_model(tmp_path / "m", ["cpu"] * devices, framework="np", placement=Placement.balanced())
        loads = [sum(array.nbytes for array in tensors.values()) for tensors in loaded]
        assert max(loads) - min(loads) <= 41 and sum(map(len, loaded)) == 60
    rule = Placement.by(lambda name, dtype, shape: Share.on(1) if shape == (40,) else Share.balanced())
    first, second = gs.load_model(tmp_path / "m", ["cpu"] * 2, framework="np", placement=rule)
    assert all(array.shape != (40,) for array in first.values())


def test_each_byte_is_read_once(model, monkeypatch):
    monkeypatch.setattr(_placed, "STEP_BYTES", 4096)
    paths, _ = model
    read = []
    start = _load.Readings.start
    monkeypatch.setattr(_load.Readings, "start", lambda self, parts, length: read.append(length) or start(self, parts, length))
    for placement in (Placement.all(), Placement.by(lambda name, dtype, shape: Share.slice(0) if shape else Share.all())):
        read.clear()
        seen = []
        gs.load_model(paths, ["cpu"] * 3, framework="np", placement=placement, progress=lambda *step: seen.append(step))
        length = _gpufile.Checkpoint(paths).len_bytes
        # Gaps between tensors have fewer than 16 bytes each.
        assert length <= sum(read) < length + 16 * 3 * 120
        assert seen[-1] == (sum(read), sum(read)) and len(seen) == len(read) > 100


def test_only_chosen_tensors_are_placed(model):
    paths, content = model
    names = [name for name in content if ".f4." in name]
    loaded = gs.load_model(paths, ["cpu"] * 2, framework="np", placement=Placement.by(mixed), only=names)
    check(loaded, {name: content[name] for name in names}, mixed, 2)
    assert gs.load_model(paths, ["cpu"] * 2, framework="np", placement=Placement.all(), only=[]) == [{}, {}]
    with pytest.raises(gs.SafetensorError, match="does not contain tensor nothing"):
        gs.load_model(paths, ["cpu"], framework="np", placement=Placement.all(), only=["nothing"])


@pytest.mark.parametrize(
    ("share", "error", "text"),
    [
        (Share.on(2), ValueError, "cannot place it on device 2, because the list has 2 devices"),
        (Share("on", -1), ValueError, "device -1, because the list"),
        (Share.slice(2), ValueError, "cannot slice axis 2 of a tensor with 2 axes; place it"),
        (Share.slice(-3), ValueError, "cannot slice axis -3"),
        (Share("slice", axis="x"), ValueError, "cannot slice axis x"),
        (Share("slice", cut="halves"), ValueError, 'cannot cut "halves"; the cuts are "chunks" and "even"'),
        (Share("whole"), ValueError, "there is no share of kind 'whole'"),
        ("all", TypeError, "the rule of the placement returned 'all', not a Share"),
    ],
)
def test_wrong_shares_are_errors(tmp_path, share, error, text):
    ours.save_file({"w": np.zeros((4, 5))}, tmp_path / "m", sync=False)
    with pytest.raises(error, match=text):
        gs.load_model(tmp_path / "m", ["cpu"] * 2, framework="np", placement=Placement.by(lambda *_: share))


def test_devices_and_placements_go_together(tmp_path):
    ours.save_file({"w": np.zeros((4, 5))}, tmp_path / "m", sync=False)
    with pytest.raises(ValueError, match="several devices need a placement"):
        gs.load_model(tmp_path / "m", ["cpu"] * 2, framework="np")
    for device in ("cpu", []):
        with pytest.raises(ValueError, match="a placement needs a list of devices"):
            gs.load_model(tmp_path / "m", device, framework="np", placement=Placement.all())


def test_slices_of_packed_types_have_whole_bytes(tmp_path):
    torch = pytest.importorskip("torch")
    from gpufile.safetensors import torch as of_torch

    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no type of four bits")
    packed = torch.arange(60, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).view(3, 20)
    of_torch.save_file({"w": packed}, tmp_path / "m")

    def load(share, devices):
        loaded = gs.load_model(tmp_path / "m", ["cpu"] * devices, placement=Placement.by(lambda *_: share))
        return [tensors["w"].view(torch.uint8).tolist() for tensors in loaded]

    whole = packed.view(torch.uint8)
    assert load(Share.slice(0), 2) == [part.tolist() for part in whole.tensor_split(2, 0)]
    assert load(Share.slice(1), 5) == [part.tolist() for part in whole.tensor_split(5, 1)]
    assert load(Share.slice(-1), 5) == load(Share.slice(1), 5)
    with pytest.raises(ValueError, match="the F4 elements from 0 to 5 of axis 1 do not fill whole bytes; slice another axis"):
        load(Share.slice(1), 8)


def test_tensors_of_torch_are_placed(model):
    torch = pytest.importorskip("torch")
    paths, content = model
    loaded = gs.load_model(paths, [torch.device("cpu"), "cpu"], placement=Placement.by(mixed))
    check([{name: tensor.numpy() for name, tensor in tensors.items()} for tensors in loaded], content, mixed, 2)
    with pytest.raises(ValueError, match="not meta of framework pt"):
        gs.load_model(paths, ["cpu", "meta"], placement=Placement.all())


@pytest.mark.parametrize("step", [128 << 20, 8192])
def test_tensors_arrive_on_real_gpus(model, monkeypatch, step):
    torch = pytest.importorskip("torch")
    if os.environ.get("GPUFILE_TEST_EMULATOR") or not torch.cuda.is_available():
        pytest.skip("there is an emulated GPU, or torch has none")
    monkeypatch.setattr(_placed, "STEP_BYTES", step)
    paths, content = model
    gpus = [f"cuda:{number % torch.cuda.device_count()}" for number in range(max(2, torch.cuda.device_count()))]
    for rule in (mixed, lambda *_: Share.all(), mixed):
        loaded = gs.load_model(paths, gpus, placement=Placement.by(rule))
        for gpu, tensors in zip(gpus, loaded):
            assert all(tensor.device == torch.device(gpu) for tensor in tensors.values())
        on_host = [{name: tensor.cpu().numpy() for name, tensor in tensors.items()} for tensors in loaded]
        check(on_host, content, rule, len(gpus))


def test_truncated_files_end_the_load(model, monkeypatch):
    monkeypatch.setattr(_placed, "STEP_BYTES", 4096)
    paths, _ = model
    checkpoint = _gpufile.Checkpoint(paths)
    with open(paths[1], "r+b") as file:
        file.truncate(10_000)
    for placement in (Placement.all(), Placement.balanced()):
        with pytest.raises(OSError, match="1.safetensors"):
            _placed.load(checkpoint, [_numpy.Framework("cpu")] * 3, placement)


def test_progress_can_end_the_load(model, monkeypatch):
    monkeypatch.setattr(_placed, "STEP_BYTES", 4096)
    paths, content = model

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gs.load_model(paths, ["cpu"] * 2, framework="np", placement=Placement.all(), progress=stop)
    loaded = gs.load_model(paths, ["cpu"] * 2, framework="np", placement=Placement.by(mixed))
    check(loaded, content, mixed, 2)


class OnGpu:
    """A framework whose memory is that of one emulated GPU."""

    copies = False

    def __init__(self, gpu, device_array, number):
        self.gpu, self.device_array, self.number = gpu, device_array, number

    def allocate(self, length):
        assert self.gpu.cudaSetDevice(self.number) == 0
        try:
            return self.device_array(length).set(b"\xee" * length)
        finally:
            assert self.gpu.cudaSetDevice(0) == 0

    def copy(self, target, source, start, stop):
        to, of = (ctypes.c_void_p(array.address + start) for array in (target, source))
        assert self.gpu.cudaMemcpy(to, of, ctypes.c_size_t(stop - start), 3) == 0

    def finish(self):
        pass

    def memory(self, group):
        return self.allocate(group.len_bytes)

    def fill(self, tensors, base, table):
        _, device = _gpufile.memory_of(base)
        assert device == self.number
        for code, start, lens, names, shapes in table:
            dtype = _numpy.dtype_of(code)
            for name, shape, length in zip(names, shapes, lens):
                tensors[name] = (base, dtype, shape, start * dtype.itemsize)
                start += length
        tensors.pop(None, None)


def arrays_of(loaded):
    """Copies the tensors of GPUs to the host."""
    hosts = {id(base): bytearray(base.get()) for tensors in loaded for base, *_ in tensors.values()}
    return [
        {name: np.ndarray(shape, dtype, hosts[id(base)], start) for name, (base, dtype, shape, start) in tensors.items()}
        for tensors in loaded
    ]


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("step", [128 << 20, 8192])
def test_tensors_arrive_on_each_gpu(model, gpu, device_array, command, monkeypatch, gpus, step):
    monkeypatch.setattr(_placed, "STEP_BYTES", step)
    command(f"gpus {gpus}")
    paths, content = model
    checkpoint = _gpufile.Checkpoint(paths)
    frameworks = [OnGpu(gpu, device_array, number) for number in range(gpus)]
    for rule in (mixed, lambda *_: Share.all(), mixed):
        loaded = _placed.load(checkpoint, frameworks, Placement.by(rule))
        check(arrays_of(loaded), content, rule, gpus)


def test_failing_gpus_end_the_load(model, gpu, device_array, command, monkeypatch):
    monkeypatch.setattr(_placed, "STEP_BYTES", 8192)
    paths, content = model
    checkpoint = _gpufile.Checkpoint(paths)
    frameworks = [OnGpu(gpu, device_array, number) for number in range(2)]
    for function in ("cudaMemcpyAsync", "cudaMemcpyBatchAsync"):
        command(f"fault {function} times=all err=719")
    with pytest.raises(OSError):
        _placed.load(checkpoint, frameworks, Placement.all())
    command("clear")
    check(arrays_of(_placed.load(checkpoint, frameworks, Placement.all())), content, lambda *_: Share.all(), 2)
