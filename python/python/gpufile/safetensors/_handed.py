"""Models that a process has in memory, handed to other processes of the same user on this host.

The process that has a model listens at a socket, whose name follows from the files of the model and the device. Another
one asks there before it reads the files, and gets the memory itself, as ``torch.multiprocessing`` hands tensors on: for
GPUs by CUDA IPC.

    asks    the names of tensors, or null for all, in JSON
    gets    a pickle of the tensors' handles, or nothing if the process has others
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import socket
import struct
import tempfile
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing

from .. import _forks
from .._gpufile import Checkpoint, private_folder
from .._paths import address_of, paths_of
from .._pickling import NotPickled
from . import _torch
from ._arguments import Path
from ._open import open_checkpoint

#: Seconds until a process counts as stuck.
LIMIT = 10.0
#: The length of a message comes before it.
_LENGTH = struct.Struct("<Q")
#: Longer messages are refused.
_LONGEST = 1 << 30


class SharedModel(NotPickled):
    """A model in the memory of this process that other processes of the same user may use.

    >>> weights = load_model("Llama-3.1-8B", "cuda")
    >>> with SharedModel("Llama-3.1-8B", weights):
    ...     serve(weights)

    There, ``load_model("Llama-3.1-8B", "cuda", shared=True)`` returns tensors in the same memory, without reading the
    files. What one process changes, the others see. This process must live until the others have dropped the tensors.

    Tensors of the host need ``torch.multiprocessing.set_sharing_strategy("file_system")`` in this process.
    """

    _instead = "share the model in the process that loads it"

    def __init__(self, path: Path | Iterable[Path], tensors: dict[str, torch.Tensor]) -> None:
        """Starts to share tensors of a model.

        Raises ``ValueError`` if the model's files have no tensor of that name, type and shape, or if the tensors are on
        several devices, and ``RuntimeError`` if another process shares the model from this device.
        """
        paths = paths_of("path", path)
        if address_of(paths[0]) is not None:
            raise ValueError("path: only models in local files are shared, not those of a server")
        checkpoint = open_checkpoint(paths)
        device = _check(checkpoint, _tensors_of(tensors))
        strategy: Any = torch.multiprocessing.get_sharing_strategy
        if device.type == "cpu" and strategy() != "file_system":
            raise ValueError(
                'tensors of the host need torch.multiprocessing.set_sharing_strategy("file_system") before they are shared'
            )
        self._tensors, self._name = tensors, _key(checkpoint, device)
        with _folder() as folder:
            self._listener: socket.socket | None = _listen(folder, self._name)
        self._thread = threading.Thread(target=self._serve, name="gpufile-shared-model", daemon=True)
        self._thread.start()
        _forks.register(self)

    def _forked(self) -> None:
        # Processes that ask would wait for the child, which has no thread that answers.
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Stops sharing. Processes that have the tensors keep them."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError), _folder() as folder:
                os.unlink(self._name, dir_fd=folder)
            # The thread wakes up with an error.
            listener.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            listener.close()
            self._tensors = {}

    def __enter__(self) -> SharedModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._listener is None else f"{len(self._tensors)} tensors"
        return f"<gpufile.safetensors.torch.SharedModel: {state}>"

    def _serve(self) -> None:
        listener = self._listener
        assert listener is not None
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            # What one peer does wrong must not end the service for others.
            with peer, contextlib.suppress(Exception):
                peer.settimeout(LIMIT)
                _check_user(peer)
                names = json.loads(_receive(peer))
                tensors = self._tensors
                if names is not None:
                    tensors = {name: tensors[name] for name in names if name in tensors}
                    if len(tensors) < len(names):
                        _send(peer, b"")
                        continue
                message = io.BytesIO()
                ForkingPickler(message, pickle.HIGHEST_PROTOCOL).dump(tensors)
                _send(peer, message.getvalue())


def ask(checkpoint: Checkpoint, device: torch.device, names: list[str] | None) -> dict[str, torch.Tensor] | str:
    """Returns the tensors of a process that shares this model, or the reason why there are none."""
    if names is None:
        names = checkpoint.names()
    try:
        with _folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(LIMIT)
            peer.connect(_address(folder, _key(checkpoint, device)))
            _check_user(peer)
            _send(peer, json.dumps(names).encode())
            message = _receive(peer)
        if not message:
            return "the process that shares it has not all of the tensors"
        tensors: dict[str, torch.Tensor] = pickle.loads(message)
        _check(checkpoint, tensors)
        return {name: tensors[name] for name in names}
    except (ConnectionRefusedError, FileNotFoundError):
        return "no process shares it"
    # CUDA may refuse the memory, and the other process may have another version of torch. The files are there.
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _tensors_of(tensors: Any) -> dict[str, torch.Tensor]:
    if not isinstance(tensors, dict):
        raise TypeError(f"tensors: expected a dict of names and tensors, not {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"tensor {name!r} must be a torch.Tensor, but is a {type(tensor).__name__}")
    return tensors


def _check(checkpoint: Checkpoint, tensors: dict[str, torch.Tensor]) -> torch.device:
    """Raises ``ValueError`` for tensors that the model does not have. Returns their device."""
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) != 1:
        raise ValueError(f"the tensors of a shared model must be on one device, not on {len(devices)}")
    for name, tensor in tensors.items():
        info = checkpoint.info(name)
        if info is None:
            raise ValueError(f"the files of the model have no tensor {name!r}")
        dtype, shape, _ = info
        if (_torch.CODES.get(tensor.dtype), tuple(tensor.shape)) != (dtype, tuple(shape)):
            raise ValueError(
                f"tensor {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}, but in the files {dtype} of {tuple(shape)}"
            )
    return devices.pop()


def _key(checkpoint: Checkpoint, device: torch.device) -> str:
    """Returns a name for a model on a device, which changes with the files."""
    files = []
    for path in checkpoint.files:
        found = os.stat(path)
        files.append([os.path.realpath(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns])
    where = [device.type, device.index]
    if device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        # In another process, the number may be that of another GPU.
        properties: Any = torch.cuda.get_device_properties(number)
        where = ["cuda", number, str(getattr(properties, "uuid", ""))]
    return hashlib.sha256(json.dumps([files, where]).encode()).hexdigest()[:32]


@contextlib.contextmanager
def _folder() -> Iterator[int]:
    """Opens the folder of the sockets, which is this user's alone. Raises ``PermissionError`` if it is not."""
    name = f"gpufile-{os.getuid()}"
    folder = private_folder(os.path.join(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), name))
    try:
        yield folder
    finally:
        os.close(folder)


def _address(folder: int, name: str) -> str:
    # The paths of sockets are limited to 107 bytes.
    return f"/proc/self/fd/{folder}/{name}"


def _listen(folder: int, name: str) -> socket.socket:
    address = _address(folder, name)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.connect(address)
        raise RuntimeError("another process shares this model from this device")
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        # A process that was killed left it.
        os.unlink(name, dir_fd=folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(address)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _check_user(peer: socket.socket) -> None:
    """Raises ``PermissionError`` if the other process is another user's."""
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user != os.getuid():
        raise PermissionError("the process that shares the model is another user's")


def _send(peer: socket.socket, message: bytes) -> None:
    peer.sendall(_LENGTH.pack(len(message)) + message)


def _receive(peer: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_receive_bytes(peer, _LENGTH.size))
    if length > _LONGEST:
        raise ValueError(f"the other process announces a message of {length} bytes")
    return _receive_bytes(peer, length)


def _receive_bytes(peer: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        part = peer.recv(min(length - len(received), 1 << 20))
        if not part:
            raise EOFError("the other process ended the connection")
        received += part
    return bytes(received)
