#!/usr/bin/env python3
"""Loads models by gpufile and by other loaders in turn, and puts their figures side by side.

For each case of loaders.py, this program makes the files. Each contender loads them in a separate process. The
program removes them before the next case. Below the table stand the ratios that gpufile is to keep. The exit status is
1 if gpufile misses one or a contender failed, and 3 if a ratio has no data. With --first, it measures the first loads of
processes instead, as first_loads.py describes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

# The modules below are scripts that lie in the repository.
sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "gpufile" / "benches"))

from compare import (  # noqa: E402
    check_commands,
    exit_status,
    file_system_of,
    fill_page_cache,
    positive,
    print_columns,
)
from first_loads import AGAIN, EVERYTHING, FIRST, KINDS, FirstLoads, environment  # noqa: E402
from loaders import DISTRIBUTED, LOADERS, OURS as OURS_PYTHON, PEERS, Case, chosen_cases  # noqa: E402

OURS = "gpufile"


@dataclass(frozen=True)
class Requirement:
    """The contender does `of_link` times what the link does, and `of_best` times what the best peer does."""

    contender: str
    case: str
    of_link: float | None
    of_best: float


REQUIREMENTS = [
    Requirement(OURS, "load-big", 0.9, 1.2),
    Requirement(OURS, "load-sharded", 0.9, 1.3),
    Requirement(OURS, "load-many", 0.85, 1.3),
    Requirement(OURS, "load-tiny", None, 7),
    Requirement(OURS_PYTHON, "load-big", 0.87, 1.2),
    Requirement(OURS_PYTHON, "load-sharded", 0.87, 1.3),
    Requirement(OURS_PYTHON, "load-many", 0.8, 1.3),
    Requirement(OURS_PYTHON, "load-tiny", 0.11, 1.8),
]
# For the first loads of processes: the speed against that of the best peer's first load, and against the contender's
# second load.
FIRST_REQUIREMENTS = [
    (contender, case, of_best, 0.93)
    for contender in (OURS, OURS_PYTHON)
    for case, of_best in [("load-big", 1.25), ("load-sharded", 1.25), ("load-many", 1.3)]
]
# For loads by several ranks.
RANKED_REQUIREMENTS = [
    Requirement(OURS_PYTHON, "load-big", None, 1.35),
    Requirement(OURS_PYTHON, "load-sharded", None, 1.35),
]


class Results:
    """The line of each contender and case."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], dict[str, str]] = {}
        self.failures: list[str] = []
        self.first = FirstLoads()

    def add(self, line: str, case: str) -> None:
        """Takes one line of a contender's output. Ignores a line of another case."""
        head, _, error = line.strip().partition(" error=")
        fields = dict(word.partition("=")[::2] for word in head.split())
        if fields.get("case") != case or "peer" not in fields:
            return
        if error:
            fields["error"] = error
        self.lines[fields["peer"], case] = fields
        if error:
            self.failures.append(line.strip())

    def fail(self, contender: str, case: str, error: str) -> None:
        self.add(f"peer={contender} case={case} error={error}", case)

    def figure(self, contender: str, case: str, field: str = "gbps") -> float | None:
        line = self.lines.get((contender, case), {})
        return float(line[field]) if field in line else None

    def best_peer(self, case: str) -> tuple[float, str] | None:
        figures = ((self.figure(peer, case), peer) for peer in PEERS)
        return max((pair for pair in figures if pair[0] is not None), default=None)


def run(contender: str, command: list[str], case: str, timeout: float, results: Results) -> None:
    """Runs one contender. A failure of it does not affect the others."""
    start, error = time.monotonic(), None
    try:
        # The standard error output is the user's.
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment(), text=True, timeout=timeout
        )
        for line in done.stdout.splitlines():
            results.add(line, case)
        if done.returncode:
            error = f"ended with status {done.returncode}"
        elif (contender, case) not in results.lines:
            error = "printed no line"
    except OSError as problem:
        error = str(problem)
    except subprocess.TimeoutExpired:
        error = f"did not end within {timeout:g} s"
    if error:
        results.fail(contender, case, error)
    print(f"{case}: {contender}: {time.monotonic() - start:.0f} s", file=sys.stderr)


def measure(case: Case, paths: list[Path], options: argparse.Namespace, results: Results) -> None:
    folder = str(options.dir)
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
    python = [*shlex.split(options.python), *(ranks if options.ranks else [])]
    loader = [*python, str(HERE / "loaders.py"), "--keep", "--cases", case.name, *options.on_cpu, folder]
    commands = {peer: [*loader, peer] for peer in options.peers}
    if options.ours:
        commands[OURS] = [*shlex.split(options.ours), folder]
    is_cached = file_system_of(options.dir) == "tmpfs"
    # Contenders take turns, so that a host that becomes slower meets all of them.
    for _ in range(options.first or 1):
        for contender, command in commands.items():
            for path in [] if is_cached else paths:
                fill_page_cache(path)
            if not options.first:
                run(contender, command, case.name, options.timeout, results)
                continue
            for kind in (FIRST, EVERYTHING):
                results.first.measure(
                    contender, case.name, [*command, f"--{kind}"], kind, options.timeout, environment()
                )


def print_table(results: Results, cases: list[Case]) -> None:
    print("Best of three, in GB/s (microseconds for each tensor)\n")
    columns = [OURS, *LOADERS]
    rows = [["case", *columns]]
    for case in cases:
        row = [case.name]
        for contender in columns:
            gbps = results.figure(contender, case.name)
            if gbps is not None:
                row.append(f"{gbps:.2f} ({results.figure(contender, case.name, 'us_per_op'):.2f})")
            else:
                row.append("error" if (contender, case.name) in results.lines else "")
        rows.append(row)
    print_columns(rows)


def print_first_loads(first: FirstLoads, cases: list[Case]) -> None:
    print("First loads of processes, in milliseconds: medians, and the ranges\n")
    columns = [OURS, *LOADERS]
    rows = [["case", "", *columns]]
    for case in cases:
        for kind in KINDS:
            rows.append([case.name, kind, *(first.cell(contender, case.name, kind) for contender in columns)])
    print_columns(rows)


def judged(
    name: str, case: str, against: str, ours: float | None, theirs: float | None, limit: float
) -> list[str]:
    """Returns a row of the second table."""
    if ours is None or theirs is None:
        return [name, case, against, "", f">= {limit:g}", "no data"]
    ratio = ours / theirs
    return [name, case, against, f"{ratio:.3g}", f">= {limit:g}", "PASS" if ratio >= limit else "fail"]


def print_requirements(
    results: Results, cases: list[Case], link: float | None, requirements: list[Requirement]
) -> set[str]:
    """Prints the requirements of the cases, and returns the verdicts."""
    rows = [["contender", "case", "against", "is", "required", ""]]
    for requirement in requirements:
        case = requirement.case
        if all(chosen.name != case for chosen in cases):
            continue
        ours = results.figure(requirement.contender, case)
        if requirement.of_link:
            against = f"the link, {link:.1f} GB/s" if link else "the link"
            rows.append(judged(requirement.contender, case, against, ours, link, requirement.of_link))
        gbps, peer = results.best_peer(case) or (None, "the best peer")
        rows.append(judged(requirement.contender, case, peer, ours, gbps, requirement.of_best))
    print_columns(rows)
    return {row[-1] for row in rows[1:]}


def print_first_requirements(first: FirstLoads, cases: list[Case]) -> set[str]:
    """Prints the requirements of first loads as ratios of speeds, and returns the verdicts."""
    rows = [["contender", "case", "against", "is", "required", ""]]

    def speed(seconds: float | None) -> float | None:
        return None if seconds is None else 1 / seconds

    for contender, case, of_best, of_again in FIRST_REQUIREMENTS:
        if all(chosen.name != case for chosen in cases):
            continue
        ours = speed(first.median(contender, case, FIRST))
        seconds, peer = first.best_peer(list(PEERS), case) or (None, "the best peer")
        rows.append(judged(contender, case, f"{peer}, first", ours, speed(seconds), of_best))
        again = speed(first.median(contender, case, AGAIN))
        rows.append(judged(contender, case, f"{contender}, again", ours, again, of_again))
    print_columns(rows)
    return {row[-1] for row in rows[1:]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", metavar="DIR", required=True, type=Path, help="where the files go; needs 4 GiB")
    parser.add_argument("--ours", metavar="CMD", help="the example load_bench")
    parser.add_argument("--python", metavar="CMD", default=sys.executable, help="has PyTorch and the loaders")
    parser.add_argument("--peers", metavar="A,B", help="only these; '' for none (all)")
    parser.add_argument("--ranks", metavar="N", type=positive, help="load by N processes to N GPUs, all tensors to each")
    parser.add_argument("--first", metavar="N", type=positive, help="first loads, by N processes of each contender")
    parser.add_argument("--cases", metavar="A,B", help="only these (all)")
    parser.add_argument("--link", metavar="GBPS", type=float, help="the speed of the link to the GPU")
    parser.add_argument("--cufile", metavar="CMD", help="cufile_c, as built by peers/build.sh, to measure the link")
    parser.add_argument("--timeout", metavar="S", type=float, default=60, help="for one contender and case (60)")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write every line there, after each case")
    parser.add_argument("--keep", action="store_true", help="leave the files of all cases")
    parser.add_argument("--cpu", action="store_true", help="load to the host, to try the program without a GPU")
    options = parser.parse_args()
    known = DISTRIBUTED if options.ranks else LOADERS
    options.peers = list(known) if options.peers is None else options.peers.split(",") if options.peers else []
    for peer in options.peers:
        if peer not in known:
            parser.error(f"there is no loader `{peer}`; the loaders are {', '.join(known)}")
    if options.ranks and options.ours:
        parser.error("--ours loads by one process, so it cannot go with --ranks")
    if options.first and (options.ranks or options.keep):
        parser.error("--first goes neither with --ranks nor with --keep")
    options.on_cpu = ["--cpu"] if options.cpu else []
    if not options.peers and not options.ours:
        parser.error("name at least one contender: --ours or --peers")
    commands = {OURS: options.ours, "cufile": options.cufile, "python": options.python if options.peers else None}
    check_commands(parser, {name: command for name, command in commands.items() if command}, options.json)
    if options.dir.exists() and not options.dir.is_dir():
        parser.error(f"--dir: {options.dir} is no folder")
    cases = chosen_cases(options.cases)

    options.dir.mkdir(parents=True, exist_ok=True)
    results, link = Results(), options.link
    for case in cases:
        start = time.monotonic()
        try:
            paths = case.make(options.dir)
            print(f"{case.name}: files made in {time.monotonic() - start:.0f} s", file=sys.stderr)
            if options.cufile and link is None:
                command = [*shlex.split(options.cufile), str(paths[0]), "link-h2d"]
                run("cuda", command, "link-h2d", options.timeout, results)
                link = results.figure("cuda", "link-h2d")
            measure(case, paths, options, results)
        finally:
            if not options.keep:
                for path in case.paths(options.dir):
                    path.unlink(missing_ok=True)
        if options.json:
            lines = results.first.lines() if options.first else list(results.lines.values())
            report = {"dir": str(options.dir), "link": link, "lines": lines}
            options.json.write_text(json.dumps(report, indent=1) + "\n")

    print(f"{options.dir}, {file_system_of(options.dir)}\n")
    if options.first:
        print_first_loads(results.first, cases)
        print()
        verdicts = print_first_requirements(results.first, cases)
        of_first = results.first.failures.items()
        results.failures += [f"{contender}, {case}: {error}" for (contender, case), error in of_first]
    else:
        print_table(results, cases)
        print()
        requirements = RANKED_REQUIREMENTS if options.ranks else REQUIREMENTS
        verdicts = print_requirements(results, cases, link, requirements)
    if results.failures:
        print("\nfailures:", *results.failures, sep="\n  ")
    return exit_status(verdicts, results.failures)


if __name__ == "__main__":
    sys.exit(main())
