"""The kernel's page cache."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from collections.abc import Iterator
from typing import TypeAlias

from .._gpufile import page_cache_residency, path_of
from ._error import integer, translated
from .utils import kvikio_deprecation_notice

__all__ = ["clear_page_cache", "drop_file_page_cache", "drop_system_page_cache", "get_page_cache_info"]


def __dir__() -> list[str]:
    return __all__

_File: TypeAlias = os.PathLike[str] | str | int | io.IOBase


@contextlib.contextmanager
def _descriptor(file: _File) -> Iterator[int]:
    if isinstance(file, io.IOBase):
        yield file.fileno()
    elif isinstance(file, int):
        yield file
    elif isinstance(file, (os.PathLike, str)):
        with translated("Unable to open file"):
            descriptor = os.open(path_of(file, "file"), os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    else:
        raise ValueError(f"expected a path, a descriptor or a file, not {file!r}")


def get_page_cache_info(file: _File, offset: int = 0, length: int = 0) -> tuple[int, int]:
    """Returns the number of cached pages of a range of a file, and the number of its pages.

    A length of 0 means the rest of the file.
    """
    integer("offset", offset)
    integer("length", length)
    with _descriptor(file) as descriptor, translated():
        end = offset + length if length else max(offset, os.fstat(descriptor).st_size)
        return page_cache_residency(descriptor, offset, end)


def drop_file_page_cache(file: _File, offset: int = 0, length: int = 0, sync_first: bool = True) -> None:
    """Drops the pages of a range of a file from the page cache. A length of 0 means the rest of the file."""
    integer("offset", offset)
    integer("length", length)
    with _descriptor(file) as descriptor, translated():
        if sync_first:
            os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)


def drop_system_page_cache(reclaim_dentries_and_inodes: bool = True, sync_first: bool = True) -> bool:
    """Drops all clean pages and cached folder entries of the machine. Returns False if the process may not do that."""
    if sync_first:
        os.sync()
    command = ["/sbin/sysctl", f"vm.drop_caches={3 if reclaim_dentries_and_inodes else 1}"]
    for prefix in ([], ["sudo", "--non-interactive"]):
        with contextlib.suppress(OSError):
            if subprocess.run([*prefix, *command], capture_output=True).returncode == 0:
                return True
    return False


@kvikio_deprecation_notice("Use drop_system_page_cache instead.", since="26.04")
def clear_page_cache(reclaim_dentries_and_inodes: bool = True, clear_dirty_pages: bool = True) -> bool:
    """Does the same as ``drop_system_page_cache``, which replaces this function."""
    return drop_system_page_cache(reclaim_dentries_and_inodes, clear_dirty_pages)
