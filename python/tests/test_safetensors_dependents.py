"""Packages that use safetensors work the same with gpufile in its place. `.ci/dependents` runs these tests."""

import json
import os
import subprocess
import sys

import pytest

for package in ("torch", "safetensors", "transformers", "accelerate", "diffusers", "peft", "sentence_transformers"):
    pytest.importorskip(package)

PROGRAM = os.path.join(os.path.dirname(__file__), "dependents.py")
CASES = [
    "transformers_whole", "transformers_sharded_bf16", "transformers_tied_device_map", "transformers_converted_device_map",
    "peft_adapter", "accelerate_sharded_fp8", "diffusers_sharded", "sentence_transformers_pooled",
]  # fmt: skip


def run(*arguments):
    # By default, the allocator keeps freed memory or not, depending on what was freed before.
    allocator = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_ENABLE_PARALLEL_LOADING": "0", **allocator}
    run = subprocess.run([sys.executable, PROGRAM, *arguments], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize("case", CASES)
def test_packages_load_and_save_the_same_bits(case, tmp_path):
    folder = str(tmp_path / "model")
    run("make", case, folder)
    theirs, *ours = [json.loads(run(mode, case, folder)[-1]) for mode in ("theirs", "before", "after", "read")]
    print(case, theirs["peak_bytes"], [one["peak_bytes"] for one in ours])
    for one in ours:
        assert (one["loaded"], one["saved"]) == (theirs["loaded"], theirs["saved"])
    assert max(one["peak_bytes"] for one in ours) <= 1.05 * theirs["peak_bytes"] + (16 << 20)
