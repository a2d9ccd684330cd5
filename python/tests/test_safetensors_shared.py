"""Models in the memory of one process that another one uses."""

import os
import socket
import subprocess
import sys
import textwrap
import time

import pytest

torch = pytest.importorskip("torch")

from gpufile.safetensors import ModelWarning, _handed, load_model
from gpufile.safetensors.torch import SharedModel, save_file

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))]

OWNER = """
import sys, torch
torch.multiprocessing.set_sharing_strategy("file_system")
from gpufile.safetensors import load_model
from gpufile.safetensors.torch import SharedModel
path, device = sys.argv[1:]
weights = load_model(path, device)
with SharedModel(path, weights):
    print("ready", flush=True)
    sys.stdin.readline()
    print(weights["a"].flatten()[0].item(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def sockets(tmp_path, monkeypatch):
    """Keeps the sockets of a test apart, and lets this process share tensors of the host."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    strategy = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    yield folder
    torch.multiprocessing.set_sharing_strategy(strategy)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.randn(50, 30), "b": torch.arange(7), "half": torch.ones(3, dtype=torch.bfloat16)}, path)
    return path


@pytest.fixture
def owner(path):
    """Returns a function that starts a process which shares the model."""
    started = []

    def start(device="cpu"):
        command = [sys.executable, "-c", textwrap.dedent(OWNER), str(path), device]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def same(found, path, device="cpu"):
    expected = load_model(path, device)
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("device", DEVICES)
def test_processes_use_the_same_memory(path, owner, device):
    process = owner(device)
    found = load_model(path, device, shared=True)
    assert same(found, path, device) and found["a"].device.type == device
    assert list(load_model(path, device, only=["b"], shared=True)) == ["b"]
    found["a"].fill_(5)
    if device == "cuda":
        torch.cuda.synchronize()
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "5.0\n"


def test_missing_owners_are_told_and_replaced_by_files(path):
    with pytest.warns(ModelWarning, match="x.safetensors'\\) are read, not shared: no process shares it"):
        assert same(load_model(path, shared=True), path)


def test_other_files_and_tensors_are_not_shared(path):
    weights = load_model(path)
    with SharedModel(path, {name: weights[name] for name in ("a", "b")}):
        with pytest.warns(ModelWarning, match="has not all of the tensors"):
            assert same(load_model(path, shared=True), path)
        assert load_model(path, only=["a"], shared=True).keys() == {"a"}
        # A file of the same name and length, but a new one.
        save_file({name: tensor + 1 for name, tensor in weights.items()}, path)
        with pytest.warns(ModelWarning, match="no process shares it"):
            assert torch.equal(load_model(path, only=["a"], shared=True)["a"], weights["a"] + 1)


def test_killed_owners_leave_the_place_to_others(path, owner, sockets):
    process = owner()
    with pytest.raises(RuntimeError, match="another process shares this model"):
        SharedModel(path, load_model(path))
    process.kill()
    process.wait()
    with pytest.warns(ModelWarning, match="no process shares it"):
        load_model(path, shared=True)
    with SharedModel(path, load_model(path)) as shared:
        assert same(load_model(path, shared=True), path)
        shared.close()
        with pytest.warns(ModelWarning, match="no process shares it"):
            load_model(path, shared=True)
    assert not list(sockets.glob("*/*"))


def test_wrong_tensors_are_refused(path):
    weights = load_model(path)
    for changed, message in [
        ({"c": weights["a"]}, "the files of the model have no tensor 'c'"),
        ({"a": weights["a"].half()}, r"tensor 'a' is torch.float16 of shape \(50, 30\), but in the files F32"),
        ({"a": weights["a"].T}, r"tensor 'a' is torch.float32 of shape \(30, 50\), but in the files F32 of \(50, 30\)"),
        ({"a": torch.empty(50, 30, device="meta")}, "must be on one device, not on 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            SharedModel(path, weights | changed)
    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    with pytest.raises(ValueError, match="tensors of the host need"):
        SharedModel(path, weights)


def test_bad_peers_do_not_end_the_service(path, monkeypatch):
    monkeypatch.setattr(_handed, "LIMIT", 0.2)
    with SharedModel(path, load_model(path)) as shared, _handed._folder() as folder:
        address = _handed._address(folder, shared._name)
        for message in [b"", b"short", b"\xff" * 8, (3).to_bytes(8, "little") + b"{{{", (2).to_bytes(8, "little") + b"55"]:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(address)
                peer.sendall(message)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(address)
            time.sleep(0.3)
            assert same(load_model(path, shared=True), path)


def test_bad_owners_are_told_and_replaced_by_files(path, sockets, monkeypatch):
    monkeypatch.setattr(_handed, "LIMIT", 0.2)
    shared = SharedModel(path, load_model(path))
    shared.close()
    with _handed._folder() as folder, socket.socket(socket.AF_UNIX) as owner:
        owner.bind(_handed._address(folder, shared._name))
        owner.listen()
        with pytest.warns(ModelWarning, match="TimeoutError"):
            assert same(load_model(path, shared=True), path)


def _refused(path, why):
    """Checks that nothing is shared or taken, and the folder stays as it is."""
    with pytest.warns(ModelWarning, match=why):
        assert same(load_model(path, shared=True), path)
    with pytest.raises(PermissionError, match=why):
        SharedModel(path, load_model(path))


def test_folders_that_others_may_write_to_are_refused(path, sockets):
    folder = sockets / f"gpufile-{os.getuid()}"
    folder.mkdir()
    for mode in [0o777, 0o775, 0o720, 0o702, 0o1777]:
        folder.chmod(mode)
        _refused(path, "other users may write to it")
        assert (folder.stat().st_mode & 0o7777, os.listdir(folder)) == (mode, [])
    folder.chmod(0o755)
    (folder / "notes").touch()
    _refused(path, "it has other files, such as \"notes\"")
    (folder / "notes").unlink()
    # Only the user could write to it, so its sockets are the user's.
    with SharedModel(path, load_model(path)):
        assert same(load_model(path, shared=True), path)
    assert folder.stat().st_mode & 0o777 == 0o700
    # Only root can give a folder away.
    assert os.geteuid() == 0, "run this test as root"
    os.chown(folder, 4321, 4321)
    _refused(path, "it belongs to user 4321")


def test_links_and_files_in_place_of_the_folder_are_refused(path, sockets):
    folder = sockets / f"gpufile-{os.getuid()}"
    (sockets / "other").mkdir(0o700)
    folder.symlink_to("other")
    _refused(path, "it is a symbolic link")
    folder.unlink()
    for make in [folder.touch, lambda: os.mkfifo(folder)]:
        make()
        with pytest.raises(NotADirectoryError):
            SharedModel(path, load_model(path))
        folder.unlink()
    assert os.listdir(sockets) == ["other"] and not os.listdir(sockets / "other")


def test_forked_children_do_not_answer(path):
    shared = SharedModel(path, load_model(path))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    try:
        shared.close()
        # The child is alive, and has not kept the socket.
        with pytest.warns(ModelWarning, match="no process shares it"):
            load_model(path, shared=True)
        with SharedModel(path, load_model(path)):
            assert same(load_model(path, shared=True), path)
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_sharing_needs_torch_and_one_device(path):
    with pytest.raises(ValueError, match="shared=True is for the framework pt"):
        load_model(path, framework="np", shared=True)
    from gpufile.safetensors import Placement

    with pytest.raises(ValueError, match="shared=True is for one device"):
        load_model(path, ["cpu"], placement=Placement.all(), shared=True)


def test_messages_are_of_this_user_alone(path, monkeypatch):
    with SharedModel(path, load_model(path)):
        monkeypatch.setattr(os, "getuid", lambda: 4321)
        with pytest.raises(PermissionError, match="another user's"), socket.socketpair()[0] as peer:
            _handed._check_user(peer)
