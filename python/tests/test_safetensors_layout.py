"""The places of tensors in memory, against a model of the rule: for random models, placements and limits."""

import json
import random
import struct

import pytest

np = pytest.importorskip("numpy")

import gpufile.safetensors as gs
from gpufile import _gpufile
from gpufile.safetensors import Placement, Share, _numpy

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


def elements(shape):
    product = 1
    for axis in shape:
        product *= axis
    return product


def write(rng, path, types):
    """Writes a file of random tensors, in any order. Returns name, type and shape of each."""
    tensors, entries, end = [], {}, 0
    for number in range(rng.randrange(1, 14)):
        dtype = rng.choice(types)
        shape = [rng.randrange(9) for _ in range(rng.randrange(4))]
        if BITS[dtype] < 8:
            shape.append(4 * rng.randrange(5))
        length = elements(shape) * BITS[dtype] // 8
        name = f"{path.name}.{number}"
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + length]}
        tensors.append((name, dtype, shape))
        end += length
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + rng.randbytes(end))
    return tensors


def cut_of(length, device, devices, cut):
    """Returns the indices of a slice."""
    if cut == "even":
        sizes = [length // devices + (number < length % devices) for number in range(devices)]
    else:
        each = -(-length // devices)
        sizes = [min(each, max(length - number * each, 0)) for number in range(devices)]
    start = sum(sizes[:device])
    return start, start + sizes[device]


def grouped(tensors, limit):
    """Returns the groups of a file by the rule: for each name the start, and the length of the group."""
    groups, end = [], None
    for name, dtype, shape in tensors:
        length = elements(shape) * BITS[dtype] // 8
        alignment = 16 if length >= 16 else max(BITS[dtype] // 8, 1)
        start = 0 if end is None else -(-end // alignment) * alignment
        if end is None or (length and start + length > limit):
            groups.append({})
            start = end = 0
        groups[-1][name] = start if length else 0
        end = start + length if length else end
    return groups


def starts_of(group):
    """Returns the start of each tensor of a group in bytes, from its table."""
    starts = {}
    for code, start, lens, names, shapes in group.table():
        size = max(BITS[code] // 8, 1)
        for name, shape, length in zip(names, shapes, lens):
            assert elements(shape) == length
            # A tensor without elements has no place.
            starts[name] = start * size if length else 0
            start += length
    starts.pop(None, None)
    return starts


def lengths_of(group):
    """Returns the lengths of the tensors of a group, in elements."""
    return [length for _, _, lens, names, _ in group.table() for length, name in zip(lens, names) if name]


@pytest.mark.parametrize("seed", range(30))
def test_groups_of_random_models_follow_the_rule(tmp_path, seed):
    rng = random.Random(seed)
    files = [tmp_path / f"f{number}" for number in range(rng.randrange(1, 4))]
    models = [write(rng, file, list(BITS)) for file in files]
    checkpoint = _gpufile.Checkpoint(files)
    devices = rng.randrange(1, 5)
    limit = rng.choice([None, 0, rng.randrange(1, 3000)])
    shares = {}
    for name, dtype, shape in sum(models, []):
        choices = [Share.all(), Share.on(rng.randrange(devices))]
        if shape and BITS[dtype] >= 8:
            choices.append(Share.slice(rng.randrange(len(shape)), rng.choice(["even", "chunks"])))
        shares[name] = rng.choice(choices)
    plan = checkpoint.plan(None, lambda name, dtype, shape: shares[name], devices)
    assert plan.names() == [name for name, *_ in sum(models, [])]

    def expected(kinds, device):
        groups = []
        for model in models:
            chosen = []
            for name, dtype, shape in model:
                kind, on, axis, cut = shares[name]
                if kind not in kinds or (kind == "on" and on != device):
                    continue
                if kind == "slice":
                    start, stop = cut_of(shape[axis], device, devices, cut)
                    shape = [*shape[:axis], stop - start, *shape[axis + 1 :]]
                chosen.append((name, dtype, shape))
            groups += grouped(chosen, float("inf") if limit is None else limit)
        return groups

    for found, kinds, device in [(plan.shared(limit), ["all"], 0)] + [
        (plan.own(device, limit), ["on", "slice"], device) for device in range(devices)
    ]:
        assert [starts_of(group) for group in found] == expected(kinds, device)
        for group in found:
            assert limit is None or group.len_bytes <= limit or sum(map(bool, lengths_of(group))) == 1


@pytest.mark.parametrize("seed", range(12))
def test_arrays_of_random_models_are_aligned(tmp_path, seed):
    rng = random.Random(100 + seed)
    types = [code for code in BITS if code not in ("F4", "F6_E2M3", "F6_E3M2", *_numpy._OF_ML_DTYPES)]
    file = tmp_path / "f0"
    model = write(rng, file, types)
    content = {name: np.array(array) for name, array in gs.load_model(file, framework="np").items()}
    limit = rng.choice([None, 100, 1000])
    share = rng.choice([Share.all(), Share.balanced()])
    for arrays in [
        gs.load_model(file, framework="np", memory_budget=limit),
        *gs.load_model(file, ["cpu"] * 3, framework="np", placement=Placement.by(lambda *_: share), memory_budget=limit),
    ]:
        for name, array in arrays.items():
            base = array
            while isinstance(base.base, np.ndarray):
                base = base.base
            place = array.ctypes.data - base.ctypes.data
            assert not array.nbytes or place % (16 if array.nbytes >= 16 else array.itemsize) == 0
            assert array.tobytes() == content[name].tobytes() and array.shape == content[name].shape
    assert {name: list(array.shape) for name, array in content.items()} == {name: shape for name, _, shape in model}
