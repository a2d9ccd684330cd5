"""Uncompressed Zarr arrays between files and one GPU, by zarr-python on kvikio's GDSStore.

usage: zarr_gds.py DIR

The cases are those of gpufile's example zarr_bench: arrays of float32 that count up, in chunks of 64 MiB, 4 MiB and
256 KiB. The program writes each array once to DIR/z, which must not exist. It reads it three times with each number of
kvikio's threads, compares it once with the source, and removes it. It needs zarr 3, kvikio and cupy, all from PyPI.
kvikio uses POSIX calls here.
"""

import pathlib
import shutil
import sys
import time

if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1]).is_dir():
    print(__doc__, file=sys.stderr)
    sys.exit(2)

import cupy
import kvikio.defaults
import kvikio.zarr
import zarr

MIB = 1 << 20
# Name, bytes of the array, bytes of a chunk.
CASES = [
    ("zarr-64MiB", 4096 * MIB, 64 * MIB),
    ("zarr-4MiB", 4096 * MIB, 4 * MIB),
    ("zarr-256KiB", 1024 * MIB, MIB // 4),
]
THREADS = [1, 8, 16]
READS = 3


def seconds(work):
    """Returns the seconds that work takes until the GPU is done, and its result."""
    start = time.perf_counter()
    result = work()
    cupy.cuda.Device().synchronize()
    return time.perf_counter() - start, result


def measure(name, size, chunk_size, path):
    source = cupy.arange(size // 4, dtype="float32")
    array = zarr.create_array(
        store=kvikio.zarr.GDSStore(path),
        shape=source.shape,
        chunks=(chunk_size // 4,),
        dtype=source.dtype,
        compressors=None,
        filters=None,
    )
    write, _ = seconds(lambda: array.__setitem__(slice(None), source))
    for threads in THREADS:
        kvikio.defaults.set("num_threads", threads)
        best = float("inf")
        for number in range(READS):
            read, found = seconds(lambda: array[:])
            best = min(best, read)
            assert isinstance(found, cupy.ndarray), "the array is not in GPU memory"
            assert number > 0 or bool((found == source).all()), "the array differs from what was written"
            # The next array is allocated afterwards.
            del found
        print(
            f"peer=kvikio-zarr case={name} bytes={size} threads={threads}"
            f" read_gbps={size / best / 1e9:.3f} write_gbps={size / write / 1e9:.3f}",
            flush=True,
        )


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = pathlib.Path(sys.argv[1], "z")
    if path.exists():
        sys.exit(f"{path} exists: remove it, or name another DIR")
    kvikio.defaults.set("compat_mode", kvikio.CompatMode.ON)
    zarr.config.enable_gpu()
    print("zarr", zarr.__version__, "kvikio", kvikio.__version__, file=sys.stderr)
    for name, size, chunk_size in CASES:
        try:
            measure(name, size, chunk_size, path)
        finally:
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
