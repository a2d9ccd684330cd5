"""A store for zarr 3 of objects on a server, whose chunks go to GPU memory."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from typing import Any

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from .._gpufile import File, RemoteFolder
from ._reads import ReadStore, range_of

_DOCUMENTS = ("zarr.json", ".zarray", ".zgroup")

class ObjectStore(ReadStore):
    """A store of objects whose names begin with a URL. They are read, and neither written nor listed."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        super().__init__(read_only=True)
        self._folder = RemoteFolder(url, **options)
        self._url, self._options = url, options

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectStore):
            return False
        return (self._url, self._options) == (other._url, other._options)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str, dict[str, Any]]]:
        return type(self), (self._url, self._options)

    def __str__(self) -> str:
        return self._folder.url

    def __repr__(self) -> str:
        return f"GDSStore.at_url({str(self)!r})"

    def _read(self, key: str, prototype: BufferPrototype, request: ByteRequest | None) -> Buffer | None:
        file = self._open_object(key)
        if file is None:
            return None
        with file:
            start, end = range_of(file.size(), request)
            array: Any = prototype.nd_buffer.create(shape=(max(0, end - start),), dtype="B").as_ndarray_like()
            if array.nbytes > 0:
                # The object must stay as it was when it was opened, so no byte is missing.
                file.read_into(array, start)
        return prototype.buffer.from_array_like(array)

    def _open_object(self, key: str) -> File | None:
        if not isinstance(key, str):
            raise TypeError(f"key: expected a str, not {type(key).__name__}")
        if any(part in ("", ".", "..") for part in key.split("/")):
            raise ValueError(f"key: {key!r} names no object below the URL")
        file = self._folder.open(key)
        # zarr's error says only that there is no array.
        if file is None and key.rpartition("/")[2] in _DOCUMENTS and self._folder.has_decoded(key):
            text = f"{self} has no {key}, but there is one with the characters that its %XX stand for; a key is written without escapes"
            warnings.warn(text, UserWarning, stacklevel=2)
        return file

    async def exists(self, key: str) -> bool:
        """Returns whether there is such an object."""
        file = await asyncio.to_thread(self._open_object, key)
        if file is not None:
            file.close()
        return file is not None

    @property
    def supports_writes(self) -> bool:
        return False

    @property
    def supports_deletes(self) -> bool:
        return False

    @property
    def supports_listing(self) -> bool:
        return False

    async def set(self, key: str, value: Buffer) -> None:
        """Raises ``ValueError``."""
        self._check_writable()

    async def delete(self, key: str) -> None:
        """Raises ``ValueError``."""
        self._check_writable()

    def list(self) -> AsyncIterator[str]:
        """Raises ``NotImplementedError``, as all calls that list."""
        raise NotImplementedError("objects of servers are not listed: open arrays by their names")

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Raises ``NotImplementedError``."""
        return self.list()

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Raises ``NotImplementedError``."""
        return self.list()
