#!/usr/bin/env python3
"""Loads safetensors files into tensors of PyTorch in GPU memory, and prints how long each loader takes.

The cases and their files are those of ../../examples/load_bench.rs, which prints the same line for gpufile:

    peer=NAME case=CASE size=BYTES ops=TENSORS threads=0 seconds=S gbps=G us_per_op=U
    peer=NAME case=CASE threads=0 error=TEXT

`seconds` is the best of three loads after one to warm up. A load begins with opening the files, and ends when every
tensor is a tensor of PyTorch in GPU memory. A loader that takes longer than SLOW for the first load gets one more load,
not three. The program makes missing files by Python alone. They are then in the page cache.

With --first, each loader loads a case twice: `CASE-first` is the first load, after PyTorch, CUDA and the loader's package
were loaded, and `CASE-again` the second. With --everything, the first load does that too. Each line is printed at once. Only
the first loader and case of a process has a first load.

Under torchrun, the ranks load each model together, and each gets all tensors on its GPU. Those of DISTRIBUTED can do so.
`seconds` is then the time of the slowest rank, and `gbps` counts the bytes of the model once:

    torchrun --standalone --nproc-per-node 4 loaders.py DIR
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20
RANK = int(os.environ.get("RANK", 0))
IS_RANKED = "RANK" in os.environ
DEVICE = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
REPEATS = 3
SLOW = 5.0  # seconds
# Seconds before each load. The GPU clears memory after it was freed, and the next user of that memory waits for it.
PAUSE = 0.1


@dataclass(frozen=True)
class Case:
    name: str
    files: int
    tensors: int  # of each file
    len_bytes: int  # of each tensor

    def paths(self, folder: Path) -> list[Path]:
        return [folder / f"{self.name}-{i}.safetensors" for i in range(self.files)]

    def make(self, folder: Path) -> list[Path]:
        """Returns the files. Makes them if they are missing."""
        paths = self.paths(folder)
        for i, path in enumerate(paths):
            if not path.exists():
                unfinished = path.with_name(path.name + ".part")
                self.write_file(i, unfinished)
                read_once(unfinished)
                unfinished.rename(path)
        return paths

    def write_file(self, i: int, path: Path) -> None:
        """Tensor `f{i}.t{k}` has the 16-bit integers j + k, wrapped, for j from 0."""
        numbers = sorted(range(self.tensors), key=str)  # by name, as the safetensors library does
        header = {
            f"f{i}.t{k}": {
                "dtype": "I16",
                "shape": [self.len_bytes // 2],
                "data_offsets": [place * self.len_bytes, (place + 1) * self.len_bytes],
            }
            for place, k in enumerate(numbers)
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        # All tensors are parts of one sequence, which starts over after 65536 elements.
        period = array("H", range(1 << 16)).tobytes()
        sequence = memoryview(period * (self.len_bytes // len(period) + 2))
        with open(path, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for k in numbers:
                start = 2 * k % len(period)
                file.write(sequence[start : start + self.len_bytes])


def read_once(path: Path) -> None:
    """Reads a new file, so that its first contender reads it as fast as the next one.

    On tmpfs, the kernel marks each new page as used when it is first read. Several threads wait for each other there.
    """
    buffer = bytearray(MEBIBYTE)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


CASES = [
    Case("load-big", 1, 64, 64 * MEBIBYTE),
    Case("load-sharded", 4, 128, 8 * MEBIBYTE),
    Case("load-many", 1, 8192, 512 * KIBIBYTE),
    Case("load-tiny", 1, 65536, 16 * KIBIBYTE),
]


# Each takes paths. It returns the tensors by name, and the objects that must live as long as the tensors.


def by_safetensors(paths: list[str]) -> tuple[dict, object]:
    from safetensors.torch import load_file

    tensors = {}
    for path in paths:
        tensors.update(load_file(path, device=DEVICE))
    return tensors, None


def by_safetensors_prefetch(paths: list[str]) -> tuple[dict, object]:
    from safetensors import safe_open

    # All files are on the way before the first tensor is taken.
    files = [safe_open(path, framework="pt", device=DEVICE) for path in paths]
    loaders = [file.prefetch(threads=len(os.sched_getaffinity(0))) for file in files]
    return {name: tensor for loader in loaders for name, tensor in loader}, (files, loaders)


def by_fastsafetensors(paths: list[str]) -> tuple[dict, object]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    # Without GPUDirect. The files stay in the page cache for the next repetition.
    loader = SafeTensorsFileLoader(SingleGroup(), device=DEVICE, nogds=True, disable_cache=False)
    loader.add_filenames({0: paths})
    buffers = loader.copy_files_to_device()
    return dict(buffers.iter_local_tensors(loader.get_keys())), (buffers, loader)


def by_runai(paths: list[str]) -> tuple[dict, object]:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        # It streams to host memory, and may use that again at once. Each tensor is copied before the next one comes.
        streamer.stream_files(paths, owned=False)
        return {name: tensor.to(DEVICE) for name, tensor in streamer.get_tensors()}, None


def by_instanttensor(paths: list[str]) -> tuple[dict, object]:
    from instanttensor import safe_open

    with safe_open(paths, framework="pt", device=0) as file:
        return dict(file.tensors()), None


def by_gpufile(paths: list[str]) -> tuple[dict, object]:
    from gpufile.safetensors import load_model

    return load_model(paths, DEVICE), None


def by_gpufile_ranks(paths: list[str]) -> tuple[dict, object]:
    from gpufile.safetensors import Placement
    from gpufile.safetensors.torch import load_distributed

    return load_distributed(paths, Placement.all(), device=DEVICE), None


def by_instanttensor_ranks(paths: list[str]) -> tuple[dict, object]:
    import torch
    from instanttensor import safe_open

    group = torch.distributed.group.WORLD
    with safe_open(paths, framework="pt", device=torch.cuda.current_device(), process_group=group) as file:
        return dict(file.tensors()), None


OURS = "gpufile-python"

PEERS: dict[str, Callable[[list[str]], tuple[dict, object]]] = {
    "safetensors": by_safetensors,
    "safetensors-prefetch": by_safetensors_prefetch,
    "fastsafetensors": by_fastsafetensors,
    "runai": by_runai,
    "instanttensor": by_instanttensor,
}
LOADERS = {OURS: by_gpufile, **PEERS}
# The modules that a load imports, apart from PyTorch.
MODULES = {
    OURS: "gpufile.safetensors",
    "safetensors": "safetensors.torch",
    "safetensors-prefetch": "safetensors.torch",
    "fastsafetensors": "fastsafetensors",
    "runai": "runai_model_streamer",
    "instanttensor": "instanttensor",
}
DISTRIBUTED = {OURS: by_gpufile_ranks, "instanttensor": by_instanttensor_ranks}


def check(case: Case, tensors: dict) -> None:
    """Compares the last tensor of each file, and 16 others, with their source."""
    import torch

    if len(tensors) != case.files * case.tensors:
        raise ValueError(f"{len(tensors)} tensors instead of {case.files * case.tensors}")
    numbers = [case.tensors - 1, *(place * case.tensors // 16 for place in range(16))]
    for i in range(case.files):
        for k in numbers if i == 0 else numbers[:1]:
            made = torch.arange(k, k + case.len_bytes // 2, dtype=torch.int32).to(torch.int16)
            if not torch.equal(tensors[f"f{i}.t{k}"].cpu(), made):
                raise ValueError(f"f{i}.t{k} has other contents")


def seconds_of(case: Case, peer: str, paths: list[str]) -> float:
    import torch

    took: list[float] = []
    repeats = REPEATS
    load = (DISTRIBUTED if IS_RANKED else LOADERS)[peer]
    has_gpu = DEVICE != "cpu"
    while len(took) < 1 + repeats:
        gc.collect()
        if has_gpu:
            torch.cuda.empty_cache()
        time.sleep(PAUSE)
        if IS_RANKED:
            torch.distributed.barrier()
        start = time.perf_counter()
        tensors, owner = load(paths)
        if has_gpu:
            torch.cuda.synchronize()
        seconds = torch.tensor(time.perf_counter() - start, device=DEVICE)
        if IS_RANKED:
            torch.distributed.all_reduce(seconds, torch.distributed.ReduceOp.MAX)
        took.append(seconds.item())
        if len(took) == 1:
            check(case, tensors)
            repeats = REPEATS if took[0] <= SLOW else 1
        del tensors, owner
    return min(took[1:])


def load_first(case: Case, peer: str, paths: list[str], is_everything: bool) -> Iterator[tuple[str, float]]:
    """Yields the name and the seconds of the first load, and then those of the second."""
    if not is_everything:
        import torch

        importlib.import_module(MODULES[peer])
        torch.zeros(1, device=DEVICE)
        if DEVICE != "cpu":
            torch.cuda.synchronize()
    for name in ("first", "again"):
        start = time.perf_counter()
        tensors, owner = LOADERS[peer](paths)
        if DEVICE != "cpu":
            import torch

            torch.cuda.synchronize()
        yield name, time.perf_counter() - start
        check(case, tensors)
        del tensors, owner
        gc.collect()
        if DEVICE != "cpu":
            torch.cuda.empty_cache()
        time.sleep(PAUSE)


def measure(case: Case, peer: str, paths: list[Path], options: argparse.Namespace) -> Iterator[str]:
    """Yields each line when its load has ended."""
    names = [str(path) for path in paths]
    total = sum(path.stat().st_size for path in paths)
    ops = case.files * case.tensors

    def line(name: str, seconds: float) -> str:
        return (
            f"peer={peer} case={name} size={total // ops} ops={ops} threads=0 seconds={seconds:.6f} "
            f"gbps={total / seconds / 1e9:.3f} us_per_op={seconds / ops * 1e6:.3f}"
        )

    try:
        if options.first or options.everything:
            for name, seconds in load_first(case, peer, names, options.everything):
                yield line(f"{case.name}-{name}", seconds)
        else:
            yield line(case.name, seconds_of(case, peer, names))
    except Exception as error:  # whatever keeps a loader from working here is its result
        text = " ".join(f"{type(error).__name__}: {error}".split())
        yield f"peer={peer} case={case.name} threads=0 error={text[:200]}"


def chosen_cases(names: str | None) -> list[Case]:
    """Returns the named cases, which commas separate, or all without names."""
    if names is None:
        return CASES
    known = {case.name: case for case in CASES}
    for name in names.split(","):
        if name not in known:
            print(f"there is no case `{name}`; the cases are {', '.join(known)}", file=sys.stderr)
            sys.exit(2)
    return [known[name] for name in names.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder of the files; made if missing")
    parser.add_argument("peers", metavar="PEER", nargs="*", help=f"of {', '.join(LOADERS)} (all)")
    parser.add_argument("--cases", metavar="A,B", help=f"of {', '.join(case.name for case in CASES)} (all)")
    parser.add_argument("--keep", action="store_true", help="leave the files of all cases")
    parser.add_argument("--make", action="store_true", help="make the files, and load nothing")
    parser.add_argument("--first", action="store_true", help="the first load of this process, and the second")
    parser.add_argument("--everything", action="store_true", help="the same, with all preparations in the first load")
    parser.add_argument("--cpu", action="store_true", help="load to the host, to try the program without a GPU")
    options = parser.parse_args()
    known = DISTRIBUTED if IS_RANKED else LOADERS
    for peer in options.peers:
        if peer not in known:
            parser.error(f"there is no loader `{peer}`; the loaders are {', '.join(known)}")
    if IS_RANKED and (options.first or options.everything):
        parser.error("--first and --everything are for one process, not for ranks")
    join_ranks(options.cpu)

    options.folder.mkdir(parents=True, exist_ok=True)
    for case in chosen_cases(options.cases):
        paths = case.paths(options.folder)
        try:
            if RANK == 0:
                case.make(options.folder)
            wait_for_ranks()
            for peer in [] if options.make else options.peers or known:
                for line in measure(case, peer, paths, options):
                    if RANK == 0 or " error=" in line:
                        print(line, flush=True)
            wait_for_ranks()
        finally:
            if RANK == 0 and not (options.keep or options.make):
                for path in paths:
                    path.unlink(missing_ok=True)
    if IS_RANKED:
        import torch

        torch.distributed.destroy_process_group()


def join_ranks(is_on_cpu: bool) -> None:
    """Joins the processes of torchrun, if it started this one."""
    global DEVICE
    if is_on_cpu:
        DEVICE = "cpu"
    if IS_RANKED:
        import torch

        if not is_on_cpu:
            torch.cuda.set_device(DEVICE)
        torch.distributed.init_process_group("gloo" if is_on_cpu else "nccl")


def wait_for_ranks() -> None:
    if IS_RANKED:
        import torch

        torch.distributed.barrier()


if __name__ == "__main__":
    main()
