"""Times distributed checkpoints of several ranks: gpufile's storage against torch's, in turn.

    python checkpoint_ranks.py FOLDER [--gb 8] [--ranks 2] [--rounds 5] [--device cuda] [--threads 8] [--warm] [--pauses]

Each rank has its part of the tensors, in the memory of its GPU (or the host, with `--device cpu`), and saves and loads
it with `torch.distributed.checkpoint`. A figure is the median over the rounds of the slowest rank's time. Loads follow
a drop of the files' pages from the page cache, except with `--warm`.

- `save`: a save that waits for storage
- `load`: into the ranks that saved
- `load columns`: each rank loads all rows of its columns, after a save by rows
- `load on one`: one rank loads everything
- `pause`: how long `async_save` keeps the program and the GPU's current stream from going on
- `Saver pause`: the same for `gpufile.torch.Saver`, with a file for each rank, in the column of gpufile
- `device copy`: a copy of the tensors in the same memory, for comparison with the pauses

`--pauses` measures only the last three, without torch's storage. `--ranks 1` measures on one GPU; more ranks than GPUs
share them. `torch N threads` is torch's writer with `thread_count=N`. Its reader has no such setting.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import time
import warnings
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from gpufile.torch import Saver, StorageReader, StorageWriter

COLUMNS = 4096
PAUSES = ("pause", "Saver pause", "device copy")
MEASURES = ("save", "load", "load columns", "load on one", *PAUSES)


class Rank:
    """One rank's tensors, and the measurements on them."""

    def __init__(self, rank: int, options: argparse.Namespace) -> None:
        self.rank, self.ranks, self.options = rank, options.ranks, options
        self.device = torch.device(options.device)
        if options.device == "cuda":
            self.device = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        self.mesh = DeviceMesh.from_group(dist.group.WORLD, options.device, mesh=torch.arange(self.ranks))
        self.alone = dist.new_group([0])
        total_rows = int(options.gb * 1e9) // (2 * COLUMNS)
        # Matrices of about 64 MB, and vectors as layers have.
        count = max(total_rows // 8192, 1)
        self.rows = total_rows // count // self.ranks * self.ranks
        self.names = [f"layers.{number}.weight" for number in range(count)]
        self.nbytes = 2 * COLUMNS * self.rows * count

    def tensors(self, axis: int, fill: bool) -> dict[str, torch.Tensor]:
        """Returns the state dict, with each matrix divided along an axis."""
        shape = [self.rows, COLUMNS]
        shape[axis] //= self.ranks
        made: dict[str, torch.Tensor] = {}
        for number, name in enumerate(self.names):
            local = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
            local.normal_() if fill else local.zero_()
            made[name] = DTensor.from_local(local, self.mesh, [Shard(axis)], run_check=False)
            made[f"layers.{number}.norm"] = torch.full((COLUMNS,), float(number), device=self.device)
        return made

    def whole(self) -> dict[str, torch.Tensor]:
        made = {}
        for name in self.names:
            made[name] = torch.zeros(self.rows, COLUMNS, dtype=torch.bfloat16, device=self.device)
        return made

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(self, function: Any) -> float:
        """Returns the seconds of the slowest rank."""
        self.synchronize()
        dist.barrier()
        start = time.perf_counter()
        function()
        self.synchronize()
        seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return float(seconds)

    def drop(self, folder: pathlib.Path) -> None:
        """Drops the files of a checkpoint from the page cache."""
        if self.rank == 0 and not self.options.warm:
            os.sync()
            for path in folder.iterdir():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
        dist.barrier()

    def paused(self, save: Any) -> float:
        """Returns the seconds until the program and the current stream go on, and waits for the end of the save."""
        # Without the synchronization of the whole device in `timed`, which would wait for the save too.
        self.synchronize()
        dist.barrier()
        start = time.perf_counter()
        future = save()
        if self.device.type == "cuda":
            # What training would launch next starts here.
            torch.cuda.current_stream().synchronize()
        seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        future.result()
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return float(seconds)

    def pauses(self, writer: Any, folder: pathlib.Path, state: dict[str, torch.Tensor]) -> dict[str, float]:
        locals_ = {name: t.to_local() if isinstance(t, DTensor) else t for name, t in state.items()}
        found = {"pause": self.paused(lambda: dcp.async_save({"model": state}, storage_writer=writer(folder)))}
        if writer is StorageWriter:
            path = folder / f"{self.rank}.safetensors"
            with Saver() as saver:
                # Training saves the same tensors again and again, and later saves use the plan of the first one.
                saver.save(locals_, path).result()
                found["Saver pause"] = self.paused(lambda: saver.save(locals_, path))
            assert path.stat().st_size > self.nbytes // self.ranks
        copies: list[torch.Tensor] = []
        found["device copy"] = self.timed(lambda: copies.extend(local.clone() for local in locals_.values()))
        return found

    def round(self, writer: Any, reader: Any, folder: pathlib.Path, state: dict[str, torch.Tensor]) -> dict[str, float]:
        if self.options.pauses:
            return self.pauses(writer, folder, state)
        found = {"save": self.timed(lambda: dcp.save({"model": state}, storage_writer=writer(folder)))}
        for name, axis in (("load", 0), ("load columns", 1)):
            self.drop(folder)
            target = self.tensors(axis, fill=False)
            found[name] = self.timed(lambda: dcp.load({"model": target}, storage_reader=reader(folder)))
            if name == "load":
                for key, tensor in state.items():
                    one, other = (t.to_local() if isinstance(t, DTensor) else t for t in (tensor, target[key]))
                    assert torch.equal(one, other), key
            del target
        self.drop(folder)
        everything = self.whole() if self.rank == 0 else {}

        def load_on_one() -> None:
            if self.rank == 0:
                dcp.load({"model": everything}, storage_reader=reader(folder), process_group=self.alone)

        found["load on one"] = self.timed(load_on_one)
        everything.clear()
        return found | self.pauses(writer, folder, state)


def run(rank: int, options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    store = pathlib.Path(options.folder) / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    of = Rank(rank, options)
    threads = options.threads
    contenders: dict[str, tuple[Any, Any]] = {
        "gpufile": (StorageWriter, StorageReader),
        "torch": (dcp.FileSystemWriter, dcp.FileSystemReader),
        f"torch {threads} threads": (
            lambda path: dcp.FileSystemWriter(path, thread_count=threads),
            dcp.FileSystemReader,
        ),
    }
    if options.pauses:
        contenders = {"gpufile": contenders["gpufile"]}
    state = of.tensors(0, fill=True)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    # The first round warms up, and does not count.
    for number in range(options.rounds + 1):
        for name, (writer, reader) in contenders.items():
            folder = pathlib.Path(options.folder) / name.replace(" ", "-")
            folder.mkdir(exist_ok=True)
            found = of.round(writer, reader, folder, state)
            dist.barrier()
            if rank == 0:
                shutil.rmtree(folder)
            dist.barrier()
            for measure, value in found.items():
                if number:
                    seconds[name, measure].append(value)
    if rank == 0:
        report(of, list(contenders), seconds)
    dist.destroy_process_group()


def report(of: Rank, names: list[str], seconds: dict[tuple[str, str], list[float]]) -> None:
    """Prints the medians, with the lowest and highest, as a table and as lines of JSON."""
    where = torch.cuda.get_device_name(of.device) if of.device.type == "cuda" else "host memory"
    print(f"{of.ranks} ranks, {of.nbytes / 1e9:.2f} GB, {where}, torch {torch.__version__}\n")
    print("| seconds | " + " | ".join(names) + " | torch / gpufile |\n|---" * 1 + "|---" * (len(names) + 1) + "|")
    for measure in PAUSES if of.options.pauses else MEASURES:
        with_it = [name for name in names if (name, measure) in seconds]
        medians = {name: statistics.median(seconds[name, measure]) for name in with_it}
        cells = []
        for name in names:
            values = seconds.get((name, measure))
            cells.append(f"{medians[name]:.4f} ({min(values):.4f} to {max(values):.4f})" if values else "")
        ratio = ""
        if len(with_it) > 1 and measure != "device copy":
            best = min(medians[name] for name in with_it[1:])
            ratio = f"{medians['torch'] / medians['gpufile']:.2f}, best {best / medians['gpufile']:.2f}"
        print(f"| {measure} | " + " | ".join(cells) + f" | {ratio} |")
    print()
    for (name, measure), values in seconds.items():
        print(json.dumps({"contender": name, "measure": measure, "bytes": of.nbytes, "seconds": values}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="an empty folder on the file system to measure, or one that does not exist")
    parser.add_argument("--gb", type=float, default=8, help="gigabytes of all ranks together")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=8, help="threads of torch's writer, in the third column")
    parser.add_argument("--pauses", action="store_true", help="measure only the pauses, and only gpufile's")
    parser.add_argument("--warm", action="store_true", help="load from the page cache")
    options = parser.parse_args()
    folder = pathlib.Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    mp.spawn(run, (options,), nprocs=options.ranks)
    (folder / "store").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
