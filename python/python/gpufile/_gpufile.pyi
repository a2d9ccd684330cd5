"""Types of the native module."""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from collections.abc import Mapping as _Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import (
    Any,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    Self,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    final,
    type_check_only,
)

from typing_extensions import Buffer, TypeVar, disjoint_base

from ._error import TransferError
from ._future import Future
from .kv_blocks import Outcome

@type_check_only
class _DLPack(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> object: ...
    def __dlpack_device__(self) -> tuple[object, object]: ...

@type_check_only
class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> _Mapping[str, object]: ...

@type_check_only
class _Array(Protocol):
    @property
    def __array_interface__(self) -> _Mapping[str, object]: ...

__version__: str

__all__ = [
    "__version__",
    "BlockReader",
    "BlockStore",
    "Engine",
    "File",
    "Flight",
    "Lock",
    "Mapping",
    "RemoteFile",
    "RemoteFolder",
    "Region",
    "Route",
    "Watch",
    "Checkpoint",
    "Group",
    "Plan",
    "open_gguf",
    "open_npy",
    "parse_safetensors",
    "safetensors_order",
    "save_safetensors",
    "save_safetensors_pieces",
    "save_safetensors_pieces_url",
    "save_safetensors_url",
    "serialize_safetensors",
    "close_driver",
    "copy_ranges",
    "deregister",
    "dlpack_parts",
    "driver_properties",
    "is_address",
    "keep_classes",
    "kvikio_settings",
    "libcufile_version",
    "main",
    "memory_of",
    "open_driver",
    "page_cache_residency",
    "path_of",
    "places_of",
    "prefer_huge_pages",
    "private_folder",
    "register",
    "set_driver_limit",
    "set_poll_mode",
    "verify_model",
    "visible",
]

@type_check_only
class _Descriptor(Protocol):
    def fileno(self) -> int: ...

_Memory: TypeAlias = Buffer | _DLPack | _CudaArray | _Array

@type_check_only
class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

@type_check_only
class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

@type_check_only
class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...

_Stream: TypeAlias = SupportsIndex | _CudaStream | _TorchStream | _CupyStream | None

_Kind: TypeAlias = Literal["gds", "p2pdma", "cufile-compat", "posix", "unavailable"]
_DirectIo: TypeAlias = Literal["auto", "always", "never"]

@type_check_only
class _Counts(TypedDict):
    reads: int
    read_bytes: int
    writes: int
    write_bytes: int

_Stats = TypedDict(
    "_Stats",
    {
        "host": _Counts,
        "posix": _Counts,
        "cufile-compat": _Counts,
        "p2pdma": _Counts,
        "gds": _Counts,
        "continued_calls": int,
        "pinned_bytes": int,
        "fallbacks": dict[str, int],
    },
)

@type_check_only
class _DriverProperties(TypedDict):
    has_direct_path: bool
    nvidia_fs: tuple[int, int] | None
    allow_compat_mode: bool
    poll_mode: bool
    poll_threshold_bytes: int
    max_device_cache_bytes: int
    per_buffer_cache_bytes: int
    max_device_pinned_bytes: int

@final
class Engine:
    """Settings and worker threads for files."""

    def __new__(
        cls,
        *,
        threads: int | None = None,
        chunk_bytes: int | None = None,
        bounce_buffer_bytes: int | None = None,
        bounce_memory_bytes: int | None = None,
        gds_threshold_bytes: int | None = None,
        policy: Literal["auto", "cufile", "posix"] | None = None,
        direct_read: _DirectIo | None = None,
        direct_write: _DirectIo | None = None,
        overread: bool | None = None,
    ) -> Self: ...
    @staticmethod
    def default() -> Engine:
        """Returns the default engine of the process."""
    def warm_up(self, devices: Iterable[SupportsIndex]) -> None:
        """Prepares transfers of the memory of these GPUs, by their ordinals."""
    def release_buffers(self) -> int:
        """Frees memory that the engine keeps for later transfers, and returns the number of bytes."""
    def stats(self) -> _Stats:
        """Returns the counts of all transfers of the engine so far."""
    @property
    def threads(self) -> int:
        """The number of workers for each GPU, and for host memory, from 1 to 1024."""
    @property
    def chunk_bytes(self) -> int | None:
        """The length in bytes of the chunks that one worker transfers at a time, at least 1."""
    @property
    def bounce_buffer_bytes(self) -> int:
        """The number of bytes that each pinned bounce buffer has room for, from 1 to 1 GiB."""
    @property
    def bounce_memory_bytes(self) -> int:
        """The most bytes of pinned memory for the bounce buffers of each GPU, and for those of host memory, at least 1."""
    @property
    def gds_threshold_bytes(self) -> int:
        """The length in bytes from which on transfers may use cuFile."""
    @property
    def policy(self) -> Literal["auto", "cufile", "posix"]:
        """The choice whether transfers of device memory may or must use cuFile, for files that do not set it."""
    @property
    def direct_read(self) -> _DirectIo:
        """The use of `O_DIRECT` for reads of files that do not set it."""
    @property
    def direct_write(self) -> _DirectIo:
        """The use of `O_DIRECT` for writes of files that do not set it."""
    @property
    def overread(self) -> bool:
        """True if reads with `O_DIRECT` may read the whole blocks in which an unaligned range begins and ends."""

@disjoint_base
class File:
    """An open file that is read into and written from host and GPU memory."""

    def __new__(
        cls, path: str | bytes | os.PathLike[str] | os.PathLike[bytes], mode: str = "r", *, engine: Engine | None = None
    ) -> Self: ...
    @staticmethod
    def from_fd(fd: int | _Descriptor, *, engine: Engine | None = None) -> File:
        """Returns a file for a descriptor, or for an object with ``fileno``."""
    def read_into(
        self, buffer: _Memory, offset: int = 0, length: int | None = None, *, buffer_offset: int = 0
    ) -> int:
        """Reads from ``offset`` into the buffer, and returns the number of bytes."""
    def read_exact(
        self, buffer: _Memory, offset: int = 0, length: int | None = None, *, buffer_offset: int = 0
    ) -> None:
        """Reads like ``read_into``, and raises ``TransferError`` if the file ends before all bytes are read."""
    def write_from(
        self, buffer: _Memory, offset: int = 0, length: int | None = None, *, buffer_offset: int = 0
    ) -> int:
        """Writes the buffer to ``offset``, and returns the number of bytes."""
    def read_into_async(
        self, buffer: _Memory, offset: int = 0, length: int | None = None, *, buffer_offset: int = 0
    ) -> Future:
        """Starts a read like ``read_into``, and returns at once."""
    def write_from_async(
        self, buffer: _Memory, offset: int = 0, length: int | None = None, *, buffer_offset: int = 0
    ) -> Future:
        """Starts a write like ``write_from``, and returns at once."""
    def read_into_on_stream(
        self,
        buffer: _Memory,
        stream: _Stream,
        offset: int = 0,
        length: int | None = None,
        *,
        buffer_offset: int = 0,
    ) -> Future:
        """Reads like ``read_into``, after the work already in the stream."""
    def write_from_on_stream(
        self,
        buffer: _Memory,
        stream: _Stream,
        offset: int = 0,
        length: int | None = None,
        *,
        buffer_offset: int = 0,
    ) -> Future:
        """Writes like ``write_from``, after the work already in the stream."""
    def read_many(self, buffers: Iterable[_Memory], offsets: Iterable[SupportsIndex]) -> int:
        """Fills each buffer from its offset, in one call that is much faster than many."""
    def write_many(self, buffers: Iterable[_Memory], offsets: Iterable[SupportsIndex]) -> int:
        """Writes each buffer to its offset, in one call that is much faster than many."""
    def read_many_each(self, buffers: Iterable[_Memory], offsets: Iterable[SupportsIndex]) -> list[int | OSError]:
        """Reads like ``read_many``, and returns the outcome of each entry: the number of bytes, or the exception."""
    def write_many_each(self, buffers: Iterable[_Memory], offsets: Iterable[SupportsIndex]) -> list[int | OSError]:
        """Writes like ``write_many``, and returns the outcome of each entry: the number of bytes, or the exception."""
    def read_many_async(self, buffers: Iterable[_Memory], offsets: Iterable[SupportsIndex]) -> Future:
        """Starts a read like ``read_many``, and returns at once."""
    def write_many_async(self, buffers: Iterable[_Memory], offsets: Iterable[SupportsIndex]) -> Future:
        """Starts a write like ``write_many``, and returns at once."""
    def read_many_each_async(
        self, buffers: Iterable[_Memory], offsets: Iterable[SupportsIndex]
    ) -> Future[list[int | OSError]]:
        """Starts a read like ``read_many_each``, and returns at once."""
    def write_many_each_async(
        self, buffers: Iterable[_Memory], offsets: Iterable[SupportsIndex]
    ) -> Future[list[int | OSError]]:
        """Starts a write like ``write_many_each``, and returns at once."""
    def with_chunk_bytes(self, chunk_bytes: int) -> File:
        """Returns the same open file, with another chunk length for its transfers."""
    def with_engine(self, engine: Engine) -> File:
        """Returns the same open file, with another engine for its transfers."""
    def route(self) -> Route:
        """Returns the route between the file and GPU memory, and why it is not a better one."""
    def size(self) -> int:
        """Returns the length of the file."""
    def truncate(self, size: int) -> None:
        """Changes the length of the file."""
    def sync(self) -> None:
        """Waits until the bytes of the file are durable."""
    def fileno(self) -> int:
        """Returns the descriptor."""
    def close(self) -> None:
        """Closes the file."""
    @property
    def closed(self) -> bool:
        """True after ``close``."""
    @property
    def name(self) -> str:
        """The path with which the file was opened."""
    @property
    def mode(self) -> str:
        """The mode that the file was opened with."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class RemoteFile(File):
    """An object on a server, read by ranges of HTTP or HTTPS into host and GPU memory."""

    def __new__(
        cls,
        url: str,
        *,
        engine: Engine | None = None,
        headers: _Mapping[str, str] | None = None,
        timeout: float | None = None,
        tries: int | None = None,
        statuses: Iterable[SupportsIndex] | None = None,
        trust: bytes | None = None,
        storage_options: _Mapping[str, str] | None = None,
        cache: tuple[str | os.PathLike[str], SupportsIndex] | None = None,
        proxy: str | None = None,
    ) -> Self: ...
    def with_chunk_bytes(self, chunk_bytes: int) -> RemoteFile:
        """Returns the same open object, with another chunk length for its transfers."""
    def with_engine(self, engine: Engine) -> RemoteFile:
        """Returns the same open object, with another engine for its transfers."""
    def fileno(self) -> NoReturn:
        """Raises ``UnsupportedOperation``: an object has no descriptor."""
    @property
    def etag(self) -> str | None:
        """The version of the object that is read, or None if the server named none."""

@final
class RemoteFolder:
    """Objects of a server whose names begin with a URL."""

    def __new__(cls, url: str, **options: object) -> Self: ...
    def open(self, name: str) -> File | None:
        """Opens an object by the rest of its name."""
    def upload(self, name: str, len_bytes: SupportsIndex, pieces: Iterator[Sequence[object]]) -> None:
        """Writes an object of so many bytes, which come from an iterator of lists of buffers."""
    def remove(self, name: str) -> None:
        """Removes an object, if there is one."""
    def names(self) -> list[str]:
        """Returns the names of the objects in the folder, except those in folders below it."""
    def has_decoded(self, name: str) -> bool:
        """Returns whether there is an object of this name with the characters that the %XX of its key stand for."""
    @property
    def url(self) -> str:
        """The URL without its query."""

_Result_co = TypeVar("_Result_co", default=int, covariant=True)

@final
class Flight(Generic[_Result_co]):
    """A transfer in flight, without what `concurrent.futures` adds."""

    def result(self, timeout: float | None = None) -> _Result_co:
        """Waits for the end, and returns the number of bytes that were transferred, or the list of outcomes."""
    def done(self) -> bool:
        """Returns whether the transfer has ended."""
    def cancelled(self) -> bool:
        """Returns whether the transfer has ended because of ``cancel``."""
    def cancel(self) -> bool:
        """Lets a helper end the transfer early, and does not wait."""
    def watch(self, watch: Watch, number: int) -> bool:
        """Adds the number to the watch when the transfer ends."""

_Folder: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Keys: TypeAlias = Iterable[SupportsIndex | bytes]
#: An array of integers offers its memory as a buffer.
_Integers: TypeAlias = Iterable[SupportsIndex] | Buffer
_Timeout: TypeAlias = float | Iterable[float | None] | None
_Outcomes: TypeAlias = Future[list[Outcome | TransferError]]

@type_check_only
class _Recovery(TypedDict):
    whole: int
    damaged: int
    unsynced: int

@type_check_only
class _StoreStats(TypedDict):
    hits: int
    misses: int
    evictions: int
    bytes_stored: int
    bytes_fetched: int
    blocks: int

@type_check_only
class _ReaderStats(TypedDict):
    hits: int
    misses: int
    bytes_fetched: int

@final
class BlockStore:
    """A store of fixed-size blocks in the files of a folder, which finds each block by its key."""

    def __new__(
        cls,
        folders: _Folder | list[_Folder] | tuple[_Folder, ...],
        block_bytes: SupportsIndex,
        *,
        limit_bytes: SupportsIndex | None = None,
        blocks_per_file: SupportsIndex | None = None,
        checksums: bool = False,
        durable: bool = False,
        evicts: bool = True,
        keep_evicted: bool = False,
        engine: Engine | None = None,
    ) -> BlockStore: ...
    def store(
        self,
        keys: _Keys,
        regions: Region | Iterable[Region],
        offsets: _Integers,
        piece_bytes: SupportsIndex | _Integers,
        *,
        timeout: _Timeout = None,
    ) -> _Outcomes:
        """Stores blocks, and returns at once a future, whose result has the outcome of each block, in the order of the keys."""
    def fetch(
        self,
        keys: _Keys,
        regions: Region | Iterable[Region],
        offsets: _Integers,
        piece_bytes: SupportsIndex | _Integers,
        *,
        block_offset: SupportsIndex = 0,
        timeout: _Timeout = None,
    ) -> _Outcomes:
        """Fetches blocks into memory, and returns at once a future, whose result has the outcome of each block."""
    def contains(self, keys: _Keys) -> list[bool]:
        """Returns for each key whether the store has the block."""
    def prefix(self, keys: _Keys) -> int:
        """Returns how many of the keys come before the first one that the store does not have."""
    def pin(self, keys: _Keys) -> list[bool]:
        """Keeps blocks from being evicted until as many calls of ``unpin``."""
    def unpin(self, keys: _Keys) -> list[bool]:
        """Ends one call of ``pin`` for each key."""
    def remove(self, keys: _Keys) -> int:
        """Removes blocks, and returns how many of these the store had."""
    def keys(self) -> list[int]:
        """Returns the keys of all blocks, as integers, in no order."""
    def evicted(self) -> list[int]:
        """Returns the keys of the blocks that were evicted since the last call, as integers."""
    def stats(self) -> _StoreStats:
        """Returns the counts since the store was opened."""
    @property
    def recovery(self) -> _Recovery:
        """The blocks that the store found when it was opened."""
    def close(self) -> None:
        """Waits for all calls, and until the disk has all blocks."""
    @property
    def closed(self) -> bool:
        """True after ``close``."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn: ...

@final
class BlockReader:
    """A reader of a store that another process has open, or none."""

    def __new__(
        cls,
        folders: _Folder | list[_Folder] | tuple[_Folder, ...],
        block_bytes: SupportsIndex,
        *,
        checksums: bool = False,
        engine: Engine | None = None,
    ) -> BlockReader: ...
    def fetch(
        self,
        keys: _Keys,
        regions: Region | Iterable[Region],
        offsets: _Integers,
        piece_bytes: SupportsIndex | _Integers,
        *,
        block_offset: SupportsIndex = 0,
        timeout: _Timeout = None,
    ) -> _Outcomes:
        """Fetches blocks into memory as ``BlockStore.fetch`` does."""
    def keys(self) -> list[int]:
        """Reads the index of the store, and returns the keys of all blocks, as integers, in no order."""
    def stats(self) -> _ReaderStats:
        """Returns the counts since the reader was opened."""
    def close(self) -> None:
        """Closes the reader."""
    @property
    def closed(self) -> bool:
        """True after ``close``."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...
    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn: ...

@final
class Region:
    """Memory that blocks are stored from and fetched into: the paged memory of a KV cache, or a tensor of one layer."""

    def __new__(cls, buffer: _Memory) -> Region: ...
    @property
    def nbytes(self) -> int:
        """The length of the memory in bytes."""
    @property
    def bytes_in_use(self) -> int:
        """The number of bytes that transfers use."""
    def __reduce_ex__(self, _protocol: SupportsIndex, /) -> NoReturn: ...

_T = TypeVar("_T")

@final
class Lock:
    """A lock for calls of functions, which a ``with`` statement cannot replace."""

    def __new__(cls) -> Lock: ...
    def run(self, function: Callable[[], _T]) -> _T:
        """Calls the function while no other thread does, and returns its result."""

@final
class Watch:
    """The transfers that an event loop waits for."""

    def __new__(cls) -> Watch: ...
    def fileno(self) -> int:
        """Returns the descriptor, which is readable if there are numbers to take."""
    def add(self, number: int) -> None:
        """Adds a number, which makes the descriptor readable."""
    def take(self) -> list[int]:
        """Takes the numbers of the transfers that have ended since the last call."""

@final
class Route:
    """The route that a file's bytes take to GPU memory."""

    @property
    def kind(self) -> _Kind:
        """The kind of route, best first."""
    @property
    def why_not(self) -> dict[_Kind, str]:
        """The better routes, as a dictionary from ``kind`` to the reason why it is not used."""
    def __eq__(self, other: object, /) -> bool: ...

def keep_classes() -> None:
    """Keeps the classes of transfers."""
def main(arguments: Sequence[str]) -> int:
    """Runs the program ``gpufile`` with its arguments, of which the first is its name."""
def dlpack_parts(
    memory: _Memory, code: int, bits: int, start: int, shapes: Sequence[Sequence[int]]
) -> list[object]:
    """Returns capsules of tensors that follow each other in the memory from a byte on."""
def memory_of(buffer: _Memory, writable: bool = False) -> tuple[int, int | None]:
    """Returns the length of a buffer in bytes, and its GPU."""
def prefer_huge_pages(buffer: _Memory) -> None:
    """Asks the kernel for huge pages in memory of the host that was allocated for a read."""
def register(buffer: _Memory) -> None:
    """Registers the whole GPU allocation that contains a buffer with cuFile."""
def deregister(buffer: _Memory) -> None:
    """Ends the registration of the GPU allocation that contains a buffer."""
def copy_ranges(device: int, stream: int, target: int, ranges: Sequence[tuple[int, int]]) -> None:
    """Starts to copy ranges of a GPU's memory, one behind the other from `target` on, in a stream of that GPU."""
def places_of(modules: dict[str, ModuleType], identities: list[int]) -> list[tuple[str, str]]:
    """Returns the places in modules that refer to objects of these addresses: the name of the module, and the name in it."""
def private_folder(path: str) -> int:
    """Opens a folder that no other user may open, or makes it."""
def is_address(text: str) -> bool:
    """Returns whether a text is the address of an object on a server."""
def path_of(path: object, argument: str) -> str | bytes:
    """Returns a path as text or bytes, as `os.fspath` does, for the argument of this name."""
def page_cache_residency(fd: int, start: int, end: int) -> tuple[int, int]:
    """Returns the number of pages that the page cache holds of a range of an open file."""
def open_driver() -> None:
    """Opens the cuFile driver and keeps it open until ``close_driver``."""
def close_driver() -> None:
    """Closes what ``open_driver`` opened."""
def libcufile_version() -> tuple[int, int]:
    """Returns the version of libcufile: major and minor."""
def driver_properties() -> _DriverProperties:
    """Returns the properties of the cuFile driver."""
def kvikio_settings() -> dict[str, str]:
    """Returns each name of a setting in ``kvikio.defaults``, with the argument of ``Engine`` that it stands for."""
def set_poll_mode(enabled: bool, threshold_bytes: int) -> None:
    """Sets polling for transfers up to a length, for the next opening of the driver."""
def set_driver_limit(name: Literal["max_device_cache_bytes", "max_device_pinned_bytes"], bytes: int) -> None:
    """Sets a limit, ``"max_device_cache_bytes"`` or ``"max_device_pinned_bytes"``."""

@final
class Mapping:
    """A private mapping of a file, with the buffer protocol."""

    if sys.version_info >= (3, 12):
        def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Checkpoint:
    """The headers of a safetensors file, or of a model in several."""

    def __new__(cls, paths: Sequence[str | bytes | os.PathLike[str] | os.PathLike[bytes]]) -> Checkpoint: ...
    @staticmethod
    def open_url(url: str | RemoteFile, storage_options: _Mapping[str, str] | None = None) -> Checkpoint:
        """Opens a file of a server, an index with the files beside it, or a folder of a bucket: by its address."""
    def __len__(self) -> int: ...
    def __contains__(self, name: str, /) -> bool: ...
    @property
    def is_remote(self) -> bool:
        """True if the files cannot be mapped: they are objects of a server, or have packed tensors."""
    @property
    def files(self) -> list[Path]:
        """The paths of the files."""
    @property
    def warnings(self) -> list[str]:
        """Warnings about parts of the model that are not loaded."""
    @property
    def len_bytes(self) -> int:
        """The number of bytes of all tensors."""
    def names(self) -> list[str]:
        """Returns the names of the tensors, file by file, in the order of their places in the file."""
    def metadata(self) -> dict[str, str] | None:
        """Returns the metadata of all files."""
    def info(self, name: str) -> tuple[str, tuple[int, ...], tuple[int, int]] | None:
        """Returns type, shape and offsets of a tensor, as the file has them."""
    def short(self, name: str) -> tuple[str, tuple[int, ...], bytearray] | None:
        """Returns type, shape and bytes of a short tensor, if the page cache has the bytes."""
    def map(self, names: Sequence[str] | None = None) -> tuple[list[tuple[Mapping, list[_Run]]], list[str]]:
        """Maps the files of all tensors, or of those with these names."""
    def map_tensor(self, name: str) -> tuple[int, Mapping, str, tuple[int, ...], int] | None:
        """Maps the file of a tensor."""
    def plan(
        self,
        names: Sequence[str] | None = None,
        rule: Callable[[str, str, tuple[int, ...]], object] | None = None,
        devices: int = 1,
    ) -> Plan:
        """Plans a load of all tensors, or of those with these names, to this number of devices."""
    def groups(self, names: Sequence[str] | None = None, limit_bytes: int | None = None) -> list[Group]:
        """Plans the groups of all tensors, or of those with these names."""
    def part(self, name: str, bounds: Sequence[tuple[int, int]]) -> Group:
        """Plans a group of a part of one tensor: the elements from start to stop along each axis."""
    def parts(self, parts: Sequence[tuple[str, Sequence[tuple[int, int]] | None]], limit_bytes: int) -> list[Group]:
        """Plans the groups of tensors and of parts of them, in the order of the files."""
    def read_now(self, group: Group, object: _Memory) -> None:
        """Reads a group into the start of its memory, and waits."""
    def read(
        self, parts: Sequence[tuple[Group, _Memory | list[tuple[int, _Memory]], int, int]], engine: Engine | None = None
    ) -> Flight:
        """Starts to read groups, each into the start of its memory, or into a list of parts of it."""

@final
class Plan:
    """The tensors of a load, with the devices that get them."""

    def names(self) -> list[str]:
        """Returns the names of the tensors, in the order of the files."""
    def number(self) -> int:
        """Returns a number that differs if other bytes would be read, or would go to other devices."""
    def shared(self, limit_bytes: int | None = None) -> list[Group]:
        """Returns the groups of the tensors that each device gets whole."""
    def own(self, device: int, limit_bytes: int | None = None) -> list[Group]:
        """Returns the groups of the tensors and slices that this device gets alone, as `shared`."""

_Run: TypeAlias = tuple[str, int, list[int], list[str | None], list[tuple[int, ...]]]

@final
class Group:
    """Tensors of one file, and slices of them, that lie in one allocation."""

    @property
    def len_bytes(self) -> int:
        """The number of bytes that the memory needs."""
    def step(self, start: int, most_bytes: int, most_reads: int) -> tuple[int, int]:
        """Returns the end of the longest part from `start` on that has at most `most_bytes` bytes and takes at most `most_reads` reads."""
    def table(self) -> list[_Run]:
        """Returns the tensors in runs of one type, as they follow each other in the memory."""
    def contents(self, data: bytes) -> list[tuple[str, dict[str, Any]]]:
        """Returns name, type, shape and bytes of each tensor in the bytes of a file."""
    def copy(self, data: bytes, memory: _Memory) -> None:
        """Copies the tensors from the bytes of a file to memory."""

_Spec: TypeAlias = tuple[str, str, Sequence[int]]
_Item: TypeAlias = tuple[str, str, Sequence[int], _Memory]

_Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

def open_gguf(
    path: _Path | RemoteFile, is_url: bool, storage_options: _Mapping[str, str] | None
) -> tuple[
    list[File],
    dict[str, Any],
    list[tuple[str, str, tuple[int, ...], tuple[int, ...] | None, int, tuple[int, int]]],
]:
    """Opens a model in a GGUF file, or in the files of a split one."""
def open_npy(
    path: _Path | RemoteFile, is_url: bool, storage_options: _Mapping[str, str] | None
) -> tuple[File, str, bool, tuple[int, ...], tuple[int, int]]:
    """Opens an array in a `.npy` file."""
def parse_safetensors(data: bytes) -> tuple[Group, dict[str, str] | None]:
    """Parses the bytes of a file."""
def verify_model(
    paths: Sequence[str | bytes | os.PathLike[str] | os.PathLike[bytes]],
    contents: bool,
    hash_list: str | bytes | os.PathLike[str] | os.PathLike[bytes] | None,
) -> tuple[list[Path], int, int, int, list[str], list[str]]:
    """Verifies a model as the commands of the program do."""
def visible(text: str) -> str:
    """Returns a text with its hidden characters escaped."""
def save_safetensors(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    tensors: Sequence[_Item],
    metadata: dict[str, str] | None,
    sync: bool,
    remove_old_model: bool,
    compress: bool,
) -> int:
    """Saves tensors to a file."""
def save_safetensors_url(
    url: str,
    tensors: Sequence[_Item],
    metadata: dict[str, str] | None,
    storage_options: _Mapping[str, str] | None,
) -> int:
    """Saves tensors to an object of a store."""
def safetensors_order(tensors: Sequence[_Spec], metadata: dict[str, str] | None) -> list[int]:
    """Returns the numbers of the tensors in the order that their bytes have in a file."""
def save_safetensors_pieces(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes],
    tensors: Sequence[_Spec],
    metadata: dict[str, str] | None,
    sync: bool,
    pieces: Iterator[Sequence[object]],
    compress: bool = False,
) -> int:
    """Saves tensors to a file, like `save_safetensors`."""
def save_safetensors_pieces_url(
    url: str,
    tensors: Sequence[_Spec],
    metadata: dict[str, str] | None,
    pieces: Iterator[Sequence[object]],
    storage_options: _Mapping[str, str] | None,
) -> int:
    """Saves tensors to an object of a store, like `save_safetensors_pieces` to a file."""
def serialize_safetensors(tensors: Sequence[_Item], metadata: dict[str, str] | None) -> bytes:
    """Returns the bytes of a file with these tensors of the host."""
