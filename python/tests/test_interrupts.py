"""Ctrl-C during transfers."""

import pytest
from test_methods import PLAIN


@pytest.mark.parametrize(
    "call",
    [
        "read_into(array)",
        "read_many([array], [0])",
        "read_many_each([array], [0])",
        "read_into_async(array).result()",
    ],
)
def test_interrupts_end_long_calls(python, call):
    # Copies of 600 MB in pieces of 64 KiB would take minutes.
    printed = python(f"""
        with open(path, "wb") as long:
            long.truncate(600_000_000)
        array = conftest.DeviceArray(gpu, 600_000_000)
        slow()
        file = gpufile.File(path, engine=narrow())
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            file.{call}
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - start < 20)
        assert gpu.emulator_control(b"clear") == 0
        assert file.read_into(array, length=100) == 100
    """)
    assert printed == "interrupted True\n"


def test_handlers_that_return_do_not_end_a_transfer(python):
    printed = python("""
        count = []
        signal.signal(signal.SIGUSR1, lambda *_: count.append(1))
        array = conftest.DeviceArray(gpu, 1_200_000)
        assert gpu.emulator_control(b"fault cudaMemcpyAsync hold=1") == 0
        def interrupt():
            os.kill(os.getpid(), signal.SIGUSR1)
            while not count:
                time.sleep(0.01)
            gpu.emulator_control(b"release")
        threading.Timer(0.1, interrupt).start()
        file = gpufile.File(path, engine=narrow())
        print(file.read_into_async(array).result(), len(count))
    """)
    assert printed == "1200000 1\n"


HELD = """
    import gc, weakref
    from gpufile._gpufile import Checkpoint
    def count(text):
        return gpu.emulator_control(text.encode())
    def hold():
        for function in conftest.COPIES:
            assert count(f"fault {function} times=all hold=1") == 0
    def release():
        count("release")
        while count("held") > 0:
            time.sleep(0.001)
    def interrupted(call, *arguments, begun=lambda: count("held")):
        # Copies are held, so nothing ends before the release.
        times, before = [], begun()
        def interrupt():
            while begun() == before:
                time.sleep(0.001)
            times.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            call(*arguments)
        except KeyboardInterrupt:
            # Busy machines take their time, but not for ever.
            assert time.monotonic() - times[0] < 5
        else:
            raise AssertionError
        thread.join()
        assert count("held") > 0
    file = gpufile.File(path, "r+")
"""


# Calls with a stream submit their copies, which a held copy stops.
@pytest.mark.parametrize("way", [way.name for way in PLAIN])
def test_interrupts_end_calls_of_any_length(python, way):
    printed = python(
        HELD
        + f"""
    from test_methods import WAYS
    for length in (100, 300_000, 1_200_000):
        hold()
        array = conftest.DeviceArray(gpu, length)
        alive = weakref.ref(array)
        interrupted(WAYS[{way!r}].call, file, [array, bytearray(9)], [0, 1_200_000])
        del array
        gc.collect()
        # The transfer has the buffer until it ends.
        assert alive() is not None
        release()
        while alive() is not None:
            time.sleep(0.001)
    print(file.read_into(conftest.DeviceArray(gpu, 100)))
    """
    )
    assert printed == "100\n"


def test_interrupts_end_waits_for_streams(python):
    printed = python(
        HELD
        + """
    hold()
    stream, (source, other) = ctypes.c_void_p(), (conftest.DeviceArray(gpu, 100) for _ in range(2))
    assert gpu.cudaStreamCreate(ctypes.byref(stream)) == 0
    address = ctypes.c_void_p
    assert gpu.cudaMemcpyAsync(address(other.address), address(source.address), ctypes.c_size_t(100), 3, stream) == 0
    array = conftest.DeviceArray(gpu, 5000, {"stream": stream.value})
    for call in (file.read_into, file.write_from, file.read_into_async):
        interrupted(call, array, begun=lambda: count("calls cudaStreamQuery"))
    interrupted(file.write_many, [array], [0], begun=lambda: count("calls cudaStreamQuery"))
    release()
    print(file.read_into(array))
    """
    )
    assert printed == "5000\n"


def test_interrupted_loads_do_not_wait(python, tmp_path):
    np = pytest.importorskip("numpy")
    from gpufile.safetensors.numpy import save_file

    model = tmp_path / "model.safetensors"
    save_file({"x": np.zeros(300_000)}, model)
    printed = python(
        HELD
        + f"""
    from gpufile.safetensors import _load
    class Framework:
        copies, step_bytes = False, None
        def allocate(self, length):
            array = conftest.DeviceArray(gpu, length)
            alive.append(weakref.ref(array))
            return array
        def memory(self, group):
            return self.allocate(group.len_bytes)
        def memories(self, groups):
            return map(self.memory, groups)
        def fill(self, *arguments):
            pass
    alive, checkpoint = [], Checkpoint([{str(model)!r}])
    group = checkpoint.groups()[0]
    for call in (
        lambda: _load.load(checkpoint, Framework()),
        lambda: list(_load.stream(checkpoint, Framework())),
        lambda: checkpoint.read_now(group, Framework().allocate(group.len_bytes)),
    ):
        hold()
        interrupted(call)
        release()
        while any(array() is not None for array in alive):
            time.sleep(0.001)
    print("interrupted", len(alive))
    """
    )
    assert printed == "interrupted 3\n"


def test_other_threads_transfer_without_a_helper(file_threads):
    names = file_threads("threading.Thread(target=file.write_from, args=(b'abc',))", helpers=0)
    assert "gpufile-helper" not in names


def test_the_main_thread_keeps_one_helper(file_threads):
    names = file_threads("[file.read_into(conftest.DeviceArray(gpu, 100)) for _ in range(20)] and None", helpers=1)
    assert names.count("gpufile-helper") == 1


@pytest.fixture
def file_threads(python):
    """Returns a function that does something with a file, waits for this number of helpers, and returns the names of all
    threads."""

    def names(work, helpers):
        printed = python(f"""
            file = gpufile.File(path, "r+")
            work = {work}
            if work is not None:
                work.start()
                work.join()
            def names():
                for task in os.listdir("/proc/self/task"):
                    try:
                        yield open(f"/proc/self/task/{{task}}/comm").read().strip()
                    except (FileNotFoundError, ProcessLookupError):
                        pass  # The thread has ended.
            # A new worker has the name of the helper that created it, until it sets its own.
            for _ in range(100):
                found = list(names())
                if found.count("gpufile-helper") == {helpers}:
                    break
                time.sleep(0.1)
            print(*found)
        """)
        return printed.split()

    return names
