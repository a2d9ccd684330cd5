"""Each way to save leaves everything in the folder that it did not name, as the package safetensors does."""

import errno
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest

np = pytest.importorskip("numpy")

import gpufile.safetensors as gs
from gpufile.safetensors import numpy as ours

try:
    import safetensors
    import safetensors.numpy as theirs
except ImportError:
    theirs = None
try:
    import torch

    import gpufile.torch
    from gpufile.safetensors import torch as on_torch
except ImportError:
    torch = None

try:
    from gpufile.torch import StorageWriter
except ImportError:
    # Without torch, or with an older one.
    HAS_CHECKPOINTS = False
else:
    HAS_CHECKPOINTS = True
try:
    import jax

    from gpufile.safetensors import flax
except ImportError:
    jax = None

MODEL = "model.safetensors"
INDEX = f"{MODEL}.index.json"
TENSORS = {"a": np.arange(3.0)}


def write(folder, *names, mode=0o644):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"content of {name}".encode())
        path.chmod(mode)


def model(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        ours.save_file(TENSORS, folder / name, sync=False)


def index(folder, name, *shards):
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": {f"t{i}": shard for i, shard in enumerate(shards)}}))


def sharded(folder, stem="model", count=2, end=".safetensors", indexed=True):
    shards = [f"{stem}-{i:05}-of-{count:05}{end}" for i in range(1, count + 1)]
    model(folder, *shards)
    if indexed:
        index(folder, f"{stem}{end}.index.json", *shards)


def cache(folder, shards=False):
    """A snapshot of a Hugging Face cache: links to blobs beside it."""
    names = [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)] if shards else [MODEL]
    for number, name in enumerate(names):
        blob = folder / "blobs" / f"{number}{'0' * 63}"
        model(folder, str(blob.relative_to(folder)))
        (folder / name).symlink_to(os.path.relpath(blob, folder))
    if shards:
        index(folder, INDEX, *names)


def linked(folder):
    model(folder, MODEL)
    os.link(folder / MODEL, folder / "backup.safetensors")


def read_only(folder):
    sharded(folder)
    for path in folder.iterdir():
        path.chmod(0o444)


#: Folders, by what is in them before the save.
FOLDERS = {
    "empty": lambda folder: None,
    "single": lambda folder: model(folder, MODEL),
    "single of mode 0600": lambda folder: (model(folder, MODEL), (folder / MODEL).chmod(0o600)),
    "indexed": sharded,
    "indexed, many": lambda folder: sharded(folder, count=9),
    "single and indexed": lambda folder: (model(folder, MODEL), sharded(folder)),
    "index of the single file": lambda folder: (model(folder, MODEL), index(folder, INDEX, MODEL)),
    "shards without index": lambda folder: sharded(folder, indexed=False),
    "index without shards": lambda folder: index(folder, INDEX, "model-00001-of-00002.safetensors"),
    "damaged index": lambda folder: (sharded(folder), (folder / INDEX).write_text("{")),
    "index of other files": lambda folder: (write(folder, "config.json", "notes.txt"), index(folder, INDEX, "config.json", "notes.txt")),
    "index of a folder below": lambda folder: (model(folder, "below/one.safetensors"), index(folder, INDEX, "below/one.safetensors")),
    "variant": lambda folder: sharded(folder, stem="model.fp16"),
    "variant of the index": lambda folder: (sharded(folder), index(folder, f"{MODEL}.index.fp16.json", "model-00001-of-00002.safetensors")),
    "other model": lambda folder: (sharded(folder, stem="adapter_model"), model(folder, "vae.safetensors")),
    "shards of gpufile": lambda folder: (
        model(folder, "model-0123456789abcdef-00001-of-00001.safetensors"),
        index(folder, INDEX, "model-0123456789abcdef-00001-of-00001.safetensors"),
    ),
    "shards of gpufile without index": lambda folder: model(folder, "model-0123456789abcdef-00001-of-00001.safetensors"),
    "hub cache": cache,
    "hub cache with an index": lambda folder: cache(folder, shards=True),
    "links to nowhere": lambda folder: ((folder / "gone.safetensors").symlink_to("nowhere"), (folder / "loop").symlink_to("loop")),
    "hard link": linked,
    "hidden files": lambda folder: write(folder, ".gitattributes", ".model.safetensors.swp", ".cache/x", "._model.safetensors"),
    "parts of others": lambda folder: write(folder, "model.safetensors.part", "model.safetensors.tmp", ".tmp1234", f"{MODEL}.incomplete"),
    "names like temporary ones": lambda folder: write(folder, ".a.0123456789abcdef.tmp", "a.0123456789abcdef.gpufile-tmp", ".gpufile-tmp"),
    "gguf": lambda folder: write(folder, "model.gguf", "model-00001-of-00002.gguf", "model-00002-of-00002.gguf"),
    "torch": lambda folder: write(folder, "pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt"),
    "distributed checkpoint": lambda folder: write(folder, ".metadata", "__0_0.distcp", "__1_0.distcp"),
    "folders below": lambda folder: (write(folder, "model/x", "model.safetensors.d/y", "checkpoint-1/optimizer.pt"), model(folder, "old/model.safetensors")),
    "read-only entries": read_only,
    "private entries": lambda folder: (sharded(folder), [path.chmod(0o600) for path in folder.iterdir()]),
    "odd names": lambda folder: write(folder, "model.safetensors ", "model.safetensors\n", "MODEL.SAFETENSORS", "é.safetensors"),
}

#: Ways to save to a path, and what else they make.
WAYS = {
    "safetensors.save_file": lambda path: gs.save_file(TENSORS, path),
    "safetensors.serialize_file": lambda path: gs.serialize_file(specs(), path),
    "numpy.save_file": lambda path: ours.save_file(TENSORS, path),
    "numpy.save_file without sync": lambda path: ours.save_file(TENSORS, path, sync=False),
}
#: What the package safetensors does in the place of a way.
THEIRS = {}
if theirs is not None:
    THEIRS["numpy.save_file"] = lambda path: theirs.save_file(TENSORS, path)


def specs():
    array = TENSORS["a"]
    spec = gs.TensorSpec(dtype="float64", shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
    return {"a": spec}


if torch is not None:

    def saver(path):
        with gpufile.torch.Saver() as saver:
            saver.save({"a": torch.arange(3.0)}, path)

    def installed(path):
        gs.install()
        try:
            safetensors.torch.save_file({"a": torch.arange(3.0)}, path)
        finally:
            gs.uninstall()

    WAYS |= {
        "torch.save_file": lambda path: on_torch.save_file({"a": torch.arange(3.0)}, path),
        "torch.save_model": lambda path: on_torch.save_model(torch.nn.Linear(2, 2), path),
        "Saver": saver,
    }
    if theirs is not None:
        import safetensors.torch

        WAYS["install"] = installed
        THEIRS["torch.save_file"] = lambda path: safetensors.torch.save_file({"a": torch.arange(3.0)}, path)
        THEIRS["torch.save_model"] = lambda path: safetensors.torch.save_model(torch.nn.Linear(2, 2), path)
if jax is not None:
    WAYS["flax.save_file"] = lambda path: flax.save_file({"a": jax.numpy.arange(3)}, path)


def umask():
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def entries(folder):
    """Returns everything below a folder: name, kind and mode, number, time of change and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else None if path.is_dir() else path.read_bytes()
        # A temporary file changes the time of its folder.
        changed = None if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_ino, changed, content)
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", FOLDERS)
def test_saves_touch_only_their_own_name(tmp_path, kind, way):
    FOLDERS[kind](tmp_path)
    before = entries(tmp_path)
    # The second save replaces what the first one made.
    for _ in range(2):
        WAYS[way](tmp_path / MODEL)
        after = entries(tmp_path)
        assert MODEL in after and set(after) == set(before) | {MODEL}
        assert {name: entry for name, entry in after.items() if name != MODEL} == {
            name: entry for name, entry in before.items() if name != MODEL
        }
        assert ours.load_file(tmp_path / MODEL)


@pytest.mark.parametrize("way", THEIRS)
@pytest.mark.parametrize("kind", FOLDERS)
def test_folders_are_those_that_safetensors_leaves(tmp_path, kind, way):
    made = {}
    for name, save in (("ours", WAYS[way]), ("theirs", THEIRS[way])):
        folder = tmp_path / name
        folder.mkdir()
        FOLDERS[kind](folder)
        old = stat.S_IMODE((folder / MODEL).stat().st_mode) if (folder / MODEL).exists() else 0o666 & ~umask()
        save(folder / MODEL)
        made[name] = {name: mode for name, (mode, *_) in entries(folder).items()}
    # safetensors 0.8 makes private files, whatever was there before. Its older versions, and gpufile, keep the mode.
    assert stat.S_IMODE(made["ours"].pop(MODEL)) == old
    made["theirs"].pop(MODEL)
    assert made["ours"] == made["theirs"]


def test_the_older_model_goes_if_it_is_named(tmp_path):
    sharded(tmp_path)
    sharded(tmp_path, stem="model.fp16")
    write(tmp_path, "model-00003-of-00003.safetensors", "config.json", "model.gguf")
    kept = {name: entry for name, entry in entries(tmp_path).items() if name != INDEX and "of-00002" not in name or "fp16" in name}
    ours.save_file(TENSORS, tmp_path / MODEL, remove_old_model=True)
    after = entries(tmp_path)
    assert after.pop(MODEL) and after == kept
    with pytest.raises(TypeError, match="remove_old_model: expected True or False, not int"):
        ours.save_file(TENSORS, tmp_path / MODEL, remove_old_model=1)
    with pytest.raises(ValueError, match="objects of a store are never removed"):
        ours.save_file(TENSORS, "s3://bucket/x", remove_old_model=True)


REFUSING = pathlib.Path(__file__).parents[2] / "testkit/src/refusing.py"
#: Calls that a mounted file system refuses in turn. The program describes them.
CALLS = (
    "rename create remove mkdir list ftruncate fallocate lseek flock fsync close link symlink O_TMPFILE O_DIRECT mmap chmod"
    " chown utimens attributes statfs"
).split() + ["fsync of folders", "writes out of order"]
#: ``ENOSYS`` comes last, because the kernel may not ask again after it.
ERRORS = [errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS]


@pytest.fixture(scope="module")
def mounts(tmp_path_factory):
    """Returns a function that mounts a file system, and another that lets it refuse a call. All mounts stay to the end, so that
    none gets the number of another one's device."""
    processes = []

    def mount():
        folder = tmp_path_factory.mktemp("mount")
        command = [sys.executable, REFUSING, folder]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        processes.append(process)
        if process.stdout.readline() != "mounted\n":
            pytest.skip("not checked: file systems that refuse calls, which need root and /dev/fuse")

        def refuse(call, number=0):
            process.stdin.write(f"{call} {number}\n")
            process.stdin.flush()
            refusals, written = map(int, process.stdout.readline().split())
            return written

        return folder, refuse

    yield mount
    for process in processes:
        process.stdin.close()
        process.wait(timeout=20)
        process.stdout.close()


def save_in_each_way(folder, value):
    """Returns the error of each save, or ``None``."""
    array = np.full(90_000, value)
    saves = {"arrays": lambda: ours.save_file({"a": array}, folder / MODEL)}
    if torch is not None:
        import torch.distributed.checkpoint as dcp

        state = {"a": torch.from_numpy(array)}

        def saver():
            with gpufile.torch.Saver() as saver:
                saver.save(state, folder / "saver.safetensors")

        def checkpoint():
            dcp.save(state, storage_writer=StorageWriter(folder / "dcp"), no_dist=True)

        saves |= {"saver": saver, "checkpoint": checkpoint} if HAS_CHECKPOINTS else {"saver": saver}
    errors = {}
    for name, save in saves.items():
        try:
            errors[name] = save()
        except BaseException as error:  # as torch raises it
            errors[name] = " ".join(str(error).split())
    return errors


def values_of(folder):
    """Returns the value of which all data of each save is."""
    found = {"arrays": ours.load_file(folder / MODEL)["a"]}
    if torch is not None:
        found["saver"] = ours.load_file(folder / "saver.safetensors")["a"]
    if HAS_CHECKPOINTS:
        import torch.distributed.checkpoint as dcp

        state = {"a": torch.zeros(90_000, dtype=torch.float64)}
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder / "dcp"), no_dist=True)
        found["checkpoint"] = state["a"].numpy()
    assert all((array == array[0]).all() for array in found.values())
    return {name: array[0] for name, array in found.items()}


@pytest.mark.parametrize("call", CALLS)
def test_mounts_that_refuse_a_call_keep_old_or_new_files(tmp_path, mounts, call):
    mount, refuse = mounts()
    save_in_each_way(tmp_path, 6.0)
    for number in ERRORS:
        folder = mount / str(number)
        shutil.copytree(tmp_path, folder)
        refuse(call, number)
        errors = save_in_each_way(folder, 7.0)
        written = refuse("nothing")
        is_lacking = number != errno.EPERM
        found = values_of(folder)
        for name, error in errors.items():
            assert found[name] == (6.0 if error else 7.0), (call, number, name, error)
            fails = {
                "rename": True,
                "create": True,
                # After ENOSYS, folders open, but have no list, which a checkpoint needs.
                "list": number != errno.ENOSYS or name == "checkpoint",
                "fsync": not is_lacking,
                "fsync of folders": not is_lacking,
            }.get(call, False)
            # A checkpoint reads and removes files too.
            if call not in ("remove", "close", "writes out of order"):
                assert (error is not None) == fails, (call, number, name, error)
            if call == "rename":
                assert "renames no files" in error
        if all(errors.values()) and call != "writes out of order":
            assert written == 0, (call, number, written)
