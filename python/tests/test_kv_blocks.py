"""Stores of KV blocks: bytes, outcomes, keys, memory in use, readers, and ends of processes."""

import array
import asyncio
import concurrent.futures
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

np = pytest.importorskip("numpy")

import gpufile
from gpufile.kv_blocks import BlockReader, BlockStore, Outcome, Region, prefix_keys

PAGE = 4096
LAYERS = 4
BLOCK = LAYERS * PAGE
OK, MISSING = Outcome.OK, Outcome.MISSING


class Cache:
    """The paged memory of a KV cache: a buffer and a region for each layer, of the host or of a GPU."""

    def __init__(self, new, pages, page=PAGE, layers=LAYERS):
        self.page, self.pages = page, pages
        self.buffers = [new(os.urandom(pages * page)) for _ in range(layers)]
        self.regions = [Region(buffer) for buffer in self.buffers]

    def block(self, number):
        """Returns the bytes of a page in all layers."""
        return b"".join(bytes_of(buffer)[number * self.page :][: self.page] for buffer in self.buffers)

    def at(self, *numbers):
        """Returns the arguments of a call for the blocks in these pages."""
        return self.regions, [number * self.page for number in numbers], self.page


def bytes_of(buffer):
    return buffer.get() if hasattr(buffer, "get") else bytes(buffer)


@pytest.fixture(params=["host", "gpu"])
def new(request, device_array):
    """Returns a function that makes a buffer of some bytes."""
    return bytearray if request.param == "host" else lambda content: device_array(len(content)).set(content)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def gpu_cache(device_array):
    return Cache(lambda content: device_array(len(content)).set(content), 8)


def host_cache(pages=8):
    return Cache(bytearray, pages)


def eventually(holds):
    """Waits until something holds, at most 20 seconds."""
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("page", [1, 100, 4096, 5000, 65536, 1 << 20])
@pytest.mark.parametrize("options", [{}, {"checksums": True, "durable": True}], ids=["plain", "checked"])
def test_blocks_come_back_for_many_sizes(folder, new, page, options):
    cache = Cache(new, 7, page, layers=3)
    with BlockStore(folder, 3 * page, limit_bytes=1 << 30, **options) as store:
        expected = [cache.block(number) for number in range(3)]
        assert store.store([10, 11, 12], *cache.at(0, 1, 2)).result() == [OK] * 3
        before = [cache.block(number) for number in range(7)]
        assert store.fetch([12, 10, 77, 11], *cache.at(3, 4, 5, 6)).result() == [OK, OK, MISSING, OK]
        assert [cache.block(number) for number in (4, 6, 3)] == expected
        assert [cache.block(number) for number in (0, 1, 2, 5)] == [*before[:3], before[5]]
        assert store.stats() == {
            "hits": 3, "misses": 1, "evictions": 0, "bytes_stored": 9 * page, "bytes_fetched": 9 * page, "blocks": 3
        }  # fmt: skip


def test_pieces_are_where_the_arguments_say(folder):
    memory, one = bytearray(os.urandom(40_000)), random.Random(5)
    region = Region(memory)
    with BlockStore(folder, 5000) as store:
        # Each piece of each block has its own place and length.
        starts, lens = [9000, 100, 30_000, 20_000, 5000, 15_000], [700, 1, 4299, 10, 90, 900]
        assert store.store([1, 2], region, np.array(starts).reshape(2, 3), np.array(lens)).result() == [OK, OK]
        blocks = [b"".join(memory[start : start + length] for start, length in zip(starts[part], lens[part]))
                  for part in (slice(3), slice(3, 6))]  # fmt: skip
        out = bytearray(10_000)
        target = Region(out)
        assert store.fetch([1, 2], [target], array.array("q", [0, 5000]), [5000, 1000]).result() == [OK, OK]
        assert out[:5000] == blocks[0] and out[5000:6000] == blocks[1]
        # A part of a block.
        for _ in range(30):
            start = one.randrange(4999)
            length = one.randrange(1, 5001 - start)
            assert store.fetch([1], target, [3], length, block_offset=start).result() == [OK]
            assert out[3 : 3 + length] == blocks[0][start : start + length]
        # A region for each piece, and an integer of another type for each.
        others = [bytearray(2000) for _ in range(2)]
        regions = [Region(other) for other in others]
        for offsets in ([7, 9, 40, 990], np.array([7, 9, 40, 990], np.int32), np.array([[7, 9], [40, 990]], np.uint64)):
            assert store.fetch([2, 1], regions, offsets, [30, 970]).result() == [OK, OK]
            assert others[0][7:37] == blocks[1][:30] and others[1][9:979] == blocks[1][30:]
            assert others[0][40:70] == blocks[0][:30] and others[1][990:1960] == blocks[0][30:1000]
            others[0][:], others[1][:] = bytes(2000), bytes(2000)


def test_no_keys_are_no_blocks(folder):
    with BlockStore(folder, BLOCK) as store:
        assert store.store([], Region(bytearray(9)), [], 9).result() == []
        assert (store.contains([]), store.prefix([]), store.remove([]), store.keys()) == ([], 0, 0, [])


def test_keys_are_integers_or_bytes(folder):
    cache, most = host_cache(), (1 << 128) - 1
    with BlockStore(folder, BLOCK) as store:
        assert store.store([0, most, b"\0" * 15 + b"\7"], *cache.at(0, 1, 2)).result() == [OK] * 3
        assert sorted(store.keys()) == [0, 7, most]
        assert store.contains(iter([7, b"\xff" * 16, np.int64(0), 1])) == [True, True, True, False]
        assert (store.prefix([0, 7, 8, most]), store.prefix([8])) == (2, 0)
        assert (store.remove([7, 7, 8]), store.contains([7])) == (1, [False])


def test_prefix_keys_depend_on_all_tokens_before():
    keys = prefix_keys(range(100), 16, "model")
    assert len(set(keys)) == 6 and all(0 <= key < 1 << 128 for key in keys)
    assert prefix_keys([*range(40), 7, *range(41, 100)], 16, b"model")[:3] == [*keys[:2], *prefix_keys([*range(40), 7, *range(41, 48)], 16, "model")[2:]]
    assert not set(prefix_keys([1, *range(1, 100)], 16, "model")) & set(keys)
    assert not set(prefix_keys(range(100), 16, "another")) & set(keys)
    assert prefix_keys(np.arange(96), 16, "model") == keys and prefix_keys(range(15), 16, "model") == []
    for wrong, error in (({"block_tokens": 0}, ValueError), ({"tokens": ["x"]}, TypeError), ({"tokens": [1 << 63]}, OverflowError)):
        with pytest.raises(error):
            prefix_keys(**{"tokens": [1], "block_tokens": 1, "model": ""} | wrong)


def test_threads_share_a_store(folder, new):
    failures = []
    with BlockStore(folder, BLOCK, limit_bytes=1 << 30) as store:

        def use(thread):
            try:
                cache, one = Cache(new, 8), random.Random(thread)
                for number in range(15):
                    keys = [thread << 32 | number << 8 | block for block in range(4)]
                    assert store.store(keys, *cache.at(0, 1, 2, 3)).result() == [OK] * 4
                    order = one.sample(range(4), 4)
                    futures = [store.fetch([keys[block]], *cache.at(4 + block), timeout=60) for block in order]
                    assert [future.result() for future in futures] == [[OK]] * 4
                    assert all(cache.block(block) == cache.block(4 + block) for block in range(4))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=use, args=(thread,)) for thread in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures and len(store.keys()) == 6 * 15 * 4


def test_futures_are_awaited_and_waited_for(folder):
    cache = host_cache()

    async def use(store):
        stored = await asyncio.gather(*(store.store([key], *cache.at(key)) for key in range(4)))
        return stored, await store.fetch([3, 9], *cache.at(4, 5))

    with BlockStore(folder, BLOCK) as store:
        assert asyncio.run(use(store)) == ([[OK]] * 4, [OK, MISSING])
        future, called = store.fetch([1], *cache.at(0)), threading.Event()
        future.add_done_callback(lambda future: future.result() == [OK] and called.set())
        assert concurrent.futures.wait([future], 20).done and called.wait(20)
        assert (future.result(), future.exception(), future.cancelled(), future.cancel()) == ([OK], None, False, False)


def test_full_stores_evict_and_tell_the_keys(folder):
    cache = host_cache()
    with BlockStore(folder, BLOCK, limit_bytes=3 * BLOCK, keep_evicted=True) as store:
        for key in range(3):
            assert store.store([key], *cache.at(key)).result() == [OK]
        assert store.fetch([0], *cache.at(7)).result() == [OK]
        assert store.pin([1, 9]) == [True, False]
        assert store.store([3], *cache.at(3)).result() == [OK]
        assert (store.evicted(), store.evicted(), sorted(store.keys())) == ([2], [], [0, 1, 3])
        assert store.pin([0, 3]) == [True, True]
        assert store.store([4], *cache.at(4)).result() == [Outcome.NO_ROOM]
        assert store.unpin([1, 9, 1]) == [True, False, False]
        assert store.store([4], *cache.at(4)).result() == [OK]
        assert (store.evicted(), store.stats()["evictions"]) == ([1], 2)
    with BlockStore(folder, BLOCK, limit_bytes=3 * BLOCK, evicts=False) as store:
        assert store.store([5], *cache.at(5)).result() == [Outcome.NO_ROOM]
        store.remove([4])
        assert store.store([5], *cache.at(5)).result() == [OK]
        with pytest.raises(ValueError, match="open it with keep_evicted=True"):
            store.evicted()


def test_stores_open_again_with_their_blocks(folder):
    cache = host_cache()
    with BlockStore(folder, BLOCK, limit_bytes=100 * BLOCK) as store:
        store.store([1, 2], *cache.at(0, 1)).result()
        with pytest.raises(OSError, match="another store has it open"):
            BlockStore(folder, BLOCK)
    with BlockStore(str(folder), BLOCK, limit_bytes=100 * BLOCK) as store:
        assert store.recovery == {"whole": 2, "damaged": 0, "unsynced": 0}
        assert store.fetch([2], *cache.at(5)).result() == [OK] and cache.block(5) == cache.block(1)
    with pytest.raises(OSError, match="16384 bytes"):
        BlockStore(folder, 2 * BLOCK)


def test_stores_take_several_folders_and_an_engine(tmp_path):
    cache, folders = host_cache(), [tmp_path / name for name in "abc"]
    engine = gpufile.Engine(threads=2)
    with BlockStore(folders, BLOCK, blocks_per_file=2, limit_bytes=64 * BLOCK, engine=engine) as store:
        assert store.store(range(6), *cache.at(*range(6))).result() == [OK] * 6
        assert all([*path.glob("blocks-*")] for path in folders)
        with BlockReader([*map(str, folders)], BLOCK) as reader:
            assert reader.fetch([4], *cache.at(7)).result() == [OK] and cache.block(7) == cache.block(4)
    assert engine.stats()["host"]["write_bytes"] == 6 * BLOCK


def test_damaged_blocks_are_corrupt(folder):
    cache = host_cache()
    with BlockStore(folder, BLOCK, checksums=True) as store:
        store.store([1, 2], *cache.at(0, 1)).result()
        with open(folder / "blocks-00000", "r+b") as file:
            file.seek(0 * BLOCK + 77)
            byte = file.read(1)
            file.seek(0 * BLOCK + 77)
            file.write(bytes([byte[0] ^ 1]))
        outcomes = store.fetch([1, 2], *cache.at(4, 5)).result()
        assert sorted(outcome.value for outcome in outcomes) == ["corrupt", "ok"]
        assert store.contains([1, 2]) == [outcome is OK for outcome in outcomes]


def test_failed_blocks_have_exceptions(folder):
    cache = host_cache()
    with BlockStore(folder, BLOCK) as store:
        beyond, short, fine = store.store([1, 2, 3], cache.regions, [8 * PAGE, 7 * PAGE + 1, 0], PAGE).result()
        assert fine is OK
        for error in (beyond, short):
            assert isinstance(error, gpufile.TransferError) and "exceeds the region of 32768 bytes" in str(error)
        (long,) = store.store([4], cache.regions, [0], PAGE + 1).result()
        assert f"its pieces end at byte {BLOCK + 4}, and blocks have {BLOCK}" in str(long)
        assert store.keys() == [3]
        os.truncate(folder / "blocks-00000", 0)
        assert store.fetch([3], *cache.at(1)).result() == [Outcome.CORRUPT]


def test_deadlines_pass_while_the_storage_waits(folder, gpu_cache, command, let_copies_go):
    # A `with` would wait for the copies after a failure.
    store = BlockStore(folder, BLOCK)
    cache = host_cache()
    store.store([1, 2], *cache.at(0, 1)).result()
    start = time.monotonic()
    held = store.fetch([1], *gpu_cache.at(0), timeout=1)
    eventually(lambda: command("held"))
    assert held.result(20) == [Outcome.DEADLINE] and time.monotonic() - start < 10
    assert [region.bytes_in_use for region in gpu_cache.regions] == [PAGE] * LAYERS
    assert "bytes_in_use=4096" in repr(gpu_cache.regions[0])
    # Blocks have timeouts of their own. One that has passed already begins nothing.
    mixed = store.fetch([1, 2, 7], *gpu_cache.at(0, 1, 2), timeout=[None, 0, 60])
    assert mixed.result(20) == [Outcome.IN_USE, Outcome.DEADLINE, MISSING]
    with pytest.raises(TimeoutError):
        store.fetch([2], *gpu_cache.at(3)).result(0.05)
    let_copies_go()
    eventually(lambda: not any(region.bytes_in_use for region in gpu_cache.regions))
    assert gpu_cache.block(0) == cache.block(0)
    store.close()


def test_cancelled_calls_end_at_once(folder, gpu_cache, command, let_copies_go):
    # A `with` would wait for the copies after a failure.
    store = BlockStore(folder, BLOCK)
    cache = host_cache()
    store.store([1], *cache.at(0)).result()
    future = store.fetch([1], *gpu_cache.at(0))
    eventually(lambda: command("held"))
    assert future.cancel()
    with pytest.raises(concurrent.futures.CancelledError, match="the transfer of the blocks was cancelled") as caught:
        future.result(20)
    assert caught.value.outcomes == [Outcome.CANCELLED]
    assert not hasattr(caught.value, "bytes_done")
    assert future.cancelled() and gpu_cache.regions[0].bytes_in_use == PAGE
    let_copies_go()
    eventually(lambda: gpu_cache.regions[0].bytes_in_use == 0)
    store.close()


class Owner:
    """Memory of a GPU whose owner can be watched."""

    def __init__(self, memory):
        self.memory, self.__cuda_array_interface__ = memory, memory.__cuda_array_interface__


@pytest.mark.parametrize("end", ["drop", "cancel", "deadline"])
def test_memory_stays_until_the_storage_has_answered(folder, device_array, command, let_copies_go, end):
    # A `with` would wait for the copies after a failure.
    store = BlockStore(folder, PAGE)
    source = Region(bytearray(b"x" * PAGE))
    store.store([1], source, [0], PAGE).result()
    owner = Owner(device_array(PAGE))
    alive = weakref.ref(owner)
    region = Region(owner)
    future = store.fetch([1], region, [0], PAGE, timeout=0.05 if end == "deadline" else None)
    eventually(lambda: command("held"))
    if end == "deadline":
        assert future.result(20) == [Outcome.DEADLINE]
    elif end == "cancel":
        future.cancel()
    memory = owner.memory
    del future, region, owner
    gc.collect()
    assert alive() is not None
    let_copies_go()

    def is_freed():
        gc.collect()
        return alive() is None

    eventually(is_freed)
    assert end == "drop" or memory.get() == b"x" * PAGE
    store.close()


def test_stores_of_dropped_futures_go_on(folder, new):
    cache = Cache(new, 8)
    expected = [cache.block(number) for number in range(8)]
    with BlockStore(folder, BLOCK) as store:
        for key in range(8):
            store.store([key], *cache.at(key))
        del cache
    other = host_cache()
    with BlockStore(folder, BLOCK) as store:
        assert store.fetch(range(8), *other.at(*range(8))).result() == [OK] * 8
    assert [other.block(number) for number in range(8)] == expected


def test_only_contiguous_writable_memory_is_taken(folder, device_array):
    matrix = np.zeros((64, 64), np.float32)
    for wrong, error, text in [
        (matrix[:, ::2], ValueError, "not contiguous"),
        (matrix.T, ValueError, "not contiguous"),
        (bytes(9), ValueError, "read-only"),
        (np.array([object()]), ValueError, "references to Python objects"),
        (5, TypeError, "int has no memory"),
        (device_array(100, strides=(2,), shape=(50,)), ValueError, "not contiguous"),
    ]:
        with pytest.raises(error, match=text):
            Region(wrong)
    with BlockStore(folder, 64) as store:
        for wrong in (matrix, [matrix], [Region(matrix), bytearray(9)]):
            with pytest.raises(TypeError, match="expected gpufile.kv_blocks.Region, not (ndarray|bytearray)"):
                store.store([1], wrong, [0], 64)
        assert store.store([1], Region(matrix[3:]), [0], 64).result() == [OK]


def test_tensors_of_torch_are_memory(folder):
    torch = pytest.importorskip("torch")
    cache = torch.randn(3, 8, 16).to(torch.bfloat16)
    with pytest.raises(ValueError, match="not contiguous"):
        Region(cache.transpose(0, 1))
    regions = [Region(layer) for layer in cache]
    page = cache[0, 0].nbytes
    with BlockStore(folder, 3 * page) as store:
        assert store.store([5], regions, [2 * page], page).result() == [OK]
        assert store.fetch([5], regions, [7 * page], page).result() == [OK]
    assert torch.equal(cache[:, 7], cache[:, 2]) and regions[0].nbytes == cache[0].nbytes


def test_closed_stores_refuse_calls(folder):
    cache = host_cache()
    store = BlockStore(folder, BLOCK)
    assert "closed" not in repr(store) and not store.closed
    future = store.store([1], *cache.at(0))
    store.close()
    store.close()
    assert future.result(0) == [OK] and store.closed and repr(store).startswith("<closed gpufile.kv_blocks.BlockStore")
    reader = BlockReader(folder, BLOCK)
    reader.close()
    assert repr(reader).startswith("<closed gpufile.kv_blocks.BlockReader")
    for closed in (store, reader):
        calls = [lambda: closed.fetch([1], *cache.at(0)), closed.keys, closed.stats, closed.__enter__]
        if closed is store:
            calls += [lambda: store.store([1], *cache.at(0)), store.evicted]
            calls += [lambda name=name: getattr(store, name)([1]) for name in ("contains", "prefix", "pin", "unpin", "remove")]
        for call in calls:
            with pytest.raises(ValueError, match="the store is closed"):
                call()


#: A process that stores blocks of 64 KiB for ever. Each has the low byte of its key in all bytes. Two slots are kept from
#: being evicted, the others are not.
WRITER = """
    import sys
    import numpy as np
    from gpufile.kv_blocks import BlockStore, Outcome, Region
    memory = np.zeros((8, 65536), np.uint8)
    region = Region(memory)
    store = BlockStore(sys.argv[1], 65536, limit_bytes=16 * 65536)
    for number in range(1, 1 << 60):
        keys = [number * 8 + block for block in range(8)]
        memory[:] = np.array(keys, np.uint64).astype(np.uint8)[:, None]
        assert set(store.store(keys, region, np.arange(8) * 65536, 65536).result()) == {Outcome.OK}
        if number == 2:
            print("begun", flush=True)
"""


def test_readers_get_whole_blocks_of_a_killed_store(folder):
    memory = np.zeros((16, 65536), np.uint8)
    region = Region(memory)
    right = gone = 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), folder], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout.readline() == "begun\n"
            end = time.monotonic() + 0.5
            with BlockReader(folder, 65536) as reader:
                while time.monotonic() < end or writer.poll() is None:
                    keys = reader.keys()[:16]
                    memory[:] = 0
                    outcomes = reader.fetch(keys, region, np.arange(len(keys)) * 65536, 65536, timeout=60).result()
                    for key, outcome, block in zip(keys, outcomes, memory):
                        assert outcome in (OK, MISSING)
                        assert outcome is MISSING or (block == key % 256).all(), key
                        right, gone = right + (outcome is OK), gone + (outcome is MISSING)
                    if time.monotonic() >= end:
                        writer.send_signal(signal.SIGKILL)
                        writer.wait()
                stats = reader.stats()
                assert stats["bytes_fetched"] == 65536 * stats["hits"] or stats["misses"]
        # The next store finds whole blocks, too.
        with BlockStore(folder, 65536, limit_bytes=16 * 65536) as store:
            keys = store.keys()
            assert 8 <= len(keys) <= 16
            assert store.fetch(keys, region, np.arange(len(keys)) * 65536, 65536).result() == [OK] * len(keys)
            assert all((block == key % 256).all() for key, block in zip(keys, memory))
    assert right > 50 and gone > 0, (right, gone)


IN_FLIGHT = """
    from gpufile.kv_blocks import BlockStore, Region
    slow()
    store = BlockStore(path + ".cache", 1 << 20)
    regions = [Region(conftest.DeviceArray(gpu, 8 << 20)) for _ in range(2)]
    offsets = [number << 20 for number in range(8)]
    stored = store.store(range(8), regions[0], offsets, 1 << 20)
"""


def test_interpreters_end_with_blocks_in_flight(python):
    for more in ("", "stored.result(); futures = [store.fetch(range(8), regions[1], offsets, 1 << 20, timeout=t) for t in (None, 60)]",
                 "stored.add_done_callback(print); del store", "stored.cancel(); store.fetch([1], regions[1], [0], 9)"):  # fmt: skip
        assert python(IN_FLIGHT + f"    {more}\n").replace("<gpufile.Future done>\n", "") == ""


def test_signals_end_waits(python):
    printed = python(
        IN_FLIGHT.replace("slow()", "for f in conftest.COPIES: gpu.emulator_control(f'fault {f} times=all hold=1'.encode())")
        + """
    for wait in (stored.result, store.close):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            wait()
        except KeyboardInterrupt:
            print("interrupted")
    gpu.emulator_control(b"release")
    print(len(stored.result()), store.closed)
    """
    )
    assert printed == "interrupted\ninterrupted\n8 True\n"


def test_children_have_no_store_of_their_parent(python):
    printed = python("""
        from gpufile.kv_blocks import BlockReader, BlockStore, Outcome, Region
        memory = bytearray(b"x" * 4096)
        region, store = Region(memory), BlockStore(path + ".cache", 4096)
        assert store.store([1], region, [0], 4096).result() == [Outcome.OK]
        child = os.fork()
        if child == 0:
            try:
                store.keys()
            except RuntimeError as error:
                assert "open a BlockReader here" in str(error)
            assert region.nbytes == 0
            store.close()
            other = bytearray(4096)
            with BlockReader(path + ".cache", 4096) as reader:
                assert reader.fetch([1], Region(other), [0], 4096).result() == [Outcome.OK] and other == memory
            print("read", flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.fetch([1], region, [0], 4096).result() == [Outcome.OK]
        store.close()
        print("closed")
    """)
    assert printed == "read\nclosed\n"
