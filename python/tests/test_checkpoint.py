"""`gpufile.torch.StorageWriter` and `StorageReader` in one process: layout, replacement, damage and arguments."""

import contextlib
import functools
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import time
import types

import gpufile
import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")
pytest.importorskip("gpufile._checkpoint", exc_type=ImportError)

from gpufile import _memory, _streams
from gpufile._checkpoint import _copied, _files, _layout, _ranges, _records, _snapshots, _writer
from gpufile.torch import StorageReader, StorageWriter

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
]

OURS, TORCHS = (StorageWriter, StorageReader), (dcp.FileSystemWriter, dcp.FileSystemReader)

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex32, torch.complex64, torch.complex128, torch.uint16, torch.uint32,
    torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu,
]  # fmt: skip


def bits(tensor):
    """Returns the bytes of a tensor."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def random_of(dtype, *shape):
    numel = torch.Size(shape).numel()
    high = 2 if dtype == torch.bool else 256
    return torch.randint(0, high, (numel * dtype.itemsize,), dtype=torch.uint8).view(dtype).reshape(shape)


def state(seed=0):
    """Returns a state dict with tensors of many kinds, and with other values."""
    torch.manual_seed(seed)
    return {
        "large": torch.randn(517, 301),
        "transposed": torch.randn(131, 257).t(),
        "columns": torch.randn(100, 400)[:, ::2],
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugate": torch.randn(5, dtype=torch.complex64).conj(),
        "expanded": torch.randn(1, 5).expand(4, 5),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(4.5 + seed),
        "parameter": torch.nn.Parameter(torch.randn(3, 5)),
        "nested": {"list": [torch.randn(40_000).bfloat16(), {"step": seed}], "text": f"text {seed}"},
        **{str(dtype): random_of(dtype, 7, 3) for dtype in DTYPES},
    }


def blank(value):
    """Returns what a state dict is loaded into."""
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, dict):
        return {name: blank(item) for name, item in value.items()}
    return [blank(item) for item in value] if isinstance(value, list) else None


def assert_same(found, expected):
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and found.shape == expected.shape and bits(found) == bits(expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, item in expected.items():
            assert_same(found[name], item)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def save(folder, value, **options):
    dcp.save(value, storage_writer=StorageWriter(folder, **options))


def loaded(folder, value, reader=StorageReader):
    made = blank(value)
    dcp.load(made, storage_reader=reader(folder))
    return made


def named_files(folder):
    """Returns the files that the metadata names."""
    with open(folder / ".metadata", "rb") as file:
        metadata = pickle.load(file)
    return {".metadata"} | {stored.relative_path for stored in metadata.storage_data.values()}


@pytest.mark.parametrize("writer, reader", [(OURS[0], OURS[1]), (OURS[0], TORCHS[1]), (TORCHS[0], OURS[1])])
@pytest.mark.parametrize("single_file_per_rank", [True, False])
def test_checkpoints_are_those_of_torch(tmp_path, writer, reader, single_file_per_rank):
    expected = state()
    dcp.save(expected, storage_writer=writer(tmp_path / "c", single_file_per_rank))
    assert_same(loaded(tmp_path / "c", expected, reader), expected)
    assert {".metadata", writer is OURS[0] and "__0_0.gpufile.distcp" or "__0_0.distcp"} <= set(os.listdir(tmp_path / "c"))


def test_groups_and_small_tensors_fill_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(_writer, "GROUP_BYTES", 50_000)
    expected = {str(number): torch.randn(number * 37) for number in range(200)} | {"one": torch.randn(100_000)}
    save(tmp_path, expected)
    for reader in (StorageReader, dcp.FileSystemReader):
        assert_same(loaded(tmp_path, expected, reader), expected)


def test_large_tensors_start_at_blocks(tmp_path):
    expected = {"one": torch.randn(40_001), "two": torch.randn(50_001), "small": torch.randn(3)}
    save(tmp_path, expected)
    content = (tmp_path / "__0_0.gpufile.distcp").read_bytes()
    for name in ("one", "two"):
        assert content.find(expected[name].numpy().tobytes()) % _layout.BLOCK_BYTES == 0
    assert content.find(expected["small"].numpy().tobytes()) % _records.ALIGNMENT == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 7), (2, 0, 3), (1, 2, 3, 4, 5, 6, 7)])
def test_records_are_those_of_torch(dtype, shape):
    tensor = random_of(dtype, *shape) if 0 not in shape else torch.empty(shape, dtype=dtype)
    header, trailer = _records.wrapper(dtype, shape)
    ours = header + bytes(bits(tensor)) + trailer
    assert_same(torch.load(io.BytesIO(ours), weights_only=True), tensor)
    made = io.BytesIO()
    torch.save(tensor, made)
    for record in (ours, made.getvalue()):
        stored = _records.parse(record[: _records.FRONT_BYTES], len(record))
        assert (stored.dtype, stored.shape, stored.strides) == (dtype, shape, tensor.stride())
        assert list(record[stored.start : stored.start + tensor.nbytes]) == bits(tensor)


@pytest.mark.parametrize("numel", [2**32 - 2, 2**32 - 1, 2**32 + 12345])
def test_records_of_more_than_4_gib_are_read_by_torch(tmp_path, numel):
    header, trailer = _records.wrapper(torch.uint8, (numel,))
    with open(tmp_path / "record", "wb") as file:
        file.write(header)
        file.seek(len(header) + numel - 3)
        file.write(b"end" + trailer)
    loaded = torch.load(tmp_path / "record", mmap=True, weights_only=True)
    assert loaded.shape == (numel,) and bytes(loaded[-3:].tolist()) == b"end" and loaded[:5].tolist() == [0] * 5
    assert _records.parse(header, len(header) + numel + len(trailer)).start == len(header)


class _Damaged:
    """A tensor in a pickle, with any values in the place of numbers."""

    def __init__(self, *place, length=8):
        self.place, self.length = place, length

    def __reduce__(self):
        storage = _records._Storage(torch.FloatStorage, self.length)
        return torch._utils._rebuild_tensor_v2, (storage, *self.place, False, {})


@pytest.mark.parametrize(
    "tensor",
    [
        _Damaged(float("inf"), (1,), (1,)),
        _Damaged(0, (float("inf"),), (1,)),
        _Damaged(0, (1,), (float("nan"),)),
        _Damaged(0, (1,), ([],)),
        _Damaged(0, 1, (1,)),
        _Damaged(0, (2,), (1,), length="8"),
        _Damaged(0, (2,), (1,), length=None),
        _Damaged(0, (2,), (1,), length=float("nan")),
        _Damaged(0, (1 << 70,), (1 << 70,)),
    ],
)
def test_records_with_other_values_are_left_to_torch(tensor):
    pickled = io.BytesIO()
    _records._Pickler(pickled, protocol=2).dump(tensor)
    front = _records._local("data.pkl", 0, len(pickled.getvalue()), 0) + pickled.getvalue()
    front += _records._local("data/0", 0, 32, 4)
    assert _records.parse(front, len(front) + 32) is None


def test_records_of_other_kinds_are_left_to_torch(tmp_path):
    expected = {
        "sparse": torch.eye(5).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.randn(6), 0.1, 3, torch.quint8),
    }
    for name, tensor in expected.items():
        made = io.BytesIO()
        torch.save(tensor, made)
        assert _records.parse(made.getvalue()[: _records.FRONT_BYTES], len(made.getvalue())) is None, name


def test_pickles_of_records_run_no_code():
    class Attack:
        def __reduce__(self):
            return os.mkdir, ("/nonexistent/attack",)

    record = _records._local("data.pkl", 0, 0, 0) + pickle.dumps(Attack(), 2) + _records._local("data/0", 0, 0, 0)
    assert _records.parse(record, len(record)) is None


def test_parsed_records_are_within_the_file():
    header, _ = _records.wrapper(torch.float32, (100,))
    assert _records.parse(header, len(header) + 400) is not None
    assert _records.parse(header, len(header) + 399) is None
    for end in range(0, len(header), 7):
        assert _records.parse(header[:end], len(header) + 400) is None
    for place in range(0, len(header), 3):
        # A damaged front is refused, or tells of a tensor within the record.
        damaged = header[:place] + bytes([header[place] ^ 0x55]) + header[place + 1 :]
        stored = _records.parse(damaged, len(header) + 400)
        if stored is not None:
            last = sum((size - 1) * stride for size, stride in zip(stored.shape, stored.strides))
            assert stored.start + (last + 1) * stored.dtype.itemsize <= len(header) + 400


@pytest.mark.parametrize("rows, columns", [(7, 5), (700, 30), (64, 4096), (3, 100_000)])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_of_tensors_are_read(tmp_path, rows, columns, is_transposed, dtype):
    tensor = torch.randn(rows, columns)
    save(tmp_path, {"t": tensor})
    metadata = dcp.FileSystemReader(tmp_path).read_metadata()
    for rows_of in [(0, rows), (1, rows - 1), (rows // 2, 1)]:
        for columns_of in [(0, columns), (1, columns // 2), (columns - 1, 1)]:
            target = torch.zeros(rows_of[1], columns_of[1], dtype=dtype)
            if is_transposed:
                target = torch.zeros(columns_of[1], rows_of[1], dtype=dtype).t()
            _read_part(tmp_path, metadata, target, (rows_of[0], columns_of[0]))
            expected = tensor.narrow(0, *rows_of).narrow(1, *columns_of).to(dtype)
            assert torch.equal(target, expected)


def _read_part(folder, metadata, target, starts):
    """Reads a part of the tensor `t` by a plan of its own."""

    class Planner(dcp.DefaultLoadPlanner):
        def resolve_tensor(self, read_item):
            return target

        def commit_tensor(self, read_item, tensor):
            assert tensor.data_ptr() == target.data_ptr()

    index = next(iter(metadata.storage_data))
    item = dcp.planner.ReadItem(
        type=dcp.planner.LoadItemType.TENSOR,
        dest_index=index,
        dest_offsets=torch.Size([0] * target.dim()),
        storage_index=index,
        storage_offsets=torch.Size(starts),
        lengths=target.shape,
    )
    reader = StorageReader(folder)
    reader.set_up_storage_reader(reader.read_metadata(), True)
    reader.read_data(dcp.planner.LoadPlan([item]), Planner()).wait()


def test_large_copies_are_read_in_parts(tmp_path, monkeypatch):
    from gpufile._checkpoint import _reader

    monkeypatch.setattr(_reader, "PART_BYTES", 5000)
    monkeypatch.setattr(_reader, "TEMPORARY_BYTES", 9000)
    expected = {"a": torch.randn(331, 77), "b": torch.randn(3, 5, 7, 11), "c": torch.randn(9999)}
    save(tmp_path, expected)
    made = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in expected.items()}
    dcp.load(made, storage_reader=StorageReader(tmp_path))
    assert all(torch.equal(made[name], tensor.double()) for name, tensor in expected.items())


def test_ranges_cover_their_parts():
    stored = torch.arange(6 * 50 * 40).reshape(6, 50, 40)
    for part in [stored, stored[1:4], stored[:, 7:9], stored[:, :, 3:5], stored[2:3, 1:2, 5:6], stored[::2, ::5, ::3]]:
        for target in [torch.zeros(part.shape), torch.zeros(part.shape[::-1]).permute(2, 1, 0)]:
            found = _ranges.ranges(tuple(part.shape), part.stride(), target.stride(), 8)
            first = part.storage_offset() * 8
            content = b"".join(
                stored.numpy().tobytes()[first + start : first + start + found.length] for start in found.starts
            )
            values = torch.frombuffer(bytearray(content), dtype=torch.int64)
            assert torch.equal(values.as_strided(part.shape, found.strides), part)


def test_reads_only_the_needed_bytes(tmp_path):
    expected = {"rows": torch.randn(1024, 1000), "columns": torch.randn(100, 40_000), "other": torch.randn(500_000)}
    save(tmp_path, expected)
    engine = gpufile.Engine()
    made = {"rows": torch.zeros(1024, 1000)}
    dcp.load(made, storage_reader=StorageReader(tmp_path, engine=engine))
    assert torch.equal(made["rows"], expected["rows"])
    read = sum(of["read_bytes"] for of in engine.stats().values() if isinstance(of, dict) and "read_bytes" in of)
    assert made["rows"].nbytes <= read <= made["rows"].nbytes * 1.05


def test_saves_replace_checkpoints_and_remove_leftovers(tmp_path):
    for seed in range(3):
        expected = state(seed)
        save(tmp_path, expected)
        assert_same(loaded(tmp_path, expected), expected)
        assert set(os.listdir(tmp_path)) == named_files(tmp_path)
        # What killed saves leave.
        for name in ("__0_7.gpufile.distcp", "__3_0.gpufile.distcp", ".metadata.gpufile.tmp", "__1.metadata.gpufile2.tmp"):
            (tmp_path / name).write_bytes(b"left")
    save(tmp_path, expected)
    assert set(os.listdir(tmp_path)) == named_files(tmp_path)


@pytest.mark.parametrize(
    "writer, changed",
    [(StorageWriter, set()), (dcp.FileSystemWriter, {"__0_0.distcp", ".metadata.tmp", "outside"})],
    ids=["ours", "torchs"],
)
def test_files_of_others_stay_where_torchs_writer_takes_some(tmp_path, writer, changed):
    folder, outside = tmp_path / "c", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("outside")
    others = [
        "__0_0.distcp", "__0_3.distcp", "__5_0.distcp", "__0_0.distcp.bak", "x__0_0.distcp", "__a_0.distcp", "model.distcp",
        "__0_0.gpufile.distcp.bak", "x__0_0.gpufile.distcp", ".metadata.tmp", "__1.metadata.tmp", ".metadata1.tmp",
        "metadata.tmp", ".metadata.bak", "config.json",
    ]  # fmt: skip
    for name in others:
        (folder / name).write_text(name)
        (folder / name).chmod(0o640)
    (folder / "__0_2.distcp").mkdir()
    (folder / "__0_1.distcp").symlink_to(outside)
    os.mkfifo(folder / "__7_0.distcp")
    others += ["__0_2.distcp", "__0_1.distcp", "__7_0.distcp"]

    def entries():
        for path in [outside, *(folder / name for name in others)]:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                yield path.name, (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    before = dict(entries())
    if writer is StorageWriter:
        for seed in range(3):
            save(folder, state(seed))
        assert_same(loaded(folder, state(2)), state(2))
        assert set(os.listdir(folder)) == named_files(folder) | set(others)
    else:
        dcp.save(state(), storage_writer=writer(folder, thread_count=2))
    after = dict(entries())
    assert {name for name in before if before[name] != after.get(name)} == changed


def test_metadata_that_is_no_regular_file_fails_the_save(tmp_path):
    for name in (".metadata", "__7.metadata"):
        for make in (os.mkfifo, os.mkdir):
            folder = tmp_path / f"{name}-{make.__name__}"
            folder.mkdir()
            make(folder / name)
            with pytest.raises(dcp.CheckpointException, match="regular file|Is a directory"):
                save(folder, state())
            assert os.listdir(folder) == [name]


def test_checkpoints_of_torch_are_replaced(tmp_path):
    dcp.save(state(), storage_writer=dcp.FileSystemWriter(tmp_path, thread_count=2))
    before = set(os.listdir(tmp_path))
    save(tmp_path, state(1))
    assert_same(loaded(tmp_path, state(1)), state(1))
    assert len(os.listdir(tmp_path)) == 2 and not before & set(os.listdir(tmp_path)) - {".metadata"}


def test_failed_saves_keep_the_old_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, state())
    before = sorted(os.listdir(tmp_path))

    def fail(*_):
        raise OSError("no space")

    for module, name in [(_files, "replace"), (_files, "check"), (_files, "sync_folder"), (_writer, "_contiguous")]:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(dcp.CheckpointException):
                save(tmp_path, state(1))
        assert_same(loaded(tmp_path, state()), state())
        if name == "_contiguous":
            assert sorted(os.listdir(tmp_path)) == before
    save(tmp_path, state(2))
    assert set(os.listdir(tmp_path)) == named_files(tmp_path)


def test_a_save_that_lost_its_files_is_not_finished(tmp_path, monkeypatch):
    save(tmp_path, state())
    check = _files.check

    def lose(folder, ends):
        ends = list(ends)
        os.unlink(folder / ends[0][0])
        check(folder, ends)

    monkeypatch.setattr(_files, "check", lose)
    with pytest.raises(dcp.CheckpointException, match="missing; another save may use the folder"):
        save(tmp_path, state(1))
    assert_same(loaded(tmp_path, state()), state())


def test_saves_of_single_ranks_have_metadata_of_their_own(tmp_path):
    for seed in range(2):
        for rank in range(2):
            writer = StorageWriter(tmp_path)
            plan_of = _plan_of(writer, {"t": torch.full((3,), float(10 * rank + seed))}, rank)
            plan_of()
    assert sorted(os.listdir(tmp_path)) == [
        "__0.metadata", "__0_1.gpufile.distcp", "__1.metadata", "__1_1.gpufile.distcp"]  # fmt: skip


def _plan_of(writer, value, rank):
    """Returns a function that saves as one rank without the others."""

    def run():
        planner = dcp.DefaultSavePlanner()
        planner.set_up_planner(value, is_coordinator=True)
        writer.set_up_storage_writer(True, rank=rank, use_collectives=False)
        plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
        plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
        writer.finish(metadata, [writer.write_data(plan, planner).value()])

    return run


def test_overwrite_false_refuses(tmp_path):
    save(tmp_path, state(), overwrite=False)
    with pytest.raises(dcp.CheckpointException, match="already exists"):
        save(tmp_path, state(1), overwrite=False)
    assert_same(loaded(tmp_path, state()), state())


@pytest.mark.parametrize("snapshot", ["device", "host"])
@pytest.mark.parametrize("overlap", [False, True])
def test_async_saves_write_a_copy(tmp_path, snapshot, overlap):
    writer = StorageWriter(tmp_path, snapshot=snapshot, overlap=overlap)
    for seed in range(2):
        changed, expected = state(seed), state(seed)
        saved = dcp.async_save(changed, storage_writer=writer)
        if overlap:
            writer.synchronize_staging()
        changed["large"].zero_()
        changed["nested"]["list"][0].zero_()
        changed["nested"]["list"][1]["step"] = -1
        saved.result()
        assert_same(loaded(tmp_path, expected), expected)


def test_programs_may_change_their_folder_while_async_saves_wait(tmp_path, monkeypatch):
    go_on, created = threading.Event(), _files.create

    def create(*arguments):
        assert go_on.wait(60)
        return created(*arguments)

    monkeypatch.setattr(_files, "create", create)
    monkeypatch.chdir(tmp_path)
    expected = state()
    saved = dcp.async_save(expected, storage_writer=StorageWriter("checkpoint"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    go_on.set()
    saved.result()
    assert_same(loaded(tmp_path / "checkpoint", expected), expected)
    assert not os.listdir(tmp_path / "other")


@pytest.mark.parametrize("other", [None, "elsewhere"])
def test_async_saves_begin_when_the_program_goes_on(tmp_path, monkeypatch, other):
    steps, asked = [], StorageWriter.should_synchronize_after_execute

    def ask(writer):
        # Another thread would have time to begin.
        time.sleep(0.2)
        steps.append("goes on")
        return asked.fget(writer)

    class Planner(dcp.DefaultSavePlanner):
        def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
            steps.append("begins")
            super().set_up_planner(state_dict, storage_meta, is_coordinator)

    monkeypatch.setattr(StorageWriter, "should_synchronize_after_execute", property(ask))
    writer, folder = StorageWriter(tmp_path / "here"), other and tmp_path / other
    for _ in range(2):
        dcp.async_save({"a": torch.ones(3)}, checkpoint_id=folder, storage_writer=writer, planner=Planner()).result()
    assert steps == ["goes on", "begins"] * 2
    found = {"a": torch.zeros(3)}
    dcp.load(found, storage_reader=StorageReader(tmp_path / (other or "here")))
    assert found["a"].sum() == 3


@pytest.mark.parametrize("overlap", [False, True])
def test_async_saves_begin_after_the_order_and_the_copies(tmp_path, monkeypatch, overlap):
    steps, program = [], threading.get_ident()

    def watch(owner, name, step, by_program):
        call = getattr(owner, name)

        @functools.wraps(call)
        def watched(*arguments, **options):
            if (threading.get_ident() == program) == by_program:
                steps.append(step)
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(_streams.Ends, "order", "order", True)
    watch(_snapshots.Gate, "open", "go on", True)
    watch(_streams.Ends, "wait", "wait for copies", False)
    monkeypatch.setattr(_snapshots, "time", types.SimpleNamespace(sleep=lambda seconds: steps.append("lead")))
    watch(dcp.DefaultSavePlanner, "set_up_planner", "begin", False)
    writer = StorageWriter(tmp_path, overlap=overlap)
    steps.clear()
    dcp.async_save({"a": torch.ones(3)}, storage_writer=writer, planner=dcp.DefaultSavePlanner()).result()
    first = [*([] if overlap else ["order"]), "go on", "wait for copies", "lead"]
    assert steps[: len(first)] == first
    assert steps.count("lead") == steps.count("begin") == 1


def test_other_threads_save_with_a_new_writer_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(_snapshots.Gate, "LIMIT", 1e3)
    writer = StorageWriter(tmp_path)
    thread = threading.Thread(target=dcp.save, args=({"a": torch.ones(3)},), kwargs={"storage_writer": writer}, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_threads_wait_for_stuck_programs_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(_snapshots.Gate, "LIMIT", 0.01)
    snapshots = _snapshots.Snapshots("device")
    snapshots.take({"a": torch.ones(3)})
    thread = threading.Thread(target=snapshots.wait)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    # The program's own thread does not wait for itself.
    monkeypatch.setattr(_snapshots.Gate, "LIMIT", 1e9)
    snapshots.wait()


def test_snapshots_share_what_tensors_share():
    from gpufile._checkpoint._snapshots import Snapshots

    weight = torch.randn(5)
    value = {"one": weight, "tied": weight.detach(), "part": weight[1:3], "other": [weight, {"x": (weight, 3)}]}
    copy = Snapshots("device").take(value)
    assert copy["one"].data_ptr() == copy["tied"].data_ptr() == copy["other"][1]["x"][0].data_ptr()
    assert copy["one"].data_ptr() != weight.data_ptr() and torch.equal(copy["part"], weight[1:3])


def test_snapshots_tell_views_of_one_address_apart():
    value = torch.randn(6, dtype=torch.complex64)
    views = {
        "as it is": value,
        "conjugate": value.conj(),
        "negative": value.conj().imag,
        "imaginary": value.imag,
        "other type": value.view(torch.float32).view(torch.int32)[::2],
        "step": value.view(torch.float32)[::2],
        "rows": value.view(torch.float32).view(2, 6),
        "columns": value.view(torch.float32).view(6, 2),
        "meta": torch.empty(3, device="meta"),
        "empty": torch.empty(0),
        "other empty": torch.empty(0, 3),
    }
    expected = {name: view.clone() for name, view in views.items()}
    copies = _snapshots.Snapshots("device").take(views)
    value.zero_()
    for name, copy in copies.items():
        assert copy.shape == expected[name].shape and copy.dtype == expected[name].dtype, name
        assert copy.is_meta or torch.equal(copy, expected[name]), name


def test_snapshots_keep_strides_and_the_starts_of_blocks():
    odd = [torch.full((_layout.SMALL_BYTES // 4 + 1,), float(number)) for number in range(3)]
    columns = [torch.rand(3, 5).t() for _ in range(3)]
    alike = [torch.rand(_layout.SMALL_BYTES // 4) for _ in range(3)]
    scalars = [torch.tensor(number) for number in range(3)]
    state = {"odd": odd, "columns": columns, "alike": alike, "scalars": scalars}
    copies = _snapshots.Snapshots("device").take(state)
    for name, tensors in state.items():
        for tensor, copied in zip(tensors, copies[name], strict=True):
            assert torch.equal(tensor, copied) and tensor.stride() == copied.stride(), name
    # A large tensor that ends within a block has memory of its own. Those that are alike share an allocation.
    assert all(copied.storage_offset() == 0 for copied in copies["odd"] + copies["columns"])
    for name in ("alike", "scalars"):
        assert len({copied.untyped_storage().data_ptr() for copied in copies[name]}) == 1


def test_snapshots_copy_all_of_one_type_in_one_call(monkeypatch):
    counts, copy = [], torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *args, **kw: (counts.append(len(args[0])), copy(*args, **kw))[1])
    state = {f"{number}": torch.rand(number % 3 + 1, number % 2 + 1) for number in range(9)}
    state |= {f"step {number}": torch.tensor(number) for number in range(2)}
    copies = _snapshots.Snapshots("device").take(state)
    assert counts == [9, 2]
    assert all(torch.equal(copies[name], tensor) for name, tensor in state.items())


def test_snapshots_copy_the_first_tensors_while_they_find_more(monkeypatch):
    steps, copy, find = [], torch._foreach_copy_, _copied.Copied._number_of
    monkeypatch.setattr(torch, "_foreach_copy_", lambda *args, **kw: (steps.append(len(args[0])), copy(*args, **kw))[1])
    monkeypatch.setattr(_copied.Copied, "_number_of", lambda copied, t: (steps.append("find"), find(copied, t))[1])
    monkeypatch.setattr(_copied, "SMALL_BYTES", 40)
    monkeypatch.setattr(_copied, "FIRST_BYTES", 80)
    monkeypatch.setattr(_copied, "AT_ONCE", 160)
    state = {str(number): torch.full((10 - number % 2,), float(number)) for number in range(12)}
    copies = _snapshots.Snapshots("device").take({"model": state})["model"]
    # The short ones come last.
    assert steps == [*["find"] * 3, 2, *["find"] * 8, 4, "find", 6]
    assert all(torch.equal(copies[name], tensor) for name, tensor in state.items())


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda = True

    def record_stream(self, stream):
        raise AssertionError("its copy was waited for")

    def clone(self):
        self.steps.append(("copy", self.device.index))
        if not self.steps.can_copy:
            raise RuntimeError("no memory")
        return "copy"


class Steps(list):
    can_copy = True


@pytest.mark.parametrize("can_copy", [True, False])
def test_streams_for_copies_are_current_between_tensors(monkeypatch, can_copy):
    steps = Steps()
    steps.can_copy = can_copy

    @contextlib.contextmanager
    def stream(name):
        steps.append(("enter", name))
        yield
        steps.append(("leave", name))

    class Copies(str):
        def wait_stream(self, other):
            steps.append(("follow", other))

    cuda = {"stream": staticmethod(stream), "current_stream": staticmethod(lambda device: device.index)}
    monkeypatch.setattr(_streams, "_cuda", type("Cuda", (), cuda))
    monkeypatch.setattr(_streams, "stream_of", lambda device: Copies(f"copies {device.index}"))

    def mark_all(ends, copying):
        steps.extend(("mark", device.index, len(read)) for device, read in copying.read.items())

    monkeypatch.setattr(_snapshots.Ends, "mark_all", mark_all)
    monkeypatch.setattr(_snapshots.Ends, "let_go", lambda ends: steps.append(("let go",)))

    def on(gpu):
        made = torch.ones(2).as_subclass(type("OnThisGpu", (OnGpu,), {"device": torch.device("cuda", gpu)}))
        made.steps = steps
        return made

    state = {"a": on(0), "b": [on(0), 3, on(1)], "c": torch.ones(2), "d": on(0)}
    first = [("follow", 0), ("enter", "copies 0"), ("copy", 0)]
    if not can_copy:
        snapshots = _snapshots.Snapshots("device")
        with pytest.raises(RuntimeError, match="no memory"):
            snapshots.take(state)
        assert steps == [*first, ("mark", 0, 1), ("let go",), ("leave", "copies 0")]
        # No thread waits for one that gave up.
        monkeypatch.setattr(_snapshots.Gate, "LIMIT", 1e9)
        thread = threading.Thread(target=snapshots.wait, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        return
    assert _snapshots.Snapshots("device").take(state)["b"] == ["copy", 3, "copy"]
    second = [("leave", "copies 0"), ("follow", 1), ("enter", "copies 1"), ("copy", 1)]
    third = [("leave", "copies 1"), ("enter", "copies 0"), *first[2:]]
    end = [("mark", 0, 3), ("mark", 1, 1), ("leave", "copies 0")]
    assert steps == [*first, *first[2:], *second, *third, *end]


def test_writers_and_readers_travel_to_other_processes(tmp_path):
    writer = pickle.loads(pickle.dumps(StorageWriter(tmp_path)))
    dcp.save(state(), storage_writer=writer)
    reader = pickle.loads(pickle.dumps(StorageReader(tmp_path)))
    made = blank(state())
    dcp.load(made, storage_reader=reader)
    assert_same(made, state())


def test_damaged_files_raise(tmp_path):
    value = {"t": torch.randn(50_000), "u": torch.randn(10)}
    save(tmp_path / "good", value)
    for damage in ("cut", "front", "missing", "text"):
        folder = tmp_path / damage
        shutil.copytree(tmp_path / "good", folder)
        data = folder / "__0_0.gpufile.distcp"
        content = data.read_bytes()
        if damage == "cut":
            data.write_bytes(content[: len(content) // 2])
        elif damage == "front":
            data.write_bytes(bytes(8192) + content[8192:])
        elif damage == "missing":
            data.unlink()
        else:
            data.write_bytes(content.replace(b"archive/data.pkl", b"archive/damaged!"))
        with pytest.raises(dcp.CheckpointException):
            loaded(folder, value)


def test_a_stored_tensor_of_another_shape_raises(tmp_path):
    save(tmp_path, {"t": torch.randn(30, 20)})
    metadata = dcp.FileSystemReader(tmp_path).read_metadata()
    with pytest.raises(ValueError, match=r"stored tensor has the shape \(30, 20\)"):
        _read_part(tmp_path, metadata, torch.zeros(31, 20), (0, 0))
    with pytest.raises(ValueError, match="stored tensor"):
        _read_part(tmp_path, metadata, torch.zeros(3, 20), (28, 0))


@pytest.mark.parametrize("use", ["save", "load"])
def test_tensors_without_memory_are_refused_by_name(tmp_path, use):
    from torch._subclasses.fake_tensor import FakeTensorMode

    save(tmp_path, {"weight": torch.zeros(3)})
    with FakeTensorMode():
        fake = torch.empty(3)
    cases = [(fake, "a fake tensor"), (torch.empty(3, device="meta"), "on the device meta")]
    # torch itself gives memory to tensors of the device meta before it loads them.
    for tensor, kind in cases if use == "save" else cases[:1]:
        with pytest.raises(dcp.CheckpointException, match=f"'weight' is {kind}"):
            if use == "save":
                save(tmp_path, {"weight": tensor})
            else:
                dcp.load({"weight": tensor}, storage_reader=StorageReader(tmp_path))
    assert loaded(tmp_path, {"weight": torch.zeros(3)})["weight"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"snapshot": "disk"}, ValueError, 'snapshot must be "device" or "host", but is \'disk\''),
        ({"snapshot": None}, ValueError, "snapshot must be"),
        ({"engine": 3}, TypeError, "engine: expected a gpufile.Engine, not int"),
        ({"path": 3}, TypeError, "path: expected str, bytes or os.PathLike object, not"),
        ({"path": None}, TypeError, "path: expected str, bytes or os.PathLike object, not"),
        ({"serialization_format": dcp.filesystem.SerializationFormat.SAFETENSORS}, ValueError, "must be TORCH_SAVE"),
        ({"threads": 3}, TypeError, "threads"),
    ],
)
def test_wrong_arguments_of_writers(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        StorageWriter(**{"path": tmp_path, **options})


@pytest.mark.parametrize(
    "options, error, message",
    [({"engine": "x"}, TypeError, "engine: expected"), ({"path": 3}, TypeError, "path: expected str, bytes or os.PathLike object, not"), ({"mode": 1}, TypeError, "mode")],
)
def test_wrong_arguments_of_readers(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        StorageReader(**{"path": tmp_path, **options})


class DeviceMemory:
    """The emulator's GPU memory, with what `_memory` asks a tensor for."""

    def __init__(self, array):
        self.array = array

    def data_ptr(self):
        return self.array.address


def test_parts_of_gpu_memory_are_read_and_written(tmp_path, device_array):
    content = os.urandom(50_000)
    (tmp_path / "data").write_bytes(content)
    array = device_array(60_000).set(bytes(60_000))
    starts = range(0, 40_000, 100)
    parts = [_memory._DevicePart(DeviceMemory(array), start, 70, 0) for start in starts]
    with gpufile.File(tmp_path / "data", "r+") as file:
        assert file.read_many(parts, [start + 7 for start in starts]) == 70 * len(starts)
        found = array.get()
        assert all(found[start : start + 70] == content[start + 7 : start + 77] for start in starts)
        assert not any(found[start + 70 + extra] for start in starts for extra in range(30))
        file.write_many(parts, starts)
    assert (tmp_path / "data").read_bytes()[:70] == found[:70]


def test_parts_keep_their_memory():
    import gc
    import weakref

    memory = torch.arange(200, dtype=torch.uint8)
    parts, gone = _memory.parts(memory, [0, 100], 50), weakref.ref(memory)
    del memory
    gc.collect()
    assert gone() is not None and bytes(parts[1]) == bytes(range(100, 150))
    del parts
    gc.collect()
    assert gone() is None


def test_folders_without_a_checkpoint_raise(tmp_path):
    with pytest.raises(dcp.CheckpointException, match="metadata"):
        loaded(tmp_path, {"t": torch.zeros(3)})


def test_the_module_imports_torchs_checkpoints_late():
    program = "import sys, gpufile.torch; assert 'torch.distributed.checkpoint.filesystem' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
    import gpufile.torch as module

    with pytest.raises(AttributeError, match="no attribute 'StorageWritten'"):
        module.StorageWritten
