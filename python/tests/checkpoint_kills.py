"""Kills saves of checkpoints at random moments, and looks at what is left.

    python checkpoint_kills.py FOLDER KILLS

Each save runs in a forked process. Prints how many kills left the old checkpoint, and how many the new one.
"""

import os
import pickle
import random
import signal
import sys
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp

from gpufile.torch import StorageReader, StorageWriter

SIZES = [300_000, 70_001, 5, 1_000_003] + [17] * 50


def state(generation):
    return {str(number): torch.full((size,), float(generation)) for number, size in enumerate(SIZES)}


def save(folder, generation):
    """Starts a process that saves, and returns its number."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            dcp.save(state(generation), storage_writer=StorageWriter(folder))
            status = 0
        finally:
            os._exit(status)
    return process


def check(folder, *generations):
    """Returns the generation in the folder. It must be one of these, and whole."""
    made = {str(number): torch.empty(size) for number, size in enumerate(SIZES)}
    dcp.load(made, storage_reader=StorageReader(folder))
    found = int(made["0"][0])
    assert found in generations, (found, generations)
    for name, tensor in made.items():
        assert torch.equal(tensor, torch.full_like(tensor, float(found))), name
    return found


def names(folder):
    with open(os.path.join(folder, ".metadata"), "rb") as file:
        metadata = pickle.load(file)
    return {".metadata"} | {stored.relative_path for stored in metadata.storage_data.values()}


def main():
    folder, kills = sys.argv[1], int(sys.argv[2])
    warnings.simplefilter("ignore")
    # Forked children have none of the threads.
    torch.set_num_threads(1)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert os.waitpid(save(folder, 0), 0)[1] == 0
        seconds.append(time.perf_counter() - start)
    now, old, new, with_leftovers = 0, 0, 0, 0
    for kill in range(kills):
        process = save(folder, now + 1)
        time.sleep(random.uniform(0, 1.1 * max(seconds)))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        with_leftovers += set(os.listdir(folder)) != names(folder)
        found = check(folder, now, now + 1)
        old, new = old + (found == now), new + (found != now)
        # The next save removes the leftovers, now and then after several kills.
        now += 1
        if kill % 3 or kill == kills - 1:
            assert os.waitpid(save(folder, now), 0)[1] == 0
            assert check(folder, now) == now
            assert set(os.listdir(folder)) == names(folder), os.listdir(folder)
        else:
            now = found
    print(f"old {old}\nnew {new}\nleftovers {with_leftovers}")


if __name__ == "__main__":
    main()
