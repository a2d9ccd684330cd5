"""Open files in the place of paths, and bytes of any kind of memory."""

import array
import bz2
import gzip
import io
import mmap
import os
import tempfile
import threading
import zipfile

import pytest

np = pytest.importorskip("numpy")

import gpufile
import gpufile.safetensors as gs
from gpufile.safetensors import numpy as ours

try:
    import torch

    from gpufile.safetensors import torch as of_torch
except ImportError:
    torch = None

MODEL = {"a": np.arange(60_000, dtype=np.float32).reshape(200, 300), "b": np.arange(7), "empty": np.zeros((0, 3))}
DATA = ours.save(MODEL)


def is_model(tensors):
    tensors = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    return tensors.keys() == MODEL.keys() and all(
        tensors[name].dtype == array.dtype and np.array_equal(tensors[name], array) for name, array in MODEL.items()
    )


@pytest.fixture
def path(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(DATA)
    return tmp_path / "model.safetensors"


def mapped(path):
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


BYTES = {
    "bytes": lambda path: DATA,
    "bytearray": lambda path: bytearray(DATA),
    "memoryview": lambda path: memoryview(DATA),
    "part of a memoryview": lambda path: memoryview(b"xx" + DATA)[2:],
    "mmap": mapped,
    "numpy": lambda path: np.frombuffer(DATA, np.uint8),
    "signed numpy": lambda path: np.frombuffer(DATA, np.int8),
    "numpy with gaps": lambda path: np.repeat(np.frombuffer(DATA, np.uint8), 2)[::2],
    "array": lambda path: array.array("B", DATA),
    "buffer of BytesIO": lambda path: io.BytesIO(DATA).getbuffer(),
}


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_of_any_memory_are_loaded(path, kind):
    data = BYTES[kind](path)
    assert is_model(ours.load(data))
    assert sorted(name for name, _ in gs.deserialize(data)) == sorted(MODEL)
    if torch:
        assert is_model(of_torch.load(data))
    with pytest.raises(gs.SafetensorError):
        ours.load(memoryview(data)[:-1])


@pytest.mark.parametrize("load", [ours.load, gs.deserialize])
def test_other_objects_have_no_bytes(path, load):
    with open(path, "rb") as file:
        for wrong, hint in ((file, "BufferedReader; load_file takes open files"), ("text", "str"), (5, "int"), (None, "NoneType")):
            with pytest.raises(TypeError, match=f"^data: expected bytes or an object with the buffer protocol, not {hint}$"):
                load(wrong)


class Stream(io.RawIOBase):
    """Bytes without a descriptor, a position that moves, or a length."""

    def __init__(self):
        super().__init__()
        self._rest = io.BytesIO(DATA)

    def readable(self):
        return True

    def readinto(self, memory):
        return self._rest.readinto(memoryview(memory)[:5000])


def zipped(path):
    with zipfile.ZipFile(path.with_suffix(".zip"), "w") as archive:
        archive.writestr("model", DATA)
    return zipfile.ZipFile(path.with_suffix(".zip")).open("model")


def compressed(package):
    def opened(path):
        with package.open(path.with_suffix(".packed"), "wb") as file:
            file.write(DATA)
        return package.open(path.with_suffix(".packed"), "rb")

    return opened


def written(kind, **options):
    """Returns a function for a file that still has bytes in its buffer."""

    def opened(path):
        file = kind(**options)
        file.write(DATA)
        return file

    return opened


def piped(path):
    reader, writer = os.pipe()

    def write():
        with open(writer, "wb") as file:
            file.write(DATA)

    threading.Thread(target=write).start()
    return open(reader, "rb")


def deleted(path):
    file = open(path, "rb")
    os.unlink(path)
    return file


OPENED = {
    "file": lambda path: open(path, "rb"),
    "unbuffered file": lambda path: open(path, "rb", buffering=0),
    "file for both": lambda path: open(path, "r+b"),
    "deleted file": deleted,
    "file of gpufile": gpufile.File,
    "temporary file": written(tempfile.TemporaryFile),
    "named temporary file": written(tempfile.NamedTemporaryFile),
    "spooled file": written(tempfile.SpooledTemporaryFile, max_size=1 << 30),
    "rolled file": written(tempfile.SpooledTemporaryFile, max_size=1),
    "BytesIO": lambda path: io.BytesIO(DATA),
    "written BytesIO": written(io.BytesIO),
    "buffered BytesIO": lambda path: io.BufferedReader(io.BytesIO(DATA)),
    "gzip": compressed(gzip),
    "bz2": compressed(bz2),
    "zip": zipped,
    "pipe": piped,
    "stream": lambda path: Stream(),
}
FRAMEWORKS = ["np", pytest.param("pt", marks=[] if torch else pytest.mark.skip(reason="torch is not installed"))]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", OPENED)
def test_open_files_are_loaded_and_opened(path, kind, framework):
    own = ours if framework == "np" else of_torch
    for load in (
        own.load_file,
        lambda file: own.load_file(file, mapped=framework == "np"),
        lambda file: gs.load_model(file, framework=framework),
        lambda file: gs.load_model(file, ["cpu"], framework=framework, placement=gs.Placement.all())[0],
        lambda file: gs.safe_open(file, framework).get_tensors(),
    ):
        path.write_bytes(DATA)
        with OPENED[kind](path) as file:
            assert is_model(load(file))
    path.write_bytes(DATA)
    with OPENED[kind](path) as file:
        loaded = own.load_file(file, only=["a"], dtype="float16")
    assert [*loaded] == ["a"] and np.array_equal(loaded["a"], MODEL["a"].astype("f2"))


def test_opened_models_outlive_their_files(path):
    for kind in ("deleted file", "BytesIO", "stream"):
        path.write_bytes(DATA)
        with OPENED[kind](path) as file:
            model = gs.safe_open(file, "np")
        # Another file gets the number of the descriptor.
        with open(os.devnull, "rb"), open(os.devnull, "rb"):
            assert np.array_equal(model.get_slice("a")[3:5], MODEL["a"][3:5]) and is_model(dict(model.prefetch()))


def test_descriptors_are_closed_again(path):
    path.write_bytes(DATA)
    counts = []
    for _ in range(3):
        for kind in ("BytesIO", "file"):
            with OPENED[kind](path) as file:
                assert is_model(ours.load_file(file))
        with pytest.raises(gs.SafetensorError):
            ours.load_file(io.BytesIO(DATA[:-1]))
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[2]


def test_open_files_stay_where_they_are(path):
    with open(path, "rb") as file:
        file.seek(9)
        assert is_model(ours.load_file(file)) and file.tell() == 9 and file.read(3) == DATA[9:12]


def test_threads_load_one_open_file(path):
    with open(path, "rb") as file:
        found = []
        threads = [threading.Thread(target=lambda: found.append(is_model(ours.load_file(file)))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 8


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda path: gs.load_model(open(path), framework="np"), TypeError, 'for text; open it with "rb"'),
        (lambda path: ours.load_file(io.StringIO("x")), TypeError, 'for text; open it with "rb"'),
        (lambda path: ours.load_file(io.BytesIO(b"")), gs.SafetensorError, "header"),
        (lambda path: ours.load_file([open(path, "rb")]), TypeError, "path.0.: expected str, bytes or os.PathLike object"),
        (lambda path: ours.load_file(open(path, "rb"), storage_options={}), ValueError, "storage_options are for URLs"),
        (lambda path: gs.LazyModel(open(path, "rb"), framework="np"), TypeError, "for an open file, use its path"),
        (lambda path: gs.verify(open(path, "rb")), TypeError, "for an open file, use its path"),
        (lambda path: ours.save_file(MODEL, open(path, "wb")), TypeError, r"to write to an open file, use file.write\(save\(tensors\)\)"),
        (lambda path: gs.save_file(MODEL, io.BytesIO()), TypeError, r"not BytesIO: a save replaces a file as a whole; .* file.write"),
        (lambda path: ours.load_file(io.BytesIO(DATA), mapped=5), TypeError, "mapped: expected True or False"),
    ],
)
def test_what_open_files_cannot_do_has_a_hint(path, call, error, text):
    with pytest.raises(error, match=text):
        call(path)


def test_closed_files_are_refused(path):
    for kind in ("file", "BytesIO"):
        file = OPENED[kind](path)
        file.close()
        with pytest.raises(ValueError, match="closed file"):
            ours.load_file(file)


def test_failed_reads_end_the_load(path):
    class Broken(Stream):
        def readinto(self, memory):
            raise OSError(5, "broken")

    with pytest.raises(OSError, match="broken"):
        ours.load_file(Broken())
