"""`gpufile.torch`: storages in files, and checkpoints that are saved beside other work."""

import os
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

import gpufile.torch
from gpufile import _copies, _gpufile
from gpufile.safetensors.torch import load_file
from gpufile.torch import GdsFile, Saver, gds_deregister_buffer, gds_register_buffer


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_storages_round_trip_at_offsets(tmp_path):
    one, other = torch.randn(1021), torch.randn(2, 1024, dtype=torch.float64)
    file = GdsFile(str(tmp_path / "x.bin"), os.O_CREAT | os.O_RDWR)
    file.save_storage(one.untyped_storage(), offset=3)
    file.save_storage(other.untyped_storage(), offset=3 + one.nbytes)
    assert (tmp_path / "x.bin").read_bytes()[3:] == one.numpy().tobytes() + other.numpy().tobytes()
    loaded, others = torch.empty_like(one), torch.empty_like(other)
    file.load_storage(loaded.untyped_storage(), 3)
    file.load_storage(others.untyped_storage(), offset=3 + one.nbytes)
    assert torch.equal(loaded, one) and torch.equal(others, other)
    typed = torch.TypedStorage(1021, dtype=torch.float32)
    file.load_storage(typed, 3)
    assert typed.tolist() == one.tolist()
    # A storage is transferred as a whole, whatever part of it a tensor has.
    file.save_storage(one[5:7].untyped_storage())
    assert os.fstat(file.fd).st_size == 3 + one.nbytes + other.nbytes
    assert (tmp_path / "x.bin").read_bytes()[: one.nbytes] == one.numpy().tobytes()
    file.save_storage(torch.empty(0).untyped_storage())


def test_flags_open_files_as_os_open(tmp_path):
    path = tmp_path / "x.bin"
    storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
    with pytest.raises(FileNotFoundError):
        GdsFile(path, os.O_RDONLY)
    GdsFile(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT).save_storage(storage)
    assert path.read_bytes() == bytes(range(4))
    with pytest.raises(FileExistsError):
        GdsFile(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    with pytest.raises(RuntimeError, match="write"):
        GdsFile(path, os.O_RDONLY).save_storage(storage)
    with pytest.raises(RuntimeError, match="read"):
        GdsFile(path, os.O_WRONLY).load_storage(storage)
    GdsFile(path, os.O_RDWR | os.O_TRUNC)
    assert path.read_bytes() == b""


@pytest.mark.parametrize("flag", [os.O_APPEND, os.O_NOATIME, os.O_ACCMODE])
def test_flags_without_effect_are_refused(tmp_path, flag):
    with pytest.raises(ValueError, match="flags must"):
        GdsFile(tmp_path / "x.bin", os.O_CREAT | os.O_RDWR | flag)
    assert not os.listdir(tmp_path)


def test_unnamed_files_hold_storages(tmp_path):
    storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
    file = GdsFile(tmp_path, os.O_TMPFILE | os.O_RDWR)
    file.save_storage(storage)
    assert os.pread(file.fd, 9, 0) == bytes(range(4)) and not os.listdir(tmp_path)


def test_errors_name_the_file(tmp_path):
    with pytest.raises(RuntimeError, match=str(tmp_path / "x.bin")):
        GdsFile(tmp_path / "x.bin", os.O_CREAT).save_storage(torch.ones(1).untyped_storage())


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC, 0])
def test_synchronous_files_wait_for_the_storage(tmp_path, flag):
    syncs = []

    class Handle:
        def __init__(self, file):
            self.write_from, self.sync = file.write_from, lambda: syncs.append(file.sync())

    file = GdsFile(tmp_path / "x.bin", os.O_CREAT | os.O_RDWR | flag)
    file.handle = Handle(file.handle)
    file.save_storage(torch.ones(1).untyped_storage())
    assert len(syncs) == bool(flag)


def test_files_that_end_early_fail_the_load(tmp_path):
    file = GdsFile(tmp_path / "x.bin", os.O_CREAT | os.O_RDWR)
    file.save_storage(torch.zeros(10, dtype=torch.uint8).untyped_storage())
    with pytest.raises(RuntimeError, match="after 7 of them"):
        file.load_storage(torch.zeros(10, dtype=torch.uint8).untyped_storage(), offset=3)


def test_handles_are_registered_once(tmp_path):
    file = GdsFile(tmp_path / "x.bin", os.O_CREAT | os.O_RDWR)
    storage = torch.ones(1).untyped_storage()
    with pytest.raises(AssertionError, match="already registered"):
        file.register_handle()
    file.deregister_handle()
    for call in (file.deregister_handle, lambda: file.load_storage(storage), lambda: file.save_storage(storage)):
        with pytest.raises(AssertionError, match="not registered"):
            call()
    file.register_handle()
    file.save_storage(storage)


REQUIRE_CUFILE = """
        os.environ["GPUFILE_COMPAT_MODE"] = "off"
        import torch
        from gpufile.torch import GdsFile
        def count(text):
            return gpu.emulator_control(text.encode())
"""


def test_handles_are_registered_with_cufile(python):
    printed = python(
        REQUIRE_CUFILE
        + """
        file = GdsFile(path, os.O_RDWR)
        print(count("calls cuFileHandleRegister"), count("live handles"))
        descriptor = file.fd
        file.deregister_handle()
        print(count("calls cuFileHandleDeregister"), count("live handles"))
        file.register_handle()
        storage = torch.zeros(5, dtype=torch.uint8).untyped_storage()
        file.load_storage(storage)
        print(count("calls cuFileHandleRegister"), count("live handles"), file.fd == descriptor)
        print(bytes(storage.tolist()) == os.pread(file.fd, 5, 0))
        del file
        print(count("live handles"))
        try:
            os.fstat(descriptor)
        except OSError:
            print("closed")
    """
    )
    assert printed == "1 1\n1 0\n2 1 True\nTrue\n0\nclosed\n"


def test_refused_registrations_leave_no_file(python):
    printed = python(
        REQUIRE_CUFILE
        + """
        before = set(os.listdir("/proc/self/fd"))
        assert count("fault cuFileHandleRegister times=1 err=5027") == 0
        try:
            GdsFile(path, os.O_RDWR)
        except RuntimeError as error:
            print("cuFile" in str(error), path in str(error))
        print(any(os.path.samefile(f"/proc/self/fd/{fd}", path) for fd in set(os.listdir("/proc/self/fd")) - before
                  if os.path.exists(f"/proc/self/fd/{fd}")))
        file = GdsFile(path, os.O_RDWR)
        file.deregister_handle()
        assert count("fault cuFileHandleRegister times=1 err=5027") == 0
        try:
            file.register_handle()
        except RuntimeError:
            print(file.handle)
        file.register_handle()
        print(count("live handles"))
    """
    )
    assert printed == "True True\nFalse\nNone\n1\n"


def test_forked_children_use_files_with_host_storages(python):
    printed = python("""
        import torch
        from gpufile.torch import GdsFile
        GdsFile(path, os.O_RDWR)
        if (child := os.fork()) == 0:
            storage = torch.zeros(5, dtype=torch.uint8).untyped_storage()
            GdsFile(path, os.O_RDWR).load_storage(storage)
            os._exit(bytes(storage.tolist()) != open(path, "rb").read(5))
        print(os.waitpid(child, 0)[1])
    """)
    assert printed == "0\n"


def test_only_storages_are_taken(tmp_path):
    file = GdsFile(tmp_path / "x.bin", os.O_CREAT | os.O_RDWR)
    for wrong in (torch.ones(1), b"x", None):
        with pytest.raises(TypeError, match="storage"):
            file.save_storage(wrong)
    for call in (gds_register_buffer, gds_deregister_buffer):
        with pytest.raises(RuntimeError, match="GPU|not registered"):
            call(torch.ones(1).untyped_storage())


def test_registrations_of_one_allocation_are_counted(monkeypatch):
    # Storages of torch share allocations, which the native module registers as a whole.
    allocations = set()

    def register(storage):
        if "one" in allocations:
            raise ValueError("the memory is already registered")
        allocations.add("one")

    monkeypatch.setattr(_gpufile, "register", register, raising=False)
    monkeypatch.setattr(_gpufile, "deregister", lambda storage: allocations.remove("one"), raising=False)
    one, other = torch.ones(1).untyped_storage(), torch.ones(1).untyped_storage()
    gds_register_buffer(one)
    gds_register_buffer(other)
    with pytest.raises(RuntimeError, match="already"):
        gds_register_buffer(one)
    gds_deregister_buffer(one)
    assert allocations
    gds_deregister_buffer(other)
    assert not allocations and not gpufile.torch._registered


def test_buffers_are_registered_with_cufile(monkeypatch, device_array, command):
    class Storage(torch.UntypedStorage):
        """Memory of the emulated GPU, which torch itself cannot have."""

    arrays = {}

    def bytes_of(storage):
        array = arrays.setdefault(id(storage), device_array(100_000))
        array.data_ptr = lambda: array.address
        return array

    monkeypatch.setattr(gpufile.torch, "_bytes_of", bytes_of)
    one, other, live = Storage(), Storage(), command("live buffers")
    gds_register_buffer(one)
    gds_register_buffer(other)
    assert command("live buffers") == live + 2
    with pytest.raises(RuntimeError, match="already registered"):
        gds_register_buffer(one)
    gds_deregister_buffer(one)
    assert command("live buffers") == live + 1
    with pytest.raises(RuntimeError, match="not registered"):
        gds_deregister_buffer(one)
    gds_deregister_buffer(other)
    assert command("live buffers") == live
    command("fault cuFileBufRegister times=1 err=5030")
    with pytest.raises(RuntimeError, match="cuFile"):
        gds_register_buffer(one)
    gds_register_buffer(one)
    gds_deregister_buffer(one)
    assert command("live buffers") == live


@pytest.mark.parametrize("snapshot", ["device", "host"])
def test_later_changes_do_not_reach_the_checkpoint(tmp_path, snapshot):
    state = {"a": torch.arange(300_000), "b": torch.nn.Parameter(torch.arange(5.0)), "c": torch.tensor(3)}
    expected = {name: tensor.detach().clone() for name, tensor in state.items()}
    with Saver(snapshot=snapshot, sync=False) as saver:
        futures = []
        for step in range(3):
            futures.append(saver.save(state, tmp_path / f"{step}.safetensors", {"step": str(step)}))
            with torch.no_grad():
                for tensor in state.values():
                    tensor.add_(1)
        assert futures[0].result() == os.path.getsize(tmp_path / "0.safetensors")
    for step in range(3):
        loaded = load_file(tmp_path / f"{step}.safetensors")
        assert all(torch.equal(loaded[name], expected[name] + step) for name in expected)


def test_saves_of_one_path_keep_their_order(tmp_path):
    path = tmp_path / "x.safetensors"
    with Saver(snapshot=None, sync=False) as saver:
        futures = [saver.save({"x": torch.full((100_000,), step)}, path) for step in range(10)]
        while not futures[0].done():
            pass
        assert load_file(path)["x"].unique().numel() == 1
    assert load_file(path)["x"][0] == 9 and os.listdir(tmp_path) == ["x.safetensors"]


def test_failed_saves_keep_the_old_file_and_raise(tmp_path):
    path = tmp_path / "old.safetensors"
    state = {"x": torch.ones(3)}
    saver = Saver(sync=False)
    saver.save(state, path).result()
    failed = saver.save(state, tmp_path / "none" / "x.safetensors")
    with pytest.raises(FileNotFoundError):
        failed.result()
    with pytest.raises(ValueError, match="non contiguous"):
        saver.save({"x": torch.ones(2, 2).T}, path)
    assert saver.save({"x": torch.zeros(3)}, path).result() > 0
    saver.save(state, tmp_path / "none" / "x.safetensors")
    with pytest.raises(FileNotFoundError):
        saver.close()
    assert torch.equal(load_file(path)["x"], torch.zeros(3))
    with pytest.raises(RuntimeError):
        saver.save(state, path)
    with pytest.raises(KeyError), Saver() as other:
        other.save(state, tmp_path / "none" / "y.safetensors")
        raise KeyError
    with pytest.raises(ValueError, match="snapshot"):
        Saver(snapshot="disk")


@pytest.fixture
def held_saver(monkeypatch):
    """Returns a saver, an event that lets its saves go on, and weak references to its copies."""
    go_on, copies = threading.Event(), []
    save, copy = _gpufile.save_safetensors_pieces, _copies._copied_to_host

    def wait_and_save(*arguments):
        assert go_on.wait(60)
        return save(*arguments)

    def remember(*arguments, **options):
        made = copy(*arguments, **options)
        copies.append(weakref.ref(made))
        return made

    monkeypatch.setattr(_gpufile, "save_safetensors_pieces", wait_and_save)
    monkeypatch.setattr(_copies, "_copied_to_host", remember)
    yield Saver(sync=False), go_on, copies
    go_on.set()


def test_cancelled_saves_leave_the_others(tmp_path, held_saver):
    saver, go_on, copies = held_saver
    first, cancelled = (saver.save({"x": torch.ones(9)}, tmp_path / name) for name in ("first", "cancelled"))
    assert cancelled.cancel()
    assert copies[0]() is not None and copies[1]() is None
    last = saver.save({"x": torch.ones(9)}, tmp_path / "last")
    go_on.set()
    saver.close()
    assert first.result() == last.result()
    assert sorted(os.listdir(tmp_path)) == ["first", "last"]


def test_ended_saves_keep_no_copies(tmp_path, held_saver):
    saver, go_on, copies = held_saver
    go_on.set()
    saved = saver.save({"x": torch.ones(9)}, tmp_path / "x")
    failed = saver.save({"x": torch.ones(9)}, tmp_path / "none" / "x")
    assert saved.result() > 0
    with pytest.raises(FileNotFoundError):
        failed.result()
    assert [copy() for copy in copies] == [None, None]
    saver.close()


def test_the_program_goes_on_during_a_save(tmp_path):
    threads = threading.active_count()
    with Saver() as saver:
        future = saver.save({"x": torch.ones(5_000_000)}, tmp_path / "x.safetensors")
        assert isinstance(future.done(), bool) and threading.active_count() == threads + 1
    assert future.done() and threading.active_count() == threads
