#!/usr/bin/env python3
"""Loads models by gpufile and by other loaders in turn, and puts their figures side by side.

For each case of loaders.py, this program makes the files. Each contender loads them in a separate process. The
program removes them before the next case. Below the table stand the ratios that gpufile is to keep. The exit status is
1 if gpufile misses one or a contender failed, and 3 if a ratio has no data.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
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
    environment = dict(os.environ)
    # By default, libcufile writes its log into the working directory.
    environment.setdefault("CUFILE_LOGFILE_PATH", os.path.join(tempfile.gettempdir(), "cufile.log"))
    start, error = time.monotonic(), None
    try:
        # The standard error output is the user's.
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, text=True, timeout=timeout
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
    loader = [*python, str(HERE / "loaders.py"), "--keep", "--cases", case.name, folder]
    commands = {peer: [*loader, peer] for peer in options.peers}
    if options.ours:
        commands[OURS] = [*shlex.split(options.ours), folder]
    for contender, command in commands.items():
        if file_system_of(options.dir) != "tmpfs":
            for path in paths:
                fill_page_cache(path)
        run(contender, command, case.name, options.timeout, results)


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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", metavar="DIR", required=True, type=Path, help="where the files go; needs 4 GiB")
    parser.add_argument("--ours", metavar="CMD", help="the example load_bench")
    parser.add_argument("--python", metavar="CMD", default=sys.executable, help="has PyTorch and the loaders")
    parser.add_argument("--peers", metavar="A,B", help="only these; '' for none (all)")
    parser.add_argument("--ranks", metavar="N", type=positive, help="load by N processes to N GPUs, all tensors to each")
    parser.add_argument("--cases", metavar="A,B", help="only these (all)")
    parser.add_argument("--link", metavar="GBPS", type=float, help="the speed of the link to the GPU")
    parser.add_argument("--cufile", metavar="CMD", help="cufile_c, as built by peers/build.sh, to measure the link")
    parser.add_argument("--timeout", metavar="S", type=float, default=60, help="for one contender and case (60)")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write every line there, after each case")
    parser.add_argument("--keep", action="store_true", help="leave the files of all cases")
    options = parser.parse_args()
    known = DISTRIBUTED if options.ranks else LOADERS
    options.peers = list(known) if options.peers is None else options.peers.split(",") if options.peers else []
    for peer in options.peers:
        if peer not in known:
            parser.error(f"there is no loader `{peer}`; the loaders are {', '.join(known)}")
    if options.ranks and options.ours:
        parser.error("--ours loads by one process, so it cannot go with --ranks")
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
            report = {"dir": str(options.dir), "link": link, "lines": list(results.lines.values())}
            options.json.write_text(json.dumps(report, indent=1) + "\n")

    print(f"{options.dir}, {file_system_of(options.dir)}\n")
    print_table(results, cases)
    print()
    requirements = RANKED_REQUIREMENTS if options.ranks else REQUIREMENTS
    verdicts = print_requirements(results, cases, link, requirements)
    if results.failures:
        print("\nfailures:", *results.failures, sep="\n  ")
    return exit_status(verdicts, results.failures)


if __name__ == "__main__":
    sys.exit(main())
