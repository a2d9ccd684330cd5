"""Wrong arguments of what needs torch: each call raises the error that a user needs, which names the argument."""

import os
import tempfile

import gpufile.safetensors
import pytest

torch = pytest.importorskip("torch")

from gpufile.safetensors import torch as ours
from gpufile.torch import GdsFile, Saver, gds_deregister_buffer, gds_register_buffer, load_state

TENSORS = {"a": torch.zeros(3)}
STORAGE = torch.zeros(3).untyped_storage()
MODEL = torch.nn.Linear(2, 3)
_folder = tempfile.TemporaryDirectory()
MODEL_FILE = os.path.join(_folder.name, "model.safetensors")
ours.save_file(TENSORS, MODEL_FILE)


def saved(at, *arguments):
    """Saves by a saver, and returns the length of the file."""
    with Saver() as saver:
        return saver.save(*arguments).result()


CALLS = [
    (lambda at: ours.save_model(5, at), TypeError, "model: expected a torch.nn.Module, not int"),
    (lambda at: ours.load_model(5, at), TypeError, "model: expected a torch.nn.Module, not int"),
    (lambda at: ours.load_model(TENSORS, at), TypeError, "model: expected a torch.nn.Module, not dict"),
    (lambda at: ours.load_model(MODEL, 5), TypeError, "path: expected str, bytes, os.PathLike or a list of these, not int"),
    (lambda at: ours.load_distributed(at, 5), TypeError, "placement: expected a Placement, not int"),
    (lambda at: ours.load_distributed(at, "all"), TypeError, "placement: expected a Placement, not str"),
    (lambda at: ours.SharedModel(5, TENSORS), TypeError, "path: expected str, bytes, os.PathLike or a list of these, not int"),
    (lambda at: ours.SharedModel(MODEL_FILE, 5), TypeError, "tensors: expected a dict of names and tensors, not int"),
    (lambda at: ours.SharedModel(MODEL_FILE, {"a": 5}), TypeError, "tensor 'a' must be a torch.Tensor, but is a int"),
    (lambda at: ours.SharedModel(MODEL_FILE, {}), ValueError, "must be on one device, not on 0"),
    (lambda at: gpufile.safetensors.load_model(MODEL_FILE, shared=1), TypeError, "shared: expected True or False, not int"),
    (lambda at: ours.load_file(5), TypeError, "path: expected str, bytes, os.PathLike or a list of these, not int"),
    (lambda at: ours.save_file(5, at), ValueError, "Expected a dict of [str, torch.Tensor] but received <class 'int'>"),
    (lambda at: ours.save_file({"a": 5}, at), ValueError, "Key `a` is invalid, expected torch.Tensor"),
    (lambda at: ours.save_file(TENSORS, 5), TypeError, "expected str, bytes or os.PathLike object, not int"),
    (lambda at: ours.save(5), ValueError, "Expected a dict of [str, torch.Tensor] but received <class 'int'>"),
    (lambda at: ours.save({}, 5), TypeError, "metadata: expected a dict of strings, not int"),
    (lambda at: ours.load("text"), TypeError, "data: expected bytes or an object with the buffer protocol, not str"),
    (lambda at: GdsFile(at, "r"), TypeError, "flags: expected an integer, as os.O_RDONLY, not str"),
    (lambda at: GdsFile(5, os.O_RDONLY), TypeError, "expected str, bytes or os.PathLike object, not int"),
    (lambda at: GdsFile(at, os.O_APPEND | os.O_RDWR), ValueError, "flags must not include O_APPEND"),
    (lambda at: GdsFile(at, os.O_RDWR).load_storage(5), TypeError, "expected a torch storage, not a int"),
    (lambda at: GdsFile(at, os.O_RDWR).load_storage(TENSORS["a"]), TypeError, "call .untyped_storage()"),
    (lambda at: GdsFile(at, os.O_RDWR).load_storage(STORAGE, -1), RuntimeError, "offset is -1: it cannot be negative"),
    (lambda at: GdsFile(at, os.O_RDWR).save_storage(STORAGE, "0"), TypeError, "offset: expected an integer, not str"),
    (lambda at: gds_register_buffer(5), TypeError, "expected a torch storage, not a int"),
    (lambda at: gds_deregister_buffer(STORAGE), RuntimeError, "it is not registered"),
    (lambda at: load_state(5), TypeError, "path: expected str, bytes, os.PathLike or a list of these, not int"),
    (lambda at: Saver(snapshot="x"), ValueError, 'snapshot must be "device", "host" or None'),
    (lambda at: saved(at, 5, at), ValueError, "Expected a dict of [str, torch.Tensor] but received <class 'int'>"),
    (lambda at: saved(at, TENSORS, 5), TypeError, "expected str, bytes or os.PathLike object, not int"),
    (lambda at: saved(at, TENSORS, at, 5), TypeError, "metadata: expected a dict of texts, not int"),
    (lambda at: saved(at, TENSORS, at, {"a": 5}), TypeError, 'metadata["a"]: expected a string, not int'),
]  # fmt: skip
try:
    from gpufile.torch import StorageReader, StorageWriter
except ImportError:
    # An older torch.
    pass
else:
    CALLS += [
        (lambda at: StorageReader(5), TypeError, "path: expected str, bytes or os.PathLike object, not int"),
        (lambda at: StorageReader(at, engine=5), TypeError, "engine: expected a gpufile.Engine, not int"),
        (lambda at: StorageWriter(5), TypeError, "path: expected str, bytes or os.PathLike object, not int"),
        (lambda at: StorageWriter(at, engine=5), TypeError, "engine: expected a gpufile.Engine, not int"),
        (lambda at: StorageWriter(at, snapshot="x"), ValueError, "snapshot must be \"device\" or \"host\", but is 'x'"),
    ]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), CALLS)
def test_torch_functions_name_the_argument(tmp_path, call, error, text):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with pytest.raises(error) as caught:
        call(path)
    assert caught.type is error and text in str(caught.value), repr(caught.value)
    assert path.read_bytes() == bytes(100)


def test_refused_saves_raise_at_the_call(tmp_path):
    with Saver() as saver, pytest.raises(TypeError, match="PathLike"):
        saver.save(TENSORS, 5)
