"""The names of kvikio 26.10: each is here with its meaning, or README.md says why it is not."""

import importlib
import inspect
import os
import pathlib
import re
import subprocess
import sys
import warnings

import pytest

np = pytest.importorskip("numpy")

import gpufile.kvikio as kvikio
from gpufile.kvikio import cufile_driver, defaults, utils
from gpufile.kvikio import numpy as arrays

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()

#: The arguments of S3.
AWS = ["aws_region_name", "aws_access_key_id", "aws_secret_access_key", "aws_endpoint_url", "aws_session_token"]
#: The public names of kvikio's modules, and the arguments of those that have some.
NAMES = {
    "": {
        "CompatMode": None,
        "CuFile": ["file", "flags"],
        "Mmap": ["file_path", "flags", "initial_map_size", "initial_map_offset", "mode", "map_flags"],
        "RemoteEndpointType": None,
        "RemoteFile": None,
        "RemoteIOBackend": None,
        "RemoteReactorDispatch": None,
        "Summary": None,
        "SummaryMonitor": None,
        "__git_commit__": None,
        "__version__": None,
        "bounce_buffer_free": [],
        "clear_page_cache": ["reclaim_dentries_and_inodes", "clear_dirty_pages"],
        "drop_file_page_cache": ["file", "offset", "length", "sync_first"],
        "drop_system_page_cache": ["reclaim_dentries_and_inodes", "sync_first"],
        "get_page_cache_info": ["file", "offset", "length"],
        "infer_remote_endpoint_type": ["url"],
        "is_remote_file_available": [],
        "kvikio_deprecation_notice": ["msg", "since"],
        "memory_deregister": ["buf"],
        "memory_register": ["buf"],
        "nsys_plugin_search_dir": None,
        "stream_deregister": ["raw_stream"],
        "stream_register": ["raw_stream", "flags"],
    },
    "buffer": {"bounce_buffer_free": [], "memory_deregister": ["buf"], "memory_register": ["buf"]},
    "cufile": {
        "CuFile": ["file", "flags"],
        "CuFile.close": [],
        "CuFile.closed": None,
        "CuFile.fileno": [],
        "CuFile.is_direct_io_supported": [],
        "CuFile.open_flags": [],
        "CuFile.pread": ["buf", "size", "file_offset", "task_size"],
        "CuFile.pwrite": ["buf", "size", "file_offset", "task_size"],
        "CuFile.raw_read": ["buf", "size", "file_offset", "dev_offset"],
        "CuFile.raw_read_async": ["buf", "raw_stream", "size", "file_offset", "dev_offset"],
        "CuFile.raw_write": ["buf", "size", "file_offset", "dev_offset"],
        "CuFile.raw_write_async": ["buf", "raw_stream", "size", "file_offset", "dev_offset"],
        "CuFile.read": ["buf", "size", "file_offset", "task_size"],
        "CuFile.write": ["buf", "size", "file_offset", "task_size"],
        "IOFuture.done": [],
        "IOFuture.get": [],
        "IOFutureStream.check_bytes_done": [],
        "clear_page_cache": ["reclaim_dentries_and_inodes", "clear_dirty_pages"],
        "drop_file_page_cache": ["file", "offset", "length", "sync_first"],
        "drop_system_page_cache": ["reclaim_dentries_and_inodes", "sync_first"],
        "get_page_cache_info": ["file", "offset", "length"],
    },
    "cufile_driver": {
        "ConfigContextManager": ["config"],
        "driver_close": [],
        "driver_open": [],
        "get": ["config_name"],
        "initialize": [],
        "libcufile_version": [],
        "properties": None,
        "set": ["config"],
    },
    "defaults": {
        "ConfigContextManager": ["config"],
        "get": ["config_name"],
        "is_compat_mode_preferred": [],
        "set": ["config"],
    },
    "mmap": {
        "Mmap.close": [],
        "Mmap.closed": [],
        "Mmap.file_size": [],
        "Mmap.initial_map_offset": [],
        "Mmap.initial_map_size": [],
        "Mmap.pread": ["buf", "size", "offset", "task_size"],
        "Mmap.read": ["buf", "size", "offset"],
    },
    "numpy": {
        "FileLike": None,
        "LikeWrapper": ["like"],
        "fromfile": ["file", "dtype", "count", "sep", "offset", "like"],
        "tofile": ["ary", "file"],
    },
    "remote_file": {
        "RemoteEndpointType.AUTO": None,
        "RemoteEndpointType.HTTP": None,
        "RemoteEndpointType.S3": None,
        "RemoteEndpointType.S3_PRESIGNED_URL": None,
        "RemoteEndpointType.S3_PUBLIC": None,
        "RemoteEndpointType.WEBHDFS": None,
        "RemoteFile.close": [],
        "RemoteFile.nbytes": [],
        "RemoteFile.open": ["url", "remote_endpoint_type", "allow_list", "nbytes"],
        "RemoteFile.open_http": ["url", "nbytes"],
        "RemoteFile.open_s3": ["bucket_name", "object_name", "nbytes", *AWS],
        "RemoteFile.open_s3_presigned_url": ["presigned_url", "nbytes"],
        "RemoteFile.open_s3_public": ["url", "nbytes"],
        "RemoteFile.open_s3_url": ["url", "nbytes", *AWS],
        "RemoteFile.open_webhdfs": ["url", "nbytes"],
        "RemoteFile.pread": ["buf", "size", "file_offset"],
        "RemoteFile.read": ["buf", "size", "file_offset"],
        "RemoteFile.remote_endpoint_type": [],
        "infer_remote_endpoint_type": ["url"],
        "is_remote_file_available": [],
    },
    "statistics": {
        "Summary": None,
        "Summary.BackendTotals": None,
        "Summary.deserialize": ["data"],
        "Summary.report": [],
        "Summary.serialize": [],
        "Summary.since": ["previous"],
        "Summary.to_json": [],
        "SummaryMonitor": [],
        "SummaryMonitor.get": [],
        "SummaryMonitor.reset": [],
        "SummaryMonitor.since": ["previous"],
        "SummaryMonitor.stop": [],
    },
    "stream": {"stream_deregister": ["raw_stream"], "stream_register": ["raw_stream", "flags"]},
    "utils": {
        "LocalHttpServer": ["root_path", "range_support", "max_lifetime", "handler", "handler_options"],
        "call_once": ["func"],
        "kvikio_deprecate_module": ["msg", "since"],
        "kvikio_deprecation_notice": ["msg", "since"],
    },
}
MODULES = ["benchmarks", "nsys", "numcodecs", "zarr"]
SETTINGS = [
    "auto_direct_io_read",
    "auto_direct_io_write",
    "bounce_buffer_size",
    "compat_mode",
    "gds_threshold",
    "http_max_attempts",
    "http_status_codes",
    "http_timeout",
    "num_threads",
    "remote_io_backend",
    "remote_io_max_concurrent_requests",
    "remote_io_num_reactors",
    "remote_io_reactor_dispatch",
    "task_size",
]
PROPERTIES = {
    "allow_compat_mode": bool,
    "is_gds_available": bool,
    "major_version": int,
    "max_device_cache_size": int,
    "max_pinned_memory_size": int,
    "minor_version": int,
    "per_buffer_cache_size": int,
    "poll_mode": bool,
    "poll_thresh_size": int,
}


def explained():
    """Returns the names that README.md lists as missing."""
    table = README.partition("Names of kvikio that are missing here")[2].partition("\n\n[")[0]
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ") and "`" in row]
    return {name.rpartition(".")[2] for cell in first for name in re.findall(r"`([\w.]+)`", cell)}


def test_every_name_is_here_or_explained():
    missing = set()
    for module, names in NAMES.items():
        holder = importlib.import_module(f"gpufile.kvikio.{module}".rstrip("."))
        for name, parameters in names.items():
            value = holder
            for part in name.split("."):
                value = getattr(value, part, None)
            if value is None:
                missing.add(name)
            elif parameters is not None:
                assert [key for key in inspect.signature(value).parameters if key != "self"] == parameters, name
    for module in MODULES:
        if importlib.util.find_spec(f"gpufile.kvikio.{module}") is None:
            missing.add(module)
    assert missing == explained()


def test_settings_have_values_and_the_older_functions():
    assert len(SETTINGS) == 14
    for name in SETTINGS:
        value = defaults.get(name)
        if name != "compat_mode":
            assert getattr(defaults, name)() == value
        for change in (getattr(defaults, part) for part in (f"set_{name}", f"reset_{name}", f"{name}_reset")):
            change(value)
            assert defaults.get(name) == value
    assert defaults.get_num_threads() == defaults.get("num_threads")
    with defaults.set_num_threads(3):
        assert defaults.get_num_threads() == defaults.get("thread_pool_nthreads") == 3
    for name in ("set_", "_reset", "set_nothing", "get_task_size", "nothing_reset"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(defaults, name)


def test_compat_mode_is_true_only_where_cufile_is_not_used():
    assert defaults.get("compat_mode") == kvikio.CompatMode.AUTO
    for mode, expected in [("ON", True), ("OFF", False), (True, True), (False, False)]:
        with defaults.set_compat_mode(mode):
            assert bool(defaults.compat_mode()) is expected
            assert defaults.compat_mode() == kvikio.CompatMode(expected)
    assert bool(defaults.compat_mode()) is defaults.is_compat_mode_preferred()


def test_settings_of_remote_files_are_kept():
    assert defaults.get("remote_io_backend") is kvikio.RemoteIOBackend.EASY_THREADPOOL
    with defaults.set("remote_io_backend", kvikio.RemoteIOBackend.MULTI_POLL):
        assert defaults.get("remote_io_backend") is kvikio.RemoteIOBackend.MULTI_POLL
    for name, value in [
        ("remote_io_num_reactors", 3),
        ("remote_io_max_concurrent_requests", 9),
        ("remote_io_reactor_dispatch", kvikio.RemoteReactorDispatch.PER_PREAD),
    ]:
        before = defaults.get(name)
        assert defaults.set(name, value) is None and defaults.get(name) == value
        defaults.set(name, before)
        with pytest.raises(ValueError, match=name):
            defaults.set({name: value, "num_threads": 7})
    assert defaults.get("num_threads") != 7
    for name, value, error in [
        ("remote_io_num_reactors", 0, ValueError),
        ("remote_io_max_concurrent_requests", -1, OverflowError),
        ("remote_io_backend", 1.5, TypeError),
        ("remote_io_backend", 7, ValueError),
    ]:
        with pytest.raises(error):
            defaults.set(name, value)


def test_properties_of_the_driver_are_attributes():
    properties = cufile_driver.properties
    for name, kind in PROPERTIES.items():
        assert name in dir(properties)
        value = getattr(properties, name)
        assert type(value) is kind and value == cufile_driver.get(name)
    with pytest.raises(AttributeError, match="major_version is read-only"):
        properties.major_version = 3
    with pytest.raises(AttributeError, match="nothing is no property"):
        properties.nothing = 3
    with pytest.raises(AttributeError, match="no property 'nothing'"):
        properties.nothing


def test_assigned_properties_are_set(python):
    # The engines of other tests keep the driver open in this process.
    printed = python("""
        from gpufile.kvikio import cufile_driver
        properties = cufile_driver.properties
        old = properties.max_device_cache_size
        properties.max_device_cache_size = old // 2
        print(properties.max_device_cache_size == cufile_driver.get("max_device_cache_size") == old // 2)
    """)
    assert printed == "True\n"


def test_properties_are_zero_without_a_driver(tmp_path):
    program = f"""if True:
        from gpufile.kvikio import cufile_driver
        print(sorted({{cufile_driver.get(name) for name in {list(PROPERTIES)}}}))
        for refused in (cufile_driver.driver_open, lambda: cufile_driver.set("poll_mode", True)):
            try:
                refused()
            except RuntimeError as error:
                print(type(error).__name__)
    """
    none = str(tmp_path / "none.so")
    variables = {"CUFILE_LIBRARY": none, "CUDART_LIBRARY": none, "CUDA_LIBRARY": none}
    run = subprocess.run([sys.executable, "-c", program], env=os.environ | variables, capture_output=True, text=True)
    assert run.stdout.split("\n")[:3] == ["[False]", "CuFileError", "CuFileError"], run.stderr


def test_direct_io_depends_on_the_file_and_the_settings(path):
    try:
        os.close(os.open(path, os.O_DIRECT))
        expected = True
    except OSError:
        expected = False
    for flags in ("r", "w", "r+"):
        with kvikio.CuFile(path, flags) as file:
            assert file.is_direct_io_supported() is expected
            assert os.get_inheritable(file.fileno()) is False
            with defaults.set({"auto_direct_io_read": False, "auto_direct_io_write": False}):
                assert not file.is_direct_io_supported()
            with defaults.set("auto_direct_io_read", False):
                assert file.is_direct_io_supported() is expected
        assert not file.is_direct_io_supported()
    # qemu answers for the files of /proc/self from memory.
    with kvikio.CuFile("/proc/version") as file:
        assert not file.is_direct_io_supported()


def test_call_once_keeps_the_first_result():
    calls = []

    @utils.call_once
    def double(number):
        """Doubles."""
        calls.append(number)
        return 12 // number

    with pytest.raises(ZeroDivisionError):
        double(0)
    assert [double(3), double(4)] == [4, 4] and calls == [0, 3]
    assert double.__name__ == "double" and double.__doc__ == "Doubles."


def test_deprecated_functions_warn_at_their_caller():
    @kvikio.kvikio_deprecation_notice("Use another.", since="26.04")
    def old(number):
        """Returns the number."""
        return number

    with pytest.warns(FutureWarning, match="Use another.") as caught:
        assert old(3) == 3
    assert caught[0].filename == __file__
    assert old.__doc__.startswith(".. deprecated:: 26.04 Use another.") and "Returns the number." in old.__doc__
    with pytest.warns(FutureWarning, match="deprecated since 26.10. Use b."):
        utils.kvikio_deprecate_module("Use b.", since="26.10")


def test_dropping_all_caches_has_a_newer_name(monkeypatch):
    commands = []

    def run(command, **keywords):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kvikio.drop_system_page_cache(sync_first=False)
    with pytest.warns(FutureWarning, match="drop_system_page_cache"):
        assert kvikio.clear_page_cache(clear_dirty_pages=False)
    assert commands[0] == commands[1]


def test_open_files_are_like_files(path):
    with open(path, "rb") as file:
        assert isinstance(file, arrays.FileLike)
    assert not isinstance(path, arrays.FileLike)
