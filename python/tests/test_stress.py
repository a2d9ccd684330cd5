"""Threads, forks, exceptions and the garbage collector at random, with objects of every kind.

``GPUFILE_STRESS_SECONDS`` sets how long, and ``GPUFILE_STRESS_SEED`` what happens. A hang or a crash is a failure.
"""

import os
import subprocess
import sys
import time

import pytest

SECONDS = float(os.environ.get("GPUFILE_STRESS_SECONDS", "3"))
SEED = int(os.environ.get("GPUFILE_STRESS_SEED") or time.time_ns())


@pytest.mark.parametrize("memory", ["host", "gpu"])
def test_objects_survive_threads_forks_and_collections(path, memory):
    if memory == "gpu" and not os.environ.get("GPUFILE_TEST_EMULATOR"):
        pytest.skip("GPUFILE_TEST_EMULATOR names no libcufile_emulator.so")
    command = [sys.executable, __file__, str(path), memory, str(SECONDS / 2), str(SEED)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 120)
    assert run.returncode == 0, (SEED, run.returncode, run.stdout[-4000:], run.stderr[-4000:])


def main(path, memory, seconds, seed):
    import faulthandler
    import gc
    import random
    import signal
    import threading
    from concurrent.futures import CancelledError

    sys.path.insert(0, os.path.dirname(__file__))
    import conftest
    import test_methods

    import gpufile
    from gpufile._gpufile import Lock
    from gpufile._saves import Save, Saves
    from gpufile.kvikio import defaults

    faulthandler.dump_traceback_later(seconds + 90, exit=True)
    content = open(path, "rb").read()
    end = time.monotonic() + seconds
    raised, lock, saves = [], Lock(), Saves(1)
    # Objects raise at their end on purpose.
    sys.unraisablehook = lambda error: raised.append(error.exc_type)
    failed = []
    threading.excepthook = lambda error: failed.append(repr(error.exc_value))
    if memory == "gpu":
        import ctypes

        gpu = ctypes.CDLL(conftest.EMULATOR)

    class Buffer:
        """Memory that uses other objects at its end."""

        def __init__(self, random, futures, length):
            self.random, self.futures, self.me = random, futures, self if random.random() < 0.3 else None
            self.memory = bytearray(length)
            if memory == "gpu":
                self.array = conftest.DeviceArray(gpu, length)
                self.__cuda_array_interface__ = self.array.__cuda_array_interface__
            else:
                address = ctypes_address(self.memory)
                self.__array_interface__ = {"data": (address, False), "shape": (length,), "typestr": "|u1", "version": 3}

        def __del__(self):
            choice = self.random.randrange(6)
            future = self.futures[-1] if self.futures else None
            if choice == 0 and future is not None:
                future.done()
            elif choice == 1 and future is not None:
                future.cancel()
            elif choice == 2 and future is not None:
                future.result(0.01)
            elif choice == 3:
                gpufile.File(path).close()
            elif choice == 4:
                raise ValueError("at the end")

    def work(number):
        choose = random.Random(f"{seed} {number}")
        files, futures = [], []
        while time.monotonic() < end:
            if not files or choose.random() < 0.2:
                engine = gpufile.Engine(threads=choose.randint(1, 3), chunk_bytes=choose.choice([4096, 100_000]))
                files.append(gpufile.File(path, choose.choice(["r", "r+"]), engine=choose.choice([engine, None])))
            file = choose.choice(files)
            offset, length = choose.randrange(len(content)), choose.choice([1, 5000, 300_000])
            try:
                match choose.randrange(14):
                    case 0 | 1 | 2:
                        futures.append(file.read_into_async(Buffer(choose, futures, length), offset))
                    case 3 | 5:
                        way, count = choose.choice(test_methods.PLAIN), choose.choice([1, 9])
                        new = (lambda at: content[at : at + 100]) if way.is_write else (lambda _: Buffer(choose, futures, 100))
                        begun = way.start(file, [new(at) for at in range(count)], range(count))
                        futures += [begun] if isinstance(begun, gpufile.Future) else []
                    case 4:
                        host = bytearray(length)
                        read = file.read_into(host, offset)
                        assert host[:read] == content[offset : offset + read]
                    case 6 if futures:
                        futures.pop(choose.randrange(len(futures))).cancel()
                    case 7 if futures:
                        del futures[choose.randrange(len(futures))]
                    case 8 if futures:
                        choose.choice(futures).result(choose.choice([0, 0.001, 5]))
                    case 9:
                        files.pop(choose.randrange(len(files)))
                    case 10:
                        gc.collect()
                        files.pop().close()
                    case 11:
                        defaults.set("task_size", choose.choice([4096, 1 << 20]))
                        file.with_engine(defaults.engine()).read_into(bytearray(length))
                    case 12:
                        lock.run(lambda: lock.run(lambda: file.read_into(bytearray(length))))
                    case 13:
                        save = Save("file", None)
                        saves.start(save, str(number % 2), lambda: 1)
                        assert save.result() == 1
            except (CancelledError, OSError, ValueError, TimeoutError):
                # Closed and read-only files, dropped files, and timeouts.
                pass
            if len(futures) > 30:
                del futures[:20]

    def use_in_child():
        host = bytearray(5000)
        assert gpufile.File(path).read_into(host) == 5000 and host == content[:5000]
        assert lock.run(lambda: 5) == 5
        assert saves.end() == []
        gc.collect()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    forks = 0
    while time.monotonic() < end:
        child = os.fork()
        if child == 0:
            # Ends a child that hangs. faulthandler would wait for a thread of the parent.
            signal.alarm(60)
            try:
                use_in_child()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        forks += 1
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    saves.end()
    assert not failed, failed
    print(f"{forks} forks, {len(raised)} exceptions in __del__, seed {seed}")


def ctypes_address(memory):
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
