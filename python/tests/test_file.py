"""Reads and writes of whole files and parts, by host and GPU memory."""

import errno
import os

import gpufile
import numpy as np
import pytest


def test_reads_fill_host_and_gpu_memory(path, content, device_array):
    with gpufile.File(path) as file:
        host = bytearray(len(content))
        assert file.read_into(host) == len(content)
        assert host == content
        array = device_array(len(content))
        assert file.read_into(array) == len(content)
        assert array.get() == content


def test_parts_of_files_and_buffers_are_read(path, content, device_array):
    with gpufile.File(path) as file:
        for buffer in (np.zeros(5000, np.uint8), device_array(5000).set(bytes(5000))):
            assert file.read_into(buffer, 777, 1003, buffer_offset=33) == 1003
            got = buffer.get() if hasattr(buffer, "get") else buffer.tobytes()
            assert got == bytes(33) + content[777:1780] + bytes(5000 - 1036)


def test_reads_are_short_at_the_end(path, content):
    with gpufile.File(path) as file:
        buffer = bytearray(100)
        assert file.read_into(buffer, len(content) - 7) == 7
        assert buffer[:7] == content[-7:]
        assert file.read_into(buffer, len(content) + 5) == 0


def test_exact_reads_raise_at_the_end(path, content, device_array):
    with gpufile.File(path) as file:
        for length in (1, 100, len(content)):
            for buffer in (bytearray(length), device_array(length)):
                assert file.read_exact(buffer) is None
                assert bytes(buffer.get() if hasattr(buffer, "get") else buffer) == content[:length]
        for kept, length in ((7, 100), (0, 100), (len(content), len(content) + 3_000_000)):
            with pytest.raises(gpufile.TransferError) as raised:
                file.read_exact(bytearray(length), len(content) - kept)
            assert raised.value.bytes_done == kept and raised.value.filename == str(path) and raised.value.entry is None
        buffer = bytearray(9)
        file.read_exact(buffer, 5, 4, buffer_offset=2)
        assert buffer == bytes(2) + content[5:9] + bytes(3)


def test_written_bytes_are_in_the_file(tmp_path, content, device_array):
    path = tmp_path / "written"
    with gpufile.File(path, "w+") as file:
        assert file.write_from(content) == len(content)
        assert file.write_from(device_array(3).set(b"abc"), 10) == 3
    assert path.read_bytes() == content[:10] + b"abc" + content[13:]


def test_modes_are_those_of_open(path, content):
    with gpufile.File(path, "r+b") as file:
        file.write_from(b"x", 1)
    assert path.read_bytes() == content[:1] + b"x" + content[2:]
    with pytest.raises(FileExistsError):
        gpufile.File(path, "x")
    with gpufile.File(path, "w"):
        assert path.stat().st_size == 0
    with pytest.raises(ValueError, match="rw"):
        gpufile.File(path, "rw")


def test_modes_that_append_are_refused(path, content):
    for mode in ("a", "ab", "a+", "a+b"):
        with pytest.raises(ValueError, match="appends, but each write here has its own offset"):
            gpufile.File(path, mode)
        with pytest.raises(ValueError, match="appends"):
            gpufile.File(path.with_name("none"), mode)
    with pytest.raises(OSError), open(path, "ab") as appending:
        gpufile.File.from_fd(appending)
    assert path.read_bytes() == content and not path.with_name("none").exists()


def test_descriptors_stay_the_callers(path, content):
    buffer = bytearray(10)
    with open(path, "r+b") as lent:
        with gpufile.File.from_fd(lent) as file:
            assert (file.name, file.mode) == (str(path), "r+") and file.fileno() != lent.fileno()
            assert file.read_into(buffer, 5) == 10 and buffer == content[5:15] and lent.tell() == 0
            file.write_from(b"xyz", 3)
        assert lent.read(6) == content[:3] + b"xyz"
    for access, mode in ((os.O_RDONLY, "r"), (os.O_WRONLY, "w")):
        descriptor = os.open(path, access)
        file = gpufile.File.from_fd(descriptor, engine=gpufile.Engine(threads=1))
        os.close(descriptor)
        assert file.mode == mode
        read, write = lambda: file.read_into(buffer, 20), lambda: file.write_from(buffer, 20)
        works, fails = (read, write) if mode == "r" else (write, read)
        works()
        with pytest.raises(OSError) as caught:
            fails()
        assert caught.value.errno == errno.EBADF and caught.value.filename == str(path)
    assert path.read_bytes()[20:30] == content[20:30] == bytes(buffer)


def test_only_descriptors_of_files_are_taken(path, tmp_path):
    opened = [os.open(tmp_path, os.O_RDONLY), *os.pipe(), os.open(path, os.O_RDWR | os.O_APPEND)]
    before = os.listdir("/proc/self/fd")
    for number, wrong in ((-1, errno.EBADF), (1 << 20, errno.EBADF), (opened[0], errno.EISDIR), (opened[1], errno.ESPIPE)):
        with pytest.raises(OSError) as caught:
            gpufile.File.from_fd(number)
        assert caught.value.errno == wrong
    with pytest.raises(OSError, match="O_APPEND ignores the offsets of writes") as caught:
        gpufile.File.from_fd(opened[3])
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, str(path))
    for wrong in ("3", None, 1 << 40):
        with pytest.raises((TypeError, OSError)):
            gpufile.File.from_fd(wrong)
    # Files of earlier tests may have been closed in between.
    assert set(os.listdir("/proc/self/fd")) <= set(before)
    for descriptor in opened:
        os.close(descriptor)


def test_errors_have_errno_path_and_bytes(path, tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        gpufile.File(tmp_path / "missing")
    assert missing.value.filename == str(tmp_path / "missing") and missing.value.errno == errno.ENOENT
    with gpufile.File(path) as file, pytest.raises(gpufile.TransferError) as refused:
        file.write_from(b"abc")
    error = refused.value
    assert (error.errno, error.filename, error.bytes_done) == (errno.EBADF, str(path), 0)
    assert isinstance(error, OSError) and str(error).count(str(path)) == 1


def test_closed_files_refuse_transfers(path):
    file = gpufile.File(path)
    assert not file.closed
    file.close()
    file.close()
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read_into(bytearray(1))
    with pytest.raises(ValueError, match="closed"):
        file.__enter__()


def test_paths_of_every_kind_open(path, content):
    for name in [path, str(path), os.fsencode(path)]:
        with gpufile.File(name) as file:
            assert file.size() == len(content) and os.fspath(file.name) == str(path)
    with pytest.raises(ValueError, match="null byte"):
        gpufile.File("a\0b")
    with pytest.raises(TypeError):
        gpufile.File(3)


def test_folders_and_fifos_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(IsADirectoryError):
        gpufile.File(tmp_path)
    for mode in ["r", "w", "r+"]:
        with pytest.raises(OSError) as refused:
            gpufile.File(tmp_path / "fifo", mode)
        assert refused.value.errno == errno.ESPIPE


def test_lengths_beyond_the_kernel_limit_have_an_errno(path):
    with gpufile.File(path, "r+") as file, pytest.raises(OSError) as refused:
        file.truncate(2**63)
    assert refused.value.errno == errno.EINVAL
