"""Everything that takes a path: addresses in the place of it, and objects that are no path."""

import importlib
import importlib.util
import inspect
import io
import os
import pathlib
import tempfile

import pytest

np = pytest.importorskip("numpy")

import gpufile
import gpufile.safetensors as gs
from gpufile import gguf, kv_blocks, kvikio, npy
from gpufile.kvikio import numpy as arrays
from gpufile.kvikio import utils
from gpufile.safetensors import numpy as ours

HERE = pathlib.Path(__file__).parent
TENSORS = {"a": np.arange(3.0)}

#: Functions that take the address of an object in the place of a path.
ADDRESSES_TOO = {
    "gpufile.gguf.load_file",
    "gpufile.gguf.metadata",
    "gpufile.npy.load",
    "gpufile.safetensors.LazyModel",
    "gpufile.safetensors.load_file",
    "gpufile.safetensors.load_model",
    "gpufile.safetensors.numpy.load_file",
    "gpufile.safetensors.numpy.save_file",
    "gpufile.safetensors.safe_open",
    "gpufile.safetensors.save_file",
    "gpufile.safetensors.serialize_file",
}
#: Functions that take files open for reading bytes.
OPENED_TOO = {f"gpufile.safetensors.{name}" for name in ("flax.load_file", "load_file", "load_model", "numpy.load_file", "safe_open")}
OPENED_TOO |= {f"gpufile.safetensors.torch.{name}" for name in ("load_distributed", "load_file", "load_model")}
OPENED_TOO |= {"gpufile.gguf.load_file", "gpufile.gguf.metadata", "gpufile.npy.load", "gpufile.torch.load_state"}
#: Functions that take an open file in the place of a path.
FILES_TOO = {"gpufile.kvikio.numpy.fromfile", "gpufile.kvikio.numpy.tofile"} | {
    f"gpufile.kvikio.page_cache.{name}" for name in ("get_page_cache_info", "drop_file_page_cache")
}
#: A call of each function that takes a path.
CALLS = {
    "gpufile.File": gpufile.File,
    "gpufile.RemoteFile": lambda path: gpufile.RemoteFile("http://127.0.0.1:1/", cache=(path, 1)),
    "gpufile.check": gpufile.check,
    "gpufile.gguf.load_file": lambda path: gguf.load_file(path, framework="np"),
    "gpufile.gguf.metadata": gguf.metadata,
    "gpufile.kv_blocks.BlockReader": lambda path: kv_blocks.BlockReader(path, 9),
    "gpufile.kv_blocks.BlockStore": lambda path: kv_blocks.BlockStore(path, 9),
    "gpufile.kvikio.CuFile": kvikio.CuFile,
    "gpufile.kvikio.Mmap": kvikio.Mmap,
    "gpufile.kvikio.numpy.fromfile": arrays.fromfile,
    "gpufile.kvikio.numpy.tofile": lambda path: arrays.tofile(np.zeros(3), path),
    "gpufile.kvikio.page_cache.drop_file_page_cache": kvikio.page_cache.drop_file_page_cache,
    "gpufile.kvikio.page_cache.get_page_cache_info": kvikio.page_cache.get_page_cache_info,
    "gpufile.kvikio.utils.LocalHttpServer": utils.LocalHttpServer,
    "gpufile.npy.load": lambda path: npy.load(path, framework="np"),
    "gpufile.safetensors.LazyModel": lambda path: gs.LazyModel(path, framework="np"),
    "gpufile.safetensors.load_file": lambda path: gs.load_file(path, framework="np"),
    "gpufile.safetensors.load_model": lambda path: gs.load_model(path, framework="np"),
    "gpufile.safetensors.numpy.load_file": ours.load_file,
    "gpufile.safetensors.numpy.save_file": lambda path: ours.save_file(TENSORS, path),
    "gpufile.safetensors.safe_open": lambda path: gs.safe_open(path, "np"),
    "gpufile.safetensors.save_file": lambda path: gs.save_file(TENSORS, path),
    "gpufile.safetensors.serialize_file": lambda path: gs.serialize_file({}, path),
    "gpufile.safetensors.verify": gs.verify,
}
LISTS_TOO = {f"gpufile.safetensors.{name}" for name in ("LazyModel", "load_file", "load_model", "safe_open", "verify")}
LISTS_TOO |= {"gpufile.safetensors.numpy.load_file"}

try:
    import torch

    import gpufile.torch
    from gpufile.safetensors import torch as on_torch
except ImportError:
    torch = None
else:
    TORCH_TENSORS = {"a": torch.arange(3)}

    def saved(path):
        with gpufile.torch.Saver() as saver:
            return saver.save(TORCH_TENSORS, path)

    def distributed(path):
        with tempfile.TemporaryDirectory() as at:
            torch.distributed.init_process_group("gloo", init_method=f"file://{at}/group", rank=0, world_size=1)
            try:
                return on_torch.load_distributed(path, gs.Placement.all())
            finally:
                torch.distributed.destroy_process_group()

    CALLS |= {
        "gpufile.safetensors.torch.SharedModel": lambda path: on_torch.SharedModel(path, TORCH_TENSORS),
        "gpufile.safetensors.torch.load_distributed": distributed,
        "gpufile.safetensors.torch.load_file": on_torch.load_file,
        "gpufile.safetensors.torch.load_model": lambda path: on_torch.load_model(torch.nn.Linear(1, 1), path),
        "gpufile.safetensors.torch.save_file": lambda path: on_torch.save_file(TORCH_TENSORS, path),
        "gpufile.safetensors.torch.save_model": lambda path: on_torch.save_model(torch.nn.Linear(1, 1), path),
        "gpufile.torch.GdsFile": lambda path: gpufile.torch.GdsFile(path, os.O_RDWR | os.O_CREAT),
        "gpufile.torch.Saver.save": saved,
        "gpufile.torch.load_state": gpufile.torch.load_state,
    }
    ADDRESSES_TOO |= {
        f"gpufile.safetensors.torch.{name}" for name in ("load_distributed", "load_file", "load_model", "save_file", "save_model")
    }
    ADDRESSES_TOO |= {"gpufile.torch.Saver.save", "gpufile.torch.load_state"}
    LISTS_TOO |= {f"gpufile.safetensors.torch.{name}" for name in ("SharedModel", "load_distributed", "load_file", "load_model")}
    LISTS_TOO |= {"gpufile.torch.load_state"}
    try:
        from gpufile.torch import StorageReader, StorageWriter
    except ImportError:
        # An older torch.
        pass
    else:
        CALLS |= {
            "gpufile.torch.StorageReader": StorageReader,
            "gpufile.torch.StorageReader.reset": lambda path: StorageReader("x").reset(path),
            "gpufile.torch.StorageWriter": StorageWriter,
            "gpufile.torch.StorageWriter.reset": lambda path: StorageWriter("x").reset(path),
        }
        ADDRESSES_TOO |= {f"gpufile.torch.Storage{name}" for name in ("Reader", "Reader.reset", "Writer", "Writer.reset")}

try:
    import jax

    from gpufile.safetensors import flax
except ImportError:
    jax = None
else:
    CALLS |= {
        "gpufile.safetensors.flax.load_file": flax.load_file,
        "gpufile.safetensors.flax.save_file": lambda path: flax.save_file({"a": jax.numpy.arange(3)}, path),
    }
    ADDRESSES_TOO |= {"gpufile.safetensors.flax.load_file", "gpufile.safetensors.flax.save_file"}
    LISTS_TOO |= {"gpufile.safetensors.flax.load_file"}

try:
    from gpufile.kvikio import zarr
except ImportError:
    pass
else:
    CALLS["gpufile.kvikio.zarr.GDSStore"] = zarr.GDSStore

ADDRESSES = ["s3://bucket/x", "gcs://bucket/x", "file:///x", "hf://org/model", "S3://bucket/x"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Runs each call in an empty folder, which stays empty."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", CALLS)
def test_paths_are_no_addresses(name):
    for address in ADDRESSES:
        if address.startswith("hf") and (name in LISTS_TOO & ADDRESSES_TOO or name == "gpufile.safetensors.verify"):
            # The address of a model on the Hub.
            with pytest.raises((OSError, ImportError), match="hf://org/model"):
                CALLS[name](address)
        elif name not in ADDRESSES_TOO:
            with pytest.raises(ValueError, match="is an address|in local files"):
                CALLS[name](address)
        elif address.startswith(("file", "hf")):
            # They take addresses, and know others.
            with pytest.raises(ValueError, match="the scheme|only to addresses"):
                CALLS[name](address)
    # pathlib takes a slash away.
    with pytest.raises(ValueError, match="is an address that lost a slash"):
        CALLS[name](pathlib.Path("s3://bucket/x"))


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("file:///data/x", "write its path, such as /data/model"),
        ("s3n://bucket/x", "write s3://"),
        ("wasbs://container/x", "write az://"),
        ("hf://gpt2/x", "huggingface_hub"),
    ],
)
def test_addresses_of_other_programs_have_a_hint(address, hint):
    calls = [gpufile.RemoteFile, CALLS["gpufile.safetensors.numpy.save_file"]]
    for call in [*calls, CALLS["gpufile.safetensors.load_model"]] if not address.startswith("hf") else calls:
        with pytest.raises(ValueError, match=hint):
            call(address)


@pytest.mark.parametrize("path", ["https://example.org/x", pathlib.Path("s3://bucket/x")])
def test_addresses_for_paths_name_what_takes_them(path):
    with pytest.raises(ValueError, match="gpufile.RemoteFile, safe_open, load_model and save_file take addresses"):
        gpufile.File(path)


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2", pathlib.Path("meta-llama/Llama-3.1-8B")])
def test_names_of_models_have_a_hint(name):
    with pytest.raises(FileNotFoundError) as caught:
        gs.load_model(name, framework="np")
    # Programs compare the text.
    assert str(caught.value) == f"No such file or directory: {name}"
    assert f"hf://{name}" in caught.value.__notes__[0]
    with pytest.raises(FileNotFoundError) as caught:
        gs.load_model("/no/such/model", framework="np")
    assert not hasattr(caught.value, "__notes__")


class WithRead:
    def read(self):
        return b"x"


def no_paths():
    """Returns objects that are no path."""
    return [5, 1.5, None, {"x": 1}, {}, io.BytesIO(b"x"), io.BytesIO(), io.StringIO("x"), WithRead(), bytearray(b"x"), object(), np.zeros(3)]


@pytest.mark.parametrize("name", CALLS)
def test_objects_are_no_paths(name):
    for thing in no_paths():
        if name.endswith(".reset") and thing is None:
            # Stands for the folder that was given before.
            continue
        if name in OPENED_TOO and hasattr(thing, "read") and not isinstance(thing, io.StringIO):
            # Stands for a file whose contents are wrong.
            continue
        if name in FILES_TOO and (isinstance(thing, (int, float)) or name.startswith("gpufile.kvikio.page_cache")):
            # These take descriptors, and raise kvikio's ValueError.
            continue
        with pytest.raises(TypeError, match="expected "):
            print(name, thing, CALLS[name](thing))
    with open(os.devnull, "rb") as file:
        if name not in FILES_TOO | OPENED_TOO and name != "gpufile.torch.GdsFile":
            with pytest.raises(TypeError, match="expected "):
                CALLS[name](file)
    with pytest.raises(ValueError, match="null byte"):
        CALLS[name]("a\0b")
    if name in LISTS_TOO:
        for empty in ([], (), iter(()), set()):
            with pytest.raises(ValueError, match="an empty list"):
                CALLS[name](empty)
        for wrong in ([5], ["x", None], [["x"]], [io.BytesIO(b"x")], [{}]):
            with pytest.raises(TypeError, match=r"path\[\d\]: expected"):
                CALLS[name](wrong)
        with pytest.raises(ValueError, match="by their index"):
            CALLS[name](["x", "s3://bucket/x"])
    else:
        with pytest.raises((TypeError, ValueError)):
            CALLS[name]([])


@pytest.mark.parametrize("name", ["a:b", "s3:x", "./s3:/x", "./s3://bucket/x", "1a://b"])
def test_odd_names_stay_paths(folder, name):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    ours.save_file(TENSORS, name, sync=False)
    assert list(ours.load_file(name)) == ["a"]
    with gpufile.File(name) as file:
        assert file.size() > 0
    os.remove(name)
    for made in sorted(folder.rglob("*"), reverse=True):
        made.rmdir()


def takes_path(function):
    """Returns whether a function has an argument that is a path, by its name or its type."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    names = {"path", "filename", "file", "file_path", "root", "root_path", "folder", "checkpoint_id", "cache"}
    types = ("PathLike", "Path", "Model |", "Model")
    return any(one.name in names or any(word in str(one.annotation) for word in types) for one in parameters)


def test_each_function_with_a_path_has_a_row():
    spec = importlib.util.spec_from_file_location("completeness", HERE / "test_arguments_complete.py")
    complete = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(complete)
    found = {}
    for (module, name), function in complete.public_functions():
        if complete.takes_arguments(function) and takes_path(function):
            found[module, name] = function
    rows = set()
    for name in CALLS:
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            try:
                value = importlib.import_module(".".join(parts[:end]))
            except ImportError:
                continue
            for part in parts[end:]:
                value = getattr(value, part)
            rows.add(complete.key(value))
            break
    assert {".".join(key) for key in found.keys() - rows} == set()
    assert len(rows) > 15
