"""Tensors of the host that are read from their file when they move to a GPU. The host stands for the GPU."""

import copy
import gc
import hashlib
import io
import pickle
import threading
import types
import weakref

import pytest

torch = pytest.importorskip("torch")

import gpufile.safetensors as gs
import gpufile.safetensors.torch as gst
from gpufile.safetensors import _moves

SHAPE = (6, 8, 10)
METHODS = {"to", "cuda", "__deepcopy__", "__reduce_ex__"}

#: A module that moves what it gets, as its name says.
mover = types.ModuleType("transformers.modeling_utils")
exec("def call(function, *arguments, **options): return function(*arguments, **options)", vars(mover))


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.int64])
def tensor(request, tmp_path):
    tensor = (torch.randn(SHAPE) * 100).to(request.param)
    gst.save_file({"a": tensor, "one": torch.tensor(7.0), "none": torch.ones(0, 3)}, tmp_path / "x", sync=False)
    return tensor


@pytest.fixture
def reads(monkeypatch):
    """Lets tensors move to the host, and returns a list of the elements that each read takes."""
    read, counts = _moves.MovingSlice._read_to, []

    def count(*arguments):
        made = read(*arguments)
        counts.append(made.numel())
        return made

    monkeypatch.setattr(_moves.MovingSlice, "_read_to", count)
    monkeypatch.setattr(_moves, "is_read_to", lambda device: device.type == "cpu")
    return counts


def sliced(folder, name="a"):
    return mover.call(gs.safe_open, folder / "x", "pt").get_slice(name)


def is_plain(tensor):
    return type(tensor) is torch.Tensor and not vars(tensor)


INDICES = [..., slice(2, 5), (slice(None), slice(3, 7)), (slice(1, 3), ..., slice(-4, None)), slice(0, 0), ()]


@pytest.mark.parametrize("index", INDICES)
def test_moved_slices_are_read_and_plain(tmp_path, tensor, reads, index):
    part = sliced(tmp_path)[index]
    assert type(part) is torch.Tensor and torch.equal(part, tensor[index]) and reads == []
    moved = part.to(device="cpu", dtype=None)
    assert torch.equal(moved, tensor[index]) and is_plain(moved) and reads == [tensor[index].numel()]
    moved.zero_()
    assert torch.equal(part, tensor[index])


def test_other_slices_are_plain_at_once(tmp_path, tensor, reads):
    for index in (2, slice(None, None, 2), torch.tensor([0, 5]), (slice(None), 3)):
        part = sliced(tmp_path)[index]
        assert torch.equal(part.to("cpu"), tensor[index]) and is_plain(part)
    assert reads == []


@pytest.mark.parametrize("piece", [1, 100, 640, 10_000])
@pytest.mark.parametrize("index", INDICES)
def test_conversions_read_in_pieces(tmp_path, tensor, reads, monkeypatch, index, piece):
    monkeypatch.setattr(_moves, "_PIECE", max(piece, tensor.itemsize))
    for dtype in (torch.float16, torch.float64, torch.int32):
        reads.clear()
        moved = sliced(tmp_path)[index].to("cpu", dtype)
        assert torch.equal(moved, tensor[index].to(dtype)) and is_plain(moved)
        is_read = tensor.is_floating_point() and dtype.is_floating_point
        assert sum(reads) == (moved.numel() if is_read else 0)
        assert max(reads, default=0) <= max(piece // tensor.itemsize, 1)


def test_whole_files_move_too(tmp_path, tensor, reads):
    tensors = mover.call(gst.load_file, tmp_path / "x")
    assert list(tensors) == list(gst.load_file(tmp_path / "x"))
    moved = {name: each.contiguous().to(each.dtype).to("cpu") for name, each in tensors.items()}
    assert torch.equal(moved["a"], tensor) and moved["one"] == 7 and moved["none"].shape == (0, 3)
    assert all(map(is_plain, moved.values())) and sorted(reads) == [0, 1, tensor.numel()]


def test_only_modules_that_move_get_such_tensors(tmp_path, tensor, reads):
    other = types.ModuleType("transformers.other")
    exec("def call(function, *arguments, **options): return function(*arguments, **options)", vars(other))
    for call in (lambda function, *arguments, **options: function(*arguments, **options), other.call):
        assert is_plain(call(gs.safe_open, tmp_path / "x", "pt").get_slice("a")[...])
        assert all(map(is_plain, call(gst.load_file, tmp_path / "x").values()))
    opened = mover.call(gs.safe_open, tmp_path / "x", "pt", mapped=False)
    assert is_plain(opened.get_slice("a")[...]) and is_plain(opened.get_tensor("a"))
    assert not hasattr(mover.call(gs.safe_open, tmp_path / "x", "np", mapped=True).get_slice("one")[...], "to")


def test_what_programs_keep_has_no_methods(tmp_path, tensor, reads):
    kept = [
        lambda part: part.detach(),
        lambda part: part[1:],
        lambda part: part.view(-1),
        lambda part: part.clone(),
        lambda part: copy.deepcopy(part),
        lambda part: copy.deepcopy({"a": part, "b": part})["b"],
        lambda part: pickle.loads(pickle.dumps(part)),
        lambda part: torch.nn.Parameter(part, requires_grad=False).data,
        lambda part: torch.nn.Buffer(part).data,
    ]
    for operation in kept:
        assert is_plain(operation(sliced(tmp_path)[...]))
    part = sliced(tmp_path)[...]
    assert vars(part).keys() == METHODS and type(torch.nn.Parameter(part, False)) is torch.nn.Parameter
    file = io.BytesIO()
    torch.save({"a": part}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["a"]
    assert is_plain(loaded) and torch.equal(loaded, tensor) and reads == []


def test_tensors_that_stay_on_the_host_are_themselves(tmp_path, tensor):
    part = sliced(tmp_path)[...]
    assert part.to(part.dtype) is part and part.contiguous() is part and vars(part).keys() == METHODS
    assert part.to("cpu") is part and is_plain(part)
    part = sliced(tmp_path)[...]
    copied = part.to("cpu", copy=True)
    assert is_plain(copied) and copied.data_ptr() != part.data_ptr() and torch.equal(copied, tensor)
    part = sliced(tmp_path)[...]
    assert is_plain(part.to("meta")) and part.to(torch.float16).dtype == torch.float16
    with pytest.raises((RuntimeError, TypeError)):
        sliced(tmp_path)[...].to("nowhere")


def test_changed_values_move(tmp_path, tensor, reads):
    part = sliced(tmp_path)[...]
    part.add_(1)
    assert torch.equal(part.to("cpu"), tensor + 1) and reads == []


def test_gradients_flow_through_a_move(tmp_path, reads):
    gst.save_file({"a": torch.ones(3)}, tmp_path / "x", sync=False)
    part = sliced(tmp_path)[...].requires_grad_()
    part.to("cpu", torch.float64).sum().backward()
    assert part.grad.tolist() == [1, 1, 1] and reads == []


def test_inference_mode_gets_plain_tensors(tmp_path, tensor, reads):
    with torch.inference_mode():
        part = sliced(tmp_path)[...]
        assert is_plain(part) and torch.equal(part.to("cpu"), tensor)


def test_moved_tensors_are_freed_without_a_collection(tmp_path, tensor, reads):
    gc.disable()
    try:
        part = sliced(tmp_path)[...]
        moved = part.to("cpu")
        freed = weakref.ref(part)
        del part
        assert freed() is None and torch.equal(moved, tensor)
    finally:
        gc.enable()
    part = sliced(tmp_path)[...]
    freed = weakref.ref(part)
    del part
    gc.collect()
    assert freed() is None


def test_changes_of_a_tensor_without_a_name_move(tmp_path, tensor, reads):
    assert torch.equal(sliced(tmp_path)[...].add_(1).to("cpu"), tensor + 1)
    assert torch.equal(sliced(tmp_path)[...].to("cpu"), tensor)


def test_threads_move_slices_of_one_model(tmp_path, reads):
    expected = {str(number): torch.randn(50, 70 + number) for number in range(40)}
    gst.save_file(expected, tmp_path / "x", sync=False)
    opened = mover.call(gs.safe_open, tmp_path / "x", "pt")
    names, found = list(expected), {}

    def move():
        while names:
            try:
                name = names.pop()
            except IndexError:
                return
            found[name] = opened.get_slice(name)[...].to(device="cpu", dtype=torch.bfloat16)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor.to(torch.bfloat16)) for name, tensor in expected.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU")
def test_slices_on_a_gpu_have_the_bits_of_a_copy(tmp_path):
    bits = torch.randint(-(1 << 62), 1 << 62, (300, 4000))
    types_ = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool, torch.float8_e4m3fn]
    source = {str(dtype): (bits % 2).bool() if dtype is torch.bool else bits.clone().view(dtype) for dtype in types_}
    gst.save_file(source, tmp_path / "x", sync=False)
    for name, tensor in source.items():
        for dtype in (None, *types_[:4]):
            moved = sliced(tmp_path, name)[...].to(device="cuda", dtype=dtype)
            expected = tensor.to(device="cuda", dtype=dtype)
            assert is_plain(moved) and moved.dtype == expected.dtype and moved.is_cuda
            is_number = ~expected.to(torch.float64).isnan()
            assert torch.equal(moved.to(torch.float64).isnan(), ~is_number)
            unit = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[moved.itemsize]
            assert torch.equal(moved.view(unit)[is_number], expected.view(unit)[is_number])
            if dtype is None:
                assert torch.equal(moved.view(torch.uint8), expected.view(torch.uint8))
    assert sliced(tmp_path, "torch.int32")[1:].cuda().equal(source["torch.int32"][1:].cuda())
    assert sliced(tmp_path, "torch.int32")[1:].cuda(0, non_blocking=True).equal(source["torch.int32"][1:].cuda())


def test_files_that_move_are_compared_with_their_hashes(tmp_path):
    path = tmp_path / "x.safetensors"
    gst.save_file({"a": torch.ones(4)}, path)
    hashes = tmp_path / "SHA256SUMS"
    hashes.write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    assert mover.call(gst.load_file, path, verify=hashes)["a"].tolist() == [1, 1, 1, 1]
    hashes.write_text(f"{'0' * 64}  {path.name}\n")
    with pytest.raises(gs.SafetensorError, match=path.name):
        mover.call(gst.load_file, path, verify=hashes)
