"""Packages that use safetensors work the same with gpufile in its place. `.ci/dependents` runs these tests."""

import argparse
import json
import math
import os
import socket
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



def test_ranks_of_accelerate_launch_load_with_the_variable(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import accelerate, sys, safetensors.torch\n"
        "state = accelerate.PartialState(cpu=True)\n"
        "loads = safetensors.torch.load_file.__code__.co_filename\n"
        "open(f'{sys.argv[1]}/{state.process_index}', 'w').write(f'{state.num_processes} {\"gpufile\" in loads}')\n"
    )
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    launch += ["--dynamo_backend", "no", "--main_process_port", "0"]
    ways = [([], {}, False), ([], {"GPUFILE_INSTALL": "1"}, True), (["-m", "gpufile", "run"], {}, True)]
    for number, (before, variables, is_ours) in enumerate(ways):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = [sys.executable, *before, *launch, str(program), str(folder)]
        run = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        assert {path.name: path.read_text() for path in folder.iterdir()} == {rank: f"2 {is_ours}" for rank in "01"}


BENCHES = os.path.join(os.path.dirname(__file__), os.pardir, "benches")
# Loads the models of all programs, and prints for each a digest, the classes of its tensors, and the number of reads that took the
# place of a copy to a GPU. The host stands for the GPU.
PROGRAMS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pathlib, programs, torch
reads = []
if sys.argv[3] == "gpufile":
    import gpufile.safetensors as gs
    from gpufile.safetensors import _moves
    gs.install()
    _moves.is_read_to = lambda device: device.type == "cpu"
    read = _moves.MovingSlice._read_to
    _moves.MovingSlice._read_to = lambda *arguments: reads.append(arguments) or read(*arguments)
place = programs.Place(pathlib.Path(sys.argv[2]), "cpu", True)
for name in sys.argv[4:] or programs.PROGRAMS:
    program = programs.PROGRAMS[name]
    if name == "transformers-fp8":
        continue  # transformers wants a GPU
    if not (place.folder / program.model).exists():
        programs.MAKERS[program.model](place, place.of(program.model))
    reads.clear()
    model, forward = program.load(place)
    count = len(reads)
    tensors = [*model.parameters(), *model.buffers()]
    classes = sorted({type(tensor).__name__ for tensor in tensors} | {key for tensor in tensors for key in vars(tensor)})
    sums = programs.digest(model.state_dict() | {"returned": forward()})
    print("program", json.dumps([name, sums, classes, count]), flush=True)
"""


def started(folder, mode, *programs, **variables):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", **variables}
    arguments = [sys.executable, "-c", PROGRAMS, BENCHES, str(folder), mode, *programs]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    """Returns digests and classes by the program, and numbers of reads by the program."""
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    lines = [json.loads(line.removeprefix("program ")) for line in output.splitlines() if line.startswith("program ")]
    return {line[0]: line[1:3] for line in lines}, {line[0]: line[3] for line in lines}


def test_programs_load_the_same_bits_by_reads(tmp_path):
    (theirs, _), (ours, reads) = (ended(started(tmp_path, mode)) for mode in ("plain", "gpufile"))
    assert ours == theirs and "transformers" in ours
    # They move each tensor once. The others load to a device, or hand tensors of the host to PyTorch.
    moving = {name for name in reads if name.startswith(("transformers", "diffusers", "sentence"))}
    assert {name for name, count in reads.items() if count} == moving


def test_ranks_load_the_same_shards_by_reads(tmp_path):
    def loaded(mode):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = str(free.getsockname()[1])
        ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        name = "transformers-tensor-parallel"
        processes = [
            started(tmp_path, mode, name, RANK=rank, LOCAL_RANK=rank, **ranks) for rank in ("0", "1")
        ]
        return [(sums[name], reads[name]) for sums, reads in map(ended, processes)]

    ended(started(tmp_path, "plain", "transformers"))
    theirs, ours = loaded("plain"), loaded("gpufile")
    assert [sums for sums, _ in ours] == [sums for sums, _ in theirs] and ours[0][0] != ours[1][0]
    assert all(count for _, count in ours)


def test_the_bench_compares_programs(tmp_path):
    arguments = [sys.executable, os.path.join(BENCHES, "compare_programs.py"), str(tmp_path), "--device", "cpu", "--small"]
    arguments += ["--programs", "transformers,load-state-dict", "--rounds", "1", "--forked", "--json", str(tmp_path / "json")]
    arguments += ["--budget", "1000"]
    run = subprocess.run(arguments, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = [line.split() for line in run.stdout.splitlines()]
    assert [(row[0], row[-1]) for row in rows if row[1:2] == ["1"]] == [("transformers", "equal"), ("load-state-dict", "equal")]
    lines = json.loads((tmp_path / "json").read_text())
    assert [line["mode"] for line in lines] == ["plain", "gpufile"] * 2 and all(line["start"] > line["first"] for line in lines)


@pytest.mark.parametrize("seconds, expected", [(100, "abab"), (10, "ab"), (14, "aba"), (3.5, "ab"), (2, "a"), (0, "")])
def test_turns_of_the_bench_end_within_a_budget(monkeypatch, seconds, expected):
    monkeypatch.syspath_prepend(BENCHES)
    import programs

    clock, lengths = [50.0], {"a": 3, "b": 5}
    monkeypatch.setattr(programs.time, "monotonic", lambda: clock[0])
    found = []
    for name, number, modes in programs.turns(["a", "b"], 2, seconds):
        found.append(name)
        clock[0] += lengths[name]
        assert modes == (("plain", "gpufile"), ("gpufile", "plain"))[number]
    assert "".join(found) == expected


def test_processes_of_the_bench_end_after_its_budget(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHES)
    import compare_programs as bench

    limits = []
    monkeypatch.setattr(bench, "execute", lambda arguments, results, timeout, whose: limits.append(timeout))
    place = {"folder": tmp_path, "device": "cpu", "small": True, "python": sys.executable}
    options = argparse.Namespace(**place, rounds=2, timeout=300.0, budget=50.0, forked=True, cold=False)
    bench.measure(options, ["peft"], bench.Results())
    assert len(limits) == 2 and all(70 < limit <= 80 for limit in limits)
    options.budget = math.inf
    bench.measure(options, ["peft"], bench.Results())
    assert limits[2:] == [300, 1200]
