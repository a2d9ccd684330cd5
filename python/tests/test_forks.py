"""Forked children of processes with threads that load, save and transfer."""


import concurrent.futures
import sys

import numpy as np
import pytest

from gpufile.kvikio import defaults
from gpufile.safetensors import LazyModel
from gpufile.safetensors.numpy import save_file

CHILD = """
    import gc, faulthandler
    def in_child(work):
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(20, exit=True)
            try:
                work()
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.fixture
def model(tmp_path):
    """Returns a model with one tensor."""
    path = tmp_path / "model.safetensors"
    save_file({"x": np.arange(9)}, path)
    return path


def test_lazy_models_load_in_children_of_other_threads(python, model):
    printed = python(
        CHILD
        + f"""
    from gpufile.safetensors import LazyModel, _load
    model = LazyModel({str(model)!r}, framework="np")
    begun, go_on, load = threading.Event(), threading.Event(), _load.load
    def held(*arguments):
        begun.set()
        assert go_on.wait(60)
        return load(*arguments)
    _load.load = held
    thread = threading.Thread(target=model.__getitem__, args=("x",))
    thread.start()
    begun.wait()
    def use():
        _load.load = load
        assert model["x"].sum() == 36
    in_child(use)
    go_on.set()
    thread.join()
    # The thread that loads may fork, too.
    other = LazyModel({str(model)!r}, framework="np")
    def fork(*arguments):
        _load.load = load
        in_child(lambda: other["x"])
        return load(*arguments)
    _load.load = fork
    print(other["x"].sum(), model["x"].sum())
    """
    )
    assert printed == "36 36\n"


def test_lazy_models_may_be_used_while_they_load(python, model):
    printed = python(f"""
        from gpufile.safetensors import LazyModel, _load
        model = LazyModel({str(model)!r}, framework="np")
        load = _load.load
        def again(*arguments):
            _load.load = load
            model["x"]
            return load(*arguments)
        _load.load = again
        print(model["x"].sum())
    """)
    assert printed == "36\n"


def test_inherited_saves_fail_at_once(python):
    printed = python(
        CHILD
        + """
    import asyncio, concurrent.futures
    from gpufile._saves import Save, Saves
    def start(saves, write):
        saves.check()
        save = Save("file", None)
        saves.start(save, "file", write)
        return save
    saves, go_on = Saves(1), threading.Event()
    done = start(saves, lambda: 5)
    assert done.result() == 5
    held = start(saves, lambda: go_on.wait(60) and 6)
    queued = start(saves, lambda: 7)
    def use():
        for save in (done, held, queued):
            assert save.done() and "forked" in str(save.exception())
            try:
                save.result()
            except RuntimeError as error:
                assert "parent process" in str(error)
            else:
                raise AssertionError
        assert not concurrent.futures.wait([held, queued]).not_done
        assert saves.end() == []
        try:
            start(saves, lambda: 8)
        except RuntimeError as error:
            assert "create a new one" in str(error)
        else:
            raise AssertionError
        own = Saves(1)
        assert start(own, lambda: 9).result() == 9 and own.end() == []
    # The locks of the futures are taken while the child is forked.
    with held._condition, queued._condition:
        in_child(use)
    go_on.set()
    print(held.result(), queued.result(), saves.end())
    """
    )
    assert printed == "6 7 []\n"


def test_loads_leave_the_garbage_collector_alone(python, model):
    printed = python(
        CHILD
        + f"""
    from gpufile.safetensors.numpy import load_file
    def used(*_):
        raise AssertionError("the garbage collector belongs to the program")
    enable, gc.enable, gc.disable = gc.enable, used, used
    load_file({str(model)!r})
    in_child(lambda: load_file({str(model)!r}))
    print(gc.isenabled())
    """
    )
    assert printed == "True\n"


def test_interrupts_at_any_line_leave_locks_open(model):
    def interrupted(work, stop):
        """Raises at the line with this number that the package runs. Returns whether it had as many."""
        lines = 0

        def trace(frame, event, _):
            nonlocal lines
            if "gpufile" not in frame.f_code.co_filename or __file__ == frame.f_code.co_filename:
                return None
            if event == "line":
                lines += 1
                if lines == stop:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    lazy = LazyModel(model, framework="np")
    stop = 1
    while interrupted(lambda: lazy["x"], stop):
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            assert other.submit(lazy._lock.run, lambda: 5).result(60) == 5
        lazy._tensors, stop = None, stop + 1
    assert stop > 10

    stop = 1
    while interrupted(lambda: defaults.set("task_size", 4096 * stop) and defaults.engine(), stop):
        assert (defaults.engine().chunk_bytes or 4 << 20) == defaults.get("task_size")
        stop += 1
    assert stop > 10
    defaults._replace({"task_size": None})


def test_futures_of_the_parent_belong_to_it(python):
    printed = python(
        CHILD
        + """
    for function in conftest.COPIES:
        assert gpu.emulator_control(f"fault {function} times=all hold=1".encode()) == 0
    engine = narrow()
    file = gpufile.File(path, engine=engine)
    futures = [file.read_into_async(conftest.DeviceArray(gpu, 1_000_000)) for _ in range(4)]
    def use():
        global engine, file
        for call in (futures[0].result, futures[0].cancel, futures[0].done):
            try:
                call()
            except RuntimeError as error:
                assert "forked" in str(error)
            else:
                raise AssertionError
        host = bytearray(1000)
        assert file.read_into(host) == 1000 and bytes(host) == open(path, "rb").read(1000)
        futures.clear()
        engine = file = None
        gc.collect()
        assert gpufile.File(path, engine=gpufile.Engine(threads=2)).read_into_async(bytearray(900_000)).result() == 900_000
    in_child(use)
    gpu.emulator_control(b"release")
    print([future.result() for future in futures])
    """
    )
    assert printed == "[1000000, 1000000, 1000000, 1000000]\n"


@pytest.mark.parametrize("check", ["check_rows", "check_places", "check_children"])
def test_fork_table(python, tmp_path, check):
    pytest.importorskip("numpy")
    python(f"import fork_table; fork_table.main({check!r}, {str(tmp_path)!r})", limit=600)
