"""Checkpoints that are saved during training, as safetensors files. ``gpufile.torch`` offers them."""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from . import _gpufile
from ._budget import Budget
from ._copies import PLACES
from ._log import timed
from ._paths import text_of
from ._pickling import NotPickled
from ._pieces import Pieces
from ._plans import Changed, Leaves, Plan, plan_of
from ._saves import Progress as Progress
from ._saves import Save as Save
from ._saves import Saves
from ._streams import Ends

if TYPE_CHECKING:
    from .safetensors._arguments import StorageOptions


class _Target(NamedTuple):
    """The file or the object that a save writes."""

    #: The path, as the caller named it.
    shown: str
    #: The name that all saves of it have.
    file: str
    write: Callable[[list[Any], dict[str, str] | None, Iterator[Any]], int]


class Saver(NotPickled):
    """A saver of checkpoints, which writes safetensors files while the program continues.

    Saves run one at a time, in the order of the calls, or ``files_at_once`` of them; those of one file keep their order.
    Each replaces an existing file as a whole: if it fails or the process dies, the old file stays.

    Each failure is raised once: by the future of the save, or else by the next ``save``, or at the end of the ``with``
    block, which waits for all saves.

    The program may change tensors after ``save`` has returned, because the saver writes a copy. With
    ``snapshot="device"``, the copies are on the tensors' device: fast, but they need as much GPU memory again. With
    ``"host"``, they are in pinned host memory. With ``None`` there is no copy, and the tensors must stay unchanged until
    the save has ended.

    GPUs copy on a stream of their own, which waits for the current stream. ``save`` returns before the copy has ended,
    and the current stream waits for it. With ``overlap=True`` it does not: call ``synchronize`` before anything changes
    the tensors, for example before ``optimizer.step``.

    ``memory_budget`` limits the bytes of the copies of all saves. If a state is longer, or other copies take the room,
    ``save`` copies it in pieces of at most half the budget, and waits until earlier pieces are written.

    With ``compress=True``, tensors are packed, as ``save_file`` packs them.

    A state may be nested: dicts, lists and tuples of tensors, arrays of numpy, types of torch, numbers, texts and None, for
    example the states of a model and its optimizer. The tensors get names like ``optimizer.state.0.exp_avg``, and the file's metadata has the rest.
    Names of one tensor, as of tied weights, share its bytes. ``load_state`` returns the same state, but a dict for an
    ``OrderedDict``, and a tuple for a ``torch.Size``. Named tuples are refused.

    A forked child cannot use its parent's saver: it counts the parent's saves as failed, and needs a new saver.
    """

    _instead = "make another there"

    def __init__(
        self,
        *,
        snapshot: Literal["device", "host"] | None = "device",
        sync: bool = True,
        memory_budget: int | None = None,
        files_at_once: int = 1,
        overlap: bool = False,
        compress: bool = False,
    ) -> None:
        """Creates a saver. With ``sync=False``, a crash of the machine may leave an incomplete file."""
        # The package takes longer to import than this module.
        from .safetensors._arguments import flag_of, integer_of, limit_of

        if snapshot not in (*PLACES, None):
            raise ValueError(f'snapshot must be "device", "host" or None, but is {snapshot!r}')
        limit = limit_of(memory_budget)
        if limit == 0:
            raise ValueError("memory_budget is 0: a copy needs at least 1 byte")
        threads = integer_of("files_at_once", files_at_once)
        if threads < 1:
            raise ValueError(f"files_at_once is {threads}: expected at least 1")
        self._snapshot, self._sync, self._has_overlap = snapshot, sync, overlap
        self._compress = flag_of("compress", compress)
        self._budget, self._ends = Budget(limit), Ends()
        #: That of the last save.
        self._plan: Plan | None = None
        # Two threads that waited for the room that the other's copies take would wait for ever.
        self._turn = threading.Lock()
        self._saves = Saves(threads)

    def save(
        self,
        tensors: dict[Any, Any],
        path: str | os.PathLike[str],
        metadata: dict[str, str] | None = None,
        *,
        storage_options: StorageOptions = None,
    ) -> Save:
        """Starts to save a state, and returns a future of the file's length in bytes.

        Its ``result`` raises the failure of the save, its ``cancel`` cancels a save that has not begun, and its
        ``progress`` has the bytes. Tensors that cannot be saved raise here, as in ``gpufile.safetensors.torch.save_file``,
        and values that are none of these kinds raise ``TypeError``. If an earlier save has failed and no call raised its
        failure, this call raises it, and saves nothing.

        The path may be the URL of an object of a store, with ``storage_options``, as for ``save_file``.
        """
        self._saves.check()
        if not isinstance(tensors, dict):
            raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
        if not isinstance(metadata, (dict, type(None))):
            raise TypeError(f"metadata: expected a dict of texts, not {type(metadata).__name__}")
        target, leaves = self._target(path, storage_options), Leaves(tensors)
        # Another thread may save, and change it.
        plan = self._plan
        if plan is not None and plan.may_fit(leaves):
            try:
                return self._save(plan, leaves, target, metadata)
            except Changed:
                pass
        try:
            made = plan_of(tensors, metadata, leaves)
        except RecursionError:
            raise ValueError("state: it is nested too deeply to be saved") from None
        return self._save(made, leaves, target, metadata)

    def _target(self, path: Any, storage_options: StorageOptions) -> _Target:
        """Returns what a path stands for. Raises ``TypeError`` for what is no path."""
        if isinstance(path, str) and _gpufile.is_address(path):
            if self._compress:
                raise ValueError("compress is for files: objects of a store cannot have packed tensors")
            options = copy.copy(storage_options)
            upload = _gpufile.save_safetensors_pieces_url
            return _Target(path, path, lambda specs, content, pieces: upload(path, specs, content, pieces, options))
        if storage_options is not None:
            raise ValueError("storage_options are for URLs such as s3://bucket/key")
        text = text_of("path", path)
        # The program may change its folder before the thread writes.
        file, sync, compress = os.path.abspath(text), self._sync, self._compress

        def write(specs: list[Any], content: dict[str, str] | None, pieces: Iterator[Any]) -> int:
            return _gpufile.save_safetensors_pieces(file, specs, content, sync, pieces, compress)

        return _Target(text, os.path.realpath(file), write)

    def _save(self, known: Plan, leaves: Leaves, target: _Target, metadata: dict[str, str] | None) -> Save:
        """Starts a save by a plan. Raises ``Changed`` if the plan is one of other tensors."""
        pieces = Pieces(functools.partial(known.sources, leaves), known.total_bytes, self._snapshot, self._budget)
        save = Save(target.shown, pieces)

        def start() -> None:
            # The copies run.
            plan = known.updated(leaves, metadata)
            self._plan = plan if plan.order is not None else None
            # The thread keeps no tensor of the program.
            specs, content, total = plan.specs, plan.metadata, plan.total_bytes

            def write() -> int:
                try:
                    with timed(f"save to {target.shown!r}", total):
                        return target.write(specs, content, iter(pieces))
                finally:
                    pieces.end()

            self._saves.start(save, target.file, write)

        with self._turn:
            try:
                has_started = pieces.copy(start)
                self._ends = pieces.ends
                if not self._has_overlap:
                    self._ends.order()
                # From here on, the thread of the save competes with this one for the interpreter.
                if not has_started:
                    start()
            except BaseException as error:
                # This call raises it. Other threads must know before the thread of the save fails.
                save._is_seen = True
                pieces.end(error)
                raise
        # A cancelled save waits in the queue for its turn.
        save.add_done_callback(lambda _: pieces.end())
        return save

    @property
    def pending(self) -> list[Save]:
        """The saves that run or wait, in their order."""
        return self._saves.pending()

    @property
    def progress(self) -> Progress:
        """The bytes of the saves in ``pending``: those that were written, and all. Both are 0 if there are none."""
        done, total = 0, 0
        for save in self._saves.pending():
            done, total = done + save.progress.done_bytes, total + save.progress.total_bytes
        return Progress(done, total)

    def synchronize(self) -> None:
        """Orders the current streams of the calling thread after the copies of the last ``save``, without a wait on the
        host."""
        self._ends.order()

    def close(self) -> None:
        """Waits for all saves, and raises the first failure that was not raised yet. A cancelled save is not a failure."""
        for error in self._saves.end():
            raise error

    def __repr__(self) -> str:
        return f"<gpufile.torch.Saver: {len(self.pending)} saves pending>"

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # The exception of the program comes first.
            self._saves.end()
