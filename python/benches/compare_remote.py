#!/usr/bin/env python3
"""Reads objects into GPU memory by gpufile, by kvikio and by Run:ai's streamer, from an nginx that this program starts.

The contenders take turns, in fresh processes. remote_reads.py describes the cases; `tls` and `tls-lists` are `whole` and
`lists` by HTTPS. The loop of peers/sockets.c reads the same object into host memory, and `curl` the shards of the model with as many connections as Run:ai.
Prints the median of each contender's settings.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

# The modules below are scripts that lie in the repository.
sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent

from loaders import MEBIBYTE, read_once  # noqa: E402
from remote_reads import INDEX, MODEL  # noqa: E402

CASES = {
    "whole": ["sockets", "gpufile", "kvikio"],
    "tls": ["gpufile", "kvikio"],
    "tls-lists": ["gpufile", "kvikio"],
    "lists": ["gpufile", "kvikio"],
    "small": ["gpufile", "kvikio"],
    "models": ["curl", "gpufile", "runai"],
}
# The cases by HTTPS, as remote_reads.py names them.
ENCRYPTED = {"tls": "whole", "tls-lists": "lists"}
SOCKET_SETTINGS = [(16, 4), (32, 4), (64, 4)]
RUNAI_CONNECTIONS = 16
CONFIGURATION = """
{user}worker_processes {workers};
daemon off;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile on; keepalive_requests 1000000;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    server {{ listen 127.0.0.1:{http}; root {objects}; location /bucket/ {{ alias {objects}/; }} }}
    server {{ listen 127.0.0.1:{https} ssl; root {objects}; ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem; }}
}}
"""


def make_object(path: Path, size: int) -> None:
    """Fills the object with one random block again and again, which is as long as no power of two."""
    if path.exists() and path.stat().st_size == size:
        return
    block = os.urandom(251 * MEBIBYTE + 13)
    with open(path, "wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
    read_once(path)


def make_model(folder: Path) -> None:
    MODEL.make(folder)
    weights = {
        f"f{i}.t{k}": path.name for i, path in enumerate(MODEL.paths(folder)) for k in range(MODEL.tensors)
    }
    (folder / INDEX).write_text(json.dumps({"weight_map": weights}))


@dataclass(frozen=True)
class Server:
    """The ports of the server, and the folder with its certificate."""

    http: int
    https: int
    folder: Path


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def serve(command: str, objects: Path, folder: Path) -> Iterator[Server]:
    certificate = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    certificate += ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run([*certificate, *files], check=True, stderr=subprocess.DEVNULL)
    http, https = free_ports(2)
    (folder / "nginx.conf").write_text(
        CONFIGURATION.format(
            user="user root root;\n" if os.geteuid() == 0 else "",
            workers=os.cpu_count(),
            folder=folder,
            objects=objects,
            http=http,
            https=https,
        )
    )
    # nginx takes the sockets that a variable of its name lists.
    environment = {name: value for name, value in os.environ.items() if name != "NGINX"}
    process = subprocess.Popen(
        [*shlex.split(command), "-p", folder, "-c", folder / "nginx.conf"], env=environment, start_new_session=True
    )
    try:
        time.sleep(1)
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        yield Server(http, https, folder)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def run_curl(folder: Path, port: int) -> str:
    """Reads all shards with as many connections as Run:ai's streamer, each a part of a shard."""
    paths = MODEL.paths(folder)
    parts = RUNAI_CONNECTIONS // len(paths)
    total = sum(path.stat().st_size for path in paths)
    start = time.perf_counter()
    processes = []
    for path in paths:
        size = path.stat().st_size
        for part in range(parts):
            bounds = f"{size * part // parts}-{size * (part + 1) // parts - 1}"
            url = f"http://127.0.0.1:{port}/{path.name}"
            processes.append(subprocess.Popen(["curl", "-sf", "-o", "/dev/null", "-r", bounds, url]))
    if any(process.wait() for process in processes):
        return "peer=curl case=models error=a curl failed"
    seconds = time.perf_counter() - start
    return f"peer=curl case=models setting={RUNAI_CONNECTIONS} seconds={seconds:.6f} gbps={total / seconds / 1e9:.3f} cpu=0"


def lines_of(case: str, contender: str, options: argparse.Namespace, server: Server) -> Iterator[str]:
    object_path = options.dir / "object.bin"
    if contender == "curl":
        yield run_curl(options.dir, server.http)
        return
    if contender == "sockets":
        size = str(object_path.stat().st_size)
        for threads, mebibytes in SOCKET_SETTINGS if options.sockets else []:
            command = [options.sockets, "127.0.0.1", str(server.http), "/object.bin", size, str(threads), str(mebibytes * MEBIBYTE)]
            yield from subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120).stdout.splitlines()
        return
    is_s3 = contender == "runai"
    address = "s3://bucket" if is_s3 else f"http://127.0.0.1:{server.http}"
    trust: list[str | Path] = []
    if case in ENCRYPTED:
        address, trust = f"https://127.0.0.1:{server.https}", ["--trust", server.folder / "cert.pem"]
    environment = dict(os.environ)
    if is_s3:
        environment |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.http}",
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
            "RUNAI_STREAMER_CONCURRENCY": str(RUNAI_CONNECTIONS),
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    command = [*shlex.split(options.python), HERE / "remote_reads.py", contender, ENCRYPTED.get(case, case)]
    command += [f"{address}/object.bin", object_path, *trust, *(["--cpu"] if options.cpu else [])]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=options.timeout, env=environment)
        yield from done.stdout.splitlines()
    except subprocess.TimeoutExpired:
        yield f"peer={contender} case={case} error=did not end within {options.timeout:g} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR", type=Path, help="the folder of the objects, such as one in /dev/shm")
    parser.add_argument("--mib", type=int, default=8192, help="length of the object (8192)")
    parser.add_argument("--rounds", type=int, default=3, help="of each case (3)")
    parser.add_argument("--cases", metavar="A,B", default=",".join(CASES), help=f"of {', '.join(CASES)} (all)")
    parser.add_argument("--nginx", metavar="COMMAND", default="nginx", help="the server (nginx)")
    parser.add_argument("--sockets", metavar="PROGRAM", help="peers/sockets.c, as peers/build.sh builds it")
    parser.add_argument("--python", metavar="COMMAND", default=sys.executable, help="with the contenders' packages")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each process (120)")
    parser.add_argument("--leave-out", metavar="A,B", default="", help="contenders that are not run")
    parser.add_argument("--cpu", action="store_true", help="read to the host, to try the program without a GPU")
    options = parser.parse_args()
    options.dir = options.dir.resolve()
    options.dir.mkdir(parents=True, exist_ok=True)
    left_out = options.leave_out.split(",")

    make_object(options.dir / "object.bin", options.mib * MEBIBYTE)
    if "models" in options.cases.split(","):
        make_model(options.dir)
    figures: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    gigabytes: dict[tuple[str, str, str], float] = {}
    has_failed = False
    with tempfile.TemporaryDirectory() as name, serve(options.nginx, options.dir, Path(name)) as server:
        for case in options.cases.split(","):
            for _ in range(options.rounds):
                for contender in CASES[case]:
                    if contender in left_out:
                        continue
                    for line in lines_of(case, contender, options, server):
                        fields = dict(word.partition("=")[::2] for word in line.split())
                        if case in ENCRYPTED:
                            named = fields["case"].replace(ENCRYPTED[case], case)
                            line = line.replace(f"case={fields['case']}", f"case={named}")
                            fields["case"] = named
                        print(line, flush=True)
                        has_failed |= "error" in fields
                        if "seconds" in fields:
                            key = fields["case"], fields["peer"], fields["setting"]
                            figures[key].append((float(fields["seconds"]), float(fields["cpu"])))
                            gigabytes[key] = float(fields["gbps"]) * float(fields["seconds"])
    print(f"\n{'case':14}{'contender':15}{'setting':>10}{'ms':>12}{'GB/s':>10}{'CPU s':>10}")
    for (case, contender, setting), taken in figures.items():
        seconds, cpu = (statistics.median(column) for column in zip(*taken))
        rate = gigabytes[case, contender, setting] / seconds
        print(f"{case:14}{contender:15}{setting:>10}{seconds * 1e3:12.3f}{rate:10.2f}{cpu:10.3f}")
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
