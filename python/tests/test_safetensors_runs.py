"""Slices of many short ranges: their plans are small, and their reads are cut into steps."""

import json
import struct

import pytest

np = pytest.importorskip("numpy")

from gpufile import _gpufile
from gpufile.safetensors import Share, _load, safe_open
from gpufile.safetensors import numpy as ours

ROWS = 1 << 32


@pytest.fixture
def tall(tmp_path):
    """Returns a sparse file of a tensor with 2^32 rows and two columns, whose row 2 is 5 and 6."""
    path = tmp_path / "tall.safetensors"
    header = json.dumps({"a": {"dtype": "U8", "shape": [ROWS, 2], "data_offsets": [0, 2 * ROWS]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"\0\0\0\0\5\6")
        file.truncate(8 + len(header) + 2 * ROWS)
    return path


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_plan_of_any_number_of_rows_is_small(tall):
    before = resident_bytes()
    checkpoint = _gpufile.Checkpoint([tall])
    (group,) = checkpoint.plan(["a"], lambda *_: Share.slice(1), 2).own(1)
    part = checkpoint.part("a", [(0, ROWS), (1, 2)])
    assert group.len_bytes == part.len_bytes == ROWS
    assert group.step(0, 1 << 40, 1000) == (1000, 1000)
    assert group.step(ROWS - 10, 1 << 40, 1000) == (ROWS, 10)
    assert resident_bytes() - before < 32 << 20


def test_rows_are_read_in_steps_and_not_at_once(tall):
    checkpoint = _gpufile.Checkpoint([tall])
    (group,) = checkpoint.plan(["a"], lambda *_: Share.slice(1), 2).own(1)
    memory = np.empty(ROWS, np.uint8)
    checkpoint.read([(group, memory, 0, 5)]).result()
    assert memory[:5].tolist() == [0, 0, 6, 0, 0]
    with pytest.raises(ValueError, match=r"bytes 0 to 4294967296 of the group are in more than 262144 places of its file"):
        checkpoint.read([(group, memory, 0, ROWS)])


def test_steps_have_at_most_so_many_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(_load, "STEP_READS", 7)
    array = np.arange(20 * 6 * 4, dtype=np.int16).reshape(20, 6, 4)
    path = tmp_path / "x.safetensors"
    ours.save_file({"x": array, "y": array + 1}, path, sync=False)
    checkpoint = _gpufile.Checkpoint([path])
    rule = {"x": Share.slice(2), "y": Share.slice(1)}
    (group,) = checkpoint.plan(["x", "y"], lambda name, *_: rule[name], 2).own(1)
    memory = np.zeros(group.len_bytes, np.uint8)
    steps = list(_load.cut([group], [memory], 1 << 30))
    assert len(steps) == -(-(20 * 6 + 20) // 7)
    for parts in steps:
        checkpoint.read(parts).result()
    expected = array[:, :, 2:].tobytes() + (array + 1)[:, 3:].tobytes()
    assert memory.tobytes() == expected


def test_slice_of_more_runs_than_one_read_is_whole(tmp_path):
    array = np.random.default_rng(3).integers(0, 256, (300_000, 3), np.uint8)
    path = tmp_path / "x.safetensors"
    ours.save_file({"x": array}, path, sync=False)
    with safe_open(path, "np") as opened:
        assert np.array_equal(opened.get_slice("x")[:, 1:2], array[:, 1:2])

