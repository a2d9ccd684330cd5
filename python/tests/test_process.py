"""Forks, interpreters that exit during a transfer, and the program."""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tomllib

import pytest

def test_forked_children_use_files_of_the_host(python):
    printed = python("""
        host, array = bytearray(1000), conftest.DeviceArray(gpu, 100)
        file = gpufile.File(path)
        file.read_into(array)
        slow()
        befores = [file.read_into_async(conftest.DeviceArray(gpu, 1_000_000)), file.read_into_on_stream(array, 0)]
        child = os.fork()
        if child == 0:
            assert file.read_into(host) == 1000
            assert host == open(path, "rb").read(1000)
            assert gpufile.File(path).read_into_async(host).result() == 1000
            for before in befores:
                for call in (before.result, before.done, before.cancel):
                    try:
                        call()
                    except RuntimeError as error:
                        assert "forked" in str(error), error
                    else:
                        os._exit(2)
                assert "another process" in repr(before)
            del before, befores
            try:
                file.read_into(array)
            except gpufile.TransferError as error:
                assert "fork" in str(error), error
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *[before.result() for before in befores])
    """)
    assert printed == "7 1000000 100\n"


@pytest.mark.parametrize("kept", ["future = ", ""])
@pytest.mark.parametrize("call", ["read_into_async(array)", "write_from_async(array)", "read_into_on_stream(array, 0)"])
def test_interpreters_exit_during_a_transfer(python, kept, call):
    assert python(f"""
        array = conftest.DeviceArray(gpu, 1_000_000)
        slow()
        file = gpufile.File(path, "r+", engine=narrow())
        {kept}file.{call}
        del array
    """) == ""


def test_other_interpreters_of_a_process_are_refused(python):
    pytest.importorskip("_xxsubinterpreters")
    assert python("""
        import _xxsubinterpreters as interpreters
        for _ in range(2):
            other = interpreters.create()
            interpreters.run_string(other, "try: import gpufile\\nexcept ImportError as error: print(error, flush=True)")
            interpreters.destroy(other)
        assert gpufile.File(path).read_into(bytearray(10)) == 10
    """) == "gpufile works in one interpreter of a process only, and another has imported it\n" * 2


def test_objects_use_files_while_the_interpreter_ends(python):
    assert python("""
        class Last:
            def __del__(self):
                file = gpufile.File(path)
                print(file.read_into_async(bytearray(10)).result(), gpufile.File(os.fsencode(path)).size() > 10)
                try:
                    file.read_into_async(bytearray(10), 2**63).result()
                except gpufile.TransferError as error:
                    print(error.bytes_done)
        last = Last()
    """) == "10 True\n0\n"


def test_other_threads_exit_during_a_call(python):
    assert python("""
        array = conftest.DeviceArray(gpu, 1_000_000)
        slow()
        file = gpufile.File(path, engine=narrow())
        threading.Thread(target=file.read_into, args=(array,), daemon=True).start()
        time.sleep(0.1)
    """) == ""


def test_check_prints_the_route(python):
    printed = python("""
        print(gpufile.File(path).route())
        sys.stdout.flush()
        os._exit(gpufile.check(path))
    """, status=3)
    assert "POSIX through pinned host memory" in printed and "libcufile" in printed


def test_driver_properties_are_set_before_it_opens(python):
    assert python("""
        import gpufile.kvikio.cufile_driver as driver
        assert driver.libcufile_version() >= (1, 0)
        before = driver.get("max_device_cache_size")
        with driver.set({"max_device_cache_size": 2048, "poll_thresh_size": 64, "poll_mode": True}):
            assert [driver.get(name) for name in ("max_device_cache_size", "poll_thresh_size")] == [2048, 64]
            assert driver.get("poll_mode") is True
        assert driver.get("max_device_cache_size") == before and not driver.get("poll_mode")
        driver.driver_open()
        try:
            driver.set("poll_mode", True)
        except RuntimeError as error:
            assert "cannot set poll_mode" in str(error), error
        else:
            raise AssertionError
        driver.driver_close()
        for name, message in [("major_version", "read-only"), ("no_such_property", "no_such_property")]:
            try:
                driver.set(name, 3)
            except KeyError as error:
                assert message in str(error), error
            else:
                raise AssertionError
        assert driver.get("is_gds_available") is False
    """) == ""


@pytest.mark.parametrize("version", [1150, 1200])
def test_driver_settings_outlive_openings(python, version):
    printed = python(f"""
        assert gpu.emulator_control(b"version {version}") == 0
        from gpufile.kvikio import cufile_driver as driver
        default = driver.get("poll_thresh_size")
        with driver.set("poll_thresh_size", 1024):
            with driver.set({{"poll_thresh_size": 2048, "max_device_cache_size": 4096}}):
                assert [driver.get("poll_thresh_size") for _ in range(3)] == [2048] * 3
            assert driver.get("poll_thresh_size") == 1024
            driver.driver_open()
            assert driver.get("poll_thresh_size") == 1024
            driver.driver_close()
            assert driver.get("poll_thresh_size") == 1024
        assert driver.get("poll_thresh_size") == default != 1024
        print("same")
    """)
    assert printed == "same\n"


@pytest.fixture
def program(gpu):
    """Returns a function that runs the program in a shell with some descriptors closed, and returns its exit status."""

    def program(arguments, closed):
        main = [sys.executable, "-c", "import sys, gpufile; sys.exit(gpufile._program())"]
        return subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *main, *map(str, arguments)], timeout=60).returncode

    return program


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&- 2>&-", "<&-"])
def test_the_program_works_with_closed_descriptors(program, path, content, closed):
    copy = path.with_name("copy")
    assert program(["cp", path, copy], closed) == 0
    assert copy.read_bytes() == content
    assert program(["bench", path, "-i", "64k", "-I", "read", "-w", "1"], closed) == 0
    assert program(["ls", path], closed) == 1
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["copy", "data.bin"]
    assert path.read_bytes() == content


ADDED = """
import sys
{before}
before = set(sys.modules)
import {module}
print(*sorted(set(sys.modules) - before))
"""


def added(before, module):
    """Returns the modules that an import adds to those of another."""
    program = ADDED.format(before=before, module=module)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


def test_package_imports_no_heavy_module():
    heavy = {"asyncio", "ctypes", "dataclasses", "inspect", "json", "numpy", "pathlib", "safetensors", "socket", "torch"}
    assert not heavy.intersection(added("", "gpufile"))
    # Futures are those of this module, which imports logging.
    assert all(name.startswith("gpufile") for name in added("import __future__, concurrent.futures, select, typing", "gpufile"))


def test_modules_for_torch_import_little():
    pytest.importorskip("torch")
    found = added("import torch", "gpufile.safetensors.torch")
    outer = {"", "._error", "._forks", "._future", "._gpufile", "._log", "._memory", "._paths", "._pickling"}
    inner = {"", "._arguments", "._convert", "._dtypes", "._error", "._load", "._mapped", "._names", "._open", "._opened"}
    inner |= {"._torch", ".torch"}
    expected = {f"gpufile{name}" for name in outer} | {f"gpufile.safetensors{name}" for name in inner}
    assert set(found) == expected
    assert not any("safetensors" in name for name in added("import torch", "gpufile.torch"))


def test_names_for_later_are_there(python):
    pytest.importorskip("torch")
    assert python("""
        import pickle
        import gpufile.safetensors as gs
        from gpufile.safetensors import torch as ours, _error
        for module in (gs, ours):
            assert module._LATER.keys() & set(dir(module)) and all(hasattr(module, name) for name in module._LATER)
            try:
                module.missing
            except AttributeError as error:
                print(error)
        for kind in (gs.SafetensorError, _error.MissingTensorError):
            assert type(pickle.loads(pickle.dumps(kind("text")))) is kind and issubclass(kind, gs.SafetensorError)
        assert issubclass(_error.MissingTensorError, KeyError) and str(_error.MissingTensorError("text")) == "text"
    """) == (
        "module 'gpufile.safetensors' has no attribute 'missing'\n"
        "module 'gpufile.safetensors.torch' has no attribute 'missing'\n"
    )


def test_version_is_that_of_the_program(python):
    printed = python("print(gpufile.__version__, flush=True); sys.argv[1:] = ['--version']; sys.exit(gpufile._program())")
    version, line = printed.splitlines()
    assert line.split()[-1] == version


def test_loads_log_their_time_and_obstacles(python, tmp_path):
    pytest.importorskip("numpy")
    printed = python(f"""
        import logging
        import numpy as np
        from gpufile._log import timed
        from gpufile.safetensors.numpy import load_file, save_file
        model = {str(tmp_path / "x")!r}
        save_file({{"a": np.zeros(1000, np.uint8)}}, model)
        load_file(model)
        logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout, level=logging.INFO)
        load_file(model)
        logging.getLogger("gpufile").setLevel(logging.DEBUG)
        load_file(model)
        with timed("read", 1000):
            gpufile.File(path).read_into(conftest.DeviceArray(gpu, 1000))
    """)
    load, read, *reasons = printed.splitlines()
    assert load.startswith("gpufile DEBUG load: 1000 bytes in 0.") and read.startswith("gpufile DEBUG read: 1000 bytes in ")
    assert reasons and all(reason.startswith("gpufile DEBUG read: a better way was not taken: ") for reason in reasons)


def test_oldest_torch_is_that_of_the_readme():
    python = pathlib.Path(__file__).parents[1]
    extras = tomllib.loads((python / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    oldest = re.search(r"Models load and save with torch (\d+\.\d+) and newer", (python / "README.md").read_text())[1]
    assert extras["torch"] == [f"torch>={oldest}"]


def test_free_threaded_interpreters_turn_the_lock_on():
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        import gpufile

        assert sys._is_gil_enabled() and gpufile.File
    # Other interpreters never look at what the module declares.
    python = pathlib.Path(__file__).parents[1]
    assert "#[pymodule(gil_used = true)]\nmod _gpufile" in (python / "src/lib.rs").read_text()
    assert "turns the global interpreter lock on" in (python / "README.md").read_text()
