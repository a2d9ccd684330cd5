"""The end of objects: buffers with code in ``__del__``, and engines that go first."""

BUFFER = """
    import gc, weakref
    class Buffer:
        def __init__(self, length, at_end=lambda: None):
            self.bytes = ctypes.create_string_buffer(length)
            self.at_end = at_end
            self.__array_interface__ = dict(
                data=(ctypes.addressof(self.bytes), False), shape=(length,), typestr="|u1", version=3
            )
        def __del__(self):
            self.at_end()
            ended.append(threading.current_thread().name)
    ended = []
    def wait_for(count):
        while len(ended) < count:
            time.sleep(0.001)
    def hold():
        for function in conftest.COPIES:
            assert gpu.emulator_control(f"fault {function} times=all hold=1".encode()) == 0
    def wait_until_held():
        while gpu.emulator_control(b"held") < 1:
            time.sleep(0.001)
    def release():
        gpu.emulator_control(b"release")
"""


def test_buffers_may_ask_their_future_at_the_end(python):
    printed = python(
        BUFFER
        + """
    import contextlib
    from concurrent.futures import CancelledError
    file = gpufile.File(path)
    for ask in ("done", "result", "cancel", "get", "__repr__"):
        for end in ("done", "result", "cancel"):
            box = []
            def ask_it():
                with contextlib.suppress(CancelledError):
                    getattr(box[0], ask)()
            box.append(file.read_into_async(Buffer(500_000, ask_it)))
            # Not before the end of the read, so that this call drops the buffer.
            while end != "cancel" and not ended:
                if getattr(box[0], end)() is True:
                    break
            getattr(box[0], end)()
            try:
                box[0].result()
            except CancelledError:
                assert end == "cancel"
            wait_for(1)
            ended.clear()
    print("asked")
    """
    )
    assert printed == "asked\n"


def test_buffers_may_wait_for_other_transfers(python):
    # The engine has one worker, which the other transfer needs.
    printed = python(
        BUFFER
        + """
    file = gpufile.File(path, engine=narrow())
    array = conftest.DeviceArray(gpu, 100_000)
    hold()
    other = []
    first = file.read_many_async([Buffer(100_000, lambda: other[0].result()), array], [0, 0])
    other.append(file.read_into_async(bytearray(1_000_000)))
    # A transfer that no worker has begun would end here.
    wait_until_held()
    del first
    release()
    wait_for(1)
    print(other[0].result(), ended[0] != "MainThread")
    """
    )
    assert printed == "1000000 True\n"


def test_raising_buffers_leave_the_engine_working(python):
    printed = python(
        BUFFER
        + """
    sys.unraisablehook = lambda raised: ended.append(type(raised.exc_value).__name__)
    file = gpufile.File(path, engine=narrow())
    def fail():
        raise ValueError
    for _ in range(10):
        file.read_into_async(Buffer(300_000, fail))
    wait_for(10)
    print(set(ended), file.read_into(bytearray(700_000)))
    """
    )
    assert printed == "{'ValueError'} 700000\n"


def test_engines_do_not_wait_for_buffers(python):
    printed = python(
        BUFFER
        + """
    begun, go_on = threading.Event(), threading.Event()
    class Waiting(conftest.DeviceArray):
        def __del__(self):
            begun.set()
            assert go_on.wait(50)
            super().__del__()
            ended.append(1)
    for _ in range(20):
        engine = gpufile.Engine(threads=2, chunk_bytes=100_000)
        file = gpufile.File(path, engine=engine)
        hold()
        future = file.read_into_async(Waiting(gpu, 1000))
        while gpu.emulator_control(b"held") == 0:
            time.sleep(0.001)
        del future
        release()
        # The transfer has ended, and its buffer waits.
        begun.wait()
        del file, engine
        go_on.set()
        wait_for(1)
        ended.clear()
        begun.clear()
        go_on.clear()
    print("ended")
    """
    )
    assert printed == "ended\n"


def test_held_transfers_outlive_engines_and_files(python):
    printed = python(
        BUFFER
        + """
    hold()
    arrays = [conftest.DeviceArray(gpu, 100_000) for _ in range(3)]
    alive = [weakref.ref(array) for array in arrays]
    for number, array in enumerate(arrays):
        file = gpufile.File(path, engine=narrow())
        future = file.read_into_async(array)
        while gpu.emulator_control(b"held") <= number:
            time.sleep(0.001)
        file.close()
        del future, file
    del array, arrays
    gc.collect()
    assert all(array() is not None for array in alive)
    release()
    while any(array() is not None for array in alive):
        time.sleep(0.001)
    print("ended")
    """
    )
    assert printed == "ended\n"


def test_interpreters_end_after_references_left_to_a_thread(python):
    printed = python(
        BUFFER
        + """
    began = threading.Event()
    def at_end():
        began.set()
        time.sleep(0.3)
        print("released", threading.current_thread() is not threading.main_thread(), flush=True)
    file = gpufile.File(path, engine=narrow())
    hold()
    flight = file.read_many_async([Buffer(100_000, at_end), conftest.DeviceArray(gpu, 100_000)], [0, 0])
    wait_until_held()
    del flight
    release()
    began.wait()
    """
    )
    assert printed == "released True\n"


def test_references_may_be_left_while_interpreters_end(python):
    for _ in range(20):
        python(
            BUFFER
            + """
    file = gpufile.File(path, engine=narrow())
    futures = [file.read_into_async(Buffer(500_000)) for _ in range(20)]
    for future in futures:
        future.cancel()
    futures.clear()
    """
        )
