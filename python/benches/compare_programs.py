#!/usr/bin/env python3
"""Runs programs that load models by other packages, without and with gpufile, and puts their figures side by side.

The programs are those of programs.py: transformers, accelerate, diffusers, peft, sentence-transformers, and PyTorch itself. This
program makes their models. Each run is a process of its own, and the two modes take turns. The figures are medians. The exit
status is 1 if a program failed, or if the two modes loaded other bits.

The packages take many seconds to import. With --forked, they are imported once, and each process is a fork that begins without
CUDA and gpufile. With --cold, the files are dropped from the page cache before each process. With --budget, the program ends
between two turns, with the figures that it has. `--device cpu --small` tries the programs without a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

# The modules below are scripts that lie in the repository.
sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "gpufile" / "benches"))

from compare import file_system_of, positive, print_columns  # noqa: E402
from programs import MODES, PROGRAMS, Place, prepare, turns  # noqa: E402

#: The seconds after which processes are killed that are not over at the end of the budget.
GRACE = 30
TIMES = {"start": "start to forward", "first": "first load", "again": "second load"}


class Results:
    """The figures of all processes, by program and mode, and the failures."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        self.failures: list[str] = []

    def add(self, line: dict[str, Any]) -> None:
        if "error" in line:
            self.failures.append(f"{line['program']}, {line['mode']}: {line['error']}")
        else:
            self.lines[line["program"], line["mode"]].append(line)

    def median(self, name: str, mode: str, field: str) -> float | None:
        lines = self.lines[name, mode]
        return statistics.median(line[field] for line in lines) if lines else None

    def compare(self, name: str) -> str:
        """Returns whether the modes loaded the same bits."""
        if any(not self.lines[name, mode] for mode in MODES):
            return ""
        sums = {line["sum"] for mode in MODES for line in self.lines[name, mode]}
        if len(sums) > 1:
            self.failures.append(f"{name}: the loaded bits differ: {sums}")
        return "equal" if len(sums) == 1 else "differ"


def command(options: argparse.Namespace, action: str, names: list[str], *more: str) -> list[str]:
    flags = ["--device", options.device, *(["--small"] if options.small else [])]
    program = [*shlex.split(options.python), str(HERE / "programs.py"), action]
    return [*program, str(options.folder), ",".join(names), *flags, *more]


def execute(arguments: list[str], results: Results, timeout: float, whose: dict[str, str]) -> None:
    """Runs a process, and takes its lines as they come."""
    environment = os.environ | {"PROGRAMS_STARTED": repr(time.time()), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for text in process.stdout:
                if text.startswith('{"program"'):
                    results.add(line := json.loads(text))
                    print(line["program"], line["mode"], line.get("again"), file=sys.stderr, flush=True)
            if process.wait():
                errors.seek(0)
                results.add({**whose, "error": f"status {process.returncode}: {errors.read()[-3000:]}"})
        finally:
            timer.cancel()
            process.kill()


def measure(options: argparse.Namespace, names: list[str], results: Results) -> None:
    end = time.monotonic() + options.budget

    def left(processes: int) -> float:
        """Returns the seconds until processes are killed. The last turn may take longer than the one before."""
        return min(options.timeout * processes, end - time.monotonic() + GRACE)

    execute(command(options, "make", names), results, left(len(names)), {"program": "all", "mode": "make"})
    budget = end - time.monotonic()
    if options.forked:
        more = ["--rounds", str(options.rounds), "--budget", str(budget), *(["--cold"] if options.cold else [])]
        whose = {"program": "all", "mode": "fork"}
        execute(command(options, "fork", names, *more), results, left(2 * len(names) * options.rounds), whose)
        return
    place = Place(options.folder, options.device, options.small)
    for name, number, modes in turns(names, options.rounds, budget):
        for mode in modes:
            prepare(place, name, number == 0, options.cold)
            execute(command(options, "run", [name], "--mode", mode), results, left(1), {"program": name, "mode": mode})


def table(results: Results, names: list[str]) -> list[list[str]]:
    pairs = [f"{text}, s" for text in TIMES.values()]
    rows = [["program", "runs", *(word for pair in pairs for word in (pair, "", "")), "host, GB", "", "GPU, GB", "", "bits"]]
    rows.append(["", "", *["plain", "gpufile", "ratio"] * len(pairs), *MODES, *MODES, ""])
    for name in names:
        row = [name, str(min(len(results.lines[name, mode]) for mode in MODES))]
        for field in TIMES:
            figures = [results.median(name, mode, field) for mode in MODES]
            row += ["" if figure is None else f"{figure:.2f}" for figure in figures]
            row.append("" if None in figures else f"{figures[0] / figures[1]:.2f}")  # type: ignore[operator]
        for field in ("host", "gpu"):
            figures = [results.median(name, mode, field) for mode in MODES]
            row += ["" if figure is None else f"{figure / 1e9:.2f}" for figure in figures]
        rows.append([*row, results.compare(name)])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the models go; needs 20 GB")
    parser.add_argument("--programs", metavar="A,B", default=",".join(PROGRAMS), help="only these (all)")
    parser.add_argument("--rounds", metavar="N", type=positive, default=5, help="processes of each kind (5)")
    parser.add_argument("--python", metavar="CMD", default=sys.executable, help="has gpufile and the packages")
    parser.add_argument("--device", default="cuda", help="where the models go (cuda)")
    parser.add_argument("--small", action="store_true", help="small models")
    parser.add_argument("--forked", action="store_true", help="import the packages once, and fork each process")
    parser.add_argument("--cold", action="store_true", help="drop the files from the page cache before each process")
    parser.add_argument("--budget", metavar="S", type=float, default=math.inf, help="seconds for all, models included")
    parser.add_argument("--timeout", metavar="S", type=float, default=300, help="for one process (300)")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write every figure there")
    options = parser.parse_args()
    names = options.programs.split(",")
    for name in names:
        if name not in PROGRAMS:
            parser.error(f"there is no program `{name}`; the programs are {', '.join(PROGRAMS)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    results = Results()
    measure(options, names, results)
    if options.json:
        report = [line for lines in results.lines.values() for line in lines]
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{options.folder}, {file_system_of(options.folder)}; medians of the runs of each kind\n")
    print_columns(table(results, names))
    if results.failures:
        print("\nfailures:", *results.failures, sep="\n  ")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
