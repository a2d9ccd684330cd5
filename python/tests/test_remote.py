"""Objects of servers: the reads of files, options, errors without secrets, and the version that is read."""

import errno
import io
import os
import pickle
import ssl

import gpufile
import numpy as np
import pytest
from gpufile import _gpufile

from conftest import store_options


@pytest.fixture
def file(server, content):
    """Returns the open object ``/data``, which has the random bytes."""
    server.files["/data"] = content
    with gpufile.RemoteFile(f"{server.url}/data?token=hidden") as file:
        yield file


def test_reads_fill_host_and_gpu_memory(file, content, device_array):
    assert isinstance(file, gpufile.File) and file.size() == len(content)
    for offset, length in ((0, len(content)), (777, 5000), (len(content) - 7, 7)):
        host, array = np.zeros(length, np.uint8), device_array(length)
        assert file.read_into(host, offset) == file.read_into(array, offset) == length
        assert host.tobytes() == array.get() == content[offset : offset + length]
    assert file.read_into(bytearray(100), len(content) - 7) == 7
    assert file.route().kind == "posix"


def test_lists_futures_and_streams_read_objects(file, content, device_array):
    buffers, offsets = [bytearray(3000), device_array(3000), bytearray(3000)], [9, 50_000, 1_000_000]
    ways = [
        lambda: file.read_many(buffers, offsets),
        lambda: sum(file.read_many_each(buffers, offsets)),
        lambda: file.read_many_async(buffers, offsets).result(),
        lambda: sum(file.read_many_each_async(buffers, offsets).result()),
        lambda: sum(file.read_into_async(*each).result() for each in zip(buffers, offsets)),
        lambda: file.read_into_on_stream(buffers[1], None, offsets[1]).result() + file.read_many(buffers, offsets) - 3000,
    ]
    for read in ways:
        buffers[0][:], buffers[2][:] = bytes(3000), bytes(3000)
        buffers[1].set(bytes(3000))
        assert read() == 9000
        for buffer, offset in zip(buffers, offsets):
            got = buffer.get() if hasattr(buffer, "get") else bytes(buffer)
            assert got == content[offset : offset + 3000]


def test_other_engines_and_chunks_read_the_same_object(file, content):
    engine = gpufile.Engine(threads=2)
    for other in (file.with_engine(engine), file.with_chunk_bytes(99_999)):
        assert type(other) is gpufile.RemoteFile and (other.etag, other.name) == (file.etag, file.name)
        host = bytearray(len(content))
        assert other.read_into(host) == len(content) and host == content
    assert engine.stats()["host"]["read_bytes"] == len(content)


def test_cached_objects_come_from_the_folder(server, content, tmp_path):
    server.files["/data"] = content
    folder, counts = tmp_path / "cache", []
    for _ in range(3):
        before = len(server.requests)
        with gpufile.RemoteFile(f"{server.url}/data", cache=(folder, 1 << 30), proxy="") as file:
            opened = len(server.requests)
            host = bytearray(len(content))
            assert file.read_into(host) == len(content) and host == content
        assert len(server.requests) == opened, "reads are those of a local file"
        counts.append(opened - before)
    assert counts[0] > counts[1] == counts[2] and len(list(folder.iterdir())) == 1
    # Another version is fetched.
    server.files["/data"], server.etag = content[::-1], '"2"'
    with gpufile.RemoteFile(f"{server.url}/data", cache=(folder, 1 << 30)) as file:
        host = bytearray(len(content))
        assert file.read_into(host) == len(content) and host == content[::-1]


def test_objects_are_not_pickled(file):
    with pytest.raises(TypeError, match="cannot pickle 'gpufile.RemoteFile' object"):
        pickle.dumps(file)


def test_objects_are_like_files_without_a_descriptor(file, server):
    assert (file.name, file.mode, file.closed, file.etag) == (f"{server.url}/data", "r", False, '"1"')
    assert repr(file) == f'<gpufile.RemoteFile "{server.url}/data" mode="r">'
    with pytest.raises(io.UnsupportedOperation, match="no descriptor"):
        file.fileno()
    for change in (lambda: file.write_from(b"x"), lambda: file.write_many([b"x"], [0]), lambda: file.truncate(3)):
        with pytest.raises(OSError):
            change()
    file.close()
    assert repr(file).startswith("<closed gpufile.RemoteFile") and file.closed
    for call in (file.size, file.fileno, lambda: file.read_into(bytearray(1)), lambda: file.with_chunk_bytes(9)):
        with pytest.raises(ValueError, match="closed file"):
            call()


@pytest.mark.parametrize(
    ("status", "error", "number"),
    [(404, FileNotFoundError, errno.ENOENT), (403, PermissionError, errno.EACCES), (418, OSError, errno.EIO)],
)
def test_refused_objects_raise_the_error_of_a_file(server, status, error, number):
    server.statuses = [status]
    with pytest.raises(error) as caught:
        gpufile.RemoteFile(f"{server.url}/data?token=hidden")
    assert (type(caught.value), caught.value.errno) == (error, number)
    assert caught.value.filename == f"{server.url}/data"
    assert f"status {status}" in str(caught.value) and "hidden" not in str(caught.value)


def test_refused_reads_are_failed_transfers(file, server):
    server.statuses = [404]
    with pytest.raises(gpufile.TransferError, match="status 404") as caught:
        file.read_into(bytearray(100), 50)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, f"{server.url}/data")
    assert "hidden" not in str(caught.value)
    server.etag = '"2"'
    with pytest.raises(gpufile.TransferError, match="the object changed") as caught:
        file.read_many([bytearray(3), bytearray(3)], [0, 9])
    assert caught.value.errno == errno.ESTALE


def test_servers_that_do_not_answer_are_errors(server):
    with pytest.raises(ConnectionRefusedError):
        gpufile.RemoteFile("http://127.0.0.1:1/data", tries=1)
    server.go_on.clear()
    with pytest.raises(TimeoutError, match="too little within 0.05 seconds"):
        gpufile.RemoteFile(f"{server.url}/data", tries=2, timeout=0.05)
    assert len(server.requests) == 2


def test_options_choose_what_is_repeated_and_sent(server):
    server.files["/data"] = b"0123456789"
    server.statuses = [418, 418]
    with gpufile.RemoteFile(f"{server.url}/data", statuses=[418], headers={"X-Key": "hidden"}) as file:
        assert file.size() == 10
    assert [request.headers["X-Key"] for request in server.requests] == ["hidden"] * 3
    server.statuses = [503]
    with pytest.raises(OSError, match="status 503"):
        gpufile.RemoteFile(f"{server.url}/data", statuses=[418])
    server.statuses = [503, 503]
    with pytest.raises(OSError, match="status 503"):
        gpufile.RemoteFile(f"{server.url}/data", tries=1)


def test_certificates_are_trusted_by_choice(server, content):
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.files["/data"] = content
    url = server.url.replace("http:", "https:") + "/data"
    with pytest.raises(PermissionError, match="the certificate of the server is not accepted"):
        gpufile.RemoteFile(url)
    with gpufile.RemoteFile(url, trust=authority.cert_pem.bytes()) as file:
        host = bytearray(len(content))
        assert file.read_into(host) == len(content) and host == content


def test_objects_of_s3_are_signed(server, content):
    server.files["/bucket/a%20b"] = content
    options = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "eu-north-1",
        "AWS_ACCESS_KEY_ID": "KEY",
        "AWS_SECRET_ACCESS_KEY": "hidden",
    }
    for url in ("s3://bucket/a b", f"{server.url}/bucket/a%20b"):
        with gpufile.RemoteFile(url, storage_options=options) as file:
            host = bytearray(len(content))
            assert file.read_into(host) == len(content) and host == content
            assert file.name == url and "hidden" not in repr(file)
        for request in server.requests:
            assert "X-Amz-Credential=KEY%2F" in request.path and "hidden" not in request.path
        server.requests.clear()


def test_objects_of_google_are_signed(server, content, google):
    server.files["/bucket/a%20b"] = content
    with gpufile.RemoteFile("gs://bucket/a b", storage_options=google) as file:
        host = bytearray(len(content))
        assert file.read_into(host) == len(content) and host == content
        assert file.name == "gs://bucket/a b" and "X-Goog" not in repr(file)
    for request in server.requests:
        assert "X-Goog-Credential=test%40example.org%2F" in request.path and "X-Goog-Signature=" in request.path
    with pytest.raises(ValueError, match="Unable to decode") as caught:
        gpufile.RemoteFile("gs://bucket/a", storage_options={"GOOGLE_SERVICE_ACCOUNT_KEY": '"hidden"'})
    assert "hidden" not in str(caught.value)


def test_interrupts_end_waits_for_servers(python):
    printed = python("""
        server = conftest.Server()
        server.files["/data"] = bytes(5 << 20)
        file = gpufile.RemoteFile(f"{server.url}/data")
        server.go_on.clear()
        for wait in (
            lambda: gpufile.RemoteFile(f"{server.url}/data"),
            lambda: file.read_into(bytearray(100)),
            lambda: file.read_into(bytearray(5 << 20)),
            lambda: file.read_many([bytearray(100)], [7]),
        ):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            begun = time.monotonic()
            try:
                wait()
            except KeyboardInterrupt:
                print(time.monotonic() - begun < 10)
        sys.stdout.flush()
        os._exit(0)
    """)
    assert printed.split() == ["True"] * 4


def test_thousand_objects_leave_nothing_behind(server, python):
    server.files["/data"] = bytes(10_000)
    printed = python(f"""
        import resource
        buffer = bytearray(10_000)
        # As many threads for near servers and for far ones.
        engine = gpufile.Engine(threads=4)
        def use(count):
            for _ in range(count):
                with gpufile.RemoteFile("{server.url}/data?secret", engine=engine) as file:
                    assert file.read_into(buffer) == 10_000
                    file.with_chunk_bytes(5000).read_many([buffer], [0])
            pages = int(open("/proc/self/statm").read().split()[1])
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * resource.getpagesize()
        before, after = use(200), use(1000)
        # Each thread may keep a connection.
        print(after[0] <= before[0] + 4 and after[1] <= before[1] + 4, after[2] - before[2] < 4 << 20)
    """)
    assert printed.split() == ["True", "True"]


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
def test_folders_of_stores_are_written_listed_and_emptied(server, device_array, scheme):
    content = os.urandom(9 << 20)
    folder = _gpufile.RemoteFolder(f"{scheme}://bucket/f/", storage_options=store_options(server.url)[scheme])
    device = device_array(len(content)).set(content)
    folder.upload("a b", 2 * len(content) + 3, iter([[device, b"abc"], [], [content]]))
    assert server.files == {"/bucket/f/a%20b": content + b"abc" + content} and not server.uploads

    def broken():
        yield [content]
        raise KeyError("broken")

    for length, pieces, error in [
        (2 * len(content), broken(), KeyError), (2 * len(content), iter([[content]]), OSError),
        (3, iter([[content]]), gpufile.TransferError), (3, iter([[5]]), TypeError), (3, iter([5]), TypeError), (-3, iter([]), OverflowError),
    ]:  # fmt: skip
        with pytest.raises(error):
            folder.upload("a b", length, pieces)
    assert server.files == {"/bucket/f/a%20b": content + b"abc" + content}
    assert folder.names() == ["a b"]
    for _ in range(2):
        folder.remove("a b")
    assert folder.names() == []


def test_interrupts_end_uploads(python):
    printed = python("""
        server = conftest.Server()
        folder = gpufile._gpufile.RemoteFolder("s3://bucket/f/", storage_options=conftest.store_options(server.url)["s3"])
        server.go_on.clear()
        def interrupt():
            while not any(request.command == "PUT" for request in server.requests):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        start = time.monotonic()
        try:
            folder.upload("a", 40 << 20, iter([[bytes(40 << 20)]]))
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - start < 20, server.files, server.uploads)
    """)
    assert printed == "interrupted True {} {}\n"
