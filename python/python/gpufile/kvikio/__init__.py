"""The API of kvikio 26.10 for files and objects of servers, on gpufile: ``import gpufile.kvikio as kvikio``.

Errors of files are ``CuFileError``, which is both a ``RuntimeError``, as kvikio raises, and an ``OSError`` with errno
and filename. README lists the names that are missing. Other differences from kvikio:

- The engine chooses ``task_size`` until you set it. Settings also apply to files that are already open.
- ``Mmap`` reads over the fastest route of the file, and maps nothing.
- ``raw_read`` and ``raw_write`` use the workers of the engine. In kvikio, the calling thread does all of the work.
- ``stream_register`` does nothing. Setting a property of ``cufile_driver`` raises an error while the driver is open,
  because cuFile would ignore it.
- ``GDSStore`` for zarr replaces a value as a whole. ``GDSStore.at_url(url, **options)`` reads arrays of a server or a
  store, with the options of ``gpufile.RemoteFile``.
- ``defaults`` also has the functions that kvikio had before 26.02, such as ``get_num_threads``. ``compat_mode()`` is
  ``ON`` or ``OFF``, as transfers are done now, and never ``AUTO``. Only ``ON`` is true.
- ``RemoteFile`` reads HTTP, HTTPS and S3. WebHDFS raises ``NotImplementedError``. ``open`` asks the server even if
  ``nbytes`` is given, and refuses a server without ranges. The object must not change while it is open.
- ``http_max_attempts``, ``http_status_codes`` and ``http_timeout`` are those of the time at which a ``RemoteFile`` is
  opened. Tries are not printed. The settings that begin with ``remote_io`` have no effect.
- S3 also takes the roles of instances as credentials, and ``us-east-1`` where no region is set.
- A ``SummaryMonitor`` also counts stream-ordered calls. ``GDS`` stands for the routes that use cuFile. The bytes of
  ``Summary.serialize`` are not those of kvikio. While a monitor counts, a transfer goes on when its ``IOFuture`` is
  dropped.
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
