#!/usr/bin/env python3
"""Fetches the blocks of a KV cache from Python, and compares the speed with that of the same case in Rust.

    python kv_fetch.py FOLDER [--rounds N] [--repeats N] [--mib N]

FOLDER is on the file system to measure, and needs room for half of the ``--mib`` of GPU memory. In each round, two processes
measure 32 pieces of 64 KiB per block, after a warm-up:

- ``rust``: the case ``kv-module-fetch-64k`` of ``gpufile bench``
- ``python``: ``BlockStore.fetch`` with an integer for each piece in one region
- ``layers``: the same with a region for each piece of a block, and one integer for each block

Each prints its median in GB/s, and the last line has the ratios of the medians of all rounds. What was fetched is compared
apart from the clock. ``CUDART_LIBRARY`` names CUDA's runtime, if it is not the system's.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from gpufile.kv_blocks import BlockStore, Outcome, Region

PIECES, PIECE_BYTES = 32, 64 << 10
#: cudaMemcpyKind.
TO_DEVICE, TO_HOST = 1, 2


def cuda() -> ctypes.CDLL:
    """Returns CUDA's runtime."""
    for name in filter(None, [os.environ.get("CUDART_LIBRARY"), "libcudart.so", "libcudart.so.13", "libcudart.so.12"]):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    sys.exit("CUDA's runtime is not found: set CUDART_LIBRARY")


class Memory:
    """Memory of the first GPU."""

    def __init__(self, length: int) -> None:
        self.cuda, self.length, address = cuda(), length, ctypes.c_void_p()
        self._check(self.cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(length)))
        self.address = address.value or 0

    def part(self, start: int, length: int) -> Part:
        return Part(self, self.address + start, length)

    def copy(self, host: bytearray, kind: int) -> None:
        there, here = ctypes.c_void_p(self.address), (ctypes.c_char * self.length).from_buffer(host)
        both = (there, here) if kind == TO_DEVICE else (here, there)
        self._check(self.cuda.cudaMemcpy(*both, ctypes.c_size_t(self.length), kind))

    def poison(self) -> None:
        self._check(self.cuda.cudaMemset(ctypes.c_void_p(self.address), 0xA5, ctypes.c_size_t(self.length)))
        self._check(self.cuda.cudaDeviceSynchronize())

    def _check(self, status: int) -> None:
        if status:
            sys.exit(f"CUDA's runtime answered {status}")


class Part:
    """A part of the memory, as an array of bytes."""

    def __init__(self, memory: Memory, address: int, length: int) -> None:
        self.memory = memory
        self.__cuda_array_interface__ = {"shape": (length,), "typestr": "|u1", "data": (address, False), "version": 3}


def measure(folder: Path, memory_bytes: int, repeats: int, way: str) -> float:
    """Stores half the blocks of the memory, fetches them again and again, and returns the median in GB/s."""
    block_bytes = PIECES * PIECE_BYTES
    places = memory_bytes // block_bytes
    moved = max(places // 2, 1)
    memory = Memory(places * block_bytes)
    expected = bytearray(random.Random(3).randbytes(PIECE_BYTES) * (places * PIECES))
    for piece in range(places * PIECES):
        expected[piece * PIECE_BYTES : piece * PIECE_BYTES + 8] = piece.to_bytes(8, "little")
    memory.copy(expected, TO_DEVICE)
    blocks = [number * 7919 % places for number in range(moved)]
    layer_bytes = places * PIECE_BYTES
    offsets = array.array("q", [layer * layer_bytes + block * PIECE_BYTES for block in blocks for layer in range(PIECES)])
    if way == "layers":
        regions = [Region(memory.part(layer * layer_bytes, layer_bytes)) for layer in range(PIECES)]
        arguments = (regions, [block * PIECE_BYTES for block in blocks], PIECE_BYTES)
    else:
        arguments = (Region(memory.part(0, memory.length)), offsets, PIECE_BYTES)
    keys = list(range(moved))
    with BlockStore(folder, block_bytes, limit_bytes=moved * block_bytes) as store:
        assert set(store.store(keys, *arguments).result()) == {Outcome.OK}
        seconds = []
        for _ in range(repeats + 1):
            memory.poison()
            start = time.perf_counter()
            outcomes = store.fetch(keys, *arguments, timeout=60).result()
            seconds.append(time.perf_counter() - start)
            assert outcomes == [Outcome.OK] * moved
    found = bytearray(memory.length)
    memory.copy(found, TO_HOST)
    for offset in offsets:
        assert expected[offset : offset + PIECE_BYTES] == found[offset : offset + PIECE_BYTES], offset
    return moved * block_bytes / statistics.median(seconds[1:]) / 1e9


def run(way: str, folder: Path, file: Path, arguments: argparse.Namespace) -> float:
    """Measures one way in a process of its own. Returns GB/s."""
    if way == "rust":
        command = [sys.executable, "-m", "gpufile", "bench", "--repeats", str(arguments.repeats), str(file), "kv-module-fetch-64k"]
    else:
        command = [sys.executable, __file__, str(folder), "--way", way, "--mib", str(arguments.mib), "--repeats", str(arguments.repeats)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = re.search(r"gbps=([0-9.]+)", ran.stdout)
    if not found:
        sys.exit(f"no figure in {ran.stdout!r}")
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--way", choices=["python", "layers"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    store = arguments.folder / f"kv-fetch-{os.getpid()}"
    if arguments.way:
        try:
            print(f"way={arguments.way} gbps={measure(store, arguments.mib << 20, arguments.repeats, arguments.way):.3f}")
        finally:
            shutil.rmtree(store, ignore_errors=True)
        return
    # The case has its store beside the file, whose length decides on the number of blocks.
    file = arguments.folder / f"kv-fetch-{os.getpid()}.bin"
    figures: dict[str, list[float]] = {"rust": [], "python": [], "layers": []}
    try:
        with file.open("wb") as made:
            made.truncate(arguments.mib << 20)
        for number in range(arguments.rounds):
            for way, found in figures.items():
                found.append(run(way, arguments.folder, file, arguments))
                print(f"round={number} way={way} gbps={found[-1]:.3f}", flush=True)
    finally:
        file.unlink(missing_ok=True)
    rust, *others = (statistics.median(found) for found in figures.values())
    print(f"rust={rust:.3f} python/rust={others[0] / rust:.3f} layers/rust={others[1] / rust:.3f}")


if __name__ == "__main__":
    main()
