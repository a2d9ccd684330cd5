"""The files of a checkpoint in its folder: names, and the replacement of an old checkpoint as a whole.

A save writes files under names that the old checkpoint does not use, and replaces ``.metadata`` at the end. So
``.metadata`` always names complete files. Then the save removes the files that the replaced ``.metadata`` named.

The names have a mark that torch's have not. Marked files that no metadata names are the leftovers of saves that failed or
were killed. All others belong to someone else.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

SUFFIX = ".distcp"
METADATA = ".metadata"

#: The errors of a mount that lacks a call, or lacks it for such a file.
_LACKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
#: The mark of our own files.
MARK = ".gpufile"
_DATA = re.compile(r"__(\d+)_(\d+)" + re.escape(MARK + SUFFIX))
_IN_METADATA = re.compile(rf"__\d+_\d+({re.escape(MARK)})?{re.escape(SUFFIX)}".encode())
_METADATA = re.compile(r"(__\d+)?" + re.escape(METADATA))
_UNFINISHED = re.compile(rf"(__\d+)?{re.escape(METADATA + MARK)}[12]?\.tmp")


def create(folder: Path, prefix: str) -> tuple[str, int]:
    """Creates a file for the data of a rank. Returns its name and its descriptor.

    ``prefix`` begins the name. The first free number after those in use follows, so that no file of the old checkpoint
    changes.
    """
    taken = [match for match in map(_DATA.fullmatch, os.listdir(folder)) if match and match[0].startswith(prefix)]
    number = max((int(match[2]) + 1 for match in taken), default=0)
    while True:
        name = f"{prefix}{number}{MARK}{SUFFIX}"
        # Another machine may have created it, and the list of the folder not have it yet.
        with contextlib.suppress(FileExistsError):
            return name, os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        number += 1


def named(folder: Path, metadata: str) -> set[str]:
    """Returns the data files that a metadata file names: none if there is no such file.

    The pickle has each name as text. Text that only looks like a name does no harm, because no other file has such a name.
    """
    try:
        # A FIFO would wait for a writer.
        descriptor = os.open(folder / metadata, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return set()
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "the metadata of a checkpoint must be a regular file", str(folder / metadata))
        return names_in(file.read())


def names_in(metadata: bytes) -> set[str]:
    """Returns the data files that the bytes of a metadata file name."""
    return {found[0].decode() for found in _IN_METADATA.finditer(metadata)}


def leftovers(
    names: Iterable[str], named_by: Callable[[str], set[str]], rank: int | None, replaced: Iterable[str]
) -> list[str]:
    """Returns the names to remove, out of those in a folder: see ``remove_leftovers``.

    ``named_by`` returns the data files that a metadata file names.
    """
    names = list(names)
    kept = set[str]().union(*(named_by(name) for name in names if _METADATA.fullmatch(name)))
    found = []
    for name in names:
        is_leftover = (_DATA.fullmatch(name) or name in replaced) and name not in kept
        is_ours = rank is None or name.startswith((f"__{rank}_", f"__{rank}{METADATA}"))
        if is_ours and (is_leftover or _UNFINISHED.fullmatch(name)):
            found.append(name)
    return found


def remove_leftovers(folder: Path, rank: int | None, replaced: Iterable[str] = ()) -> None:
    """Removes the files of a replaced checkpoint, our data files that no metadata in the folder names, and our unfinished
    metadata.

    With a ``rank``, which saves without the others, only files of this rank.
    """
    for name in leftovers(os.listdir(folder), functools.partial(named, folder), rank, replaced):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / name)


def check(folder: Path, ends: Iterable[tuple[str, int]]) -> None:
    """Raises ``RuntimeError`` unless each file exists with at least this length in bytes."""
    for name, end in ends:
        try:
            size = os.stat(folder / name).st_size
        except FileNotFoundError:
            size = -1
        check_size(str(folder), name, size, end)


def check_size(folder: str, name: str, size: int, end: int) -> None:
    """Raises ``RuntimeError`` if a file is shorter than this, or missing, for which ``size`` is -1."""
    if size < end:
        state = "missing" if size < 0 else f"of {size} bytes, not {end}"
        raise RuntimeError(
            f"cannot finish the checkpoint in {folder!r}: {name!r} is {state}; another save may use the folder,"
            " or the ranks may not share it. The old checkpoint, if any, is in place"
        )


def replace(folder: Path, name: str, content: bytes, sync: bool) -> None:
    """Replaces a metadata file as a whole."""
    unfinished = folder / f"{name}{MARK}.tmp"
    with open(unfinished, "xb") as file:
        file.write(content)
        if sync:
            file.flush()
            with syncing():
                os.fsync(file.fileno())
    os.replace(unfinished, folder / name)
    if sync:
        sync_folder(folder)


@contextlib.contextmanager
def syncing() -> Iterator[None]:
    """Ignores the errors of a mount that cannot be asked to sync."""
    try:
        yield
    except OSError as error:
        if error.errno not in _LACKS:
            raise


def try_calls(folder: Path, rank: int | None, sync: bool) -> None:
    """Raises ``OSError`` if the mount renames no files, or refuses to sync them, before anything is written."""
    one, other = (folder / f"__{rank or 0}{METADATA}{MARK}{number}.tmp" for number in (1, 2))
    file = os.open(one, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if sync:
            with syncing():
                os.fsync(file)
            sync_folder(folder)
        rename(one, other)
    finally:
        os.close(file)
        for path in (one, other):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def rename(one: Path, other: Path) -> None:
    """Renames a file. Advises what to do if the mount has no renames."""
    try:
        os.replace(one, other)
    except OSError as error:
        if error.errno not in (*_LACKS, errno.EPERM):
            raise
        text = "the mount renames no files, and a checkpoint needs that to replace an older one as a whole: use a local folder"
        raise OSError(error.errno, f"{text} ({error.strerror})", str(other.parent)) from None


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on storage."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with syncing():
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
