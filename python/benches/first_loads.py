"""The first load of a process: measures it in fresh processes, and puts the figures of all contenders side by side.

Each process loads the files of a case twice, and prints a line after each load. Of the first, two figures are
measured, in separate processes:

- `first`: Python, PyTorch, CUDA and the loader's package are there before the clock starts
- `everything`: from the start of the process to the last tensor

`again` is the second load of the processes of `first`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FIRST, EVERYTHING, AGAIN = "first", "everything", "again"
KINDS = (FIRST, AGAIN, EVERYTHING)


@dataclass
class FirstLoads:
    """The seconds of each contender, case and kind, by process, and the failures."""

    seconds: dict[tuple[str, str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def median(self, contender: str, case: str, kind: str) -> float | None:
        seconds = self.seconds.get((contender, case, kind))
        return statistics.median(seconds) if seconds else None

    def best_peer(self, peers: Sequence[str], case: str) -> tuple[float, str] | None:
        medians = ((self.median(peer, case, FIRST), peer) for peer in peers)
        return min((pair for pair in medians if pair[0] is not None), default=None)

    def cell(self, contender: str, case: str, kind: str) -> str:
        """Returns the median, and the range if there are several processes, in milliseconds."""
        if (contender, case) in self.failures:
            return "error"
        seconds = self.seconds.get((contender, case, kind))
        if not seconds:
            return ""
        low, middle, high = (f"{1e3 * of(seconds):.0f}" for of in (min, statistics.median, max))
        return middle if len(seconds) == 1 else f"{middle} ({low} to {high})"

    def lines(self) -> list[dict[str, object]]:
        keys = ("peer", "case", "kind")
        measured = [dict(zip(keys, of)) | {"seconds": seconds} for of, seconds in self.seconds.items()]
        failed = [dict(zip(keys, of)) | {"error": error} for of, error in self.failures.items()]
        return measured + failed

    def measure(
        self, contender: str, case: str, command: list[str], kind: str, timeout: float, environment: Mapping[str, str]
    ) -> None:
        """Runs one process. After a failure, the contender gets no more processes of the case."""
        if (contender, case) in self.failures:
            return
        start = time.monotonic()
        try:
            error = self._run(contender, case, command, kind, timeout, environment)
        except OSError as problem:
            error = str(problem)
        if error:
            self.failures[contender, case] = error
        print(f"{case}: {contender}, {kind}: {time.monotonic() - start:.0f} s", file=sys.stderr)

    def _run(
        self, contender: str, case: str, command: list[str], kind: str, timeout: float, environment: Mapping[str, str]
    ) -> str | None:
        """Returns why it failed."""
        found: dict[str, float] = {}
        error, is_late = None, threading.Event()
        start = time.monotonic()
        # The standard error output is the user's.
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, text=True
        ) as process:

            def end() -> None:
                is_late.set()
                process.kill()

            watch = threading.Timer(timeout, end)
            watch.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    since_start = time.monotonic() - start
                    head, _, text = line.strip().partition(" error=")
                    fields = dict(word.partition("=")[::2] for word in head.split())
                    if text and fields.get("case", "").startswith(case):
                        error = text
                    elif fields.get("case") == f"{case}-{FIRST}":
                        found[kind] = since_start if kind == EVERYTHING else float(fields["seconds"])
                    elif fields.get("case") == f"{case}-{AGAIN}" and kind == FIRST:
                        found[AGAIN] = float(fields["seconds"])
                status = process.wait()
            finally:
                watch.cancel()
        if is_late.is_set():
            return f"did not end within {timeout:g} s"
        if error or status:
            return error or f"ended with status {status}"
        if kind not in found:
            return "printed no line"
        for of, seconds in found.items():
            self.seconds[contender, case, of].append(seconds)
        return None


def environment() -> dict[str, str]:
    """Returns the environment of a contender."""
    # By default, libcufile writes its log into the working directory.
    log = os.path.join(tempfile.gettempdir(), "cufile.log")
    return {"CUFILE_LOGFILE_PATH": log, **os.environ}
