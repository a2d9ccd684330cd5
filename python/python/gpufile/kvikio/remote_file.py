"""Objects of servers, and the kinds of servers."""

from __future__ import annotations

import enum
import errno
import os
import re
import urllib.parse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import gpufile

from .._gpufile import memory_of
from .._pickling import NotPickled
from . import defaults
from ._error import CuFileError, not_negative, refused, translated
from ._operations import in_order, operation
from ._following import Following
from .cufile import IOFuture

if TYPE_CHECKING:
    from .._gpufile import _Memory as Memory

__all__ = ["RemoteEndpointType", "RemoteFile", "infer_remote_endpoint_type", "is_remote_file_available"]


def __dir__() -> list[str]:
    return __all__


class RemoteEndpointType(enum.Enum):
    """The kind of a server."""

    #: The first kind that an address fits.
    AUTO = 0
    #: S3, with credentials.
    S3 = 1
    #: S3, for objects that everybody may read.
    S3_PUBLIC = 2
    #: S3, by an address that is signed already.
    S3_PRESIGNED_URL = 3
    #: The file system of Hadoop, which gpufile does not read.
    WEBHDFS = 4
    #: Any other server of HTTP or HTTPS.
    HTTP = 5


def is_remote_file_available() -> bool:
    """Returns True: each wheel reads remote files."""
    return True


def infer_remote_endpoint_type(url: str) -> RemoteEndpointType:
    """Returns the kind of server that an address fits, without asking the server.

    Raises ``RuntimeError`` if it fits none.
    """
    return _first(_split(url), _ANY)


#: The kinds in the order in which they are tried.
_ANY = tuple(RemoteEndpointType)[1:]
_HOST_OF_S3 = re.compile(r"(?P<bucket>.+\.)?s3([.-][^.]+)?\.amazonaws\.com", re.IGNORECASE)
_STATUS = re.compile(r"status (\d+)")


def _text(argument: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{argument}: expected a string, not {type(value).__name__}")
    return value


def _split(url: Any) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(_text("url", url))
        if parts.scheme and (parts.port is None or parts.port >= 0):
            return parts
    except ValueError as error:
        raise refused(errno.EINVAL, f"Malformed URL, {error}") from None
    raise refused(errno.EINVAL, "Bad scheme: the URL has none")


def _first(parts: urllib.parse.SplitResult, kinds: Iterable[RemoteEndpointType]) -> RemoteEndpointType:
    for kind in kinds:
        if _fits(kind, parts):
            return kind
    raise refused(errno.EINVAL, f"Unsupported endpoint URL, with the scheme {parts.scheme!r}", _shown(parts))


def _fits(kind: RemoteEndpointType, parts: urllib.parse.SplitResult) -> bool:
    if parts.scheme == "s3":
        is_of_s3 = kind in (RemoteEndpointType.S3, RemoteEndpointType.S3_PUBLIC)
        return is_of_s3 and bool(parts.netloc) and len(parts.path) > 1
    if parts.scheme not in ("http", "https"):
        return False
    if kind is RemoteEndpointType.HTTP:
        return len(parts.path) > 1
    if kind is RemoteEndpointType.WEBHDFS:
        return parts.port is not None and re.match("/webhdfs/v1/.", parts.path, re.IGNORECASE) is not None
    host = _HOST_OF_S3.fullmatch(parts.hostname or "")
    if not host or not re.match("/." if host["bucket"] else "/[^/]+/.", parts.path):
        return False
    query = urllib.parse.parse_qs(parts.query)
    is_signed = "X-Amz-Algorithm" in query and "X-Amz-Signature" in query
    return is_signed == (kind is RemoteEndpointType.S3_PRESIGNED_URL)


def _shown(parts: urllib.parse.SplitResult) -> str:
    """Returns an address without what may be secret."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class RemoteFile(NotPickled):
    """An object on a server, which is read. A buffer is any object with contiguous memory, on a GPU or on the host.

    Make one by ``RemoteFile.open`` or the method for a kind of server. ``nbytes`` is the length in bytes where it is known;
    the server is asked all the same. The settings ``http_max_attempts``, ``http_status_codes`` and ``http_timeout`` are those
    of the time at which the object is opened.
    """

    def __init__(self, handle: Following, kind: RemoteEndpointType, nbytes: int | None = None) -> None:
        """Takes an open object. Programs use the methods whose names begin with ``open``."""
        if not isinstance(handle, Following):
            raise TypeError(f"handle: make a RemoteFile by RemoteFile.open, not from {type(handle).__name__}")
        self._handle, self._file, self._kind = handle, handle.opened, kind
        size = self._file.size()
        self._nbytes = size if nbytes is None else not_negative("nbytes", nbytes)
        if self._nbytes > size:
            raise ValueError(f"nbytes is {nbytes}: the object has {size} bytes")

    @classmethod
    def open_http(cls, url: str, nbytes: int | None = None) -> RemoteFile:
        """Opens an object of a server of HTTP or HTTPS."""
        return cls._open(url, RemoteEndpointType.HTTP, nbytes)

    @classmethod
    def open_s3(
        cls,
        bucket_name: str,
        object_name: str,
        nbytes: int | None = None,
        aws_region_name: str | None = None,
        aws_access_key_id: str | None = None,
        aws_secret_access_key: str | None = None,
        aws_endpoint_url: str | None = None,
        aws_session_token: str | None = None,
    ) -> RemoteFile:
        """Opens an object of S3.

        What is None comes from the environment: ``AWS_DEFAULT_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
        ``AWS_ENDPOINT_URL`` and ``AWS_SESSION_TOKEN``.
        """
        url = f"s3://{_text('bucket_name', bucket_name)}/{_text('object_name', object_name)}"
        options = _options(
            aws_region_name, aws_access_key_id, aws_secret_access_key, aws_endpoint_url, aws_session_token
        )
        return cls._open(url, RemoteEndpointType.S3, nbytes, options)

    @classmethod
    def open_s3_url(
        cls,
        url: str,
        nbytes: int | None = None,
        aws_region_name: str | None = None,
        aws_access_key_id: str | None = None,
        aws_secret_access_key: str | None = None,
        aws_endpoint_url: str | None = None,
        aws_session_token: str | None = None,
    ) -> RemoteFile:
        """Opens an object of S3 by ``s3://bucket/object`` or by its address with HTTP or HTTPS.

        What is None comes from the environment, as for ``open_s3``. An address has its server, so ``aws_endpoint_url`` is for
        the first form only.
        """
        if (parts := _split(url)).scheme not in ("s3", "http", "https"):
            raise ValueError(f"Unsupported protocol: {_shown(parts)}")
        options = _options(
            aws_region_name, aws_access_key_id, aws_secret_access_key, aws_endpoint_url, aws_session_token
        )
        return cls._open(url, RemoteEndpointType.S3, nbytes, options)

    @classmethod
    def open_s3_public(cls, url: str, nbytes: int | None = None) -> RemoteFile:
        """Opens an object of S3 that everybody may read, by its address."""
        return cls._open(url, RemoteEndpointType.S3_PUBLIC, nbytes)

    @classmethod
    def open_s3_presigned_url(cls, presigned_url: str, nbytes: int | None = None) -> RemoteFile:
        """Opens an object of S3 by an address that is signed already."""
        return cls._open(presigned_url, RemoteEndpointType.S3_PRESIGNED_URL, nbytes)

    @classmethod
    def open_webhdfs(cls, url: str, nbytes: int | None = None) -> NoReturn:
        """Raises ``NotImplementedError``: gpufile does not read WebHDFS."""
        raise NotImplementedError(f"gpufile does not read WebHDFS: {_shown(_split(url))}")

    @classmethod
    def open(
        cls,
        url: str,
        remote_endpoint_type: RemoteEndpointType = RemoteEndpointType.AUTO,
        allow_list: list[RemoteEndpointType] | None = None,
        nbytes: int | None = None,
    ) -> RemoteFile:
        """Opens an object of a server of this kind, or of the first kind in ``allow_list`` that the address fits.

        Without ``allow_list``, the order is ``S3``, ``S3_PUBLIC``, ``S3_PRESIGNED_URL``, ``WEBHDFS`` and ``HTTP``. If the address
        of an object of S3 cannot be read with credentials, and the list has ``S3_PUBLIC``, it is read without.
        """
        allowed = _ANY if allow_list is None else tuple(_kind("allow_list", each) for each in allow_list)
        parts, kind = _split(url), _kind("remote_endpoint_type", remote_endpoint_type)
        if kind is RemoteEndpointType.AUTO:
            kind = _first(parts, allowed)
            may_be_public = RemoteEndpointType.S3_PUBLIC in allowed and parts.scheme != "s3"
            if kind is RemoteEndpointType.S3 and may_be_public:
                try:
                    # Without a key, the roles of instances would be asked for one, which takes seconds.
                    if "AWS_ACCESS_KEY_ID" in os.environ:
                        return cls.open_s3_url(url, nbytes)
                except CuFileError:
                    pass
                kind = RemoteEndpointType.S3_PUBLIC
        elif kind not in allowed:
            raise refused(errno.EINVAL, f"{kind.name} is not in the allowlist", _shown(parts))
        elif not _fits(kind, parts):
            raise refused(errno.EINVAL, f"Invalid URL for {kind.name}", _shown(parts))
        if kind is RemoteEndpointType.WEBHDFS:
            cls.open_webhdfs(url)
        return cls.open_s3_url(url, nbytes) if kind is RemoteEndpointType.S3 else cls._open(url, kind, nbytes)

    @classmethod
    def _open(
        cls, url: str, kind: RemoteEndpointType, nbytes: int | None, options: dict[str, str] | None = None
    ) -> RemoteFile:
        parts = _split(url)
        if nbytes is not None:
            not_negative("nbytes", nbytes)
        if options is not None and parts.scheme != "s3":
            # Names of objects have characters that web addresses have not.
            url = parts._replace(path=urllib.parse.quote(parts.path, safe="/%")).geturl()
        engine = defaults.engine()
        try:
            with translated("Unable to open remote file"):
                file = gpufile.RemoteFile(
                    url,
                    engine=engine,
                    tries=defaults.get("http_max_attempts"),
                    statuses=defaults.get("http_status_codes"),
                    timeout=defaults.get("http_timeout"),
                    storage_options=options,
                )
        except ValueError as error:
            raise CuFileError(errno.EINVAL, str(error), _shown(parts)) from None
        except CuFileError as error:
            if status := _STATUS.search(str(error)):
                # Programs look for the words of libcurl, with which kvikio reads.
                error.strerror = f"{error.strerror} (URL returned error: {status[1]})"
            raise
        return cls(Following(file, engine), kind, nbytes)

    def close(self) -> None:
        """Closes the object. Transfers in flight keep it open until they end."""
        self._handle.close()

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f'<RemoteFile "{self._file.name}">'

    def remote_endpoint_type(self) -> RemoteEndpointType:
        """Returns the kind of the server."""
        return self._kind

    def nbytes(self) -> int:
        """Returns the length of the object in bytes."""
        return self._nbytes

    def read(self, buf: Memory, size: int | None = None, file_offset: int = 0) -> int:
        """Reads ``size`` bytes, by default as many as the buffer has, and returns their number.

        Raises ``ValueError`` if the object ends before.
        """
        buf = in_order(buf)
        with operation(self._file, True, buf, size, backend="REMOTE_HTTP") as counted, translated():
            file = self._for(buf, size, file_offset)
            return counted.done(file.read_into(buf, file_offset, size))

    def pread(self, buf: Memory, size: int | None = None, file_offset: int = 0) -> IOFuture:
        """Starts a read like ``read``."""
        buf = in_order(buf)
        with operation(self._file, True, buf, size, backend="REMOTE_HTTP") as counted, translated():
            file = self._for(buf, size, file_offset)
            return IOFuture(file.read_into_async(buf, file_offset, size), counted)

    def _for(self, buf: Any, size: int | None, file_offset: int) -> gpufile.File:
        """Returns the file for a read of these bytes by the present settings."""
        length = memory_of(buf)[0] if size is None else not_negative("size", size)
        offset = not_negative("file_offset", file_offset)
        if length and offset + length > self._nbytes:
            raise ValueError(f"cannot read {offset}+{length} bytes into a {self._nbytes} bytes file ({self._file.name})")
        if self._file.closed:
            raise refused(errno.EBADF, "cannot read a closed file", self._file.name)
        return self._handle.file()


def _kind(argument: str, kind: Any) -> RemoteEndpointType:
    if not isinstance(kind, RemoteEndpointType):
        raise TypeError(f"{argument}: expected a RemoteEndpointType, not {type(kind).__name__}")
    return kind


def _options(
    region: str | None, key: str | None, secret: str | None, endpoint: str | None, token: str | None
) -> dict[str, str]:
    """Returns the options of S3 that a call names. kvikio reads servers without encryption, too."""
    given = {
        "aws_region_name": ("AWS_REGION", region),
        "aws_access_key_id": ("AWS_ACCESS_KEY_ID", key),
        "aws_secret_access_key": ("AWS_SECRET_ACCESS_KEY", secret),
        "aws_endpoint_url": ("AWS_ENDPOINT_URL", endpoint),
        "aws_session_token": ("AWS_SESSION_TOKEN", token),
    }
    options = {name: _text(argument, value) for argument, (name, value) in given.items() if value is not None}
    return {"AWS_ALLOW_HTTP": "true"} | options
