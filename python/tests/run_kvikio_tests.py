"""Runs kvikio's own tests on gpufile.kvikio.

    git clone --branch v26.10.00 https://github.com/rapidsai/kvikio
    python python/tests/run_kvikio_tests.py kvikio/python/kvikio/tests [arguments of pytest]

The tests need cupy, pytest-asyncio, zarr and a GPU. They run from a copy in which only the imports of kvikio differ.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# The tests of files. The others are about remote files, benchmarks and packaging.
FILES = [
    "test_async_io.py",
    "test_basic_io.py",
    "test_cufile_driver.py",
    "test_defaults.py",
    "test_mmap.py",
    "test_numpy.py",
    "test_zarr_v3.py",
]

# Tests that cannot pass, each with the reason.
LEFT_OUT = {
    # gpufile's bounce buffers are an eighth and 16 KiB longer than the setting, and a worker has two.
    "test_bounce_buffer_free",
}


def changed(source: str) -> str:
    """Returns a test file with imports of gpufile.kvikio."""
    source = re.sub(r"^import kvikio((?:\.\w+)+)$", r"import gpufile.kvikio\1\nfrom gpufile import kvikio", source, flags=re.M)
    source = re.sub(r"^import kvikio$", "from gpufile import kvikio", source, flags=re.M)
    return re.sub(r"^from kvikio\b", "from gpufile.kvikio", source, flags=re.M)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    missing = [name for name in ["conftest.py", "utils.py", *FILES] if not (folder / name).is_file()]
    if missing:
        print(f"{folder} has no {', '.join(missing)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as copy:
        for name in ["conftest.py", "utils.py", *FILES]:
            source = (folder / name).read_text()
            # Lines that end with a comment for linters are imports too.
            source = re.sub(r"^(import kvikio[\w.]*)  # noqa.*$", r"\1", source, flags=re.M)
            (pathlib.Path(copy) / name).write_text(changed(source))
        left_out = " and ".join(f"not {name}" for name in LEFT_OUT)
        # Their project sets these, too.
        settings = ["--override-ini=asyncio_mode=auto", "--override-ini=markers=cufile"]
        command = [sys.executable, "-m", "pytest", "--quiet", "-k", left_out, *settings, *sys.argv[2:], *FILES]
        return subprocess.run(command, cwd=copy).returncode


if __name__ == "__main__":
    sys.exit(main())
