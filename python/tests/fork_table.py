"""The fork table of the package: a row for each public type, and children that call every method of those with locks.

Threads of the parent use the objects, and a thread holds every lock of the package, while a child is forked. So a child hangs if
it waits for any lock that it inherited.
"""

import ast
import asyncio
import concurrent.futures
import contextlib
import faulthandler
import functools
import gc
import importlib
import inspect
import logging
import os
import pathlib
import queue
import sys
import threading
import types
import warnings

import conftest
import gpufile
import numpy as np
import test_docstrings
import test_methods
from gpufile import _future, _gpufile, gguf, kv_blocks, kvikio, npy
from gpufile import safetensors as gs
from gpufile.kvikio import cufile_driver, defaults, statistics, utils
from gpufile.kvikio import numpy as arrays
from gpufile.safetensors import _install, numpy as on_numpy

try:
    import torch
    import torch.distributed.checkpoint as dcp

    import gpufile.torch as on_torch
    from gpufile import _saves
    from gpufile._checkpoint import _snapshots
    from gpufile.safetensors.torch import SharedModel
except ImportError:
    torch = None
try:
    from zarr.core.buffer.core import default_buffer_prototype

    from gpufile.kvikio.zarr import GDSStore
except ImportError:
    GDSStore = None

#: Seconds until a child counts as hanging.
LIMIT = 20
#: The length of files, objects and buffers.
LEN = 64 << 10
#: The special methods that a row lists if the package defines them.
SPECIAL = {f"__{name}__" for name in "await call contains enter exit getitem iter len repr".split()}


class Nothing:
    """A type without lock, thread or descriptor, for this reason."""

    def __init__(self, why):
        self.why = why


class Only:
    """A type whose objects hold objects of these types, whose rows have calls, and no lock of its own."""

    def __init__(self, *types):
        self.types = types


class Calls:
    """A type with locks, threads or descriptors. A child makes the calls, by the names of the methods."""

    def __init__(self, **calls):
        self.calls = calls


def refused(call, *kinds):
    """Makes a call that must fail in a child. Other exceptions than these are failures."""
    try:
        result = call()
        if isinstance(result, gpufile.Future):
            result = result.result()
        if isinstance(result, list):
            raise result[0]
    except kinds or (OSError, RuntimeError):
        return
    raise AssertionError("the call succeeded")


def equal(value, expected):
    """Checks a value."""
    assert value == expected, (value, expected)


class World:
    """The objects that a child inherits."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.path, self.model = self.folder / "data", self.folder / "model.safetensors"
        self.array = self.folder / "array.npy"
        np.save(self.array, np.arange(3))
        self.path.write_bytes(bytes(LEN))
        on_numpy.save_file({"a": np.arange(LEN, dtype=np.uint8)}, self.model, sync=False)
        self.gpu = __import__("ctypes").CDLL(conftest.EMULATOR)
        self.device = conftest.DeviceArray(self.gpu, LEN)
        self.engine = gpufile.Engine(threads=2)
        self.file = gpufile.File(self.path, "r+", engine=self.engine)
        self.server, self.slow = conftest.Server(), conftest.Server()
        for server in (self.server, self.slow):
            server.files["/object"] = bytes(LEN)
            server.files["/model.safetensors"] = self.model.read_bytes()
        self.remote = gpufile.RemoteFile(self.server.url + "/object", engine=self.engine)
        options = conftest.store_options(self.server.url)["s3"]
        self.bucket = _gpufile.RemoteFolder("s3://bucket/c", storage_options=options)
        self.bucket.names()
        waiting = gpufile.RemoteFile(self.slow.url + "/object", timeout=600)
        self.slow.go_on.clear()
        #: One in flight, one that others wait for, and one that has ended.
        self.futures = [waiting.read_into_async(bytearray(LEN)) for _ in range(2)]
        self.futures.append(self.file.read_into_async(bytearray(LEN)))
        self.futures[2].result()
        concurrent.futures.wait(self.futures[1:], 0)
        self.monitor, self.stopped = kvikio.SummaryMonitor(), kvikio.SummaryMonitor()
        self.kvikio_file = kvikio.CuFile(self.path, "r+")
        self.kvikio_futures = [self.kvikio_file.pread(bytearray(LEN)) for _ in range(3)]
        self.on_stream = self.kvikio_file.raw_read_async(self.device, 0)
        self.mmap, self.kvikio_remote = kvikio.Mmap(self.path), kvikio.RemoteFile.open_http(self.server.url + "/object")
        self.lock, self.watch = _gpufile.Lock(), _gpufile.Watch()
        self.once = utils.call_once(lambda: 5)
        self.lazy, self.unused = (gs.LazyModel(self.model, framework="np") for _ in range(2))
        self.open, self.closed = (gs.safe_open(self.model, "np") for _ in range(2))
        self.mapped = gs.safe_open(self.model, "np", mapped=True)
        self.slice = self.open.get_slice("a")
        self.loader, self.other_loader = self.open.prefetch(), self.open.prefetch()
        self.checkpoint = _gpufile.Checkpoint([str(self.model)])
        self.region, self.block_store = kv_blocks.Region(bytearray(LEN)), kv_blocks.BlockStore(self.folder / "blocks", LEN, keep_evicted=True)
        equal(self.block_store.store([1], self.region, [0], LEN).result(), [kv_blocks.Outcome.OK])
        self.block_reader = kv_blocks.BlockReader(self.folder / "blocks", LEN)
        #: A future of blocks that ends with the parent.
        self.blocks = self.block_store.fetch([1], kv_blocks.Region(self.device), [0], LEN)
        if GDSStore:
            self.store = GDSStore(self.folder)
        if torch:
            self.tensors = {"a": torch.arange(LEN // 2, dtype=torch.int16)}
            self.gds_file = on_torch.GdsFile(self.path, os.O_RDWR)
            self.go_on = threading.Event()
            self.saver = on_torch.Saver(sync=False, files_at_once=2)
            self.saves = [self.saver.save(self.tensors, self.folder / f"saved-{number}") for number in range(3)]
            self.saver._saves.start(held := on_torch.Save("held", None), "held", lambda: self.go_on.wait(60))
            self.saves.append(held)
            self.writer = on_torch.StorageWriter(self.folder / "checkpoint", sync_files=False)
            dcp.save(self.tensors, storage_writer=self.writer, no_dist=True)
            self.writer.stage(self.tensors)
            torch.multiprocessing.set_sharing_strategy("file_system")
            self.shared = SharedModel(self.model, gs.load_file(self.model))

    def busy(self, thread, stop):
        """Uses what takes locks, until the end. Several threads do so, each with other calls."""
        buffer, number = bytearray(LEN), 0
        # The servers are threads of this process, too.
        while not stop.wait(0.001):
            number += 1
            if thread == 0:
                futures = [self.file.read_into_async(bytearray(LEN)) for _ in range(4)]
                futures[0].add_done_callback(lambda _: None)
                concurrent.futures.wait(futures)
                asyncio.run(await_one(self.file))
            elif thread == 1:
                gs.LazyModel(self.model, framework="np")["a"]
                with gs.safe_open(self.model, "np") as model, model.prefetch() as loader:
                    assert [name for name, _ in loader] == ["a"]
                self.lock.run(lambda: None)
            elif thread == 2:
                self.kvikio_file.pread(buffer).get()
                self.monitor.get()
                defaults.set("task_size", 4096 * (number % 9 + 1))
                defaults.engine()
                utils.call_once(lambda: 5)()
            elif thread == 3:
                self.engine.stats()
                self.file.read_into(self.device)
                self.file.read_many([bytearray(100) for _ in range(9)], range(9))
                self.remote.read_into(buffer)
                self.engine.release_buffers()
                region = kv_blocks.Region(bytearray(LEN))
                self.block_store.store([number], region, [0], LEN).result()
                self.block_reader.fetch([number], region, [0], LEN).result()
            elif torch:
                self.saver.save(self.tensors, self.folder / "busy").result()
                self.writer.stage(self.tensors)
                self.writer.synchronize_staging()
                self.gds_file.load_storage(torch.empty(10).untyped_storage())


#: The number of threads that are busy.
BUSY = 5


async def await_one(file):
    return await file.read_into_async(bytearray(LEN))


async def awaited(future):
    return await future


def rows(world):
    """Returns the rows by type."""
    file, engine, remote, kvikio_file = world.file, world.engine, world.remote, world.kvikio_file
    in_flight, waited, ended = world.futures
    host, blocks = bytearray(LEN), ([1], world.region, [0], LEN)
    made = {
        gpufile.Engine: Calls(
            __repr__=lambda: repr(engine),
            default=lambda: gpufile.Engine.default(),
            warm_up=lambda: refused(lambda: engine.warm_up([0])),
            release_buffers=lambda: equal(engine.release_buffers(), 0),
            stats=engine.stats,
            **{name: functools.partial(getattr, engine, name) for name, member in vars(gpufile.Engine).items()
                if inspect.isgetsetdescriptor(member)},
        ),
        gpufile.File: Calls(**calls_of_file(file), **transfers_of(file, lambda way: way.is_write)),
        gpufile.RemoteFile: Calls(**calls_of_file(remote) | {
            "from_fd": lambda: gpufile.RemoteFile.from_fd(file.fileno()),
            "etag": lambda: equal(remote.etag, '"1"'),
            **{name: functools.partial(refused, call, OSError, ValueError) for name, call in {
                "truncate": lambda: remote.truncate(0), "sync": remote.sync, "fileno": remote.fileno,
                **calls_of_ways(remote, lambda way: way.is_write)}.items()},
        }),
        gpufile.Future: Calls(
            **{name: functools.partial(for_each, world.futures, name) for name in
               ("result", "exception", "get", "done", "running", "cancelled", "cancel")},
            add_done_callback=lambda: for_each(world.futures, "add_done_callback", print),
            set_result=lambda: for_each(world.futures, "set_result", 5),
            set_exception=lambda: for_each(world.futures, "set_exception", OSError()),
            set_running_or_notify_cancel=lambda: for_each(world.futures, "set_running_or_notify_cancel"),
            __await__=lambda: [refused(lambda: asyncio.run(awaited(future))) for future in world.futures],
            __repr__=lambda: [equal(repr(future), "<gpufile.Future of another process>") for future in [*world.futures, world.blocks]],
            wait=lambda: [refused(lambda: concurrent.futures.wait([future])) for future in world.futures],
        ),
        gpufile.TransferError: Nothing("an error: numbers and texts"),
        gpufile.Route: Nothing("texts"),
        _gpufile.RemoteFolder: Calls(
            open=lambda: _gpufile.RemoteFolder(world.server.url).open("object").read_into(host),
            has_decoded=lambda: _gpufile.RemoteFolder(world.server.url).has_decoded("object"),
            url=lambda: _gpufile.RemoteFolder(world.server.url).url,
            upload=lambda: world.bucket.upload("a", 3, iter([[b"abc"]])), names=lambda: world.bucket.names(),
            remove=lambda: world.bucket.remove("a"),
        ),
        _gpufile.Flight: Calls(
            **{name: functools.partial(refused, getattr(in_flight._flight, name)) for name in
               ("result", "done", "cancelled", "cancel")},
            watch=lambda: refused(lambda: in_flight._flight.watch(world.watch, 1)),
        ),
        _gpufile.Lock: Calls(run=lambda: equal(world.lock.run(lambda: 5), 5)),
        _gpufile.Watch: Calls(
            fileno=world.watch.fileno, add=lambda: world.watch.add(5), take=lambda: equal(world.watch.take(), [])
        ),
        _gpufile.Mapping: Nothing("memory, which the kernel reads"),
        _gpufile.Plan: Nothing("names and ranges"),
        _gpufile.Group: Nothing("names and ranges"),
        _gpufile.Checkpoint: calls_of_checkpoint(world.checkpoint, world),
        gs.safe_open: calls_of_model(world),
        gs.SafeSlice: Calls(
            get_shape=world.slice.get_shape,
            get_dtype=world.slice.get_dtype,
            shape=lambda: equal(world.slice.shape, (LEN,)),
            dtype=lambda: equal(world.slice.dtype, "U8"),
            __getitem__=lambda: equal(world.slice[5], 5),
            __repr__=lambda: repr(world.slice),
        ),
        gs.LazyModel: Calls(
            __getitem__=lambda: equal(world.lazy["a"][7], 7),
            **{name: getattr(world.lazy, name) for name in ("keys", "items", "__iter__", "__len__", "__repr__")},
            values=lambda: [*world.unused.values()],
            get=lambda: world.lazy.get("a"),
            __contains__=lambda: "a" in world.lazy,
        ),
        gs.PrefetchLoader: Calls(
            names=lambda: equal(world.loader.names(), ["a"]),
            take=lambda: refused(lambda: world.loader.take("a")),
            __iter__=lambda: refused(lambda: [*world.loader]),
            __len__=lambda: len(world.loader),
            __repr__=lambda: repr(world.loader),
            __enter__=world.other_loader.__enter__,
            __exit__=world.other_loader.__exit__,
            close=world.loader.close,
        ),
        gs.Placement: Nothing("rules and numbers"),
        gs.Share: Nothing("names and numbers"),
        gs.TensorMeta: Nothing("numbers and texts"),
        gs.TensorSpec: Nothing("an address in the memory of the caller"),
        gs.Verification: Nothing("texts"),
        gs.ModelWarning: Nothing("a warning: a text"),
        kv_blocks.BlockStore: Calls(
            **{name: functools.partial(refused, functools.partial(getattr(world.block_store, name), *blocks), RuntimeError) for name in ("store", "fetch")},
            **{name: functools.partial(refused, functools.partial(getattr(world.block_store, name), [1]), RuntimeError) for name in (
                "contains", "prefix", "pin", "unpin", "remove")},
            **{name: functools.partial(refused, getattr(world.block_store, name), RuntimeError) for name in ("keys", "evicted", "stats", "__enter__")},
            recovery=lambda: equal(world.block_store.recovery["whole"], 0),
            closed=lambda: equal(world.block_store.closed, True),
            __repr__=lambda: repr(world.block_store),
            __exit__=lambda: world.block_store.__exit__(None, None, None),
            close=world.block_store.close,
        ),
        kv_blocks.BlockReader: Calls(
            fetch=lambda: refused(lambda: world.block_reader.fetch(*blocks), RuntimeError),
            **{name: functools.partial(refused, getattr(world.block_reader, name), RuntimeError) for name in ("keys", "stats", "__enter__")},
            closed=lambda: equal(world.block_reader.closed, True),
            __repr__=lambda: repr(world.block_reader),
            __exit__=lambda: world.block_reader.__exit__(None, None, None),
            close=world.block_reader.close,
        ),
        kv_blocks.Region: Calls(
            nbytes=lambda: equal(world.region.nbytes, 0),
            bytes_in_use=lambda: equal(world.region.bytes_in_use, 0),
            __repr__=lambda: repr(world.region),
        ),
        kv_blocks.Outcome: Nothing("an enumeration"),
        gguf.QuantizedTensor: Nothing("a text, numbers and memory"),
        kvikio.CuFile: Calls(
            **{name: functools.partial(getattr, kvikio_file, name) for name in ("closed",)},
            **{name: getattr(kvikio_file, name) for name in ("fileno", "open_flags", "is_direct_io_supported", "__enter__")},
            pread=lambda: equal(kvikio_file.pread(host).get(), LEN),
            pwrite=lambda: equal(kvikio_file.pwrite(host).get(), LEN),
            read=lambda: equal(kvikio_file.read(host), LEN),
            write=lambda: equal(kvikio_file.write(host), LEN),
            raw_read=lambda: refused(lambda: kvikio_file.raw_read(world.device)),
            raw_write=lambda: refused(lambda: kvikio_file.raw_write(world.device)),
            raw_read_async=lambda: refused(lambda: kvikio_file.raw_read_async(world.device, 0)),
            raw_write_async=lambda: refused(lambda: kvikio_file.raw_write_async(world.device, 0)),
            __repr__=lambda: repr(kvikio_file),
            __exit__=lambda: kvikio.CuFile(world.path).__exit__(None, None, None),
            close=kvikio_file.close,
        ),
        kvikio.IOFuture: Calls(
            get=lambda: [refused(future.get) for future in world.kvikio_futures],
            done=lambda: [refused(future.done) for future in world.kvikio_futures],
            __await__=lambda: [refused(lambda: asyncio.run(awaited(future))) for future in world.kvikio_futures],
            __repr__=lambda: [*map(repr, world.kvikio_futures)],
        ),
        kvikio.IOFutureStream: Calls(
            check_bytes_done=lambda: refused(world.on_stream.check_bytes_done), __repr__=lambda: repr(world.on_stream)
        ),
        kvikio.Mmap: Calls(
            **{name: getattr(world.mmap, name) for name in ("initial_map_size", "initial_map_offset", "file_size", "closed")},
            read=lambda: equal(world.mmap.read(host), LEN),
            pread=lambda: equal(world.mmap.pread(host).get(), LEN),
            __repr__=lambda: repr(world.mmap),
            close=world.mmap.close,
        ),
        kvikio.RemoteFile: Calls(
            **{name: getattr(world.kvikio_remote, name) for name in ("nbytes", "remote_endpoint_type", "__enter__", "__repr__")},
            read=lambda: equal(world.kvikio_remote.read(host), LEN),
            pread=lambda: equal(world.kvikio_remote.pread(host).get(), LEN),
            open=lambda: kvikio.RemoteFile.open(world.server.url + "/object").close(),
            open_http=lambda: kvikio.RemoteFile.open_http(world.server.url + "/object").close(),
            open_s3=lambda: refused(lambda: kvikio.RemoteFile.open_s3("b", "o", 0, "r", "a", "b", world.server.url)),
            open_s3_url=lambda: refused(lambda: kvikio.RemoteFile.open_s3_url("ftp://a"), ValueError),
            open_s3_public=lambda: kvikio.RemoteFile.open_s3_public(world.server.url + "/object").close(),
            open_s3_presigned_url=lambda: kvikio.RemoteFile.open_s3_presigned_url(world.server.url + "/object").close(),
            open_webhdfs=lambda: refused(lambda: kvikio.RemoteFile.open_webhdfs("http://a:1/webhdfs/v1/b"), NotImplementedError),
            __exit__=world.kvikio_remote.__exit__,
            close=world.kvikio_remote.close,
        ),
        kvikio.SummaryMonitor: Calls(
            get=world.monitor.get,
            since=lambda: world.monitor.since(world.monitor.get()),
            reset=world.monitor.reset,
            stop=world.monitor.stop,
            __enter__=world.stopped.__enter__,
            __exit__=world.stopped.__exit__,
            __repr__=lambda: repr(world.monitor),
        ),
        kvikio.Summary: Nothing("numbers"),
        statistics.Summary.BackendTotals: Nothing("numbers"),
        kvikio.CuFileError: Nothing("an error: numbers and texts"),
        cufile_driver.DriverProperties: Nothing("the driver's properties, which each use asks for"),
        cufile_driver.ConfigContextManager: Nothing("the values before"),
        defaults.ConfigContextManager: Nothing("the values before"),
        arrays.FileLike: Nothing("a protocol, without objects"),
        arrays.LikeWrapper: Nothing("the object of the caller"),
        utils.LocalHttpServer: Nothing("a process of multiprocessing, whose parent it knows"),
        **dict.fromkeys(
            [kvikio.CompatMode, kvikio.RemoteIOBackend, kvikio.RemoteReactorDispatch, kvikio.RemoteEndpointType],
            Nothing("an enumeration"),
        ),
        #: Functions that take locks of modules.
        "functions": Calls(
            register=lambda: refused(lambda: gpufile.register(world.device)),
            deregister=lambda: refused(lambda: gpufile.deregister(world.device), OSError, RuntimeError, ValueError),
            call_once=lambda: equal(world.once(), 5),
            defaults=lambda: defaults.set("task_size", 4096) and defaults.engine(),
            cufile_driver=lambda: cufile_driver.get("poll_mode"),
            open_driver=lambda: refused(cufile_driver.driver_open),
            install=lambda: (gs.install(), gs.uninstall()),
            save_file=lambda: on_numpy.save_file({"a": np.zeros(9)}, world.folder / f"child-{os.getpid()}", sync=False),
            load_file=lambda: on_numpy.load_file(world.model),
            load=lambda: equal(npy.load(world.array, framework="np").tolist(), [0, 1, 2]),
            verify=lambda: gs.verify(world.model),
        ),
    }  # fmt: skip
    if GDSStore:
        made[GDSStore] = Calls(
            at_url=lambda: repr(GDSStore.at_url(world.server.url)),
            get=lambda: asyncio.run(world.store.get("data")),
            get_partial_values=lambda: asyncio.run(world.store.get_partial_values(default_buffer_prototype(), [("data", None)])),
            __repr__=lambda: repr(world.store),
        )
    return made | (torch_rows(world) if torch else {})


def torch_rows(world):
    """Returns the rows of the types for torch."""
    storage = torch.empty(10).untyped_storage()
    saver, saves, gds_file = world.saver, world.saves, world.gds_file

    def reader():
        return on_torch.StorageReader(world.folder / "checkpoint")

    def save():
        path = world.folder / f"checkpoint-{os.getpid()}"
        dcp.save(world.tensors, checkpoint_id=path, storage_writer=world.writer, no_dist=True)

    def load():
        state = {"a": torch.zeros_like(world.tensors["a"])}
        dcp.load(state, storage_reader=reader(), no_dist=True)
        assert torch.equal(state["a"], world.tensors["a"])

    return {
        on_torch.GdsFile: Calls(
            load_storage=lambda: gds_file.load_storage(storage),
            save_storage=lambda: gds_file.save_storage(storage),
            deregister_handle=gds_file.deregister_handle,
            register_handle=gds_file.register_handle,
            __repr__=lambda: repr(gds_file),
        ),
        on_torch.Saver: Calls(
            save=lambda: refused(lambda: saver.save(world.tensors, world.folder / "child")),
            pending=lambda: equal(saver.pending, []),
            progress=lambda: equal(saver.progress, (0, 0)),
            synchronize=saver.synchronize,
            __repr__=lambda: repr(saver),
            __enter__=saver.__enter__,
            __exit__=lambda: saver.__exit__(None, None, None),
            close=saver.close,
        ),
        on_torch.Save: Calls(
            **{name: functools.partial(for_each, saves, name, kinds=(RuntimeError,)) for name in ("result",)},
            exception=lambda: [equal(type(save.exception()), RuntimeError) for save in saves],
            **{name: functools.partial(for_each, saves, name, kinds=()) for name in ("done", "running", "cancelled", "cancel")},
            add_done_callback=lambda: for_each(saves, "add_done_callback", id, kinds=()),
            set_result=lambda: for_each(saves, "set_result", 5, kinds=(concurrent.futures.InvalidStateError,)),
            set_exception=lambda: for_each(saves, "set_exception", OSError(), kinds=(concurrent.futures.InvalidStateError,)),
            set_running_or_notify_cancel=lambda: for_each(saves, "set_running_or_notify_cancel", kinds=(RuntimeError,)),
            progress=lambda: saves[0].progress,
            __repr__=lambda: [*map(repr, saves)],
        ),
        on_torch.Progress: Nothing("numbers"),
        on_torch.StorageWriter: Calls(
            synchronize_staging=world.writer.synchronize_staging,
            # torch's own functions call most methods.
            write_data=save,
            **dict.fromkeys(("reset", "checkpoint_id", "prepare_local_plan", "prepare_global_plan", "finish"), lambda: None),
            stage=lambda: world.writer.stage(world.tensors),
            should_synchronize_after_execute=lambda: world.writer.should_synchronize_after_execute,
            __repr__=lambda: repr(world.writer),
        ),
        on_torch.StorageReader: Calls(
            read_data=load,
            reset=lambda: reader().reset(),
            checkpoint_id=lambda: equal(reader().checkpoint_id, world.folder / "checkpoint"),
            __repr__=lambda: repr(reader()),
        ),
        SharedModel: Calls(
            __enter__=world.shared.__enter__,
            __exit__=world.shared.__exit__,
            __repr__=lambda: repr(world.shared),
            close=world.shared.close,
        ),
    }  # fmt: skip


def for_each(futures, name, *arguments, kinds=(RuntimeError,)):
    """Calls a method of each future, which raises one of these exceptions, if there are any."""
    for future in futures:
        call = functools.partial(getattr(future, name), *arguments)
        refused(call, *kinds) if kinds else call()


def calls_of_ways(file, is_such):
    """Returns the calls of the methods of a file that take memory."""
    ways = filter(is_such, test_methods.WAYS.values())
    return {way.name: functools.partial(way.call, file, [bytearray(LEN)], [0]) for way in ways}


def transfers_of(file, is_such):
    """Returns the calls of the methods of a file that take memory, with a check of each. Streams fail in a child."""

    def checked(name, call):
        if test_methods.WAYS[name].takes == "stream":
            return refused(call, OSError, RuntimeError, ValueError)
        assert call() in (LEN, None)

    return {name: functools.partial(checked, name, call) for name, call in calls_of_ways(file, is_such).items()}


def calls_of_file(file):
    """Returns the calls of an open file, except those that write."""
    return {
        **transfers_of(file, lambda way: not way.is_write),
        **{name: functools.partial(row.call, file) for name, row in test_methods.CALLS.items()},
        "__enter__": file.__enter__,
        "__repr__": file.__repr__,
        "__exit__": lambda: file.with_chunk_bytes(4096).__exit__(None, None, None),
    }


def calls_of_checkpoint(checkpoint, world):
    """Returns the calls of an open model of the native module."""
    part = functools.partial(checkpoint.part, "a", [(0, 10)])
    parts = functools.partial(checkpoint.parts, [("a", None)], LEN)
    return Calls(
        open_url=lambda: _gpufile.Checkpoint.open_url(world.server.url + "/model.safetensors"),
        **{name: functools.partial(getattr, checkpoint, name) for name in ("is_remote", "files", "warnings", "len_bytes")},
        **{name: getattr(checkpoint, name) for name in ("names", "metadata", "map", "plan", "groups", "__len__")},
        __contains__=lambda: "a" in checkpoint,
        info=lambda: checkpoint.info("a"),
        short=lambda: checkpoint.short("a"),
        map_tensor=lambda: checkpoint.map_tensor("a"),
        part=part,
        parts=parts,
        read_now=lambda: checkpoint.read_now(part(), bytearray(10)),
        read=lambda: checkpoint.read([(parts()[0], bytearray(LEN), 0, LEN)]).result(),
    )


def calls_of_model(world):
    """Returns the calls of an open model."""
    model = world.open
    return Calls(
        **{name: getattr(model, name) for name in (
            "keys", "offset_keys", "metadata", "get_tensors", "__len__", "__enter__", "__repr__")},
        **{name: functools.partial(getattr(model, name), "a") for name in (
            "get_slice", "get_tensor_meta", "__contains__", "__getitem__")},
        get_tensor=lambda: (model.get_tensor("a"), world.mapped.get_tensor("a")),
        iter_tensors=lambda: [*model.iter_tensors()],
        items=lambda: [*model.items()],
        __iter__=lambda: [*model],
        prefetch=lambda: model.prefetch().take("a"),
        __exit__=lambda: world.closed.__exit__(None, None, None),
    )  # fmt: skip


def public_types():
    """Returns the public types that can be imported here: those of the stubs, and of the public modules."""
    stubs = ast.parse(pathlib.Path(_gpufile.__file__).with_name("_gpufile.pyi").read_text())
    found = [getattr(_gpufile, node.name) for node in stubs.body if isinstance(node, ast.ClassDef) and not any(
        getattr(decorator, "id", "") == "type_check_only" for decorator in node.decorator_list)]  # fmt: skip
    for name in test_docstrings.MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        found += (getattr(module, public) for public in getattr(module, "__all__", dir(module)) if public[0] != "_")
    found += [statistics.Summary.BackendTotals]
    found += [on_torch.Save, on_torch.Progress] if torch else []
    return {value for value in found if inspect.isclass(value) and value.__module__.startswith("gpufile")}


def methods_of(kind):
    """Returns the names of the public methods, and of the special ones that the package has."""
    is_future = issubclass(kind, concurrent.futures.Future)
    of_all = (*kind.__mro__[:-1],) if is_future or issubclass(kind, gs.LazyModel) else ()
    named = {name for base in of_all for name in vars(base) if name[0] != "_"}
    own = [base for base in kind.__mro__ if base.__module__.startswith("gpufile")]
    return named | {name for base in own for name in vars(base) if name in SPECIAL or name[0] != "_"}


def check_rows(world):
    """Raises if a public type has no row, or a public method no call."""
    made, public = rows(world), public_types()
    wrong = [f"{kind} has no row" for kind in public if kind not in made]
    wrong += [f"{kind} is no public type" for kind in made if kind not in public and kind != "functions"]
    for kind, row in made.items():
        if isinstance(row, Nothing):
            assert row.why
        elif isinstance(row, Only):
            assert all(isinstance(made[other], Calls) for other in row.types), kind
        elif kind != "functions":
            extra = {"wait"} if kind is gpufile.Future else set()
            differ = methods_of(kind) - row.calls.keys() | row.calls.keys() - methods_of(kind) - extra
            wrong += [f"{kind}: {name}" for name in sorted(differ)]
    assert not wrong, "\n".join(wrong)


class Plain:
    """The opposite of ``Lock``: a lock of Python, which a child finds locked."""

    def __init__(self):
        self._lock = threading.RLock()

    def run(self, function):
        with self._lock:
            return function()


def locks():
    """Returns every lock of the package's objects, functions and modules."""
    runs, plain = {}, {}
    for thing in gc.get_objects():
        kind = type(thing)
        if kind is types.FunctionType:
            if f"{os.sep}gpufile{os.sep}" not in thing.__code__.co_filename:
                continue
            values = [cell.cell_contents for cell in thing.__closure__ or () if cell != types.CellType()]
        elif kind is types.ModuleType:
            values = vars(thing).values() if thing.__name__.startswith("gpufile") else ()
        elif str(kind.__module__).startswith("gpufile"):
            slots = (getattr(thing, name, None) for base in kind.__mro__ for name in getattr(base, "__slots__", ()))
            values = [*getattr(thing, "__dict__", {}).values(), *slots]
        else:
            continue
        for value in [*values]:
            if isinstance(value, concurrent.futures.ThreadPoolExecutor):
                value = value._shutdown_lock
            if isinstance(value, threading.Event):
                value = value._cond
            if isinstance(value, (_gpufile.Lock, Plain)):
                runs[id(value)] = value
            elif isinstance(value, (type(threading.Lock()), type(threading.RLock()), threading.Condition)):
                plain[id(value)] = value
    return [*runs.values()], [*plain.values()]


@contextlib.contextmanager
def all_held():
    """Lets another thread hold every lock of the package. Those that are taken are held by others already."""
    runs, plain = locks()
    begun, go_on = threading.Event(), threading.Event()

    def hold(rest):
        if rest:
            rest[0].run(functools.partial(hold, rest[1:]))
            return
        taken = [lock for lock in plain if lock.acquire(timeout=0.01)]
        begun.set()
        go_on.wait(LIMIT)
        for lock in taken:
            lock.release()

    thread = threading.Thread(target=hold, args=(runs,))
    thread.start()
    assert begun.wait(LIMIT)
    try:
        yield len(runs) + len(plain)
    finally:
        go_on.set()
        thread.join()


def fork(made, limit=LIMIT):
    """Forks a child that makes all calls. Returns its process id."""
    child = os.fork()
    if child:
        return child
    faulthandler.dump_traceback_later(limit, exit=True)
    status = 0
    for kind, row in made.items():
        for name, call in row.calls.items() if isinstance(row, Calls) else ():
            try:
                call()
            except BaseException as error:
                error.add_note(f"in a child: {kind}: {name}")
                sys.excepthook(*sys.exc_info())
                status = 2
    os._exit(status)


def status_of(child):
    """Returns the exit status of a child: 0 if all went well, 1 if it hung, 2 if a call failed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_children(world):
    """Forks children while threads use the objects, and another holds all locks."""
    made, stop, failures = rows(world), threading.Event(), []

    def busy(thread):
        try:
            world.busy(thread, stop)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=busy, args=(thread,)) for thread in range(BUSY)]
    for thread in threads:
        thread.start()
    try:
        for number in range(int(os.environ.get("CUFILE_TEST_FORKS", "50"))):
            with all_held() as count:
                child = fork(made)
            assert count >= 8
            assert status_of(child) == 0, f"child {number}"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def places(world):
    """Returns the places of locks: for each, a function that puts a plain lock there, and one that undoes that."""

    def attribute(owner, name, value):
        old = getattr(owner, name)
        return lambda: setattr(owner, name, value), lambda: setattr(owner, name, old)

    def inherited(kind):
        return attribute(kind, "_forked", lambda self: None)

    once = next(cell for cell in world.once.__closure__ if isinstance(cell.cell_contents, _gpufile.Lock))
    made = {
        "the ends of futures": inherited(_future._Ends),
        "a future": inherited(_future.Future),
        "a monitor": inherited(kvikio.SummaryMonitor),
        "a function that runs once": attribute(once, "cell_contents", Plain()),
        "a lazy model": attribute(world.lazy, "_lock", Plain()),
        "a loader": attribute(world.loader, "_lock", Plain()),
        "install": attribute(_install, "_lock", Plain()),
    }
    if torch:
        made["a saver"] = inherited(_saves.Saves)
        made["a save"] = inherited(_saves.Save)
        made["the gate of copies"] = inherited(_snapshots.Gate)
    return made


def check_places(world):
    """Puts a plain lock into one place after the other. Each child must hang, and none with the package's own locks."""
    made, children = rows(world), {}
    with open(os.devnull, "w") as nowhere:
        for name, (put, undo) in places(world).items():
            put()
            try:
                with all_held():
                    children[name] = fork(made, 6)
            finally:
                undo()
    assert len(children) == (10 if torch else 7)
    ended = {name: status_of(child) for name, child in children.items()}
    assert set(ended.values()) == {1}, ended
    with all_held():
        child = fork(made)
    assert status_of(child) == 0


def main(test, folder):
    """Runs a test."""
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
    logging.getLogger("concurrent.futures").disabled = True
    world = World(folder)
    try:
        globals()[test](world)
    finally:
        world.slow.go_on.set()
        if torch:
            world.go_on.set()
            world.saver.close()
    assert [future.result() for future in world.futures] == [LEN] * 3
