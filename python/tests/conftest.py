"""Fixtures: an emulated GPU in this process, and files of random bytes."""

import ctypes
import gc
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import threading
import urllib.parse

import pytest

# Tests import what they share from each other.
sys.path.append(os.path.dirname(__file__))

EMULATOR = os.environ.get("GPUFILE_TEST_EMULATOR")
if EMULATOR:
    # The libraries are loaded when gpufile first needs them.
    for variable in ("CUFILE_LIBRARY", "CUDART_LIBRARY", "CUDA_LIBRARY"):
        os.environ[variable] = EMULATOR
# jax would take three quarters of a GPU's memory in each process of the tests.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
# No test asks the Hugging Face Hub.
os.environ["HF_HUB_OFFLINE"] = "1"


# The functions that copy between host and GPU.
COPIES = ("cudaMemcpyAsync", "cudaMemcpyBatchAsync")


class DeviceArray:
    """GPU memory of the emulator, which offers itself as numba's and cupy's arrays do."""

    def __init__(self, gpu, length, fields=None):
        self.gpu, self.length = gpu, length
        address = ctypes.c_void_p()
        assert gpu.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(max(length, 1))) == 0
        self.address = address.value
        self.fields = fields or {}

    @property
    def __cuda_array_interface__(self):
        fields = {"shape": (self.length,), "typestr": "|u1", "data": (self.address, False), "version": 3}
        return fields | self.fields

    def get(self):
        """Returns the bytes."""
        out = ctypes.create_string_buffer(self.length)
        self._copy(out, self.address, 2)
        return out.raw

    def set(self, content):
        """Replaces the bytes."""
        assert len(content) == self.length
        self._copy(self.address, bytes(content), 1)
        return self

    def _copy(self, target, source, kind):
        args = ctypes.c_void_p(target) if isinstance(target, int) else target
        source = ctypes.c_void_p(source) if isinstance(source, int) else source
        assert self.gpu.cudaMemcpy(args, source, ctypes.c_size_t(self.length), kind) == 0

    def __del__(self):
        self.gpu.cudaFree(ctypes.c_void_p(self.address))


@pytest.fixture(scope="session")
def gpu():
    """Returns the emulator's CUDA runtime."""
    if not EMULATOR:
        pytest.skip("GPUFILE_TEST_EMULATOR names no libcufile_emulator.so")
    return ctypes.CDLL(EMULATOR)


@pytest.fixture
def device_array(gpu):
    """Returns a function that allocates GPU memory of some length in bytes."""
    return lambda length, **fields: DeviceArray(gpu, length, fields)


@pytest.fixture
def command(gpu):
    """Returns a function that gives the emulator a command. Faults end with the test."""
    gpu.emulator_control.restype = ctypes.c_longlong

    def command(text):
        answer = gpu.emulator_control(text.encode())
        assert answer >= 0, text
        return answer

    yield command
    command("clear")


@pytest.fixture
def slow_copies(command):
    """Makes each copy between host and GPU take 5 ms."""
    for function in COPIES:
        command(f"fault {function} times=all delay_us=5000")


@pytest.fixture
def let_copies_go(command):
    """Holds each copy between host and GPU. Returns a function that lets all copies go on."""
    # Memory of earlier tests is freed now, because that waits for copies.
    gc.collect()
    for function in COPIES:
        command(f"fault {function} times=all hold=1")

    yield lambda: command("release")
    command("release")


@pytest.fixture
def content():
    """Returns random bytes, whose number is no multiple of a block."""
    return os.urandom(1_234_567)


@pytest.fixture
def path(tmp_path, content) -> pathlib.Path:
    """Returns a file with the random bytes."""
    path = tmp_path / "data.bin"
    path.write_bytes(content)
    return path


class Server(http.server.ThreadingHTTPServer):
    """A server of HTTP on loopback, with ranges and versions, and of the stores S3, Azure and Google Cloud Storage. Requests that
    arrive are in ``requests``."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = "http://127.0.0.1:%d" % self.server_address[1]
        #: The contents by path, the version of all, and the statuses of the next answers.
        self.files, self.etag, self.statuses, self.requests = {}, '"1"', [], []
        #: The parts by the number of an upload that was begun, and neither completed nor aborted.
        self.uploads = {}
        #: An event that answers wait for.
        self.go_on = threading.Event()
        self.go_on.set()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request, address):
        """Ignores clients that close the connection."""


class Answer(http.server.BaseHTTPRequestHandler):
    """The answer to a request."""

    protocol_version = "HTTP/1.1"
    # Otherwise the body would wait for the client's acknowledgement of the head, which takes 40 ms.
    disable_nagle_algorithm = True

    def do_GET(self):
        self.server.requests.append(self)
        self.server.go_on.wait(60)
        if "Range" not in self.headers:
            self.list()
            return
        content = self.server.files.get(self.path.partition("?")[0])
        start, end = map(int, re.match(r"bytes=(\d+)-(\d+)$", self.headers["Range"]).groups())
        if self.server.statuses:
            status, body = self.server.statuses.pop(0), b""
        elif content is None:
            status, body = 404, b""
        elif self.headers.get("If-Match", self.server.etag) != self.server.etag:
            status, body = 412, b""
        else:
            status, body = 206, content[start : end + 1]
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(content)}")
            self.send_header("ETag", self.server.etag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        """Takes an object, or a part of one, as S3 and Azure do."""
        body = self.body()
        path, query = self.begin()
        if self.server.statuses:
            self.end(self.server.statuses.pop(0))
        elif "partNumber" in query:
            self.server.uploads.get(query["uploadId"], {})[int(query["partNumber"])] = body
            self.end(200)
        elif query.get("comp") == "block":
            self.server.uploads.setdefault(path, {})[query["blockid"]] = body
            self.end(201)
        elif query.get("comp") == "blocklist":
            parts = self.server.uploads.pop(path)
            numbers = re.findall(r"<(?:Uncommitted|Latest)>([^<]*)", body.decode())
            self.server.files[path] = b"".join(parts[number] for number in numbers)
            self.end(201)
        else:
            self.server.files[path] = body
            self.end(201 if "x-ms-blob-type" in self.headers else 200)

    def do_POST(self):
        """Begins an object of several parts, or lets it appear. Removes the objects of a list."""
        body = self.body().decode()
        path, query = self.begin()
        if self.server.statuses and ("delete" in query or query.get("comp") == "batch"):
            self.end(self.server.statuses.pop(0))
        elif "uploads" in query:
            number = str(len(self.server.requests))
            self.server.uploads[number] = {}
            self.end(200, f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>")
        elif "delete" in query:
            for key in re.findall("<Key>([^<]*)</Key>", body):
                self.server.files.pop(f"{path}/{urllib.parse.quote(key)}", None)
            self.end(200, "<DeleteResult><Deleted><Key/></Deleted></DeleteResult>")
        elif query.get("comp") == "batch":
            answers = ""
            for number, path in enumerate(re.findall(r"^DELETE (\S+) HTTP", body, re.MULTILINE)):
                status = 404 if self.server.files.pop(path, None) is None else 202
                answers += f"--b\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {status} Reason\r\n\r\n"
            self.end(202, answers + "--b--\r\n", "multipart/mixed; boundary=b")
        else:
            parts = self.server.uploads.pop(query["uploadId"])
            self.server.files[path] = b"".join(parts[number] for number in sorted(parts))
            self.end(200, "<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>")

    def do_DELETE(self):
        """Aborts an object of several parts, or removes an object, as Google does."""
        path, query = self.begin()
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"], None)
            self.end(204)
        elif self.server.statuses:
            self.end(self.server.statuses.pop(0))
        else:
            self.end(404 if self.server.files.pop(path, None) is None else 204)

    def list(self):
        """Lists the objects of a folder, two at a time."""
        address = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(address.query))
        start = f"{address.path}/{urllib.parse.quote(query.get('prefix', ''))}"
        marker = query.get("continuation-token") or query.get("marker") or ""
        keys = sorted(urllib.parse.unquote(path[len(address.path) + 1 :]) for path in self.server.files if path.startswith(start))
        keys = [key for key in keys if key > marker and "/" not in key[len(query.get("prefix", "")) :]]
        more = keys[1] if len(keys) > 2 else ""
        if query.get("comp") == "list":
            fields = "<Last-Modified>Mon, 30 Nov 2026 10:00:00 GMT</Last-Modified><Content-Length>1</Content-Length>"
            fields += "<Content-Type>a</Content-Type>"
            blobs = "".join(f"<Blob><Name>{key}</Name><Properties>{fields}</Properties></Blob>" for key in keys[:2])
            self.end(200, f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{more}</NextMarker></EnumerationResults>")
        else:
            fields = "<Size>1</Size><LastModified>2026-11-30T10:00:00.000Z</LastModified>"
            objects = "".join(f"<Contents><Key>{key}</Key>{fields}</Contents>" for key in keys[:2])
            token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
            self.end(200, f"<ListBucketResult>{objects}{token}</ListBucketResult>")

    def body(self):
        """Returns the body of a request. A client that ends before it has sent all of it gets no answer."""
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError
        return body

    def begin(self):
        """Notes a request that writes. Returns its path and its query."""
        self.server.requests.append(self)
        if self.command == "PUT":
            self.server.go_on.wait(60)
        address = urllib.parse.urlsplit(self.path)
        # Clients of Google escape slashes, too.
        return urllib.parse.quote(urllib.parse.unquote(address.path)), dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True))

    def end(self, status, text="", kind="text/xml"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("ETag", self.server.etag)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments):
        """Writes no log."""


@pytest.fixture
def server():
    """Returns a server whose objects are in a dictionary."""
    server = Server()
    yield server
    server.go_on.set()
    server.shutdown()
    server.server_close()


def store_options(url):
    """Returns the options of each store, by the scheme of its addresses, for a ``Server`` at this URL, which stands for all."""
    private_key = pathlib.Path(__file__).parents[2] / "testkit/src/google.pem"
    key = {"client_email": "test@example.org", "private_key_id": "7", "private_key": private_key.read_text()}
    return {
        "s3": {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "eu-north-1",
            "AWS_ACCESS_KEY_ID": "KEY",
            "AWS_SECRET_ACCESS_KEY": "hidden",
        },
        "gs": {
            "GOOGLE_BASE_URL": url,
            "GOOGLE_ALLOW_HTTP": "true",
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key),
        },
        "az": {
            "AZURE_STORAGE_ENDPOINT": url,
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": "aGlkZGVu",
        },
    }


@pytest.fixture
def google(server):
    """Returns the options of a service account of Google Cloud Storage, which the server stands for."""
    return store_options(server.url)["gs"]


PREAMBLE = """
import ctypes, os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
# A parent in the background may have left interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
import conftest, gpufile
gpu = ctypes.CDLL(conftest.EMULATOR)
path = {path!r}
def slow():
    for function in conftest.COPIES:
        assert gpu.emulator_control(f"fault {{function}} times=all delay_us=20000".encode()) == 0
def narrow():
    return gpufile.Engine(threads=1, chunk_bytes=65536)
"""


@pytest.fixture
def python(gpu, path):
    """Returns a function that runs a program in another interpreter, with more environment variables, and returns what it
    prints. It ends within ``limit`` seconds."""

    def python(program, status=0, limit=60, **variables):
        preamble = PREAMBLE.format(tests=os.path.dirname(__file__), path=str(path))
        command = [sys.executable, "-c", preamble + textwrap.dedent(program)]
        environment = os.environ | variables
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        assert run.returncode == status, (run.returncode, run.stdout, run.stderr)
        return run.stdout + run.stderr

    return python
