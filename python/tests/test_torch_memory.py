"""Tests of torch's tensors as memory."""

import gc
import json
import os
import random
import weakref

import gpufile
import pytest

torch = pytest.importorskip("torch")

from gpufile._gpufile import Checkpoint
from gpufile.safetensors import _torch
from gpufile.safetensors.torch import load_file, save_file


def test_tensors_with_a_negative_bit_are_refused(tmp_path):
    with gpufile.File(tmp_path / "data", "w+") as file:
        file.write_from(torch.tensor([1.0, 2.0]))
        for negated in [torch._neg_view(torch.tensor([1.0, 2.0])), torch.tensor([1 + 2j]).conj().imag]:
            for transfer in [file.read_into, file.write_from]:
                with pytest.raises(BufferError, match="resolve_neg"):
                    transfer(negated)
            assert file.write_from(negated.resolve_neg()) == negated.nbytes


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    tensors = {f"w{number}": torch.full((300, 500), number, dtype=torch.float32) for number in range(5)}
    save_file(tensors | {"b": torch.arange(7)}, path, sync=False)
    return path


def test_no_tensor_resizes_the_storage_of_all(model):
    tensors = load_file(model)
    for name in tensors:
        with pytest.raises(RuntimeError, match="not resizable"):
            tensors[name].untyped_storage().resize_(0)
    assert tensors["w1"].resize_(0).numel() == 0
    assert torch.equal(tensors["w3"], torch.full((300, 500), 3.0)) and tensors["b"].tolist() == [*range(7)]


def test_loaded_tensors_are_memory_of_torch(model):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        tensors = load_file(model, mapped=False)
    allocated = sum(event.self_cpu_memory_usage for event in profile.key_averages())
    needed = sum(tensor.nbytes for tensor in tensors.values())
    assert needed <= allocated < needed + 1000


def test_tensors_end_within_calls_of_this_module(model):
    # torch frees the memory of a tensor without Python's lock, which the call had.
    for mapped in (True, False):
        for _ in range(3):
            tensors = load_file(model, mapped=mapped)
            cycle = {"tensors": tensors}
            cycle["cycle"] = cycle
            del tensors, cycle
            gpufile._gpufile.Lock().run(gc.collect)
            kept = [load_file(model, mapped=mapped)]
            gpufile._gpufile.Lock().run(kept.clear)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU")
def test_loaded_tensors_are_counted_on_the_gpu(model):
    before = torch.cuda.memory_allocated()
    tensors = load_file(model, device="cuda")
    needed = sum(tensor.nbytes for tensor in tensors.values())
    assert needed <= torch.cuda.memory_allocated() - before < needed + 10_000
    assert all(tensor.untyped_storage().resizable() for tensor in tensors.values())
    kept = tensors.pop("w3")
    del tensors
    assert kept.nbytes <= torch.cuda.memory_allocated() - before < kept.nbytes + 10_000 and kept.eq(3).all()
    del kept
    assert torch.cuda.memory_allocated() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU")
def test_streams_keep_the_memory_of_loaded_tensors(model):
    stream = torch.cuda.Stream()
    was_busy = False
    for _ in range(20):
        tensor = load_file(model, device="cuda")["w3"]
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            copy = tensor.clone()
        tensor.record_stream(stream)
        address = tensor.data_ptr()
        del tensor
        others = [torch.zeros(300, 500, device="cuda") for _ in range(4)]
        # The first call of a function takes longer than the stream sleeps.
        if not stream.query():
            was_busy = True
            assert address not in [other.data_ptr() for other in others]
        stream.synchronize()
        assert copy.eq(3).all()
    assert was_busy


def counted(tensor):
    """Returns the number of references to the storage, this call's among them."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class Private(torch.Tensor):
    """A tensor that does not show its memory."""

    def __dlpack__(self, **arguments):
        raise BufferError("private")


def test_lists_of_tensors_are_checked_each(tmp_path):
    with gpufile.File(tmp_path / "data", "w+") as file:
        memory = torch.arange(300, dtype=torch.uint8)
        parts = [memory[start : start + 7] for start in range(0, 280, 7)]
        offsets = [11 * number for number in range(40)]
        before = counted(memory)
        file.write_many(parts, offsets)
        memory.zero_()
        file.read_many(list(reversed(parts)), list(reversed(offsets)))
        assert memory.tolist() == [*range(256), *range(24), *[0] * 20]
        assert counted(memory) == before
        good = [torch.ones(2) for _ in range(3)]
        # An older torch raises the second.
        refused = (BufferError, RuntimeError)
        for bad, error, match in [
            (torch._neg_view(torch.tensor([1.0, 2.0])), BufferError, "resolve_neg"),
            (torch.tensor([1 + 2j]).conj(), refused, "conj"),
            (torch.nn.Parameter(torch.ones(2)), refused, "grad"),
            (torch.ones(2).as_subclass(Private), BufferError, "private"),
            (torch.ones(2, 2)[:, 0], ValueError, r"buffers\[3\]: .*contiguous"),
            (torch.ones(2).to_sparse(), refused, "strided"),
            (torch.ones(2, device="meta"), ValueError, "meta"),
        ]:
            for transfer in [file.read_many, file.write_many]:
                with pytest.raises(error, match=match):
                    transfer([*good, bad], [0, 8, 16, 24])
            with pytest.raises(error, match=match.removeprefix(r"buffers\[3\]: ")):
                file.write_from(bad)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU")
def test_transfers_wait_for_the_current_stream(tmp_path):
    memory = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    parts = list(memory.split(1 << 20))
    offsets = [number << 20 for number in range(64)]
    torch.cuda.synchronize()
    with gpufile.File(tmp_path / "data", "w+") as file:
        for number in range(1, 6):
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda._sleep(20_000_000)
                memory.fill_(number)
                file.write_many(parts, offsets)
            host = bytearray(64 << 20)
            file.read_into(host)
            assert host.count(number) == len(host)
            torch.cuda.synchronize()


EMPTY = torch.empty


class Cache:
    """A model of torch's allocator for long tensors of a GPU: segments of the driver, cut into blocks of a length each."""

    def __init__(self, longest_cut=None):
        self.segments, self.longest_cut = [], longest_cut
        self.calls = 0

    def empty(self, shape, dtype, device):
        assert torch.device(device).type == "cuda"
        made = EMPTY(shape, dtype=dtype, device="meta")
        length = -(-made.nbytes // 512) * 512
        if length > 1 << 20:
            weakref.finalize(made, self.free, *self.take(length))
        return made

    def is_long(self, length):
        return self.longest_cut is not None and length >= self.longest_cut

    def take(self, length):
        free = [
            (block[0], number, at)
            for number, blocks in enumerate(self.segments)
            for at, block in enumerate(blocks)
            if not block[1] and block[0] >= length and (self.is_long(length) or not self.is_long(block[0]))
        ]
        if not free:
            self.calls += 1
            self.segments.append([[20 << 20 if length < 10 << 20 else -(-length // (2 << 20)) * (2 << 20), False]])
            free = [(0, len(self.segments) - 1, 0)]
        _, number, at = min(free)
        blocks, block = self.segments[number], self.segments[number][at]
        if block[0] - length > 1 << 20 and not self.is_long(block[0]):
            blocks.insert(at + 1, [block[0] - length, False])
            block[0] = length
        block[1] = True
        return blocks, block

    def free(self, blocks, block):
        block[1] = False
        merged = []
        for each in blocks:
            if merged and not merged[-1][1] and not each[1]:
                merged[-1][0] += each[0]
            else:
                merged.append(each)
        blocks[:] = merged

    def stats(self, device):
        reserved, active = (
            sum(block[0] for blocks in self.segments for block in blocks if block[1] or is_free)
            for is_free in (True, False)
        )
        pools = {"reserved_bytes": reserved, "active_bytes": active}
        stats = {name: {"large_pool": {"current": value}} for name, value in pools.items()}
        return stats | {"max_split_size": -1 if self.longest_cut is None else self.longest_cut}

    def reserved(self):
        return sum(block[0] for blocks in self.segments for block in blocks)


def filled(random, cached, longest_cut=None):
    """Returns an allocator that has freed tensors, and the tensors that it keeps."""
    cache, kept = Cache(longest_cut), []
    while cache.reserved() < cached:
        tensors = [cache.empty(random.randrange(2 << 20, 90 << 20), torch.uint8, "cuda") for _ in range(3)]
        kept.append(tensors[random.randrange(3)])
    return cache, kept


@pytest.mark.parametrize("cached", [0, 30 << 20, 200 << 20, 2 << 30, 8 << 30])
@pytest.mark.parametrize("longest_cut", [None, 128 << 20])
def test_loads_reserve_what_single_tensors_take(tmp_path, monkeypatch, cached, longest_cut):
    lengths = [random.Random(seed).choices([1, 5 << 10, 3 << 20, 17 << 20, 250 << 20], k=20) for seed in range(6)]
    for seed, lens in enumerate(lengths):
        path = tmp_path / "sparse"
        places = {f"{number}": {"dtype": "U8", "shape": [length]} for number, length in enumerate(lens)}
        at = 0
        for place in places.values():
            place["data_offsets"] = [at, at := at + place["shape"][0]]
        header = json.dumps(places).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, 8 + len(header) + at)
        (group,) = Checkpoint([path]).groups(None, None)
        cache, kept = filled(random.Random(seed), cached, longest_cut)
        other, kept_too = filled(random.Random(seed), cached, longest_cut)
        monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", cache.stats)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", cache.empty)
            apart = _torch.Framework("cuda").memory(group)
        one_by_one = [other.empty(tensor.shape, tensor.dtype, "cuda") for tensor in apart.tensors]
        assert len(one_by_one) == len(lens) and [tensor.nbytes for tensor in apart.tensors] == lens
        assert cache.reserved() <= other.reserved() + (66 << 20)
        if not cached and longest_cut is None:
            assert cache.calls == 1
        del kept, kept_too, apart, one_by_one
