"""The writer of checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import pickle
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed.checkpoint.filesystem as torch_storage
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from .. import _memory
from .._copies import PLACES
from .._future import Future
from .._gpufile import Engine, File
from .._tensors import refuse_without_memory
from . import _files
from ._layout import SMALL_BYTES, Layout
from ._objects import Objects, file_system, go_to, shown
from ._snapshots import Snapshots

#: Bytes whose tensors are resolved and written together. Two groups are in flight.
GROUP_BYTES = 1 << 30

if not hasattr(torch_storage, "SerializationFormat"):
    raise ImportError(f"distributed checkpoints need a newer torch than {torch.__version__}, such as 2.15")


class StorageWriter(torch_storage.FileSystemWriter):
    """A storage for ``torch.distributed.checkpoint.save`` and ``async_save`` that writes from GPU and host memory.

    >>> import torch.distributed.checkpoint as dcp
    >>> dcp.save(state_dict, storage_writer=gpufile.torch.StorageWriter("checkpoint"))

    The files are those of torch's ``FileSystemWriter``, except for their names, and ``FileSystemReader`` reads them. All ranks
    need the same folder. Each writes one file, from the memory of the tensors, without a copy on the host.

    A save replaces the checkpoint in the folder as a whole: if it fails or a process is killed, the old checkpoint
    stays. The next save removes what was left behind. Files that are of no checkpoint of the folder stay as they are. Only one
    save at a time may use a folder.

    The folder may be one of a store: an address such as ``s3://bucket/checkpoint``, of S3, Azure or Google Cloud Storage. Each rank
    writes an object there for each GiB.

    ``async_save`` writes a copy, which is made on a stream of its own. With ``snapshot="device"`` it is on the tensors'
    device: fast, but it needs as much GPU memory again. With ``"host"`` it is in pinned host memory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
        _extensions: Sequence[Any] | None = None,
        serialization_format: torch_storage.SerializationFormat = torch_storage.SerializationFormat.TORCH_SAVE,
        *,
        snapshot: Literal["device", "host"] = "device",
        overlap: bool = False,
        engine: Engine | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Creates a writer to a folder. The positional parameters are those of torch's writer.

        A relative ``path`` begins in the folder of the program at this call.
        With ``single_file_per_rank=False``, each item gets a file. With ``sync_files=False``, a crash of the machine may
        leave an incomplete checkpoint. With ``overwrite=False``, a save fails if there is a checkpoint.
        ``thread_count``, ``per_thread_copy_ahead`` and ``cache_staged_state_dict`` have no effect. ``storage_options``, for an
        address, are those of ``gpufile.RemoteFile``.

        With ``overlap=True``, ``async_save`` does not order the current stream after the copy: call
        ``synchronize_staging`` before anything changes the tensors, for example before ``optimizer.step``.

        Raises ``ValueError`` for another ``serialization_format`` than ``TORCH_SAVE``, which torch's reader reads.
        """
        if snapshot not in PLACES:
            raise ValueError(f'snapshot must be "device" or "host", but is {snapshot!r}')
        if not isinstance(engine, (Engine, type(None))):
            raise TypeError(f"engine: expected a gpufile.Engine, not {type(engine).__name__}")
        if serialization_format != torch_storage.SerializationFormat.TORCH_SAVE:
            raise ValueError(
                f"serialization_format must be TORCH_SAVE, but is {serialization_format!r}; for safetensors files, use"
                " gpufile.safetensors.torch"
            )
        fs, folder = file_system("path", path, storage_options, engine)
        if not isinstance(fs, Objects):
            # The program may change its folder before the thread of an asynchronous save writes.
            folder = os.path.abspath(folder)
        super().__init__("", single_file_per_rank, sync_files, overwrite=overwrite, _extensions=_extensions)
        self.fs, self.path = fs, fs.init_path(folder)
        self._engine, self._storage_options = engine, storage_options
        self._snapshots = Snapshots(snapshot)
        self._has_overlap = overlap

    # The thread of an asynchronous save begins with one of these two.

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a save, to another folder if the argument is one."""
        self._snapshots.wait()
        super().reset()
        go_to(self, checkpoint_id)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The folder. torch logs it, and the metadata has it."""
        self._snapshots.wait()
        return self.fs.url if isinstance(self.fs, Objects) else super().checkpoint_id

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Tells ``async_save``, which asks at its end, whether to order the current stream after the copies."""
        if self._has_overlap:
            self._snapshots.let_go()
        return not self._has_overlap

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of a state dict for ``async_save``. The copies on GPUs may still be running."""
        return self._snapshots.take(state_dict)

    def synchronize_staging(self) -> None:
        """Orders the current streams of the calling thread after the copies of ``stage``, without a wait on the host."""
        self._snapshots.order()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Creates the folder. Raises ``RuntimeError`` if it has a checkpoint that may not be replaced."""
        self.fs.mkdir(self.path)
        if not self.overwrite and self._metadata_exists():
            raise RuntimeError(f"Checkpoint already exists and self.overwrite={self.overwrite!r}.")
        if self._alone is not None:
            plan = dataclasses.replace(plan, storage_data=torch_storage._StoragePrefix(f"__{self._alone}_"))
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Removes what earlier saves left behind, before any rank writes."""
        if isinstance(self.fs, Objects):
            self.fs.remove_leftovers(self._alone)
        else:
            _files.remove_leftovers(self._folder, self._alone)
            _files.try_calls(self._folder, self._alone, self.sync_files)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Writes the items of this rank. Returns a completed future of their places."""
        self._snapshots.wait()
        groups = [plan.items] if self.single_file_per_rank else [[item] for item in plan.items]
        results: list[WriteResult] = []
        write = self._write_objects if isinstance(self.fs, Objects) else self._write_file
        with contextlib.ExitStack() as created:
            for items in groups:
                results += write(items, planner, plan.storage_data.prefix, created)
            created.pop_all()
        done: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Replaces the old checkpoint with the new one, and removes the old one's files."""
        places = [result.storage_data for of_rank in results for result in of_rank]
        ends = {(place.relative_path, place.offset + place.length) for place in places}
        metadata.version = getattr(torch_storage, "CURRENT_DCP_VERSION", None)
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}
        metadata.storage_meta = self.storage_meta()
        name = os.path.basename(self._get_metadata_path(self._alone))
        content = pickle.dumps(metadata)
        if isinstance(self.fs, Objects):
            self.fs.check(ends)
            replaced = self.fs.named(name)
            self.fs.write(name, [content], len(content))
            self.fs.remove_leftovers(self._alone, replaced)
            return
        _files.check(self._folder, ends)
        if self.sync_files:
            # The names that the metadata has are there before it is.
            _files.sync_folder(self._folder)
        replaced = _files.named(self._folder, name)
        _files.replace(self._folder, name, content, self.sync_files)
        _files.remove_leftovers(self._folder, self._alone, replaced)

    def __repr__(self) -> str:
        return f"<gpufile.torch.StorageWriter {shown(self)!r}>"

    @property
    def _folder(self) -> Path:
        return Path(self.path)

    @property
    def _alone(self) -> int | None:
        """The rank, if it saves without the others."""
        return None if self.use_collectives else self.rank

    def _write_file(
        self, items: list[WriteItem], planner: SavePlanner, prefix: str, created: contextlib.ExitStack
    ) -> list[WriteResult]:
        name, descriptor = _files.create(self._folder, prefix)
        created.callback(_unlink, self._folder / name)
        try:
            file = File.from_fd(descriptor, engine=self._engine)
        finally:
            os.close(descriptor)
        layout, results = Layout(), []
        flights: deque[Future[int]] = deque()
        with file:
            try:
                for group in _groups(items):
                    results += self._place(group, planner, name, layout)
                    pieces = layout.take()
                    flights.append(file.write_many_async(pieces.buffers, pieces.offsets))
                    del pieces
                    if len(flights) > 1:
                        flights.popleft().result()
                while flights:
                    flights.popleft().result()
            except BaseException:
                for flight in flights:
                    flight.cancel()
                    with contextlib.suppress(Exception):
                        flight.result()
                raise
            if self.sync_files:
                with _files.syncing():
                    file.sync()
        return results

    def _write_objects(
        self, items: list[WriteItem], planner: SavePlanner, prefix: str, created: contextlib.ExitStack
    ) -> list[WriteResult]:
        """Writes an object for each group, because the length of an upload must be known at its beginning."""
        objects: Any = self.fs
        results = []
        for group in _groups(items):
            name, layout = objects.new(prefix), Layout()
            results += self._place(group, planner, name, layout)
            # It may be there although its upload failed.
            created.callback(objects.remove, [name])
            objects.write(name, layout.take().buffers, layout.end)
        return results

    def _place(self, items: list[WriteItem], planner: SavePlanner, name: str, layout: Layout) -> list[WriteResult]:
        """Resolves items, and places them in the file."""
        results = []

        def add(item: WriteItem, place: tuple[int, int], transforms: list[str] | None = None) -> None:
            stored = torch_storage._StorageInfo(name, *place, transform_descriptors=transforms or None)
            results.append(WriteResult(index=item.index, size_in_bytes=place[1], storage_data=stored))

        tensors: list[tuple[WriteItem, torch.Tensor]] = []
        for item in items:
            value: Any = planner.resolve_data(item)
            if isinstance(value, torch.Tensor):
                refuse_without_memory(item.index.fqn, value)
                value = value.detach()
                if _memory.is_plain(value) and not self.transforms.extensions:
                    tensors.append((item, _contiguous(value)))
                    continue
            content, transforms = self._serialize(item, value)
            add(item, layout.add(content), transforms)
        # The small ones are together, so that the large ones follow each other in the file.
        tensors.sort(key=lambda pair: pair[1].nbytes >= SMALL_BYTES)
        memories = [_memory.flat(tensor) for _, tensor in tensors]
        count = sum(memory.nbytes < SMALL_BYTES for memory in memories)
        memories[:count] = _memory.to_host(memories[:count])
        for (item, tensor), memory in zip(tensors, memories):
            add(item, layout.add_record(memory, tensor.dtype, tuple(tensor.shape)))
        return results

    def _serialize(self, item: WriteItem, value: Any) -> tuple[memoryview, list[str]]:
        """Returns the bytes of an item that is no plain tensor, or that extensions change."""
        made = io.BytesIO()
        stream, transforms = self.transforms.transform_save_stream(item, made)
        if isinstance(value, io.BytesIO):
            stream.write(value.getbuffer())
        else:
            value = value.cpu()
            torch.save(value.clone() if value.untyped_storage().nbytes() != value.nbytes else value, stream)
        stream.close()
        return made.getbuffer(), transforms


def _groups(items: list[WriteItem]) -> Iterator[list[WriteItem]]:
    """Yields the items in groups of about ``GROUP_BYTES``, those without a tensor first."""
    group: list[WriteItem] = []
    size = 0
    for item in sorted(items, key=lambda item: item.type != WriteItemType.BYTE_IO):
        data = item.tensor_data
        length = math.prod(data.chunk.sizes) * data.properties.dtype.itemsize if data is not None else 0
        if group and size + length > GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(item)
        size += length
    if group:
        yield group


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the values of another, whose memory files can be written from."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if not _memory.is_reachable(tensor.device):
        tensor = tensor.cpu()
    return tensor.contiguous()


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
