"""One rank of the processes that `test_checkpoint_ranks.py` starts: saves and loads with other numbers of ranks.

    python checkpoint_rank.py RANK RANKS FOLDER

The case of each line on the standard input runs on all ranks, and each prints `done`.
"""

import os
import sys
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gpufile
from gpufile._gpufile import RemoteFolder
from gpufile.torch import StorageReader, StorageWriter

WRITERS = {"ours": StorageWriter, "torch": dcp.FileSystemWriter}
READERS = {"ours": StorageReader, "torch": dcp.FileSystemReader}

#: Shapes, types and the dimension that is divided. The ranks' parts differ in size.
TENSORS = {
    "rows": ((1031, 67), torch.float32, 0),
    "columns": ((67, 10_007), torch.float32, 1),
    "narrow": ((501, 13), torch.bfloat16, 1),
    "deep": ((5, 301, 7), torch.float64, 1),
    "few": ((2, 3), torch.int64, 0),
    "all": ((129,), torch.float16, None),
}


class Ranks:
    """The meshes of the first ranks."""

    def __init__(self, rank, ranks):
        self.rank = rank
        self.groups = {count: dist.new_group(range(count)) for count in range(1, ranks + 1)}
        self.meshes = {}
        for count, group in self.groups.items():
            if rank < count:
                self.meshes[count] = DeviceMesh.from_group(group, "cpu", mesh=torch.arange(count))


def full(name):
    shape, dtype, _ = TENSORS[name]
    generator = torch.Generator().manual_seed(len(name))
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


def listed(folder):
    """Returns the names in a folder, also in one of a store."""
    return RemoteFolder(folder).names() if "://" in folder else os.listdir(folder)


def placements(name):
    axis = TENSORS[name][2]
    return [Replicate() if axis is None else Shard(axis)]


def reshard(ranks, folder, saved, loaded, writer, reader):
    """Saves from some ranks, and loads into others."""
    if ranks.rank < saved:
        state = {name: distribute_tensor(full(name), ranks.meshes[saved], placements(name)) for name in TENSORS}
        state["step"] = 17
        dcp.save(state, storage_writer=WRITERS[writer](folder), process_group=ranks.groups[saved])
    dist.barrier()
    if ranks.rank < loaded:
        mesh = ranks.meshes[loaded]
        state = {}
        for name, (shape, dtype, _) in TENSORS.items():
            state[name] = zeros(*shape, dtype=dtype, device_mesh=mesh, placements=placements(name))
        state["step"] = 0
        dcp.load(state, storage_reader=READERS[reader](folder), process_group=ranks.groups[loaded])
        for name in TENSORS:
            assert torch.equal(state[name].full_tensor(), full(name)), name
        assert state["step"] == 17


def share(ranks, folder, saved, loaded):
    """Compares the bytes that a rank reads with its share."""
    for axis, shape in [(0, (4099, 601)), (1, (151, 65_536))]:
        values = torch.arange(shape[0] * shape[1], dtype=torch.float32).reshape(shape)
        path = os.path.join(folder, str(axis))
        if ranks.rank < saved:
            state = {"t": distribute_tensor(values, ranks.meshes[saved], [Shard(axis)])}
            dcp.save(state, storage_writer=StorageWriter(path), process_group=ranks.groups[saved])
        dist.barrier()
        if ranks.rank < loaded:
            state = {"t": zeros(*shape, device_mesh=ranks.meshes[loaded], placements=[Shard(axis)])}
            engine = gpufile.Engine()
            dcp.load(state, storage_reader=StorageReader(path, engine=engine), process_group=ranks.groups[loaded])
            read = sum(of["read_bytes"] for of in engine.stats().values() if isinstance(of, dict) and "read_bytes" in of)
            local = state["t"].to_local()
            assert local.nbytes <= read <= 1.05 * local.nbytes, (read, local.nbytes)
            assert torch.equal(state["t"].full_tensor(), values)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(37, 130)
        self.down = torch.nn.Linear(130, 21, bias=False)

    def forward(self, values):
        return self.down(torch.relu(self.up(values)))


def model_of(kind, mesh):
    """Returns a model with an optimizer that has a state."""
    torch.manual_seed(5)
    model = Model()
    if kind == "fsdp":
        fully_shard(model, mesh=mesh)
    elif kind == "tp":
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    torch.manual_seed(6)
    model(torch.randn(9, 37)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def whole(state):
    """Returns the tensors of a nested state dict, those of all ranks put together."""
    found = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": item for inner, item in whole(value).items()}
        elif isinstance(value, torch.Tensor):
            found[name] = value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
    return found


def models(ranks, folder, saved, saved_kind, loaded, loaded_kind, writer, reader):
    """Saves a model and its optimizer from some ranks, and loads them into others."""
    expected = None
    if ranks.rank < saved:
        model, optimizer = model_of(saved_kind, ranks.meshes[saved])
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.save(state, storage_writer=WRITERS[writer](folder), process_group=ranks.groups[saved])
        expected = whole(state)
    dist.barrier()
    # Rank 0 is in all meshes, and knows what was saved.
    if ranks.rank < loaded:
        model, optimizer = model_of(loaded_kind, ranks.meshes[loaded])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.load(state, storage_reader=READERS[reader](folder), process_group=ranks.groups[loaded])
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        found = whole(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer))))
        if ranks.rank == 0:
            assert found.keys() == expected.keys() and len(found) > 9, (found.keys(), expected.keys())
            for name, tensor in expected.items():
                assert torch.equal(found[name], tensor), name


def asynchronous(ranks, folder, count, snapshot):
    """Saves asynchronously, while the tensors change."""
    if ranks.rank >= count:
        return
    mesh, writer = ranks.meshes[count], StorageWriter(folder, snapshot=snapshot)
    for round in range(3):
        state = {name: distribute_tensor(full(name), mesh, placements(name)) for name in TENSORS}
        state["round"] = round
        saved = dcp.async_save(state, storage_writer=writer, process_group=ranks.groups[count])
        for name in TENSORS:
            state[name].to_local().zero_()
        saved.result()
        made = {name: zeros(*TENSORS[name][0], dtype=TENSORS[name][1], device_mesh=mesh, placements=placements(name)) for name in TENSORS}
        made["round"] = None
        reader = StorageReader if "://" in folder else dcp.FileSystemReader
        dcp.load(made, storage_reader=reader(folder), process_group=ranks.groups[count])
        assert all(torch.equal(made[name].full_tensor(), full(name)) for name in TENSORS)
        assert made["round"] == round
    if ranks.rank == 0:
        assert len(listed(folder)) == 1 + count, listed(folder)


def failing(ranks, folder, count):
    """Fails on one rank. The old checkpoint stays on all."""
    if ranks.rank >= count:
        return
    group, mesh = ranks.groups[count], ranks.meshes[count]
    state = {"rows": distribute_tensor(full("rows"), mesh, placements("rows"))}
    dcp.save(state, storage_writer=StorageWriter(folder), process_group=group)
    writer = StorageWriter(folder)
    if ranks.rank == 1:
        writer._place = lambda *_: (_ for _ in ()).throw(OSError("rank 1 fails"))
    state["rows"] = state["rows"] + 1
    try:
        dcp.save(state, storage_writer=writer, process_group=group)
        raise AssertionError("the save did not fail")
    except dcp.CheckpointException as error:
        assert "rank 1 fails" in str(error)
    made = {"rows": zeros(*TENSORS["rows"][0], device_mesh=mesh, placements=placements("rows"))}
    dcp.load(made, storage_reader=StorageReader(folder), process_group=group)
    assert torch.equal(made["rows"].full_tensor(), full("rows"))
    dist.barrier(group)
    dcp.save(state, storage_writer=StorageWriter(folder), process_group=group)
    if ranks.rank == 0:
        assert len(listed(folder)) == 1 + count, listed(folder)


CASES = {case.__name__: case for case in (reshard, share, models, asynchronous, failing)}


def main():
    rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    ranks = Ranks(rank, count)
    for line in sys.stdin:
        name, path, *arguments = line.split()
        try:
            CASES[name](ranks, path, *(int(text) if text.isdigit() else text for text in arguments))
        except BaseException:
            traceback.print_exc()
            # The others wait for this rank.
            os._exit(1)
        dist.barrier()
        print("done", flush=True)


if __name__ == "__main__":
    main()
