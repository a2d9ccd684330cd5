"""`gpufile.torch.StorageWriter`, `StorageReader` and `Saver` with addresses of S3, Azure and Google Cloud Storage."""

import io
import os
import pathlib
import pickle
import subprocess
import sys
import urllib.parse

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
pytest.importorskip("gpufile._checkpoint", exc_type=ImportError)

from gpufile._gpufile import RemoteFolder
from gpufile._checkpoint import _objects, _records, _writer
from gpufile.torch import Saver, StorageReader, StorageWriter, load_state

from conftest import Server, store_options
from test_checkpoint import assert_same, blank, state
from test_checkpoint_ranks import TESTS, Processes

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    # Objects that could not be removed.
    pytest.mark.filterwarnings("error::RuntimeWarning"),
]

STORES = ["s3", "az", "gs"]
#: It needs two parts.
LONG = {"long": torch.arange(3 << 20, dtype=torch.float32), "short": torch.arange(9)}


class Store:
    """A folder of a store."""

    def __init__(self, server, scheme):
        self.server, self.address = server, f"{scheme}://bucket/a b/c"
        self.options = store_options(server.url)[scheme]

    def save(self, value, **options):
        dcp.save(value, storage_writer=self.writer(**options))

    def writer(self, **options):
        return StorageWriter(self.address, storage_options=self.options, **options)

    def reader(self):
        return StorageReader(self.address, storage_options=self.options)

    def loaded(self, value):
        made = blank(value)
        dcp.load(made, storage_reader=self.reader())
        return made

    def files(self):
        """Returns the objects of the folder, by their names."""
        start = "/bucket/a%20b/c/"
        assert all(path.startswith(start) for path in self.server.files)
        return {urllib.parse.unquote(path[len(start) :]): content for path, content in self.server.files.items()}

    def put(self, name, content):
        self.server.files[f"/bucket/a%20b/c/{name}"] = content

    def download(self, folder):
        folder.mkdir()
        for name, content in self.files().items():
            (folder / name).write_bytes(content)
        return folder

    def named(self):
        """Returns the objects that the metadata names."""
        metadata = pickle.loads(self.files()[".metadata"])
        return {".metadata"} | {stored.relative_path for stored in metadata.storage_data.values()}


@pytest.fixture(params=STORES)
def store(server, request):
    return Store(server, request.param)


@pytest.mark.parametrize("single_file_per_rank", [True, False])
def test_checkpoints_by_address_are_those_of_torch(store, tmp_path, single_file_per_rank):
    expected = state() | LONG
    store.save(expected, single_file_per_rank=single_file_per_rank)
    assert_same(store.loaded(expected), expected)
    made = blank(expected)
    dcp.load(made, storage_reader=dcp.FileSystemReader(store.download(tmp_path / "c")))
    assert_same(made, expected)
    assert set(store.files()) == store.named() and (len(store.files()) > 9) != single_file_per_rank
    assert not store.server.uploads


def test_checkpoints_of_torch_are_read_by_address(store, tmp_path, monkeypatch):
    expected = state()
    dcp.save(expected, storage_writer=dcp.FileSystemWriter(tmp_path))
    for path in tmp_path.iterdir():
        store.put(path.name, path.read_bytes())
    assert_same(store.loaded(expected), expected)
    # torch's own code reads what is no plain tensor.
    monkeypatch.setattr(_records, "parse", lambda *_: None)
    assert_same(store.loaded(expected), expected)


def test_each_group_is_an_object(store, monkeypatch):
    monkeypatch.setattr(_writer, "GROUP_BYTES", 50_000)
    expected = {str(number): torch.randn(number * 37) for number in range(100)} | {"one": torch.randn(100_000)}
    store.save(expected)
    assert len(store.files()) > 5
    assert_same(store.loaded(expected), expected)


def test_only_the_needed_bytes_are_read(store):
    store.save(LONG)
    store.server.requests.clear()
    made = {"short": torch.zeros_like(LONG["short"])}
    dcp.load(made, storage_reader=store.reader())
    assert torch.equal(made["short"], LONG["short"])
    ranges = [request.headers["Range"].partition("=")[2].split("-") for request in store.server.requests]
    assert sum(int(end) + 1 - int(start) for start, end in ranges) < 1 << 20


def test_saves_replace_the_objects_of_the_old_checkpoint(store):
    for generation in range(3):
        # A save that was killed left these. The others belong to someone else.
        store.put("__0_7.gpufile.distcp", b"left")
        for foreign in ("__0_7.distcp", "model.bin", "below/__0_7.gpufile.distcp"):
            store.put(foreign, b"foreign")
        store.save(state(generation))
        files = store.files()
        assert [files.pop(name) for name in ("__0_7.distcp", "model.bin", "below/__0_7.gpufile.distcp")] == [b"foreign"] * 3
        assert set(files) == store.named()
        assert_same(store.loaded(state()), state(generation))


@pytest.mark.parametrize("step", ["begin", "part", "short", "metadata"])
def test_failed_saves_keep_the_old_checkpoint(store, monkeypatch, step):
    store.save(state(1))
    write = _objects.Objects.write

    def fail(self, name, buffers, len_bytes):
        if (name == ".metadata") == (step == "metadata"):
            store.server.statuses = [403] * 9
        try:
            write(self, name, buffers, len_bytes)
        finally:
            store.server.statuses = []

    with monkeypatch.context() as patch:
        patch.setattr(_objects.Objects, "write", fail)
        if step == "begin":
            patch.setattr("gpufile._checkpoint._writer.StorageWriter._place", lambda *_: (_ for _ in ()).throw(OSError("403")))
        with pytest.raises(dcp.CheckpointException, match="403") as caught:
            store.save(LONG if step == "part" else state(2))
    assert "hidden" not in str(caught.value)
    assert_same(store.loaded(state()), state(1))
    if step != "metadata":
        assert set(store.files()) == store.named()
    # Blocks of Azure stay for a week.
    assert not store.server.uploads or store.address.startswith("az")
    store.save(state(3))
    assert_same(store.loaded(state()), state(3))
    assert set(store.files()) == store.named()


def test_a_save_that_lost_its_objects_is_not_finished(store, monkeypatch):
    store.save(state(1))
    write_data = StorageWriter.write_data

    def lose(self, plan, planner):
        done = write_data(self, plan, planner)
        new = set(store.files()) - store.named()
        for name in new:
            del store.server.files[f"/bucket/a%20b/c/{name}"]
        return done

    monkeypatch.setattr(StorageWriter, "write_data", lose)
    with pytest.raises(dcp.CheckpointException, match="is missing; another save may use the folder"):
        store.save(state(2))
    assert_same(store.loaded(state()), state(1))


def test_objects_that_cannot_be_removed_are_a_warning(store, monkeypatch):
    store.save(state(1))
    remove = _objects.Objects.remove

    def refuse(self, names):
        store.server.statuses = [403] * 9
        try:
            remove(self, names)
        finally:
            store.server.statuses = []

    with monkeypatch.context() as patch:
        patch.setattr(_objects.Objects, "remove", refuse)
        with pytest.warns(RuntimeWarning, match="1 objects of no checkpoint stay in '.*403"):
            store.save(state(2))
    assert_same(store.loaded(state()), state(2))
    assert len(store.files()) == 3
    store.save(state(3))
    assert set(store.files()) == store.named()


class Old:
    """A folder of a store, whose list lacks the newest metadata."""

    def __init__(self, *arguments, **options):
        self._folder = RemoteFolder(*arguments, **options)

    def __getattr__(self, name):
        return getattr(self._folder, name)

    def names(self):
        return [name for name in self._folder.names() if not name.endswith(".metadata")]


@pytest.mark.parametrize("has_collectives", [True, False])
def test_old_lists_keep_the_objects_of_the_checkpoint(store, monkeypatch, has_collectives):
    monkeypatch.setattr(_objects, "RemoteFolder", Old)
    for generation in range(2):
        dcp.save(state(generation), storage_writer=store.writer(), use_collectives=has_collectives)
        if not has_collectives:
            store.put(".metadata", store.files()["__0.metadata"])
        assert_same(store.loaded(state()), state(generation))
        if not has_collectives:
            assert set(store.files()) == store.named() | {"__0.metadata"}
            del store.server.files["/bucket/a%20b/c/.metadata"]
    assert len(store.files()) == 2


def test_overwrite_false_refuses(store):
    store.save(state(1), overwrite=False)
    with pytest.raises(dcp.CheckpointException, match="already exists"):
        store.save(state(2), overwrite=False)
    assert_same(store.loaded(state()), state(1))


@pytest.mark.parametrize("snapshot", ["device", "host"])
def test_async_saves_write_a_copy(store, snapshot):
    value, expected = state(), state()
    saved = dcp.async_save(value, storage_writer=store.writer(snapshot=snapshot))
    with torch.no_grad():
        value["large"].zero_()
    saved.result()
    assert_same(store.loaded(expected), expected)


def test_writers_and_readers_change_their_folder_and_travel(store, tmp_path):
    writer = StorageWriter(tmp_path, storage_options=None)
    with pytest.raises(ValueError, match="storage_options are for URLs"):
        StorageWriter(tmp_path, storage_options=store.options)
    with pytest.raises(ValueError, match="storage_options are for URLs"):
        StorageReader(tmp_path, storage_options=store.options)
    writer, reader = (pickle.loads(pickle.dumps(one)) for one in (store.writer(), store.reader()))
    assert repr(writer) == f"<gpufile.torch.StorageWriter {store.address!r}>"
    assert repr(reader) == f"<gpufile.torch.StorageReader {store.address!r}>"
    for folder in ("x", "y"):
        dcp.save(LONG, checkpoint_id=f"{store.address}/{folder}", storage_writer=writer)
        made = blank(LONG)
        dcp.load(made, checkpoint_id=f"{store.address}/{folder}", storage_reader=reader)
        assert_same(made, LONG)
    assert {name.partition("/")[0] for name in store.files()} == {"x", "y"}


def test_what_is_no_checkpoint_of_a_store_is_refused(store):
    with pytest.raises(dcp.CheckpointException, match="there is no such object"):
        store.loaded(LONG)
    for address, text in [(f"{store.server.url}/a?hidden", "written only to addresses with s3"), ("s3://bucket/a//b", "no empty parts")]:
        with pytest.raises(dcp.CheckpointException, match=text) as caught:
            dcp.save(LONG, storage_writer=StorageWriter(address, storage_options=None if "?" in address else store_options(store.server.url)["s3"]))
        assert "?hidden" not in str(caught.value)
    for shown in (StorageReader(f"{store.server.url}/a?hidden"), StorageWriter(f"{store.server.url}/a?hidden")):
        assert "hidden" not in f"{shown} {shown.checkpoint_id}"
    stream = _objects.Objects(store.address, store.options, None)
    with pytest.raises(io.UnsupportedOperation), stream.create_stream("a", "wb"):
        pass
    with pytest.raises(io.UnsupportedOperation):
        stream.rename("a", "b")
    assert store.files() == {}


def test_states_are_saved_to_addresses(store, tmp_path):
    expected = {"model": dict(LONG), "step": 3}
    with Saver(snapshot="host") as saver:
        saved = saver.save(expected, f"{store.address}/x", storage_options=store.options)
        assert repr(saved).startswith(f"<gpufile.torch.Save '{store.address}/x'")
        again = saver.save(LONG, f"{store.address}/y", {"format": "pt"}, storage_options=store.options)
        assert again.result() == saver.save(LONG, tmp_path / "y", {"format": "pt"}).result()
    assert store.files()["y"] == (tmp_path / "y").read_bytes()
    assert_same(load_state(f"{store.address}/x", storage_options=store.options), expected)


def test_failed_saves_of_states_keep_the_old_object(store):
    store.put("x", b"old")
    with Saver() as saver:
        store.server.statuses = [403] * 9
        saved = saver.save(LONG, f"{store.address}/x", storage_options=store.options)
        with pytest.raises(PermissionError, match="403"):
            saved.result()
        store.server.statuses = []
        assert store.files() == {"x": b"old"}
        with pytest.raises(ValueError, match="storage_options are for URLs"):
            saver.save(LONG, "x", storage_options=store.options)
        with pytest.raises(ValueError, match="no option of"):
            saver.save(LONG, f"{store.address}/x", storage_options={"NO": "hidden"}).result()
    with Saver(compress=True) as saver, pytest.raises(ValueError, match="compress is for files"):
        saver.save(LONG, f"{store.address}/x", storage_options=store.options)


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    server = Server()
    environment = {name: value for options in store_options(server.url).values() for name, value in options.items()}
    processes = Processes(tmp_path_factory.mktemp("ranks"), ranks=2, **environment)
    yield processes
    processes.close()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("scheme", STORES)
@pytest.mark.parametrize("case", [("reshard", 2, 1, "ours", "ours"), ("asynchronous", 2, "device"), ("asynchronous", 2, "host"), ("failing", 2)])
def test_ranks_save_and_load_by_address(processes, scheme, case):
    name, *arguments = case
    processes.run(name, f"{scheme}://bucket/{'-'.join(map(str, case))}", *arguments)


def test_killed_saves_leave_the_old_or_the_new_checkpoint(tmp_path):
    """Kills one or both ranks at random moments: as many times as GPUFILE_TEST_KILLS says, or 30."""
    kills = os.environ.get("GPUFILE_TEST_KILLS", "30")
    command = [sys.executable, TESTS / "checkpoint_store_kills.py", tmp_path, kills]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stdout + run.stderr
    counts = dict(line.split() for line in run.stdout.splitlines())
    assert int(counts["old"]) > 0 and int(counts["old"]) + int(counts["new"]) == int(kills)
    assert int(counts["leftovers"]) > 0
