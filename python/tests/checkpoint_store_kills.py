"""Kills saves of two ranks to three stores at random moments, and looks at what is left.

    python checkpoint_store_kills.py FOLDER KILLS

A kill ends one rank or both, and the rest of the ranks soon after, as a launcher does. Prints how many kills left the old
checkpoint, and how many the new one.
"""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from conftest import store_options
from gpufile._gpufile import RemoteFolder
from gpufile.torch import StorageReader, StorageWriter

RANKS = 2
#: The long ones need two parts.
SIZES = [2_500_000, 70_001, 5, 2_500_003] + [17] * 50

#: Prints the addresses of servers, which have no thread in the processes that fork.
SERVERS = """
import sys
import conftest
servers = [conftest.Server() for _ in range(3)]
print(*[server.url for server in servers], flush=True)
sys.stdin.read()
"""


def state(generation):
    return {str(number): torch.full((size,), float(generation)) for number, size in enumerate(SIZES)}


class Store:
    """A folder of a store, with its checkpoint's possible generations, and the seconds of the last whole save."""

    def __init__(self, scheme, url):
        self.address, self.options = f"{scheme}://bucket/c", store_options(url)[scheme]
        self.generations, self.seconds = {-1}, 0.0

    def start(self, generation, group):
        """Starts the ranks of a save. Returns their numbers when they have begun."""
        reader, writer = os.pipe()
        ranks = []
        for rank in range(RANKS):
            process = os.fork()
            if process == 0:
                status = 1
                try:
                    dist.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=RANKS)
                    dist.barrier()
                    os.write(writer, b"x")
                    dcp.save(state(generation), storage_writer=StorageWriter(self.address, storage_options=self.options))
                    status = 0
                finally:
                    os._exit(status)
            ranks.append(process)
        os.close(writer)
        begun = 0
        while begun < RANKS:
            count = len(os.read(reader, RANKS))
            assert count > 0, "a rank ended"
            begun += count
        os.close(reader)
        return ranks

    def save(self, generation, group):
        """Saves with all ranks."""
        ranks, start = self.start(generation, group), time.perf_counter()
        for rank in ranks:
            assert os.waitpid(rank, 0)[1] == 0
        self.seconds = time.perf_counter() - start
        self.generations = {generation}
        self.check()
        assert self.names() == self.named(), (self.names(), self.named())

    def kill(self, generation, group):
        """Kills a save. Returns whether the checkpoint is the new one."""
        self.generations.add(generation)
        ranks = self.start(generation, group)
        first = random.choice(([0, 1], [1, 0], [0], [1]))
        time.sleep(random.uniform(0, 1.1 * self.seconds))
        for rank in first:
            os.kill(ranks[rank], signal.SIGKILL)
        if len(first) < RANKS:
            time.sleep(random.uniform(0, 0.3 * self.seconds))
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
        for rank in ranks:
            os.waitpid(rank, 0)
        return self.check() == generation

    def check(self):
        """Returns the generation of the checkpoint. It must be a possible one, and whole."""
        made = {str(number): torch.empty(size) for number, size in enumerate(SIZES)}
        dcp.load(made, storage_reader=StorageReader(self.address, storage_options=self.options))
        found = int(made["0"][0])
        assert found in self.generations, (found, self.generations)
        for name, tensor in made.items():
            assert torch.equal(tensor, torch.full_like(tensor, float(found))), name
        return found

    def names(self):
        return set(self.folder().names())

    def named(self):
        """Returns the names of a checkpoint's objects."""
        with self.folder().open(".metadata") as file:
            content = bytearray(file.size())
            file.read_into(content)
        return {".metadata"} | {stored.relative_path for stored in pickle.loads(content).storage_data.values()}

    def folder(self):
        return RemoteFolder(self.address, storage_options=self.options)


def main():
    folder, kills = sys.argv[1], int(sys.argv[2])
    warnings.simplefilter("ignore")
    # Forked children have none of the threads.
    torch.set_num_threads(1)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])}
    servers = subprocess.Popen(
        [sys.executable, "-c", SERVERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    stores = [Store(scheme, url) for scheme, url in zip(("s3", "az", "gs"), servers.stdout.readline().split(), strict=True)]
    new, with_leftovers, generation = 0, 0, 0

    def group():
        return os.path.join(folder, f"group-{generation}")

    for store in stores:
        for _ in range(2):
            generation += 1
            store.save(generation, group())
    for kill in range(kills):
        store = stores[kill % len(stores)]
        generation += 1
        new += store.kill(generation, group())
        with_leftovers += store.names() != store.named()
        # The next save removes the leftovers, now and then after several kills.
        if kill // len(stores) % 3:
            generation += 1
            store.save(generation, group())
    for store in stores:
        generation += 1
        store.save(generation, group())
    servers.stdin.close()
    servers.wait()
    print(f"old {kills - new}\nnew {new}\nleftovers {with_leftovers}")


if __name__ == "__main__":
    main()
