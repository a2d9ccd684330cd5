"""A store for zarr 3 whose chunks go to and from GPU memory."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import stat
import uuid
from typing import Any

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore

from .._paths import text_of
from ._error import CuFileError, refused
from ._objects import ObjectStore
from ._reads import ReadStore, range_of
from .cufile import CuFile

__all__ = ["GDSStore"]


def __dir__() -> list[str]:
    return __all__


def _put(path: pathlib.Path, value: Buffer, exclusive: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readers see the old bytes or the new ones.
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        # zarr's type of arrays says nothing of their memory.
        array: Any = value.as_array_like()
        with CuFile(part, "w") as file:
            file.write(array)
        if exclusive:
            os.link(part, path)
        else:
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class GDSStore(ReadStore, LocalStore):
    """A store in a folder. Use it with ``zarr.config.enable_gpu()`` for arrays in GPU memory.

    :meth:`at_url` is a store of objects on a server.
    """

    def __init__(self, root: pathlib.Path | str, *, read_only: bool = False) -> None:
        super().__init__(text_of("root", root), read_only=read_only)

    @staticmethod
    def at_url(url: str, **options: Any) -> ObjectStore:
        """Returns a store of the objects whose names begin with a URL, such as ``https://example.org/era5.zarr``.

        Its arrays and groups are opened by name with ``mode="r"``. The options are those of ``gpufile.RemoteFile``, for
        example ``storage_options``. A query of the URL is that of all objects.
        """
        return ObjectStore(url, options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self}')"

    def _read(self, key: str, prototype: BufferPrototype, request: ByteRequest | None) -> Buffer | None:
        path = self.root / key
        try:
            file = CuFile(path)
        except CuFileError as error:
            # cuFile refuses folders.
            if error.errno in (errno.ENOENT, errno.ENOTDIR) or path.is_dir():
                return None
            raise
        # Writers replace the file, so the open one keeps its length and its bytes.
        with file:
            status = os.fstat(file.fileno())
            if stat.S_ISDIR(status.st_mode):
                return None
            start, end = range_of(status.st_size, request)
            array: Any = prototype.nd_buffer.create(shape=(max(0, end - start),), dtype="B").as_ndarray_like()
            if array.nbytes > 0 and file.read(array, file_offset=start) != array.nbytes:
                raise refused(errno.EIO, f"{path} became shorter while it was read", str(path))
        return prototype.buffer.from_array_like(array)

    async def _set(self, key: str, value: Buffer, exclusive: bool = False) -> None:
        await self._ensure_open()
        self._check_writable()
        if not isinstance(value, Buffer):
            raise TypeError(f"GDSStore.set(): `value` must be a Buffer instance. Got an instance of {type(value)} instead.")
        await asyncio.to_thread(_put, self.root / key, value, exclusive)
