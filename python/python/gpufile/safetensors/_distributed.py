"""Loading by a group of processes, one for each device, with torch.distributed."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from .._gpufile import Checkpoint
from .._memory import flat
from . import _convert, _load, _placed, _torch
from ._arguments import Model, Path, StorageOptions, limit_of
from ._names import chosen
from ._open import open_checkpoint
from ._placement import Placement, check_placement

_T = TypeVar("_T")


def load_distributed(
    path: Model | Iterable[Path],
    placement: Placement,
    *,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str | int | None = None,
    only: Iterable[str] | None = None,
    dtype: torch.dtype | str | None = None,
    memory_budget: int | None = None,
    progress: _load.Progress = False,
    storage_options: StorageOptions = None,
) -> dict[str, torch.Tensor]:
    """Loads a model by a group of processes, and returns the tensors of this one.

    Each rank of the group calls this, with the same model, ``placement`` and ``memory_budget``. A rank is a device of
    the placement. Each reads its tensors and slices, and a part of the tensors for all, which they then gather.

    ``group`` is a group of ``torch.distributed``, by default all processes. ``device`` is by default the current GPU
    for NCCL, else the host. With ``dtype``, each tensor of another floating-point type is read and converted by one rank, from
    which the others get it if it is for all. The other arguments are those of :func:`gpufile.safetensors.load_model`; ``progress``
    counts the bytes of this rank's tensors.

    If a rank fails, all ranks raise: that rank the cause, the others ``RuntimeError``, unless they have loaded all they
    need from it. If a process dies, the others get the error or the timeout of the group's backend.

    >>> torch.distributed.init_process_group("nccl")
    >>> torch.cuda.set_device(torch.distributed.get_rank())
    >>> weights = load_distributed("Llama-3.1-8B", Placement.all())
    """
    check_placement(placement)
    peers = _Peers(group)
    with contextlib.ExitStack() as stack:

        def open_share() -> _Share:
            peers.use(device)
            checkpoint = open_checkpoint(path, storage_options)
            names = chosen(checkpoint, "only", only)
            return stack.enter_context(_Share(checkpoint, names, dtype, placement, limit_of(memory_budget), peers, progress))

        share, failure = _attempt(open_share)
        if share is not None:
            # Each rank reads into its own memory while the ranks compare what they load.
            _, failure = _attempt(share.begin)
        peers.exchange(failure, None if share is None else share.digest, share is not None and share.has_own)
        assert share is not None
        for piece in share.pieces:
            if failure is None:
                _, failure = _attempt(share.wait)
            if peers.gather(share.shared_bases[piece.group], piece, failure):
                break
            if failure is None:
                _, failure = _attempt(share.meter.add, piece.stop - piece.start)
        if failure is None:
            _, failure = _attempt(share.finish)
        peers.exchange(failure)
        return share.tensors()


class _Share:
    """The tensors of one rank, and the reads into them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: list[str] | None,
        dtype: Any,
        placement: Placement,
        memory_budget: int | None,
        peers: _Peers,
        progress: _load.Progress,
    ) -> None:
        self._checkpoint, self.peers = checkpoint, peers
        kept, converted, code = _convert.split(checkpoint, peers.framework, names, dtype)
        plan = checkpoint.plan(kept, placement._rule, peers.count)
        parts, self._common = _convert.parts_of(checkpoint, converted, placement, peers.count)
        self._maker = _convert.Maker(checkpoint, peers.framework, parts[peers.rank], code)
        self._shared, own = plan.shared(memory_budget), plan.own(peers.rank, memory_budget)
        self.pieces = list(_placed.pieces_of(self._shared, peers.count))
        self.loaded: dict[str, Any] = {}
        # The last part of a group may be shorter than the others, which a gathering takes as equally long.
        room = _placed.UNIT * peers.count
        self.shared_bases = [peers.framework.allocate(group.len_bytes + room) for group in self._shared]
        own_bases = [peers.framework.memory(group) for group in own]
        self._views = list(zip(self._shared + own, self.shared_bases + own_bases))
        self.has_own = bool(own or converted)
        self.meter = _load.Meter(progress, _load.total_bytes(self._shared + own) + self._maker.len_bytes)
        self._readings = _load.Readings(checkpoint)
        self._steps = self._reads(_load.cut(own, own_bases, _placed.STEP_BYTES))
        #: Equal on all ranks that load the same.
        self.digest = _digest([plan.number(), self.pieces, code, parts])

    def _reads(self, own: Iterable[list[_load.Part]]) -> Iterator[_placed.Step]:
        """Yields a step for each piece, and then those of the tensors for this rank alone."""
        for piece in self.pieces:
            group, base = self._shared[piece.group], self.shared_bases[piece.group]
            yield _placed.Step([(group, base, *piece.part(self.peers.rank))], [piece])
        for parts in own:
            yield _placed.Step(parts, [])

    def _start(self) -> None:
        for step in self._steps:
            step.start(self._readings)
            return

    def begin(self) -> None:
        """Starts to read, and makes the tensors while the bytes arrive."""
        for _ in range(_placed.AT_ONCE):
            self._start()
        for group, base in self._views:
            self.peers.framework.fill(self.loaded, base, group.table())

    def wait(self) -> int:
        """Waits for the next step, and starts the one after those in flight. Returns the bytes."""
        len_bytes = self._readings.wait()
        self._start()
        return len_bytes

    def finish(self) -> None:
        """Waits for the tensors of this rank alone."""
        while self._readings:
            self.meter.add(self.wait())
        _convert.make(self._checkpoint, [self._maker], self.meter)
        for name in self._common:
            if name not in self._maker.made:
                self._maker.made[name] = self._maker.empty(name)

    def tensors(self) -> dict[str, Any]:
        """Returns the tensors of this rank, in the order of the files, after the ranks have sent each other what they converted."""
        made = self._maker.made
        self.peers.spread([made[name] for name in self._common])
        return _load.sort(self._checkpoint, self.loaded | made)

    def __enter__(self) -> _Share:
        self.meter.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._readings.__exit__(*exception)
        self.meter.__exit__(*exception)


class _Peers:
    """The ranks of a group, and what they exchange."""

    framework: _torch.Framework

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process does not belong to the group")
        #: The GPU of this rank, if there is one.
        self._gpu: torch.device | None = None
        #: The gatherings in flight, each with the number of ranks that had failed before it.
        self._gathering: deque[tuple[Any, Any, torch.Tensor]] = deque()
        #: False if no rank reads after the last gathering, and none had failed before it. It is the same on all ranks.
        self._must_exchange = True

    def use(self, device: Any) -> None:
        """Takes the device of this rank. A rank that fails here still exchanges with the others."""
        if device is None:
            has_nccl = "nccl" in dist.get_backend_config(self._group)
            device = torch.device("cuda", torch.cuda.current_device()) if has_nccl else "cpu"
        self.framework = _torch.Framework(device)
        if self.framework.copies:
            raise ValueError(f"a placement takes CUDA GPUs and the host, not {device}")
        if self.framework.device.type == "cuda":
            # Raises without that GPU.
            torch.cuda.get_device_properties(self.framework.device)
            self._gpu = self.framework.device

    def gather(self, base: torch.Tensor, piece: _placed.Piece, failure: BaseException | None) -> bool:
        """Starts to gather the parts of a piece. Returns whether a rank had failed when the previous gathering began.

        The answer is the same on all ranks, so that all stop at the same piece.
        """
        # A kernel writes it. A copy would wait behind those of the bytes that are read.
        failed = torch.full((), int(failure is not None), dtype=torch.int32, device=self.framework.device)
        count = dist.all_reduce(failed, group=self._group, async_op=True)
        whole = base[piece.start : piece.start + piece.part_bytes * self.count]
        part = whole[piece.part_bytes * self.rank : piece.part_bytes * (self.rank + 1)]
        parts = dist.all_gather_into_tensor(whole, part, group=self._group, async_op=True)
        self._gathering.append((count, parts, failed))
        return len(self._gathering) > 1 and self._end_first()

    def spread(self, tensors: list[torch.Tensor]) -> None:
        """Sends tensors of which the ranks have one each, in turn, to the others."""
        for number, tensor in enumerate(tensors):
            if tensor.numel():
                rank = number % self.count
                source = rank if self._group is None else dist.get_global_rank(self._group, rank)
                dist.broadcast(flat(tensor), source, group=self._group)

    def _end_first(self) -> bool:
        count, parts, failed = self._gathering.popleft()
        count.wait()
        parts.wait()
        # This waits for the stream, which waits for both.
        has_failed = bool(failed.item())
        self._must_exchange |= has_failed
        return has_failed

    def exchange(self, failure: BaseException | None, digest: str | None = None, has_own: bool = False) -> None:
        """Tells the other ranks of a failure, and raises if a rank failed or loads something else.

        ``has_own`` says that this rank still reads after the last gathering. If no rank does, the gatherings report
        failures.
        """
        text = None if failure is None else f"{type(failure).__name__}: {failure}"
        outcomes: list[Any] = []
        try:
            while self._gathering:
                self._end_first()
            if self._must_exchange:
                outcomes = [None] * self.count
                with contextlib.nullcontext() if self._gpu is None else torch.cuda.device(self._gpu):
                    dist.all_gather_object(outcomes, (text, digest, has_own), group=self._group)
        except Exception:
            # The cause says more than the end of the connection.
            if failure is None:
                raise
        if failure is not None:
            raise failure
        for rank, (text, _, _) in enumerate(outcomes):
            if text is not None:
                raise RuntimeError(f"rank {rank} of the group failed to load its part of the model: {text}")
        for rank, (_, other, _) in enumerate(outcomes):
            if other != outcomes[0][1]:
                text = f"rank {rank} passed another model, placement or memory budget than rank 0"
                raise RuntimeError(f"{text}; all ranks must pass the same")
        self._must_exchange = any(has_own for _, _, has_own in outcomes)


def _attempt(act: Callable[..., _T], *arguments: Any) -> tuple[_T | None, BaseException | None]:
    """Calls a function, and returns its exception: a rank that failed goes on to exchange with the others."""
    try:
        return act(*arguments), None
    except BaseException as error:
        return None, error


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
