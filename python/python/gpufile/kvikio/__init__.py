"""The API of kvikio 26.10 for files and objects of servers, on gpufile: ``import gpufile.kvikio as kvikio``.

Errors of files are ``CuFileError``, which is both a ``RuntimeError``, as kvikio raises, and an ``OSError`` with errno
and filename. README lists the names that are missing, and other differences.
"""

from .buffer import bounce_buffer_free, memory_deregister, memory_register
from .cufile import CuFile, CuFileError, IOFuture, IOFutureStream
from .defaults import CompatMode, RemoteIOBackend, RemoteReactorDispatch
from .mmap import Mmap, MmapHandle
from .page_cache import (
    clear_page_cache,
    drop_file_page_cache,
    drop_system_page_cache,
    get_page_cache_info,
)
from .remote_file import RemoteEndpointType, RemoteFile, infer_remote_endpoint_type, is_remote_file_available
from .statistics import Summary, SummaryMonitor
from .stream import stream_deregister, stream_register
from .utils import kvikio_deprecation_notice

#: The version of kvikio whose API this is.
__version__ = "26.10.0"
#: Empty, as in a kvikio that is not built from a commit.
__git_commit__ = ""

__all__ = [
    "CompatMode",
    "CuFile",
    "CuFileError",
    "IOFuture",
    "IOFutureStream",
    "Mmap",
    "MmapHandle",
    "RemoteEndpointType",
    "RemoteFile",
    "RemoteIOBackend",
    "RemoteReactorDispatch",
    "Summary",
    "SummaryMonitor",
    "__git_commit__",
    "__version__",
    "bounce_buffer_free",
    "clear_page_cache",
    "drop_file_page_cache",
    "drop_system_page_cache",
    "get_page_cache_info",
    "infer_remote_endpoint_type",
    "is_remote_file_available",
    "kvikio_deprecation_notice",
    "memory_deregister",
    "memory_register",
    "stream_deregister",
    "stream_register",
]


def __dir__() -> list[str]:
    return __all__
