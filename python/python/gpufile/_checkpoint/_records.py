"""The record of a tensor: what ``torch.save`` writes for it, a zip archive with the tensor's bytes uncompressed.

A record is made around bytes that stay where they are: a header, the bytes, a trailer. ``torch.load`` reads it. The
checksum of the tensor's bytes is 0, as after ``torch.serialization.set_crc32_options(False)``, because the bytes may be
in the memory of a GPU.

    header:  data.pkl (dtype, shape)  |  version  |  byteorder  |  local header of data/0, padded to 64 bytes
    trailer: central directory, in the form for large archives
"""

from __future__ import annotations

import collections
import io
import math
import pickle
import struct
import sys
import zlib
from dataclasses import dataclass
from operator import index
from typing import Any

import torch

#: Bytes at the front of a record that normally include everything before the tensor's bytes.
FRONT_BYTES = 1024
#: Headers have a multiple of this length in bytes.
ALIGNMENT = 64

#: Types with a storage class of their own. torch rebuilds others from untyped storages.
_STORAGES = {
    torch.float64: "DoubleStorage",
    torch.float32: "FloatStorage",
    torch.float16: "HalfStorage",
    torch.bfloat16: "BFloat16Storage",
    torch.int64: "LongStorage",
    torch.int32: "IntStorage",
    torch.int16: "ShortStorage",
    torch.int8: "CharStorage",
    torch.uint8: "ByteStorage",
    torch.bool: "BoolStorage",
    torch.complex64: "ComplexFloatStorage",
    torch.complex128: "ComplexDoubleStorage",
}
_DTYPES = {name: dtype for dtype, name in _STORAGES.items()}
_LOCAL, _CENTRAL = b"PK\x03\x04", b"PK\x01\x02"
_UTF8, _LARGE = 0x800, 0xFFFFFFFF


class _Storage:
    """The storage in a pickle, which names the file ``data/0`` of the archive."""

    def __init__(self, kind: Any, length: int) -> None:
        self.key = ("storage", kind, "0", "cpu", length)


class _Tensor:
    """A tensor in a pickle."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape

    def __reduce__(self) -> Any:
        utils: Any = torch._utils
        numel = math.prod(self.shape)
        hooks: Any = collections.OrderedDict()
        name = _STORAGES.get(self.dtype)
        if name is not None:
            storage = _Storage(getattr(torch, name), numel)
            return utils._rebuild_tensor_v2, (storage, 0, self.shape, _strides(self.shape), False, hooks)
        storage = _Storage(torch.UntypedStorage, numel * self.dtype.itemsize)
        return utils._rebuild_tensor_v3, (storage, 0, self.shape, _strides(self.shape), False, hooks, self.dtype)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.key if isinstance(value, _Storage) else None


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def wrapper(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """Returns the header and the trailer of the record of a contiguous tensor."""
    pickled = io.BytesIO()
    _Pickler(pickled, protocol=2).dump(_Tensor(dtype, tuple(shape)))
    header = bytearray()
    entries = []
    for name, content in (("data.pkl", pickled.getvalue()), ("version", b"3\n"), ("byteorder", sys.byteorder.encode())):
        entries.append((name, zlib.crc32(content), len(content), len(header)))
        header += _local(name, zlib.crc32(content), len(content), 0) + content
    nbytes = math.prod(shape) * dtype.itemsize
    start = len(header)
    entries.append(("data/0", 0, nbytes, start))
    # An extra field has at least four bytes.
    end = start + len(_local("data/0", 0, nbytes, 0)) + 4
    header += _local("data/0", 0, nbytes, 4 + -end % ALIGNMENT)
    directory = b"".join(_central(*entry) for entry in entries)
    where = len(header) + nbytes
    end_of_directory = struct.pack(
        "<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, len(entries), len(entries), len(directory), where
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, where + len(directory), 1)
    last = struct.pack(
        "<4sHHHHIIH", b"PK\x05\x06", 0, 0, len(entries), len(entries), len(directory), min(where, _LARGE), 0
    )
    return bytes(header), directory + end_of_directory + locator + last


def _sizes(length: int) -> tuple[int, bytes]:
    """Returns the size for a header's field, and the extra field that large sizes need."""
    if length < _LARGE:
        return length, b""
    return _LARGE, struct.pack("<HHQQ", 1, 16, length, length)


def _local(name: str, checksum: int, length: int, padding: int) -> bytes:
    size, extra = _sizes(length)
    if padding:
        extra += struct.pack("<2sH", b"FB", padding - 4) + bytes(padding - 4)
    path = b"archive/" + name.encode()
    fields = (_LOCAL, 45 if size == _LARGE else 20, _UTF8, 0, 0, 0, checksum, size, size, len(path), len(extra))
    return struct.pack("<4sHHHHHIIIHH", *fields) + path + extra


def _central(name: str, checksum: int, length: int, offset: int) -> bytes:
    size, extra = _sizes(length)
    path = b"archive/" + name.encode()
    version = 45 if size == _LARGE else 20
    fields = (_CENTRAL, version, version, _UTF8, 0, 0, 0, checksum, size, size, len(path), len(extra), 0, 0, 0, 0, offset)
    return struct.pack("<4sHHHHHHIIIHHHHHII", *fields) + path + extra


@dataclass(frozen=True)
class Stored:
    """A tensor in a record."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    #: In elements.
    strides: tuple[int, ...]
    #: The place of the first element in the record, in bytes.
    start: int


class _Unpickler(pickle.Unpickler):
    """Reads the pickle of a plain tensor, and refuses any other."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module in ("torch", "torch.storage") and (name in _DTYPES or name == "UntypedStorage"):
            return _DTYPES.get(name)
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"{module}.{name} is not part of a plain tensor")

    def persistent_load(self, key: Any) -> Any:
        return key


def _rebuild(storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, *more: Any) -> Any:
    _, dtype, key, _, numel = storage
    if dtype is None:
        # Untyped storages count bytes.
        dtype, more = more[0], more[1:]
        numel //= dtype.itemsize
    if more and more[0]:
        raise pickle.UnpicklingError("the tensor has a conjugate or negative bit")
    return key, index(numel), dtype, index(offset), tuple(map(index, shape)), tuple(map(index, strides))


def parse(front: bytes, length: int) -> Stored | None:
    """Returns the tensor of a record from the bytes at its front. ``length`` is that of the record.

    Returns None if the tensor is not a plain one, or if its bytes do not begin within or right after ``front``. Then
    ``torch.load`` knows whether the record is damaged.
    """
    try:
        return _stored(front, length)
    except Exception:
        # The values in a damaged pickle may be of any type, size and depth.
        return None


def _stored(front: bytes, length: int) -> Stored | None:
    found = _parse(front)
    if found is None:
        return None
    data, numel, dtype, offset, shape, strides = found
    has_sizes = len(shape) == len(strides) and min((*shape, *strides, offset), default=0) >= 0
    if not has_sizes or any(size > 1 and stride == 0 for size, stride in zip(shape, strides)):
        return None
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides)) if 0 not in shape else -1
    if last >= numel or data + numel * dtype.itemsize > length:
        return None
    return Stored(dtype, shape, strides, data + offset * dtype.itemsize)


def _parse(front: bytes) -> Any:
    at, name = _name_at(front, 0)
    if not name.endswith(b"/data.pkl"):
        return None
    pickled = io.BytesIO(front)
    pickled.seek(at)
    key, numel, dtype, *place = _Unpickler(pickled).load()
    at = pickled.tell()
    while (at := front.find(_LOCAL, at)) >= 0:
        at, name = _name_at(front, at)
        if name.endswith(b"/byteorder") and not front.startswith(sys.byteorder.encode(), at):
            return None
        if name.endswith(b"/data/" + str(key).encode()):
            return at, numel, dtype, *place
    return None


def _name_at(front: bytes, at: int) -> tuple[int, bytes]:
    """Returns the end of a local header and the name in it. Raises if the header is not all there."""
    signature, name, extra = struct.unpack_from("<4s22xHH", front, at)
    end = at + 30 + name + extra
    if signature != _LOCAL or end > len(front):
        raise ValueError("no local header")
    return end, front[at + 30 : at + 30 + name]
