"""Storage of ``torch.distributed.checkpoint``, in the layout of files that torch's own storage has.

``_records`` has the bytes around a stored tensor, ``_files`` the names of the files and their replacement, ``_objects`` the
same for objects of a store, ``_layout`` the places in a new file, ``_ranges`` the bytes that a part of a stored tensor
needs, and ``_snapshots`` the copies of asynchronous saves. ``_writer`` and ``_reader`` are the classes of ``gpufile.torch``.
"""

from ._reader import StorageReader
from ._writer import StorageWriter

__all__ = ["StorageReader", "StorageWriter"]
