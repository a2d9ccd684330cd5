#!/usr/bin/env python3
"""Runs gpufile's bench and its peers in turn on one file, and puts their figures side by side.

Every contender is a command that takes `FILE [--repeats N] [CASE...]` and prints one line for each measurement, as
peers/cases.h describes. `--list --json` prints its cases and their units. The figures are medians over the rounds. Below the
table stand the ratios that gpufile is to keep. The exit status is 1 if gpufile misses one or a contender failed, and 3 if a
ratio has no data.

The contenders overwrite the file, so it must be one that this program made, now or earlier.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

OURS, PEERS = "gpufile", ["cufile", "kvikio"]
# cufile_c moves the blocks of a KV cache also with registered memory, and by batches.
KV_PEERS = ["cufile", "cufile-registered", "cufile-batch", "kvikio"]
FIELDS = {
    "peer": str,
    "case": str,
    "threads": int,
    "size": int,
    "ops": int,
    "seconds": float,
    "best": float,
    "gbps": float,
    "us_per_op": float,
    "cpu": float,
}
ERROR_FIELDS = ["peer", "case", "threads"]
MEBIBYTE = 1 << 20

# The field of a line for each unit of a case, and the factor between the two.
UNITS = {"GB/s": ("gbps", 1), "ms": ("seconds", 1e3), "us": ("us_per_op", 1)}

DEFAULT, BEST = "default", "best"


@dataclass(frozen=True)
class Figure:
    """One number: of a peer and a case, with a number of threads, or the DEFAULT, or the BEST over all of them."""

    peer: str
    case: str
    threads: int | str = BEST


@dataclass(frozen=True)
class Requirement:
    """The subject is at least, or at most, `limit` times the best of the references; without any, `limit` itself."""

    title: str
    subject: Figure
    limit: float
    references: tuple[Figure, ...] = ()
    at_most: bool = False
    disk_only: bool = False


def requirements(on_tmpfs: bool) -> list[Requirement]:
    to_device, from_device = Figure("cuda", "link-h2d"), Figure("cuda", "link-d2h")

    def ours(case: str, threads: int | str = DEFAULT) -> Figure:
        return Figure(OURS, case, threads)

    def cufile(case: str) -> Figure:
        return Figure("cufile", case)

    def kvikio(case: str, threads: int | str = BEST) -> Figure:
        return Figure("kvikio", case, threads)

    def rows(title: str, subject: Figure, *limits: tuple[float, Figure]) -> list[Requirement]:
        return [Requirement(title, subject, limit, (reference,)) for limit, reference in limits]

    def peers(case: str, names: list[str] = PEERS) -> tuple[Figure, ...]:
        return tuple(Figure(peer, case) for peer in names)

    return [
        *rows(
            "read, out of the box",
            ours("read-default"),
            (0.93, to_device),
            (1.6, cufile("read-default")),
            (6.5, kvikio("read-default")),
        ),
        *rows(
            "read, best settings",
            ours("read", BEST),
            (0.95, to_device),
            (1.08, kvikio("read")),
            (1.02, cufile("read")),
        ),
        *rows("read, 4 threads", ours("read", 4), (1.12, kvikio("read", 4))),
        *rows(
            "scatter 4 KiB",
            ours("scatter-4k"),
            (40, kvikio("scatter-4k")),
            (10, cufile("scatter-4k")),
        ),
        *rows(
            "scatter 4 KiB, scattered",
            ours("scatter-4k-scattered"),
            (15, kvikio("scatter-4k-scattered")),
        ),
        *rows(
            "scatter 4 KiB, mapped",
            ours("mapped-scatter-4k"),
            (0.9, to_device),
            (95, kvikio("scatter-4k")),
        ),
        *rows("scatter 512 B, mapped", ours("mapped-scatter-512"), (0.65, to_device)),
        *rows("scatter 4 KiB, scattered and mapped", ours("mapped-scatter-4k-scattered"), (0.83, to_device)),
        *rows("scatter 700 B, scattered and mapped", ours("mapped-scatter-700-scattered"), (0.56, to_device)),
        *rows("scatter 512 B, scattered and mapped", ours("mapped-scatter-512-scattered"), (0.56, to_device)),
        Requirement("scatter 64 B, scattered and mapped", ours("mapped-scatter-64-scattered"), 8),
        *rows("scatter 4 KiB, scattered", ours("scatter-4k-scattered"), (0.97, ours("scatter-4k"))),
        *rows("scatter 64 KiB, scattered", ours("scatter-64k-scattered"), (0.93, to_device)),
        *rows("KV fetch, 64 KiB", ours("kv-fetch-64k"), (0.9, to_device)),
        Requirement("KV fetch, 64 KiB", ours("kv-fetch-64k"), 4, peers("kv-fetch-64k", KV_PEERS)),
        *rows("KV store, 64 KiB", ours("kv-store-64k"), (0.8, from_device)),
        Requirement("KV store, 64 KiB", ours("kv-store-64k"), 1, peers("kv-store-64k", KV_PEERS)),
        # A store of blocks, with outcomes and deadlines, costs no speed.
        *[
            Requirement(f"block store, {case}", ours(f"kv-module-{case}"), 0.97, (ours(f"kv-{case}"),))
            for case in ("fetch-64k", "store-64k")
        ],
        *rows("gathered write, 4 KiB", ours("gather-4k"), (0.55, from_device)),
        *rows("gathered write, 64 KiB", ours("gather-64k"), (0.85, from_device)),
        *rows("scatter 64 KiB", ours("scatter-64k"), (3.8, kvikio("scatter-64k"))),
        *rows(
            "scatter 64 KiB, scattered",
            ours("scatter-64k-scattered"),
            (3.8, kvikio("scatter-64k-scattered")),
        ),
        *rows("scatter 1 MiB", ours("scatter-1m"), (1.45, kvikio("scatter-1m"))),
        *rows(
            "64 reads of 16 MiB",
            ours("read-many-16m"),
            (0.93, to_device),
            (9, cufile("read-many-16m")),
        ),
        *rows("stream, 1 GiB", ours("stream-1g"), (8, cufile("stream-1g"))),
        Requirement("stream, the call", ours("stream-1g-call"), 100, at_most=True),
        Requirement("one 4 KiB read", ours("latency-4k"), 1, (kvikio("latency-4k"),), at_most=True),
        Requirement("overwrite", ours("write-over"), 6, peers("write-over")),
        *rows("overwrite", ours("write-over"), (0.85, from_device)),
        *rows(
            "new file, tmpfs" if on_tmpfs else "new file, disk",
            ours("write-fresh"),
            (1.9 if on_tmpfs else 1.15, kvikio("write-fresh")),
        ),
        Requirement("direct read", ours("direct-read"), 1, peers("direct-read"), disk_only=True),
        Requirement("direct write", ours("direct-write"), 1, peers("direct-write"), disk_only=True),
        Requirement("first byte", ours("first-byte"), 0.1, (cufile("first-byte"),), at_most=True),
        Requirement("first use of a kernel", ours("first-kernel"), 5, at_most=True),
    ]


class Cases:
    """The cases of the contenders, as their lists have them."""

    def __init__(self) -> None:
        self.offered: dict[str, list[str]] = {}
        self.units: dict[str, str] = {}
        # Those that need more than one GPU, or none, run only if they are named.
        self.of_one_gpu: list[str] = []

    def add(self, contender: str, command: str) -> None:
        """Asks a contender for its cases. Raises ValueError if it has no list."""
        child = subprocess.run([*shlex.split(command), "--list", "--json"], capture_output=True, text=True)
        try:
            listed = json.loads(child.stdout)
            units = {case["case"]: case["unit"] for case in listed}
            if child.returncode or not units or not set(units.values()) <= UNITS.keys():
                raise ValueError(child.stderr.strip() or "the list is empty, or a unit is unknown")
        except (ValueError, KeyError, TypeError) as problem:
            raise ValueError(f"{contender}: `{command} --list --json` prints no list of cases: {problem}") from None
        self.offered[contender] = list(units)
        self.units |= {case: unit for case, unit in units.items() if case not in self.units}
        one_gpu = [case["case"] for case in listed if case.get("memory", "gpu") == "gpu"]
        self.of_one_gpu += [case for case in one_gpu if case not in self.of_one_gpu]


class Results:
    """The lines of all rounds."""

    def __init__(self) -> None:
        self.lines: list[dict] = []
        self.failures: list[str] = []

    def add(self, line: str, round_number: int) -> None:
        """Takes one line of a contender's output. Ignores a line that is no measurement."""
        if not line.startswith("peer="):
            return
        head, _, error = line.strip().partition(" error=")
        fields: dict = dict(word.partition("=")[::2] for word in head.split())
        try:
            for name in ERROR_FIELDS if error else FIELDS:
                fields[name] = FIELDS[name](fields[name])
        except (KeyError, ValueError) as problem:
            self.failures.append(f"not understood ({problem}): {line.strip()}")
            return
        if error:
            fields["error"] = error
            self.failures.append(f"round {round_number}: {line.strip()}")
        self.lines.append(fields | {"round": round_number})

    def medians(self, peer: str, case: str) -> dict[int, dict[str, float]]:
        """Returns the medians over the rounds, for each number of threads."""
        measured = [
            line
            for line in self.lines
            if line["peer"] == peer and line["case"] == case and "error" not in line
        ]
        return {
            threads: {
                name: statistics.median(line[name] for line in measured if line["threads"] == threads)
                for name in ("seconds", "gbps", "us_per_op", "cpu")
            }
            for threads in sorted({line["threads"] for line in measured})
        }

    def find(self, figure: Figure) -> tuple[int, dict[str, float]] | None:
        """Returns the threads and the medians of a figure, if it was measured."""
        medians = self.medians(figure.peer, figure.case)
        threads = figure.threads
        if threads == DEFAULT:
            threads = 0 if 0 in medians else BEST
        if threads == BEST:
            threads = min(medians, key=lambda count: medians[count]["seconds"], default=None)
        return (threads, medians[threads]) if threads in medians else None


def threads_text(threads: int) -> str:
    return "default" if threads == 0 else str(threads)


def print_columns(rows: list[list[str]], gap: str = "  ") -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print(gap.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def print_table(results: Results, cases: Cases) -> None:
    print(
        "Medians in GB/s, or in the unit given, @ the best number of threads (CPU seconds of one repetition)\n"
    )
    columns = list(dict.fromkeys(line["peer"] for line in results.lines))
    rows = [["case", *columns]]
    for case, unit in cases.units.items():
        field, factor = UNITS[unit]
        row = [case]
        for peer in columns:
            found = results.find(Figure(peer, case))
            if found:
                threads, medians = found
                amount = f"{medians[field] * factor:.2f}" + (f" {unit}" if unit != "GB/s" else "")
                row.append(f"{amount} @{threads_text(threads)} ({medians['cpu']:.2f})")
            else:
                failed = any(line["peer"] == peer and line["case"] == case for line in results.lines)
                row.append("error" if failed else "")
        if any(row[1:]):
            rows.append(row)
    print_columns(rows)


def judge(results: Results, cases: Cases, requirement: Requirement) -> list[str]:
    """Returns a row of the second table: the requirement, its reference, the value, the limit, the verdict."""
    unit = cases.units[requirement.subject.case]
    field, factor = UNITS[unit]
    subject = results.find(requirement.subject)
    found = [(reference, results.find(reference)) for reference in requirement.references]
    found = [(reference, there) for reference, there in found if there]
    limit = f"{'<=' if requirement.at_most else '>='} {requirement.limit:g}"

    against = " or ".join(f"{reference.peer} {reference.case}" for reference in requirement.references)
    value = None
    if not requirement.references:
        against = unit
        value = subject and subject[1][field] * factor
    elif found:
        reference, (threads, medians) = max(found, key=lambda pair: pair[1][1]["gbps"])
        against = f"{reference.peer} {reference.case} @{threads_text(threads)}"
        value = subject and subject[1][field] / medians[field]
    title = f"{requirement.title} @{threads_text(subject[0])}" if subject else requirement.title
    if value is None:
        return [title, against, "", limit, "no data"]
    passed = value <= requirement.limit if requirement.at_most else value >= requirement.limit
    return [
        title,
        against,
        f"{value:.3g}" if value < 10 else f"{value:.1f}",
        limit,
        "PASS" if passed else "fail",
    ]


def print_requirements(results: Results, cases: Cases, on_tmpfs: bool, wanted: set[str]) -> set[str]:
    """Prints the requirements of the cases, and returns the verdicts."""
    rows = [["requirement", "against", "is", "required", ""]]
    for requirement in requirements(on_tmpfs):
        if requirement.subject.case not in wanted:
            continue
        if requirement.disk_only and on_tmpfs:
            rows.append([requirement.title, "", "", "", "not on tmpfs"])
        else:
            rows.append(judge(results, cases, requirement))
    print_columns(rows)
    return {row[-1] for row in rows[1:]}


def exit_status(verdicts: set[str], failures: list[str]) -> int:
    """Returns the exit status of a comparison. A ratio without data was not kept."""
    if failures or "fail" in verdicts:
        return 1
    return 0 if "PASS" in verdicts and "no data" not in verdicts else 3


def positive(text: str) -> int:
    """Returns a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def check_commands(parser: argparse.ArgumentParser, commands: dict[str, str], json_path: Path | None) -> None:
    """Refuses commands that cannot start, and a report that cannot be written, before any work."""
    for contender, command in commands.items():
        words = shlex.split(command)
        if not words or not shutil.which(words[0]):
            parser.error(f"{contender}: there is no program `{command}`")
    if json_path and not json_path.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {json_path.parent}")


def selected_cases(names: list[str], known: Iterable[str]) -> set[str]:
    """Returns the cases with these names, or in these groups: `scatter` is every case that begins with `scatter-`."""
    chosen: set[str] = set()
    for name in names:
        matching = [case for case in known if case == name]
        matching = matching or [case for case in known if case.startswith(name + "-")]
        if not matching:
            raise ValueError(f"there is no case or group of cases `{name}`; the cases are {', '.join(known)}")
        chosen.update(matching)
    return chosen


def cases_of(contender: str, cases: Cases, wanted: set[str], on_tmpfs: bool) -> list[str]:
    """Returns the cases that a contender is to run: the wanted ones, and those that they are compared with."""
    needed = set(wanted)
    for requirement in requirements(on_tmpfs):
        if requirement.subject.case in wanted:
            references = requirement.references
            needed.update(figure.case for figure in references if (figure.peer == OURS) == (contender == OURS))
    if on_tmpfs:
        needed = {case for case in needed if not case.startswith("direct-")}
    return [case for case in cases.offered[contender] if case in needed]


def pattern() -> bytes:
    """Returns one pseudo-random mebibyte, the same that the peers write back (peers/cases.h)."""
    mask = (1 << 64) - 1
    state, block = 0, bytearray()
    while len(block) < MEBIBYTE:  # splitmix64
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        block += (z ^ (z >> 31)).to_bytes(8, "little")
    return bytes(block)


def make_file(path: Path, size: int) -> None:
    """Writes the pattern over and over, by one writer."""
    block = pattern()
    unfinished = path.with_name(path.name + ".part")
    with open(unfinished, "xb") as file:
        file.writelines(block for _ in range(size // MEBIBYTE))
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)


def was_made_here(path: Path) -> bool:
    """Returns true if the file holds nothing except the pattern, so that overwriting it loses nothing."""
    block = pattern()
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with open(path, "rb") as file:
        return all(part == block for part in iter(lambda: file.read(MEBIBYTE), b""))


def file_system_of(path: Path) -> str:
    """Returns the name of the file system that the path is on."""
    stat = subprocess.run(["stat", "-f", "-c", "%T", path], check=True, capture_output=True, text=True)
    return stat.stdout.strip()


def fill_page_cache(path: Path) -> None:
    """Reads all of the file into the page cache, so that every contender starts with it there."""
    buffer = bytearray(16 * MEBIBYTE)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def run(contender: str, command: str, arguments: list[str], results: Results, round_number: int) -> None:
    environment = dict(os.environ)
    if contender == OURS:
        # gpufile follows kvikio's settings too. These are for kvikio alone.
        environment = {name: value for name, value in environment.items() if not name.startswith("KVIKIO_")}
    # By default, libcufile writes its log into the working directory.
    environment.setdefault("CUFILE_LOGFILE_PATH", os.path.join(tempfile.gettempdir(), "cufile.log"))
    start, before = time.monotonic(), len(results.lines)
    try:
        child = subprocess.Popen(
            shlex.split(command) + arguments, stdout=subprocess.PIPE, env=environment, text=True
        )
    except OSError as error:
        sys.exit(f"cannot start {contender}: {error}")
    with child:
        for line in child.stdout:
            results.add(line, round_number)
    if child.returncode:
        results.failures.append(f"{contender} ended with status {child.returncode}, round {round_number}")
    count, seconds = len(results.lines) - before, time.monotonic() - start
    print(f"round {round_number}: {contender}: {count} lines in {seconds:.0f} s", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ours", metavar="CMD", help="gpufile's bench")
    parser.add_argument("--cufile", metavar="CMD", help="cufile_c, as built by peers/build.sh")
    parser.add_argument("--kvikio", metavar="CMD", help="kvikio_cpp, likewise")
    parser.add_argument(
        "--file",
        metavar="FILE",
        required=True,
        type=Path,
        help="the file to overwrite; made if missing, refused if this program did not make it",
    )
    parser.add_argument("--size", metavar="GIB", type=positive, default=4, help="of a file that is made (4)")
    parser.add_argument(
        "--rounds", metavar="N", type=positive, default=3, help="each runs every contender once (3)"
    )
    parser.add_argument(
        "--repeats", metavar="N", type=positive, help="repetitions within a run (each contender's own default)"
    )
    parser.add_argument(
        "--cases", metavar="A,B", help="these cases or groups, and what they are compared with"
    )
    parser.add_argument("--json", metavar="OUT", type=Path, help="write every line there, after each run")
    options = parser.parse_args()

    commands = {OURS: options.ours, "cufile": options.cufile, "kvikio": options.kvikio}
    commands = {contender: command for contender, command in commands.items() if command}
    if not commands:
        parser.error("name at least one contender: --ours, --cufile or --kvikio")
    check_commands(parser, commands, options.json)
    if not options.file.absolute().parent.is_dir():
        parser.error(f"--file: there is no folder {options.file.parent}")
    cases = Cases()
    try:
        for contender, command in commands.items():
            cases.add(contender, command)
        wanted = set(cases.of_one_gpu)
        if options.cases:
            wanted = selected_cases(options.cases.split(","), cases.units)
    except ValueError as problem:
        parser.error(str(problem))
    required = {requirement.subject.case for requirement in requirements(False)}
    if OURS in commands and not required <= set(cases.offered[OURS]):
        sys.exit(f"requirements name cases that gpufile lacks: {required - set(cases.offered[OURS])}")

    if not options.file.exists():
        print(f"making {options.file}, {options.size} GiB", file=sys.stderr)
        make_file(options.file, options.size * 1024 * MEBIBYTE)
    elif not was_made_here(options.file):
        sys.exit(f"{options.file} was not made by this program, and would be overwritten: name another")
    file_system = file_system_of(options.file)
    on_tmpfs = file_system == "tmpfs"

    results = Results()
    for round_number in range(1, options.rounds + 1):
        for contender, command in commands.items():
            chosen = cases_of(contender, cases, wanted, on_tmpfs)
            if not chosen:
                continue
            arguments = [str(options.file), *chosen]
            if contender == OURS:
                arguments[1:1] = ["--overwrite"]
            if options.repeats:
                arguments[1:1] = ["--repeats", str(options.repeats)]
            if not on_tmpfs:
                fill_page_cache(options.file)
            run(contender, command, arguments, results, round_number)
            if options.json:
                report = {"file": str(options.file), "file_system": file_system, "lines": results.lines}
                options.json.write_text(json.dumps(report, indent=1) + "\n")

    size = options.file.stat().st_size / (1024 * MEBIBYTE)
    print(f"{options.file}, {size:g} GiB, {file_system}; rounds: {options.rounds}\n")
    print_table(results, cases)
    print()
    verdicts = print_requirements(results, cases, on_tmpfs, wanted)
    if results.failures:
        print("\nfailures:", *results.failures, sep="\n  ")
    return exit_status(verdicts, results.failures)


if __name__ == "__main__":
    sys.exit(main())
