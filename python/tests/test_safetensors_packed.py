"""Files with packed tensors, which a small encoder after docs/packed.md writes: all loaders take them as plain files."""

import collections
import json
import struct

import pytest

np = pytest.importorskip("numpy")

import gpufile.safetensors as gs
from gpufile.safetensors import load_file, load_model, safe_open
from gpufile.safetensors import numpy as ours

GROUP = 8192
K = np.uint64(0x9E3779B1)
LOW = np.uint64(0xFFFFFFFF)


def checksum(data):
    words = np.frombuffer(data, "<u4").astype(np.uint64)
    with np.errstate(over="ignore"):
        keyed = (words + (np.arange(1, len(words) + 1, dtype=np.uint64) * K)) & LOW
        sums = keyed[::2] * keyed[1::2] + words[::2] + (words[1::2] << np.uint64(32))
        return int((sums.sum() + np.uint64(len(data))) & np.uint64(2**64 - 1))


def plane(bits):
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def packed_f32(values):
    """Returns the packed form of an array of F32."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4").reshape(-1)
    exponents = (bits >> 23 & 255).astype(np.uint8)
    ranked = [symbol for symbol, _ in collections.Counter(exponents.tolist()).most_common(22)]
    common, rare = (ranked[:7] + ranked[:1] * 7)[:7], (ranked[7:] + ranked[:1] * 15)[:15]
    index, blocks = b"", b""
    for start in range(0, len(bits), GROUP):
        group, symbols = bits[start : start + GROUP], exponents[start : start + GROUP]
        n = -(-len(group) // 128) * 128
        group = np.concatenate([group, np.zeros(n - len(group), "<u4")])
        symbols = np.concatenate([symbols, np.full(n - len(symbols), common[0], np.uint8)])
        codes = np.array([common.index(s) if s in common else 7 for s in symbols.tolist()])
        escaped = [(at, int(symbols[at])) for at in np.nonzero(codes == 7)[0].tolist()]
        nibbles = [rare.index(s) if s in rare else 15 for _, s in escaped]
        patches = [(at, s) for at, s in escaped if s not in rare]
        tops = (group >> 24 & 0x80 | group >> 16 & 0x7F).astype(np.uint8)
        block = (group & 0xFFFF).astype("<u2").tobytes() + tops.tobytes()
        block += b"".join(plane(codes >> bit & 1) for bit in range(3))
        nibbles += [0] * (-len(nibbles) % 8)
        block += bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2]))
        block += b"".join(struct.pack("<HH", *patch) for patch in patches)
        block += bytes(-len(block) % 16)
        blocks += block
        index += struct.pack("<IHHQ", len(blocks) // 16, len(escaped), len(patches), checksum(block))
    length = 64 + len(index) + len(blocks)
    head = b"gpfpack\n" + struct.pack("<BBHIQ", 1, 3, 0, GROUP, len(bits)) + bytes([*common, 0, *rare, 0])
    head += struct.pack("<Q", length)
    return head + struct.pack("<Q", checksum(head + bytes(8) + index)) + index + blocks


WEIGHT = np.random.default_rng(3).normal(0, 0.02, (150, 201)).astype(np.float32)
WEIGHT.reshape(-1)[::97] = np.frombuffer(struct.pack("<8I", 0, 1 << 31, 0x7F800000, 0x7FC01234, 0xFFFFFFFF, 1, 0x7F7FFFFF, 5), "<f4")[
    np.arange(len(WEIGHT.reshape(-1)[::97])) % 8
]
BIAS = np.arange(5, dtype=np.int64)


@pytest.fixture
def path(tmp_path):
    packed = packed_f32(WEIGHT)
    assert len(packed) < WEIGHT.nbytes * 0.9
    metadata = {
        "format": "np",
        "gpufile.packed": "1",
        "gpufile.packed.needs": "0.1.0",
        "gpufile.packed.tensors": "1",
        "gpufile.packed:weight": "F32[150,201]",
    }
    header = {
        "__metadata__": metadata,
        "bias": {"dtype": "I64", "shape": [5], "data_offsets": [0, 40]},
        "weight": {"dtype": "U8", "shape": [len(packed)], "data_offsets": [40, 40 + len(packed)]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + BIAS.tobytes() + packed)
    return path


def assert_weight(array):
    assert array.dtype == np.float32 and array.shape == (150, 201)
    assert np.ascontiguousarray(array).tobytes() == WEIGHT.tobytes()


def test_all_loaders_take_packed_tensors(path):
    for arrays in [load_file(path, "cpu", framework="np"), load_model(path, framework="np"), ours.load_file(path)]:
        assert_weight(arrays["weight"])
        assert arrays["bias"].tolist() == BIAS.tolist()
    with safe_open(path, "np") as model:
        assert_weight(model.get_tensor("weight"))
        assert model.metadata() == {"format": "np"}
        part = model.get_slice("weight")
        assert part.get_shape() == [150, 201] and part.get_dtype() == "F32"
        assert part[17:120, 5:90].tobytes() == np.ascontiguousarray(WEIGHT[17:120, 5:90]).tobytes()
    assert gs.verify(path).problems == []


def test_torch_reads_packed_tensors_unless_told_to_map(path):
    pytest.importorskip("torch")
    from gpufile.safetensors.torch import load_file as load_torch

    assert_weight(load_torch(path)["weight"].numpy())
    with safe_open(path, "pt") as model:
        assert_weight(model.get_tensor("weight").numpy())
    with pytest.raises(ValueError, match="without packed tensors"):
        load_torch(path, mapped=True)


def test_safetensors_itself_finds_bytes_of_one_axis(path):
    theirs = pytest.importorskip("safetensors.numpy")
    weight = theirs.load_file(path)["weight"]
    assert weight.dtype == np.uint8 and weight.ndim == 1


def test_damage_is_an_error(path):
    whole = path.read_bytes()
    for at in [len(whole) - 5, len(whole) - 9000]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(OSError, match="do not have their checksum"):
            load_file(path, "cpu", framework="np")


def shaped(seed):
    """Returns arrays that can be packed, and one that cannot."""
    random = np.random.default_rng(seed)
    weights = (random.standard_normal((300, 401)) * 0.02).astype("f4")
    weights.reshape(-1)[:3] = [np.nan, np.inf, -0.0]
    return {"w": weights, "half": weights[:100].astype("f2"), "ids": np.arange(7), "none": np.zeros((0, 3), "f4")}


def test_save_file_packs_arrays(tmp_path):
    arrays = shaped(1)
    ours.save_file(arrays, tmp_path / "plain")
    ours.save_file(arrays, tmp_path / "packed", {"a": "b"}, compress=True)
    assert (tmp_path / "packed").stat().st_size < (tmp_path / "plain").stat().st_size * 9 / 10
    loaded = ours.load_file(tmp_path / "packed")
    assert {name: array.tobytes() for name, array in loaded.items()} == {name: array.tobytes() for name, array in arrays.items()}
    assert all(loaded[name].dtype == array.dtype and loaded[name].shape == array.shape for name, array in arrays.items())
    with safe_open(tmp_path / "packed", "np") as file:
        assert file.metadata() == {"a": "b"}
    gs.save_file(arrays, tmp_path / "again", {"a": "b"}, compress=True)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "packed").read_bytes()


def test_save_file_refuses_to_pack_wrongly(tmp_path):
    arrays = shaped(2)
    with pytest.raises(ValueError, match="compress is for files"):
        ours.save_file(arrays, "s3://bucket/x", compress=True)
    with pytest.raises(TypeError, match="compress: expected True or False, not int"):
        ours.save_file(arrays, tmp_path / "x", compress=1)
    with pytest.raises(Exception, match="gpufile.packed.x"):
        ours.save_file(arrays, tmp_path / "x", {"gpufile.packed.x": "1"}, compress=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("snapshot", ["device", "host", None])
@pytest.mark.parametrize("budget", [None, 300_000])
def test_savers_pack_states(tmp_path, snapshot, budget):
    torch = pytest.importorskip("torch")
    from gpufile.torch import Saver, load_state

    generator = torch.Generator().manual_seed(3)
    weights = (torch.randn(300, 1001, generator=generator) * 0.02).to(torch.bfloat16)
    state = {"model": {"w": weights, "tied": weights, "bias": torch.randn(77)}, "step": 3}
    with Saver(snapshot=snapshot, sync=False, memory_budget=budget, compress=True) as saver:
        length = saver.save(state, tmp_path / "x").result()
    assert length == (tmp_path / "x").stat().st_size < weights.nbytes * 3 / 4
    loaded = load_state(tmp_path / "x")
    assert torch.equal(loaded["model"]["w"].view(torch.int16), weights.view(torch.int16))
    assert loaded["model"]["tied"] is loaded["model"]["w"] and loaded["step"] == 3
    assert torch.equal(loaded["model"]["bias"], state["model"]["bias"])
