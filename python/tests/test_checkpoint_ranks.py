"""`gpufile.torch.StorageWriter` and `StorageReader` with several ranks, and killed saves."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch.distributed.checkpoint")
pytest.importorskip("gpufile._checkpoint", exc_type=ImportError)

TESTS = pathlib.Path(__file__).parent
RANKS = 4
BOTH_WAYS = [("ours", "ours"), ("ours", "torch"), ("torch", "ours")]


class Processes:
    """The ranks, which wait for cases."""

    def __init__(self, folder, ranks=RANKS, **environment):
        self.log = open(folder / "log", "w+")
        command = [sys.executable, TESTS / "checkpoint_rank.py"]
        self.ranks = [
            subprocess.Popen(
                [*command, str(rank), str(ranks), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log,
                text=True,
                env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
            )
            for rank in range(ranks)
        ]

    def run(self, *case):
        for rank in self.ranks:
            if rank.poll() is not None:
                pytest.fail("a rank died in an earlier case")
            rank.stdin.write(" ".join(map(str, case)) + "\n")
            rank.stdin.flush()
        answers = [rank.stdout.readline() for rank in self.ranks]
        if answers != ["done\n"] * len(self.ranks):
            self.close()
            self.log.seek(0)
            pytest.fail(self.log.read())

    def close(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdin.close()
            rank.stdout.close()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    processes = Processes(tmp_path_factory.mktemp("ranks"))
    yield processes
    processes.close()


@pytest.mark.parametrize("saved, loaded", [(2, 1), (1, 4), (3, 2), (4, 4)])
@pytest.mark.parametrize("writer, reader", BOTH_WAYS)
def test_tensors_are_resharded(processes, tmp_path, saved, loaded, writer, reader):
    processes.run("reshard", tmp_path / "c", saved, loaded, writer, reader)


@pytest.mark.parametrize("saved, loaded", [(2, 1), (1, 4), (3, 2)])
def test_ranks_read_only_their_share(processes, tmp_path, saved, loaded):
    processes.run("share", tmp_path, saved, loaded)


@pytest.mark.parametrize("writer, reader", BOTH_WAYS)
@pytest.mark.parametrize(
    "saved, loaded",
    [((2, "fsdp"), (4, "fsdp")), ((3, "fsdp"), (2, "tp")), ((2, "tp"), (3, "fsdp")), ((2, "tp"), (1, "plain"))],
)
def test_models_of_fsdp_and_tensor_parallelism_are_resharded(processes, tmp_path, saved, loaded, writer, reader):
    processes.run("models", tmp_path / "c", *saved, *loaded, writer, reader)


@pytest.mark.parametrize("snapshot", ["device", "host"])
def test_asynchronous_saves_of_ranks(processes, tmp_path, snapshot):
    processes.run("asynchronous", tmp_path / "c", 3, snapshot)


def test_a_failed_rank_keeps_the_old_checkpoint(processes, tmp_path):
    processes.run("failing", tmp_path / "c", 3)


def test_killed_saves_leave_the_old_or_the_new_checkpoint(tmp_path):
    """Kills saves at random moments: as many as GPUFILE_TEST_KILLS says, or 20."""
    kills = os.environ.get("GPUFILE_TEST_KILLS", "20")
    command = [sys.executable, TESTS / "checkpoint_kills.py", tmp_path / "c", kills]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert run.returncode == 0, run.stdout + run.stderr
    # Both outcomes were seen.
    counts = dict(line.split() for line in run.stdout.splitlines())
    assert int(counts["old"]) > 0 and int(counts["old"]) + int(counts["new"]) == int(kills)
