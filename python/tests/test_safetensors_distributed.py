"""Models loaded by several processes with torch.distributed. The processes run this file."""

import datetime
import os
import pathlib
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
distributed = pytest.importorskip("torch.distributed")

import gpufile.safetensors as gs
from gpufile.safetensors import Placement, Share, _convert, _distributed, _placed
from gpufile.safetensors.torch import load_distributed, save_file

SHAPES = [(), (0,), (1,), (3, 0, 5), (7,), (5, 3), (1, 9), (2, 3, 4, 6), (1023, 3), (4, 20_001)]
SHARES = [Share.balanced(), Share.on(0), Share.all(), Share.slice(0), Share.slice(1, "chunks"), Share.all()]


def mixed(name, dtype, shape):
    """Gives the tensors shares of all kinds."""
    share = SHARES[sum(map(ord, name)) % len(SHARES)]
    return share if share.kind != "slice" or share.axis < len(shape) else Share.all()


PLACEMENTS = [Placement.by(mixed), Placement.all(), Placement.balanced(), Placement.by(lambda *_: Share.on(0))]


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with a model of two files."""
    generator = torch.Generator().manual_seed(1)
    (tmp_path / "model").mkdir()
    for file in range(2):
        tensors = {
            f"{file}.{number}.{dtype}": torch.randint(0, 99, shape, generator=generator).to(dtype)
            for number, shape in enumerate(SHAPES)
            for dtype in (torch.uint8, torch.bfloat16, torch.float64)
        }
        save_file(tensors, tmp_path / "model" / f"{file}.safetensors", sync=False)
    return tmp_path


def run(scenario, folder, count, limit=60):
    """Runs a scenario by as many processes, and returns their exit codes and what they printed."""
    command = [sys.executable, __file__, scenario, str(folder), str(count)]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(count)
    ]
    try:
        texts = [rank.communicate(timeout=limit)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [rank.returncode for rank in ranks], texts


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranks_load_what_one_process_loads(folder, count):
    codes, texts = run("loads", folder, count)
    assert codes == [0] * count, "\n".join(texts)


def test_ranks_load_to_their_gpus(folder):
    count = torch.cuda.device_count()
    if os.environ.get("GPUFILE_TEST_EMULATOR") or count < 2:
        pytest.skip("there are emulated GPUs, or torch has fewer than two")
    for scenario in ("loads", "failures", "lasts"):
        codes, texts = run(f"{scenario}-nccl", folder, count, 300)
        assert codes == [0] * count, "\n".join(texts)


@pytest.mark.parametrize("count", [2, 3])
def test_failures_of_one_rank_end_all(folder, count):
    codes, texts = run("failures", folder, count)
    assert codes == [0] * count, "\n".join(texts)


@pytest.mark.parametrize("count", [2, 3])
def test_last_gatherings_tell_of_failures(folder, count):
    codes, texts = run("lasts", folder, count)
    assert codes == [0] * count, "\n".join(texts)


@pytest.mark.parametrize("scenario", ["killed-at-start", "killed-while-loading"])
def test_killed_ranks_end_the_others(folder, scenario):
    start = time.monotonic()
    codes, texts = run(scenario, folder, 3)
    assert codes == [0, 9, 0], "\n".join(texts)
    assert all("RuntimeError" in texts[rank] for rank in (0, 2)), texts
    assert time.monotonic() - start < 50


# The functions below run in the processes.


def files_of(folder):
    return sorted((folder / "model").iterdir())


def same(one, other):
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype and torch.equal(tensor.cpu(), other[name]), name
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, name


def loads(folder, rank, count):
    """Compares each rank's tensors with those of a load by one process, again and again."""
    for step, budget in [(128 << 20, None), (8192, None), (4096, 50_000)]:
        _placed.STEP_BYTES = step
        for placement in PLACEMENTS:
            expected = gs.load_model(files_of(folder), ["cpu"] * count, placement=placement)[rank]
            seen = []
            loaded = load_distributed(
                files_of(folder), placement, memory_budget=budget, progress=lambda *step: seen.append(step)
            )
            same(loaded, expected)
            assert not expected or seen[-1][0] == seen[-1][1] >= sum(t.nbytes for t in loaded.values())
    names = ["0.4.torch.uint8", "1.9.torch.float64"]
    loaded = load_distributed(folder / "model" / "0.safetensors", Placement.all(), only=names[:1])
    assert list(loaded) == names[:1]
    # Another type, of whole and of cut tensors, and of those that all ranks get from one.
    for placement in PLACEMENTS:
        for piece_bytes in (8 << 20, 4096):
            _convert.PIECE_BYTES = piece_bytes
            seen = []
            loaded = load_distributed(
                files_of(folder), placement, dtype="float32", progress=lambda *step: seen.append(step)
            )
            parts = gs.load_model(files_of(folder), ["cpu"] * count, placement=placement, dtype=torch.float32)
            same(loaded, parts[rank])
            assert all(t.dtype in (torch.float32, torch.uint8) for t in loaded.values())
            assert not loaded or seen[-1][0] == seen[-1][1]
    # A part of the processes is a group, too.
    group = distributed.new_group([count - 1])
    if rank == count - 1:
        assert len(load_distributed(files_of(folder), Placement.all(), group=group)) == 60
        loaded = load_distributed(files_of(folder), Placement.all(), group=group, dtype="float16")
        same(loaded, gs.load_model(files_of(folder), dtype="float16"))
    else:
        with pytest.raises(ValueError, match="does not belong to the group"):
            load_distributed(files_of(folder), Placement.all(), group=group)


def failures(folder, rank, count):
    """Lets the last rank fail in several ways. Each load after a failure is right."""
    _placed.STEP_BYTES = 8192
    is_last = rank == count - 1
    broken = folder / f"broken-{rank}"
    whole = files_of(folder)[0]

    def fails(error, text, placement=Placement.all(), path=whole, **options):
        expected, found = (error, text) if is_last else (RuntimeError, f"rank {count - 1} of the group failed.*{text}")
        with pytest.raises(expected, match=f"(?s){found}"):
            load_distributed(path, placement, **options)
        same(load_distributed(whole, Placement.all()), gs.load_file(whole))

    # A file that is too short for its header, one that is missing, and one that gets short during the load.
    broken.write_bytes(whole.read_bytes()[: -5 if is_last else None])
    fails(gs.SafetensorError, "incomplete|bytes", path=broken)
    fails(FileNotFoundError, "nothing", path=folder / "nothing" if is_last else whole)
    opened = _distributed.open_checkpoint

    def shorten(path, storage_options):
        checkpoint = opened(path, storage_options)
        os.truncate(path, 300_000)
        return checkpoint

    for placement in PLACEMENTS[:2]:
        broken.write_bytes(whole.read_bytes())
        if is_last:
            _distributed.open_checkpoint = shorten
            with pytest.raises(OSError, match="broken"):
                load_distributed(broken, placement)
            _distributed.open_checkpoint = opened
        else:
            with pytest.raises(RuntimeError, match=f"rank {count - 1} of the group failed"):
                load_distributed(broken, placement)
        same(load_distributed(whole, placement), gs.load_model(whole, ["cpu"] * count, placement=placement)[rank])

    def stop(done, total):
        raise KeyboardInterrupt("stop")

    fails(KeyboardInterrupt, "stop", progress=stop if is_last else False)
    wrong = Placement.by(lambda *_: Share.on(count))
    fails(ValueError, "cannot place it on device", wrong if is_last else Placement.all())
    fails(ValueError, "not meta", device="meta" if is_last else None)
    fails(gs.SafetensorError, "is invalid", device="nothing" if is_last else None)
    fails((AssertionError, RuntimeError), "", device="cuda:63" if is_last else None)
    # No memory.
    allocate = _distributed._torch.Framework.allocate

    def refuse(framework, len_bytes):
        raise MemoryError("no memory")

    if is_last:
        _distributed._torch.Framework.allocate = refuse
        with pytest.raises(MemoryError):
            load_distributed(whole, Placement.all())
        _distributed._torch.Framework.allocate = allocate
    else:
        with pytest.raises(RuntimeError, match="no memory"):
            load_distributed(whole, Placement.all())
    # A conversion that fails in the middle, and one of another type.
    put = _distributed._torch.Framework.put

    def fail(framework, tensor):
        if is_last and tensor.numel() == 80_004:
            raise MemoryError("no memory")
        return put(framework, tensor)

    _distributed._torch.Framework.put = fail
    for placement in PLACEMENTS[1:2] + [Placement.by(lambda *_: Share.on(count - 1))]:
        with pytest.raises(MemoryError if is_last else RuntimeError, match="no memory"):
            load_distributed(files_of(folder), placement, dtype="float32")
    _distributed._torch.Framework.put = put
    with pytest.raises(RuntimeError, match="passed another model, placement or memory budget"):
        load_distributed(whole, Placement.all(), dtype="float32" if is_last else "float16")
    same(load_distributed(whole, Placement.all(), dtype="float16"), gs.load_file(whole, dtype="float16"))
    # Ranks that do not load the same.
    with pytest.raises(RuntimeError, match=f"rank {count - 1} passed another model, placement or memory budget"):
        load_distributed(whole, Placement.all(), only=["0.4.torch.uint8"] if is_last else None)
    same(load_distributed(whole, Placement.all()), gs.load_file(whole))


def lasts(folder, rank, count):
    """Lets the last rank fail in its last read and after it, and counts the exchanges."""
    _placed.STEP_BYTES = 8192
    whole, is_last, exchanges = files_of(folder)[0], rank == count - 1, []
    gather, wait = distributed.all_gather_object, _distributed._Share.wait

    def count_exchange(*arguments, **options):
        exchanges.append(arguments)
        gather(*arguments, **options)

    def fail_at_the_end(share):
        len_bytes = wait(share)
        if not share._readings:
            raise OSError("the last read")
        return len_bytes

    def stop(done, total):
        if done == total:
            raise KeyboardInterrupt("stop")

    def loads_right(placement, expected_exchanges):
        exchanges.clear()
        same(load_distributed(whole, placement), gs.load_model(whole, ["cpu"] * count, placement=placement)[rank])
        assert len(exchanges) == expected_exchanges

    distributed.all_gather_object = count_exchange
    one_more = Placement.by(lambda name, *_: Share.on(0) if name == "0.9.torch.uint8" else Share.all())
    for placement, expected_exchanges in [(Placement.all(), 1), (one_more, 2), (PLACEMENTS[3], 2)]:
        loads_right(placement, expected_exchanges)
    if is_last:
        _distributed._Share.wait = fail_at_the_end
    with pytest.raises(OSError if is_last else RuntimeError, match="the last read"):
        load_distributed(whole, Placement.all())
    _distributed._Share.wait = wait
    loads_right(Placement.all(), 1)
    if is_last:
        with pytest.raises(KeyboardInterrupt, match="stop"):
            load_distributed(whole, Placement.all(), progress=stop)
    else:
        loads_right(Placement.all(), 1)
    loads_right(Placement.all(), 1)


def killed(folder, rank, progress):
    """Loses rank 1."""
    _placed.STEP_BYTES = 4096
    distributed.barrier()
    with pytest.raises(Exception) as caught:
        if rank == 1 and progress is None:
            os._exit(9)
        load_distributed(files_of(folder), Placement.all(), progress=progress if rank == 1 else False)
    print(repr(caught.value))


def main():
    folder, count, rank = pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    scenario = sys.argv[1].removesuffix("-nccl")
    backend = "gloo" if scenario == sys.argv[1] else "nccl"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    distributed.init_process_group(
        backend,
        init_method=f"file://{folder}/{sys.argv[1]}",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=15),
    )
    if scenario == "loads":
        loads(folder, rank, count)
    elif scenario == "failures":
        failures(folder, rank, count)
    elif scenario == "lasts":
        lasts(folder, rank, count)
    else:
        killed(folder, rank, None if scenario == "killed-at-start" else lambda done, total: os._exit(9))
    if scenario.startswith("killed"):
        # Those that are left wait for nobody.
        os._exit(0)
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8):
        # Ending a group holds Python's lock, which gloo's own thread may wait for (pytorch/pytorch#154976).
        distributed.barrier()
        os._exit(0)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
