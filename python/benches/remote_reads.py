#!/usr/bin/env python3
"""Reads an object of an HTTP server into GPU memory, and prints how long one contender takes.

    peer=NAME case=CASE setting=SETTING seconds=S gbps=G cpu=C

`cpu` is the processor time of this process, in seconds. The cases:

- `whole`: the object from its first to its last byte, in one call; the first such call, which connects, starts threads and
  pins memory, and as `whole-again` the second
- `lists`: 8,192 ranges of 64 KiB at random places, the best of three
- `small`: one range of 4 KiB, the median of 300
- `models`: the model of four shards of `MODEL` beside the object, as tensors of PyTorch; the first load of the process, and
  as `models-again` the second

FILE is the same object as a local file. What was read is compared with it, apart from the clock.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from loaders import MEBIBYTE, Case, check

MODEL = Case("remote-model", 4, 64, 16 * MEBIBYTE)
INDEX = "model.safetensors.index.json"
LIST_RANGES, LIST_BYTES = 8192, 64 << 10
SMALL_BYTES, SMALL_READS = 4096, 300


class Gpufile:
    """Settings are numbers of connections; 0 is the default."""

    name = "gpufile"
    settings = [(0,), (16,), (64,)]

    def open(self, url: str, setting: tuple[int, ...], trust: Path | None) -> None:
        import gpufile

        engine = gpufile.Engine(threads=setting[0]) if setting[0] else None
        pem = trust.read_bytes() if trust else None
        self.file = gpufile.RemoteFile(url, engine=engine, trust=pem)

    def read(self, buffer: Any, offset: int) -> None:
        self.file.read_into(buffer, offset)

    def read_list(self, buffers: list[Any], offsets: list[int]) -> None:
        self.file.read_many(buffers, offsets)

    def load(self, base: str, device: str) -> dict[str, Any]:
        from gpufile.safetensors import load_model

        return load_model(f"{base}/{INDEX}", device)


class Kvikio:
    """Settings are numbers of threads, and MiB of each task."""

    name = "kvikio"
    settings = [(64, 16), (32, 8), (16, 4)]

    def open(self, url: str, setting: tuple[int, ...], trust: Path | None) -> None:
        import kvikio
        import kvikio.defaults

        if trust:
            os.environ["CURL_CA_BUNDLE"] = os.environ["SSL_CERT_FILE"] = str(trust)
        threads, mebibytes = setting
        kvikio.defaults.set({"num_threads": threads, "task_size": mebibytes * MEBIBYTE})
        self.file = kvikio.RemoteFile.open_http(url)

    def read(self, buffer: Any, offset: int) -> None:
        self.file.read(buffer, None, offset)

    def read_list(self, buffers: list[Any], offsets: list[int]) -> None:
        for future in [self.file.pread(buffer, None, offset) for buffer, offset in zip(buffers, offsets)]:
            future.get()


class Runai:
    """Reads models of S3 alone. RUNAI_STREAMER_CONCURRENCY is the number of its connections."""

    name = "runai"
    settings = [(0,)]

    def load(self, base: str, device: str) -> dict[str, Any]:
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            streamer.stream_files([f"{base}/{path.name}" for path in MODEL.paths(Path())], owned=False)
            return {name: tensor.to(device) for name, tensor in streamer.get_tensors()}


CONTENDERS = {contender.name: contender for contender in (Gpufile, Kvikio, Runai)}


class Memory:
    """Memory of the GPU by cupy, or of the host by numpy."""

    def __init__(self, is_cpu: bool) -> None:
        import numpy

        self.numpy = numpy
        if is_cpu:
            self.empty: Callable[..., Any] = numpy.empty
            self.to_host: Callable[[Any], Any] = lambda array: array
        else:
            import cupy

            self.empty, self.to_host = cupy.empty, cupy.asnumpy
            cupy.zeros(1).sum()
            cupy.cuda.runtime.deviceSynchronize()

    def bytes(self, count: int) -> Any:
        buffer = self.empty(count, self.numpy.uint8)
        buffer[:] = 0
        self.to_host(buffer[-1:])
        return buffer


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Returns the seconds, and the processor's."""

    def cpu() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    cpu_before, start = cpu(), time.perf_counter()
    work()
    return time.perf_counter() - start, cpu() - cpu_before


def compare(memory: Memory, got: Any, file: Path, offset: int) -> None:
    expected = memory.numpy.fromfile(file, memory.numpy.uint8, len(got), offset=offset)
    if not memory.numpy.array_equal(memory.to_host(got), expected):
        raise ValueError(f"other bytes at {offset}")


def read_whole(contender: Any, memory: Memory, file: Path) -> Iterator[tuple[str, int, float, float]]:
    size = file.stat().st_size
    buffer = memory.bytes(size)
    for name in ("whole", "whole-again"):
        buffer[:] = 0
        memory.to_host(buffer[-1:])
        seconds, cpu = timed(lambda: contender.read(buffer, 0))
        for offset in [0, size - MEBIBYTE, *random.sample(range(size - MEBIBYTE), 30)]:
            compare(memory, buffer[offset : offset + MEBIBYTE], file, offset)
        yield name, size, seconds, cpu


def read_lists(contender: Any, memory: Memory, file: Path) -> Iterator[tuple[str, int, float, float]]:
    size = file.stat().st_size
    buffer = memory.bytes(LIST_RANGES * LIST_BYTES)
    parts = [buffer[start : start + LIST_BYTES] for start in range(0, len(buffer), LIST_BYTES)]
    offsets = [random.randrange(size - LIST_BYTES) for _ in parts]
    seconds, cpu = min(timed(lambda: contender.read_list(parts, offsets)) for _ in range(3))
    for place in range(0, LIST_RANGES, 97):
        compare(memory, parts[place], file, offsets[place])
    yield "lists", len(buffer), seconds, cpu


def read_small(contender: Any, memory: Memory, file: Path) -> Iterator[tuple[str, int, float, float]]:
    size = file.stat().st_size
    buffer = memory.bytes(SMALL_BYTES)
    took = []
    for _ in range(SMALL_READS):
        offset = random.randrange(size - SMALL_BYTES)
        took.append(timed(lambda: contender.read(buffer, offset)))
        compare(memory, buffer, file, offset)
    yield "small", SMALL_BYTES, statistics.median(seconds for seconds, _ in took), sum(cpu for _, cpu in took) / len(took)


def load_model(contender: Any, folder: Path, base: str, device: str) -> Iterator[tuple[str, int, float, float]]:
    import torch

    torch.zeros(1, device=device)
    size = sum(path.stat().st_size for path in MODEL.paths(folder))
    for name in ("models", "models-again"):
        tensors: dict[str, Any] = {}

        def load() -> None:
            tensors.update(contender.load(base, device))
            if device != "cpu":
                torch.cuda.synchronize()

        seconds, cpu = timed(load)
        check(MODEL, tensors)
        yield name, size, seconds, cpu


READS = {"whole": read_whole, "lists": read_lists, "small": read_small}


def measure(options: argparse.Namespace) -> Iterator[tuple[str, str, int, float, float]]:
    contender = CONTENDERS[options.contender]()
    if options.case == "models":
        base, device = options.url.rpartition("/")[0], "cpu" if options.cpu else "cuda:0"
        for line in load_model(contender, options.file.parent, base, device):
            yield "default", *line
        return
    memory = Memory(options.cpu)
    for setting in contender.settings:
        contender.open(options.url, setting, options.trust)
        if options.case != "whole":
            contender.read(memory.bytes(256 * MEBIBYTE), 0)
        for line in READS[options.case](contender, memory, options.file):
            yield "*".join(str(number) for number in setting) if any(setting) else "default", *line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("case", choices=[*READS, "models"])
    parser.add_argument("url")
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("--trust", metavar="PEM", type=Path, help="the certificate of the server")
    parser.add_argument("--cpu", action="store_true", help="read to the host")
    options = parser.parse_args()
    try:
        for setting, case, size, seconds, cpu in measure(options):
            print(
                f"peer={options.contender} case={case} setting={setting} seconds={seconds:.6f} "
                f"gbps={size / seconds / 1e9:.3f} cpu={cpu:.6f}",
                flush=True,
            )
    except Exception as error:  # whatever keeps a contender from working here is its result
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"peer={options.contender} case={options.case} error={text[:300]}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
