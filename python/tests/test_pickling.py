"""Pickling and copying of the package's objects: they work, or say what to do instead."""

import copy
import os
import pickle

import pytest

np = pytest.importorskip("numpy")

import gpufile
import gpufile.safetensors as gs
from gpufile import kv_blocks, kvikio
from gpufile.safetensors import Placement, Share
from gpufile.safetensors import numpy as ours

WAYS = [lambda value: pickle.loads(pickle.dumps(value)), copy.copy, copy.deepcopy]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    ours.save_file({"w": np.arange(20.0).reshape(4, 5), "b": np.zeros(3, np.float16)}, path, sync=False)
    return path


def gds_file(path):
    return pytest.importorskip("gpufile.torch").GdsFile(path, os.O_RDWR)


def block_reader(path):
    kv_blocks.BlockStore(path.parent / "blocks", 9).close()
    return kv_blocks.BlockReader(path.parent / "blocks", 9)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (gpufile.File, "cannot pickle 'gpufile.File' object: .* open it in the process that uses it"),
        (lambda path: gpufile.Engine(), "cannot pickle 'gpufile.Engine' object: .* make another there"),
        (lambda path: gpufile.File(path).route(), "cannot pickle 'gpufile.Route' object: pass on its kind"),
        (lambda path: gpufile.File(path).read_into_async(bytearray(3)), "in flight belongs to its process"),
        (lambda path: gs.safe_open(path, "np"), "a safe_open belongs to its process, .* open it in the process that uses it"),
        (lambda path: gs.safe_open(path, "np").get_slice("w"), "a SafeSlice belongs to its process"),
        (lambda path: gs.safe_open(path, "np").prefetch(), "a PrefetchLoader belongs to its process"),
        (lambda path: kv_blocks.BlockStore(path.parent / "blocks", 9), "cannot pickle 'gpufile.kv_blocks.BlockStore' object: .* open a BlockReader in others"),
        (block_reader, "cannot pickle 'gpufile.kv_blocks.BlockReader' object: .* open another in the process that uses it"),
        (lambda path: kv_blocks.Region(bytearray(3)), "cannot pickle 'gpufile.kv_blocks.Region' object: .* make one of other memory there"),
        (kvikio.CuFile, "a CuFile belongs to its process"),
        (kvikio.Mmap, "a Mmap belongs to its process"),
        (gds_file, "a GdsFile belongs to its process"),
        (lambda path: pytest.importorskip("gpufile.torch").Saver(), "a Saver belongs to its process.* make another there"),
    ],
)
def test_objects_of_a_process_say_what_to_do(model, make, text):
    made = make(model)
    for way in WAYS:
        with pytest.raises(TypeError, match=text):
            way(made)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_loaded", [False, True])
def test_lazy_models_open_their_files_again(model, way, is_loaded):
    for path in (str(model), model, [model], (each for each in [model])):
        lazy = gs.LazyModel(path, framework="np")
        if is_loaded:
            lazy["w"][0, 0] = 7
        other = way(lazy)
        assert type(other) is gs.LazyModel and [*other] == [*lazy]
        assert np.array_equal(other["w"], np.arange(20.0).reshape(4, 5)) and other["b"].dtype == np.float16
        assert not np.shares_memory(other["w"], lazy["w"])
    model.unlink()
    with pytest.raises(FileNotFoundError):
        way(lazy)


@pytest.mark.parametrize("way", WAYS)
def test_placements_go_to_other_processes(model, way):
    for placement in (Placement.all(), Placement.balanced()):
        other = way(placement)
        assert other == placement
        for tensors in gs.load_model(model, ["cpu"] * 2, framework="np", placement=other):
            assert all(tensors[name].size in (3, 20) for name in tensors)
    assert Placement.all() != Placement.balanced()
    assert way(Share.slice(-1, "chunks")) == Share.slice(-1, "chunks")


@pytest.mark.parametrize("way", WAYS)
def test_errors_keep_what_they_tell(model, way):
    with pytest.raises(gpufile.TransferError) as caught:
        gpufile.File(model).write_from(b"x")
    other = way(caught.value)
    assert (type(other), other.errno, other.filename) == (gpufile.TransferError, caught.value.errno, str(model))
    assert (other.bytes_done, str(other)) == (0, str(caught.value))
