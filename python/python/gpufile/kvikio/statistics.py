"""Totals of the transfers of ``CuFile``, ``Mmap`` and ``RemoteFile``, while a monitor counts them.

>>> with kvikio.SummaryMonitor() as monitor:
...     with kvikio.CuFile("data.bin") as file:
...         file.read(buffer)
>>> print(monitor.get())
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from typing import Any, TypedDict

from .. import _forks
from . import _operations
from ._operations import BACKENDS, Operation

__all__ = ["Summary", "SummaryMonitor"]


def __dir__() -> list[str]:
    return __all__


#: The start of the bytes of a summary.
_MAGIC = b"gpufile.kvikio.Summary 1\n"
#: The fields that an interval has as differences.
_COUNTS = (
    "num_ops", "num_reads", "num_writes", "bytes_requested", "bytes_transferred", "bytes_read", "bytes_written",
    "num_errors", "busy_ns", "total_duration_ns",
)  # fmt: skip
#: The fields of the totals of a backend.
_TOTALS = ("num_ops", "bytes_transferred", "total_duration_ns", "num_errors")


@dataclasses.dataclass(frozen=True)
class Summary:
    """Totals of operations: one call of ``read`` is one operation. Times are in nanoseconds, those of the start and the end
    since 1970. A ``SummaryMonitor`` makes summaries."""

    class BackendTotals(TypedDict):
        """Totals of the operations by one way to the file."""

        num_ops: int
        bytes_transferred: int
        total_duration_ns: int
        num_errors: int

    start_unix_ns: int
    end_unix_ns: int
    num_ops: int
    num_reads: int
    num_writes: int
    bytes_requested: int
    bytes_transferred: int
    bytes_read: int
    bytes_written: int
    num_errors: int
    #: The time during which at least one operation was in flight.
    busy_ns: int
    #: The sum of the durations of the operations that have ended.
    total_duration_ns: int
    #: The totals of ``POSIX``, ``GDS``, ``MMAP``, ``REMOTE_HTTP`` and ``REMOTE_HDFS``.
    by_backend: dict[str, BackendTotals]
    wall_ns: int = dataclasses.field(init=False)
    busy_bytes_per_sec: float = dataclasses.field(init=False)
    #: ``busy_ns`` in ``wall_ns``, from 0 to 1.
    busy_fraction: float = dataclasses.field(init=False)
    mean_duration_ns: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        wall = max(self.end_unix_ns - self.start_unix_ns, 0)
        derived = {
            "wall_ns": wall,
            "busy_bytes_per_sec": self.bytes_transferred * 1e9 / self.busy_ns if self.busy_ns else 0.0,
            "busy_fraction": self.busy_ns / wall if wall else 0.0,
            "mean_duration_ns": self.total_duration_ns // self.num_ops if self.num_ops else 0,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def since(self, previous: Summary) -> Summary:
        """Returns the totals from an earlier summary to this one.

        Raises ``ValueError`` unless the same monitor made both by ``get``, without a ``reset`` between them.
        """
        _check_summary(previous)
        if previous.start_unix_ns != self.start_unix_ns or previous.end_unix_ns > self.end_unix_ns:
            raise ValueError("previous: expected an earlier summary of the same monitor since its start or its last reset")
        counts = {name: getattr(self, name) - getattr(previous, name) for name in _COUNTS}
        now: dict[str, Any] = dict(self.by_backend)
        before: dict[str, Any] = dict(previous.by_backend)
        by_backend: Any = {
            backend: {name: totals[name] - before[backend][name] for name in totals} for backend, totals in now.items()
        }
        return Summary(previous.end_unix_ns, self.end_unix_ns, **counts, by_backend=by_backend)

    def to_json(self) -> str:
        """Returns all fields as an object in JSON."""
        return json.dumps(dataclasses.asdict(self))

    def serialize(self) -> bytes:
        """Returns bytes for ``deserialize`` of the same version of gpufile."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}
        return _MAGIC + json.dumps(fields).encode()

    @staticmethod
    def deserialize(data: bytes) -> Summary:
        """Returns the summary of the bytes of ``serialize``. Raises ``ValueError`` for other bytes."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data: expected bytes, not {type(data).__name__}")
        content = bytes(data)
        try:
            if not content.startswith(_MAGIC):
                raise ValueError("another start")
            return Summary(**json.loads(content[len(_MAGIC) :]))
        except (TypeError, ValueError) as error:
            raise ValueError(f"data: not the bytes of a summary of this version ({error})") from None

    def report(self) -> str:
        """Returns lines for a person to read."""
        rows = [
            ("wall time", _seconds(self.wall_ns)),
            ("busy time", f"{_seconds(self.busy_ns)} ({self.busy_fraction:.2%} of the wall time)"),
            ("busy bandwidth", _rate(self.busy_bytes_per_sec)),
            ("operations", f"{self.num_ops} ({self.num_reads} read, {self.num_writes} write)"),
            ("mean duration", _seconds(self.mean_duration_ns)),
            ("bytes", f"{_bytes(self.bytes_transferred)} of {_bytes(self.bytes_requested)} requested"
                      f" ({_bytes(self.bytes_read)} read, {_bytes(self.bytes_written)} written)"),
            ("errors", str(self.num_errors)),
        ]  # fmt: skip
        for backend, totals in self.by_backend.items():
            text = "unused"
            if totals["num_ops"]:
                text = f"{_bytes(totals['bytes_transferred'])} in {totals['num_ops']} operations, "
                text += f"{_seconds(totals['total_duration_ns'])}, {totals['num_errors']} failed"
            rows.append((f"backend {backend}", text))
        return "KvikIO I/O summary\n" + "".join(f"  {label:<21}{value}\n" for label, value in rows)

    def __str__(self) -> str:
        return self.report()


class SummaryMonitor:
    """A count of the operations of this process, from its creation until ``stop``, on all threads.

    Any number of monitors may count at once. As a context, it stops at the end. Operations that had begun before the
    monitor, or before its last ``reset``, do not count.
    """

    def __init__(self) -> None:
        self._forked()
        self._start()
        _forks.register(self)
        _operations.add(self)

    def _forked(self) -> None:
        # A thread of the parent may have held the lock, and its operations do not end in the child.
        self._lock = threading.Lock()
        self._in_flight = 0

    def _start(self) -> None:
        self._span = object()
        self._started = self._busy_since = time.monotonic_ns()
        self._started_unix = time.time_ns()
        self._ended: int | None = None
        self._busy = 0
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._by_backend = {backend: dict.fromkeys(_TOTALS, 0) for backend in BACKENDS}

    def get(self) -> Summary:
        """Returns the totals since the creation or the last ``reset``."""
        with self._lock:
            now = time.monotonic_ns() if self._ended is None else self._ended
            busy = self._busy + (now - self._busy_since if self._in_flight and self._ended is None else 0)
            by_backend: Any = {backend: dict(totals) for backend, totals in self._by_backend.items()}
            counts = self._counts | {"busy_ns": busy}
            end = self._started_unix + now - self._started
            return Summary(self._started_unix, end, **counts, by_backend=by_backend)

    def since(self, previous: Summary) -> Summary:
        """Returns the totals since an earlier summary of this monitor, as ``Summary.since`` does."""
        _check_summary(previous)
        return self.get().since(previous)

    def reset(self) -> None:
        """Begins to count from zero."""
        with self._lock:
            before, ended = self._started_unix, self._ended
            self._start()
            # Summaries before and after differ in their start, whatever the system's clock does.
            self._started_unix = max(self._started_unix, before + 1)
            if ended is not None:
                self._ended = self._started

    def stop(self) -> None:
        """Ends the count. Later calls of ``get`` return the same totals."""
        _operations.remove(self)
        with self._lock:
            if self._ended is None:
                self._ended = time.monotonic_ns()
                self._busy += self._ended - self._busy_since if self._in_flight else 0

    def _begin(self) -> tuple[object, int]:
        """Counts an operation in flight. Returns what ``_finish`` takes."""
        with self._lock:
            now = time.monotonic_ns()
            if self._in_flight == 0:
                self._busy_since = now
            self._in_flight += 1
            return self._span, now

    def _finish(self, begun: tuple[object, int], operation: Operation) -> None:
        """Ends an operation, and counts it if it belongs to this span."""
        with self._lock:
            now = time.monotonic_ns()
            self._in_flight = max(self._in_flight - 1, 0)
            if self._ended is not None:
                return
            if self._in_flight == 0:
                self._busy += now - self._busy_since
            if begun[0] is self._span and operation.is_counted:
                self._count(now - begun[1], operation)

    def _count(self, duration: int, operation: Operation) -> None:
        counts, totals = self._counts, self._by_backend[operation.backend]
        done, failed = operation.bytes_done, int(operation.is_failed)
        counts["num_ops"] += 1
        counts["num_reads" if operation.is_read else "num_writes"] += 1
        counts["bytes_requested"] += operation.bytes_requested
        counts["bytes_read" if operation.is_read else "bytes_written"] += done
        totals["num_ops"] += 1
        for values, name in ((counts, "bytes_transferred"), (totals, "bytes_transferred")):
            values[name] += done
        for values in (counts, totals):
            values["total_duration_ns"] += duration
            values["num_errors"] += failed

    def __enter__(self) -> SummaryMonitor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "counts" if self._ended is None else "stopped"
        return f"<gpufile.kvikio.SummaryMonitor: {self._counts['num_ops']} operations, {state}>"


def _check_summary(previous: Any) -> None:
    if not isinstance(previous, Summary):
        raise TypeError(f"previous: expected a Summary, not {type(previous).__name__}")


def _seconds(nanoseconds: int) -> str:
    return _scaled(nanoseconds, 1000, ("ns", "µs", "ms", "s"))


def _bytes(count: int) -> str:
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _rate(bytes_per_second: float) -> str:
    return _scaled(bytes_per_second, 1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"))


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    number = 0
    while value >= step and number < len(units) - 1:
        value, number = value / step, number + 1
    return f"{value:.2f} {units[number]}" if number else f"{value:.0f} {units[0]}"
