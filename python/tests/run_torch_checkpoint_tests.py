"""Runs torch's own tests of its checkpoint storage with gpufile.torch.StorageWriter and StorageReader.

    git clone --depth 1 --branch v2.15.0 https://github.com/pytorch/pytorch
    python python/tests/run_torch_checkpoint_tests.py pytorch/test/distributed/checkpoint [arguments of pytest]

The version of the tests must be that of the installed torch. They need pytest and numpy, and some need two GPUs or
zstandard, and are skipped without. They run from a copy in which the names FileSystemWriter and FileSystemReader are
those of gpufile. Prints at the end how often gpufile saved and loaded.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

# The tests whose subject is the storage, or that save and load through it. Those that the checkout lacks are left out.
FILES = [
    "test_file_system_checkpoint.py",
    "test_file_system_checkpoint_cpu.py",
    "test_save_load_api.py",
    "test_dtensor_checkpoint.py",
    "test_dtensor_resharding.py",
    "test_tp_checkpoint.py",
    "test_nested_dict.py",
    "test_planner.py",
    "e2e/test_e2e_save_and_load.py",
    "e2e/test_fine_tuning.py",
]

# Tests that cannot pass, each with the reason.
LEFT_OUT: dict[str, str] = {}

# Each process of a test imports this before anything takes the classes from torch.
EXCHANGE = '''
import os
import sys

import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict_loader
import torch.distributed.checkpoint.state_dict_saver
from gpufile.torch import StorageReader, StorageWriter


def count(what):
    with open(os.environ["GPUFILE_TEST_COUNTS"], "a") as file:
        file.write(what)


class FileSystemWriter(StorageWriter):
    def write_data(self, plan, planner):
        count("s")
        return super().write_data(plan, planner)


class FileSystemReader(StorageReader):
    def read_data(self, plan, planner):
        count("l")
        return super().read_data(plan, planner)


classes = {dcp.FileSystemWriter: FileSystemWriter, dcp.FileSystemReader: FileSystemReader}
for name, module in list(sys.modules.items()):
    if name.startswith("torch.distributed.checkpoint"):
        for old, new in classes.items():
            if getattr(module, old.__name__, None) is old:
                setattr(module, old.__name__, new)
'''


def changed(source: str) -> str:
    """Returns a test file that exchanges the classes before its first import."""
    return re.sub(r"^(?=(?:import|from) (?!__future__))", "import exchange_checkpoint_classes\n", source, count=1, flags=re.M)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    found = [name for name in FILES if (folder / name).is_file()]
    if not found:
        print(f"{folder} has none of {', '.join(FILES)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as copy:
        (pathlib.Path(copy) / "exchange_checkpoint_classes.py").write_text(EXCHANGE)
        for name in found:
            (pathlib.Path(copy) / pathlib.Path(name).name).write_text(changed((folder / name).read_text()))
        counts = pathlib.Path(copy) / "counts"
        counts.touch()
        left_out = ["-k", " and ".join(f"not {name}" for name in LEFT_OUT)] if LEFT_OUT else []
        environment = os.environ | {"GPUFILE_TEST_COUNTS": str(counts), "PYTHONPATH": copy}
        files = [pathlib.Path(name).name for name in found]
        command = [sys.executable, "-m", "pytest", "--quiet", "-rs", *left_out, *sys.argv[2:], *files]
        status = subprocess.run(command, cwd=copy, env=environment).returncode
        done = counts.read_text()
        print(f"gpufile saved {done.count('s')} times and loaded {done.count('l')} times, counted by rank")
    missing = [name for name in FILES if name not in found]
    if missing:
        print(f"not there, and left out: {', '.join(missing)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
