"""The objects of a checkpoint below an address, and the replacement of an old checkpoint as a whole.

They have the names of files (``_files``), except that random digits take the place of the number: a request of a killed process,
which a store may still answer later, cannot reach an object of a newer save. ``.metadata`` is replaced by its upload.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch.distributed.checkpoint.filesystem as torch_storage

from .._gpufile import Engine, File, RemoteFolder, is_address
from .._paths import text_of
from . import _files

#: Requests about objects that are on their way at once.
MOST_AT_ONCE = 16

_Result = TypeVar("_Result")


class Objects(torch_storage.FileSystemBase):
    """The folder at an address, which takes the place of torch's file system. Paths are the names of objects in it."""

    def __init__(self, address: str, storage_options: Mapping[str, str] | None, engine: Engine | None) -> None:
        self._arguments = address, storage_options, engine
        self._folder = RemoteFolder(address, storage_options=storage_options, engine=engine)
        #: The address, without what may be secret in it.
        self.url = self._folder.url

    def __reduce__(self) -> Any:
        return Objects, self._arguments

    def open(self, name: str) -> File:
        """Opens an object to read it. Raises ``FileNotFoundError`` if there is none."""
        file = self._folder.open(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", f"{self.url.rstrip('/')}/{name}")
        return file

    def write(self, name: str, buffers: list[Any], len_bytes: int) -> None:
        """Writes an object, which appears when all of its bytes have arrived."""
        self._folder.upload(name, len_bytes, iter([buffers]))

    def new(self, prefix: str) -> str:
        """Returns a name for the data of a rank that no other object has."""
        return f"{prefix}{secrets.randbits(64):020}{_files.MARK}{_files.SUFFIX}"

    def named(self, metadata: str) -> set[str]:
        """Returns the data objects that a metadata object names: none if there is no such object."""
        try:
            with self.create_stream(metadata, "rb") as stream:
                return _files.names_in(stream.read())
        except FileNotFoundError:
            return set()

    def remove_leftovers(self, rank: int | None, replaced: Iterable[str] = ()) -> None:
        """Does what ``_files.remove_leftovers`` does. An object that cannot be removed is a warning."""
        # The list of a store may be older than the checkpoint, and the objects of that must stay.
        metadata = _files.METADATA if rank is None else f"__{rank}{_files.METADATA}"
        self.remove(_files.leftovers({metadata, *self._folder.names()}, self.named, rank, set(replaced)))

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects. Warns of those that cannot be removed."""

        def remove(name: str) -> OSError | None:
            try:
                self._folder.remove(name)
            except OSError as error:
                return error
            return None

        failures = [failure for failure in at_once(remove, names) if failure is not None]
        if failures:
            text = f"{len(failures)} objects of no checkpoint stay in {self.url!r}, such as the one of this error: {failures[0]}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def check(self, ends: Iterable[tuple[str, int]]) -> None:
        """Does what ``_files.check`` does."""

        def check(place: tuple[str, int]) -> None:
            file = self._folder.open(place[0])
            _files.check_size(self.url, place[0], -1 if file is None else file.size(), place[1])

        at_once(check, ends)

    # The methods that torch calls.

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        """Opens an object to read it."""
        if mode != "rb":
            raise io.UnsupportedOperation(f"objects are read with the mode 'rb', not {mode!r}")
        with self.open(os.fspath(path)) as file:
            yield io.BufferedReader(_Stream(file), 1 << 20)

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        """Returns the name of an object."""
        return suffix

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """Returns the address."""
        return path

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Raises ``UnsupportedOperation``: stores rename nothing."""
        raise io.UnsupportedOperation("objects are not renamed")

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Does nothing: stores have no folders."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether this is an address."""
        return isinstance(checkpoint_id, str) and is_address(checkpoint_id)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Returns whether there is an object."""
        return self._folder.open(os.fspath(path)) is not None

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Removes an object."""
        self._folder.remove(os.fspath(path))


class _Stream(io.RawIOBase):
    """An object as a stream of Python."""

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size()}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        read = self._file.read_into(buffer, self._at)
        self._at += read
        return read


def file_system(
    argument: str, path: Any, storage_options: Mapping[str, str] | None, engine: Engine | None
) -> tuple[Any, str]:
    """Returns what has the files of a checkpoint, and the text of its path. Raises ``TypeError`` for what is no path."""
    if isinstance(path, str) and is_address(path):
        return Objects(path, storage_options, engine), path
    if storage_options is not None:
        raise ValueError("storage_options are for URLs such as s3://bucket/checkpoint")
    return torch_storage.FileSystem(), text_of(argument, path)


def go_to(storage: Any, checkpoint_id: Any) -> None:
    """Lets a writer or a reader use another folder, if there is one to use."""
    if checkpoint_id is None:
        return
    fs, folder = file_system("checkpoint_id", checkpoint_id, storage._storage_options, storage._engine)
    if folder:
        storage.fs, storage.path = fs, fs.init_path(folder)


def shown(storage: Any) -> str:
    """Returns the path of a writer or a reader, without what may be secret in it."""
    return storage.fs.url if isinstance(storage.fs, Objects) else os.fspath(storage.path)


def at_once(call: Callable[[Any], _Result], arguments: Iterable[Any]) -> list[_Result]:
    """Returns the results of several calls at once."""
    listed = list(arguments)
    if len(listed) < 2:
        return list(map(call, listed))
    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(listed)), thread_name_prefix="gpufile-objects") as threads:
        return list(threads.map(call, listed))
