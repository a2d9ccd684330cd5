"""A program as a user writes it. `.ci/python` runs it, and checks its types with mypy and pyright."""

import asyncio
import sys
from pathlib import Path
from typing import assert_type

import numpy as np

import gpufile
from gpufile.safetensors import Verification, safe_open, verify
from gpufile.safetensors.numpy import load_file, save_file


def copy(source: Path, target: Path, engine: gpufile.Engine) -> int:
    """Copies a file through memory."""
    with gpufile.File(source, engine=engine) as file, gpufile.File(target, "w+", engine=engine) as copied:
        memory = bytearray(file.size())
        assert_type(file.read_into(memory), int)
        return copied.write_from(memory)


async def read_halves(path: Path) -> bytes:
    """Reads both halves of a file at once."""
    with gpufile.File(path) as file:
        memory = np.empty(file.size(), dtype=np.uint8)
        half = memory.size // 2
        first, second = file.read_into_async(memory[:half]), file.read_into_async(memory[half:], half)
        assert_type(await first, int)
        await second
        for outcome in file.read_many_each([memory[:1], memory[1:2]], [0, 1]):
            assert_type(outcome, int | OSError)
        assert_type(await file.read_many_each_async([memory[:1]], [0]), list[int | OSError])
        return memory.tobytes()


def fetch(url: str, engine: gpufile.Engine) -> bytes:
    """Reads an object of a server."""
    with gpufile.RemoteFile(url, engine=engine, headers={"Accept": "*/*"}, timeout=5, tries=1) as file:
        assert_type(file.etag, str | None)
        assert_type(file.with_chunk_bytes(1 << 20), gpufile.RemoteFile)
        memory = bytearray(file.size())
        assert_type(file.read_into(memory), int)
        return bytes(memory)


def main(folder: Path) -> None:
    """Writes, copies and reads files in the folder."""
    engine = gpufile.Engine(threads=2, direct_read="never")
    source, target, model = folder / "source.bin", folder / "target.bin", folder / "model.safetensors"
    content = bytes(range(256)) * 1000
    source.write_bytes(content)
    assert copy(source, target, engine) == len(content)
    assert asyncio.run(read_halves(target)) == content

    save_file({"weight": np.ones((2, 3), dtype=np.float32)}, model)
    assert load_file(model)["weight"].sum() == 6
    with safe_open(model, framework="np") as opened:
        assert list(opened.keys()) == ["weight"]
    assert_type(verify(model), Verification)

    with gpufile.File(source) as file:
        route = file.route()
    if route.kind == "posix" or route.kind == "unavailable":
        for kind, reason in route.why_not.items():
            print(f"not {kind}: {reason}")
    try:
        gpufile.File(folder / "absent")
    except FileNotFoundError as error:
        print(error)
    else:
        sys.exit("a file that does not exist was opened")
    try:
        fetch("http://127.0.0.1:1/data", engine)
    except ConnectionRefusedError as error:
        print(error)
    else:
        sys.exit("a server that does not exist has answered")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
