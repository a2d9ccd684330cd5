"""The totals of kvikio's transfers, as a monitor counts them."""

import copy
import errno
import json
import os
import pickle
import re
import threading
import time

import numpy as np
import pytest

import gpufile.kvikio as kvikio
from gpufile.kvikio import Summary, SummaryMonitor


def check(summary):
    """Checks what holds for each summary."""
    totals = summary.by_backend.values()
    assert list(summary.by_backend) == ["POSIX", "GDS", "MMAP", "REMOTE_HTTP", "REMOTE_HDFS"]
    for name in ("num_ops", "bytes_transferred", "total_duration_ns", "num_errors"):
        assert sum(total[name] for total in totals) == getattr(summary, name), name
    assert summary.num_reads + summary.num_writes == summary.num_ops
    assert summary.bytes_read + summary.bytes_written == summary.bytes_transferred
    assert summary.wall_ns == summary.end_unix_ns - summary.start_unix_ns
    assert 0 <= summary.busy_ns <= summary.wall_ns and 0 <= summary.busy_fraction <= 1
    return summary


def test_reads_and_writes_are_counted(path):
    buffer = bytearray(1000)
    with SummaryMonitor() as monitor, kvikio.CuFile(path, "r+") as file:
        assert check(monitor.get()).num_ops == 0
        file.read(buffer)
        file.pread(buffer, 300, file_offset=17, task_size=13).get()
        file.write(buffer, 50)
        file.pwrite(buffer, 70).get()
        file.read(buffer, file_offset=1_234_567 - 10)
    summary = check(monitor.get())
    assert (summary.num_reads, summary.num_writes, summary.num_errors) == (3, 2, 0)
    assert (summary.bytes_read, summary.bytes_written) == (1310, 120)
    assert summary.bytes_requested == 1000 + 300 + 50 + 70 + 1000
    assert summary.by_backend["POSIX"]["num_ops"] == 5
    # No two were in flight at once.
    assert 0 < summary.total_duration_ns <= summary.busy_ns
    assert summary.mean_duration_ns == summary.total_duration_ns // 5
    assert summary.busy_bytes_per_sec == summary.bytes_transferred * 1e9 / summary.busy_ns


def test_regions_count_as_mappings(path):
    with SummaryMonitor() as monitor:
        region = kvikio.Mmap(path, initial_map_size=5000)
        region.read(bytearray(5000))
        region.pread(bytearray(5000), 10, offset=4990).get()
        with pytest.raises(IndexError):
            region.read(bytearray(5000), 5001)
        region.close()
        with pytest.raises(kvikio.CuFileError):
            region.read(bytearray(5000), 50)
    summary = check(monitor.get())
    assert summary.by_backend["MMAP"]["num_ops"] == summary.num_ops == 3
    assert (summary.bytes_read, summary.num_errors) == (5010, 1)


def test_transfers_of_gpus_count_by_their_route(path, device_array):
    array = device_array(5000)
    with SummaryMonitor() as monitor, kvikio.CuFile(path, "r+") as file:
        file.read(array)
        file.raw_read(array, dev_offset=4000)
        file.raw_write(array, 10, dev_offset=4990)
        file.raw_read_async(array, 0, 100).check_bytes_done()
        uses_cufile = file._file.route().kind != "posix"
    summary = check(monitor.get())
    assert (summary.bytes_read, summary.bytes_written, summary.bytes_requested) == (6100, 10, 6110)
    assert summary.by_backend["GDS" if uses_cufile else "POSIX"]["num_ops"] == 4


def test_failed_calls_are_errors_and_wrong_ones_are_none(path):
    with SummaryMonitor() as monitor:
        file = kvikio.CuFile(path)
        with pytest.raises(kvikio.CuFileError) as refused:
            file.write(b"abc")
        assert refused.value.errno == errno.EPERM
        for wrong in (lambda: file.read(5), lambda: file.read(bytearray(3), -1), lambda: file.read(bytearray(3), 9)):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                wrong()
        file.close()
        with pytest.raises(kvikio.CuFileError):
            file.pread(bytearray(3))
    summary = check(monitor.get())
    assert (summary.num_ops, summary.num_errors, summary.bytes_transferred) == (2, 2, 0)
    assert summary.num_writes == 1


def test_failed_futures_are_errors(path, device_array, command):
    array = device_array(5000)
    with SummaryMonitor() as monitor, kvikio.CuFile(path) as file:
        for function in ("cudaMemcpyAsync", "cudaMemcpyBatchAsync"):
            command(f"fault {function} times=all err=719")
        with pytest.raises(RuntimeError):
            file.pread(array).get()
    summary = check(monitor.get())
    assert (summary.num_ops, summary.num_errors, summary.bytes_read) == (1, 1, 0)


def test_transfers_in_flight_are_busy(path, device_array, let_copies_go):
    arrays = [device_array(5000), device_array(5000)]
    with kvikio.CuFile(path) as file, SummaryMonitor() as monitor:
        futures = [file.pread(array) for array in arrays]
        assert monitor.get().num_ops == 0
        time.sleep(0.005)
        before = monitor.get()
        let_copies_go()
        assert [future.get() for future in futures] == [5000, 5000]
        summary = check(monitor.get())
    assert before.num_ops == 0 and 5_000_000 <= before.busy_ns <= summary.busy_ns
    assert summary.num_ops == 2
    assert summary.busy_ns < summary.total_duration_ns


def test_dropped_futures_are_counted(path, device_array, slow_copies):
    with kvikio.CuFile(path) as file, SummaryMonitor() as monitor:
        file.pread(device_array(5000))
        end = time.monotonic() + 20
        while monitor.get().num_ops == 0 and time.monotonic() < end:
            time.sleep(0.001)
        assert check(monitor.get()).bytes_read == 5000


def test_monitors_count_on_their_own(path):
    buffer = bytearray(10)
    outer = SummaryMonitor()
    with kvikio.CuFile(path) as file:
        file.read(buffer)
        inner = SummaryMonitor()
        file.read(buffer)
        before = outer.get()
        outer.reset()
        assert (before.num_ops, outer.get().num_ops, inner.get().num_ops) == (2, 0, 1)
        assert outer.get().start_unix_ns > before.start_unix_ns
        with pytest.raises(ValueError, match="previous: expected an earlier summary of the same monitor"):
            outer.since(before)
        file.read(buffer)
        inner.stop()
        stopped = inner.get()
        inner.stop()
        file.read(buffer)
    assert outer.get().num_ops == 2 and inner.get() == stopped and stopped.num_ops == 2
    inner.reset()
    assert check(inner.get()).wall_ns == 0


def test_operations_begun_before_a_reset_do_not_count(path, device_array, let_copies_go):
    with kvikio.CuFile(path) as file, SummaryMonitor() as monitor:
        future = file.pread(device_array(5000))
        late = SummaryMonitor()
        monitor.reset()
        let_copies_go()
        assert future.get() == 5000
        assert monitor.get().num_ops == late.get().num_ops == 0
        assert check(monitor.get()).busy_ns > 0 == late.get().busy_ns
        file.read(bytearray(5))
        assert check(monitor.get()).num_ops == check(late.get()).num_ops == 1


def test_intervals_add_up(path):
    with kvikio.CuFile(path) as file, SummaryMonitor() as monitor:
        first = last = monitor.get()
        intervals = []
        for length in (10, 20, 30):
            file.read(bytearray(length))
            now = monitor.get()
            intervals.append(check(now.since(last)))
            last = now
        assert check(monitor.since(last)).num_ops == 0
    assert [interval.bytes_read for interval in intervals] == [10, 20, 30]
    assert [interval.num_ops for interval in intervals] == [1, 1, 1]
    assert sum(interval.busy_ns for interval in intervals) == last.busy_ns - first.busy_ns
    assert [interval.start_unix_ns for interval in intervals[1:]] == [each.end_unix_ns for each in intervals[:-1]]
    for wrong in (intervals[0], SummaryMonitor().get()):
        with pytest.raises(ValueError, match="previous: expected an earlier summary of the same monitor"):
            last.since(wrong)
    with pytest.raises(ValueError, match="previous"):
        first.since(last)


def test_summaries_go_to_other_processes(path):
    with kvikio.CuFile(path) as file, SummaryMonitor() as monitor:
        file.read(bytearray(10))
        summary = monitor.get()
        back = Summary.deserialize(summary.serialize())
        assert back == summary == pickle.loads(pickle.dumps(summary)) == copy.deepcopy(summary)
        assert back.to_json() == summary.to_json() and str(back) == str(summary)
        file.read(bytearray(10))
        assert monitor.since(back).num_ops == 1
    raw = summary.serialize()
    for wrong in (raw[:-1], raw[1:], b"", b"not a summary", raw.replace(b"num_ops", b"num_ups")):
        with pytest.raises(ValueError, match="data: not the bytes of a summary"):
            Summary.deserialize(wrong)


def test_reports_have_every_field(path):
    with kvikio.CuFile(path) as file, SummaryMonitor() as monitor:
        file.read(bytearray(3 << 20))
    summary = monitor.get()
    text = str(summary)
    assert text.startswith("KvikIO I/O summary\n") and text == summary.report()
    assert "1 (1 read, 0 write)" in text and "1.18 MiB of 3.00 MiB requested" in text
    assert re.search(r"backend POSIX +1.18 MiB in 1 operations, [\d.]+ [µm]?s, 0 failed\n", text)
    assert len(re.findall("unused\n", text)) == 4
    fields = json.loads(summary.to_json())
    assert fields["num_ops"] == 1 and fields["by_backend"] == summary.by_backend
    assert fields["busy_bytes_per_sec"] == summary.busy_bytes_per_sec and "num_ops=1" in repr(summary)
    assert abs(time.time_ns() - summary.end_unix_ns) < 60e9


def test_threads_lose_no_operation(path):
    with kvikio.CuFile(path) as file, SummaryMonitor() as monitor:

        def read():
            for _ in range(200):
                file.read(bytearray(7))
                SummaryMonitor().stop()

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert check(monitor.get()).num_ops == 1600 and monitor.get().bytes_read == 11200


def test_forked_children_count_their_own(path):
    with kvikio.CuFile(path) as file, SummaryMonitor() as monitor:
        child = os.fork()
        if child == 0:
            # An exception would run the tests of the parent.
            try:
                file.read(bytearray(10))
                os._exit(monitor.get().num_ops)
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert monitor.get().num_ops == 0


def test_without_a_monitor_nothing_is_kept(path):
    from gpufile.kvikio import _operations

    monitor = SummaryMonitor()
    assert len(_operations._monitors) == 1
    del monitor
    assert not _operations._monitors
    with kvikio.CuFile(path) as file:
        assert file.pread(np.empty(10, np.uint8))._operation is _operations._uncounted
