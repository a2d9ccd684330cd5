"""``RemoteFile`` as kvikio has it: kinds of servers, reads, settings and errors."""

import asyncio
import pickle
import urllib.request

import pytest

np = pytest.importorskip("numpy")

import gpufile
from gpufile import kvikio
from gpufile.kvikio import RemoteEndpointType, RemoteFile, defaults, remote_file
from gpufile.kvikio.utils import LocalHttpServer

KINDS = [
    ("s3://bucket/object", "S3"),
    ("S3://bucket/folder/object", "S3"),
    ("https://bucket.s3.eu-north-1.amazonaws.com/object", "S3"),
    ("https://s3.eu-north-1.amazonaws.com/bucket/object", "S3"),
    ("https://bucket.with.dots.s3.amazonaws.com/object?versionId=3", "S3"),
    ("https://s3-eu-north-1.amazonaws.com/bucket/object", "S3"),
    ("https://bucket.s3.eu-north-1.amazonaws.com/object?X-Amz-Algorithm=a&X-Amz-Signature=b", "S3_PRESIGNED_URL"),
    ("http://example.org/object?X-Amz-Algorithm=a&X-Amz-Signature=b", "HTTP"),
    ("https://s3.eu-north-1.amazonaws.com/object", "HTTP"),
    ("https://example.org:9870/webhdfs/v1/object", "WEBHDFS"),
    ("https://example.org/webhdfs/v1/object", "HTTP"),
    ("HTTP://example.org/object", "HTTP"),
]
UNUSABLE = [
    ("example.org/object", "Bad scheme"),
    ("://bucket/object", "Bad scheme"),
    ("", "Bad scheme"),
    ("http://[/object", "Malformed URL"),
    ("http://example.org:x/object", "Malformed URL"),
    ("ftp://example.org/object", "Unsupported endpoint URL, with the scheme 'ftp'"),
    ("s3://bucket", "Unsupported endpoint URL"),
    ("https://example.org/", "Unsupported endpoint URL"),
]
#: The settings with which tests of S3 open objects.
ACCOUNT = {"aws_region_name": "eu-north-1", "aws_access_key_id": "KEY", "aws_secret_access_key": "hidden"}


@pytest.mark.parametrize(("url", "kind"), KINDS)
def test_addresses_tell_the_kind_of_their_server(url, kind):
    assert kvikio.infer_remote_endpoint_type(url) is RemoteEndpointType[kind]


@pytest.mark.parametrize(("url", "text"), UNUSABLE)
def test_addresses_of_no_kind_are_refused(url, text):
    for call in (kvikio.infer_remote_endpoint_type, RemoteFile.open):
        with pytest.raises(RuntimeError, match=text) as caught:
            call(url)
        assert isinstance(caught.value, kvikio.CuFileError)


def test_reads_fill_host_and_gpu_memory(server, content, device_array):
    server.files["/data"] = content
    with RemoteFile.open_http(f"{server.url}/data?hidden") as file:
        assert (file.nbytes(), file.remote_endpoint_type()) == (len(content), RemoteEndpointType.HTTP)
        assert str(file) == f'<RemoteFile "{server.url}/data">'
        host, array = bytearray(len(content)), device_array(len(content))
        assert file.read(host) == file.pread(array).get() == len(content)
        assert host == array.get() == content
        part = np.zeros(9000, np.uint8)
        assert file.read(part, 1003, 777) == 1003 and part[:1003].tobytes() == content[777:1780]
        with defaults.set({"num_threads": 1, "task_size": 65_536}):
            server.requests.clear()
            assert file.read(host) == len(content) and host == content
            assert len(server.requests) == -(-len(content) // 65_536)
    with pytest.raises(kvikio.CuFileError, match="cannot read a closed file"):
        file.read(host)


def test_reads_beyond_the_end_are_refused(server):
    server.files["/data"] = b"0123456789"
    with RemoteFile.open(f"{server.url}/data") as file:
        for read in (file.read, file.pread):
            with pytest.raises(ValueError, match=r"cannot read 0\+11 bytes into a 10 bytes file"):
                read(bytearray(11))
            with pytest.raises(ValueError, match=r"cannot read 8\+3 bytes into a 10 bytes file"):
                read(bytearray(11), 3, 8)
        assert file.read(bytearray(0)) == file.read(bytearray(9), 0, 50) == 0


def test_the_length_may_be_given(server):
    server.files["/data"] = b"0123456789"
    with RemoteFile.open(f"{server.url}/data", nbytes=4) as file:
        buffer = bytearray(4)
        assert (file.nbytes(), file.read(buffer), buffer) == (4, 4, b"0123")
        with pytest.raises(ValueError, match="into a 4 bytes file"):
            file.read(bytearray(5))
    with pytest.raises(ValueError, match="nbytes is 11: the object has 10 bytes"):
        RemoteFile.open_http(f"{server.url}/data", 11)


def test_objects_of_s3_are_signed(server, monkeypatch):
    server.files["/bucket/a%20b%2Bc"] = content = b"0123456789"
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another key")
    opened = [
        RemoteFile.open_s3("bucket", "a b+c", aws_endpoint_url=server.url, **ACCOUNT),
        RemoteFile.open_s3_url("s3://bucket/a b+c", aws_endpoint_url=server.url, **ACCOUNT),
        RemoteFile.open_s3_url(f"{server.url}/bucket/a%20b+c", **ACCOUNT),
    ]
    for request in server.requests:
        assert "X-Amz-Credential=KEY%2F" in request.path and "of+another" not in request.path
        assert "eu-north-1" in request.path and "Token" not in request.path
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, server.url if "URL" in name else "other")
    opened.append(RemoteFile.open("s3://bucket/a b+c", RemoteEndpointType.S3, [RemoteEndpointType.S3], 10))
    assert "X-Amz-Credential=other" in server.requests[-1].path
    for file in opened:
        buffer = bytearray(10)
        assert file.remote_endpoint_type() is RemoteEndpointType.S3 and "hidden" not in repr(file)
        assert file.read(buffer) == 10 and buffer == content
    with pytest.raises(ValueError, match="Unsupported protocol: ftp://bucket/object"):
        RemoteFile.open_s3_url("ftp://bucket/object?hidden")


def test_addresses_are_opened_as_they_are(server):
    server.files["/bucket/object"] = b"0123456789"
    url = f"{server.url}/bucket/object"
    for call, kind in [
        (RemoteFile.open_s3_public, "S3_PUBLIC"),
        (RemoteFile.open_s3_presigned_url, "S3_PRESIGNED_URL"),
        (lambda url: RemoteFile.open(url, allow_list=[RemoteEndpointType.S3, RemoteEndpointType.HTTP]), "HTTP"),
    ]:
        server.requests.clear()
        with call(f"{url}?X-Amz-Signature=hidden") as file:
            assert file.remote_endpoint_type() is RemoteEndpointType[kind] and "hidden" not in str(file)
        assert [request.path for request in server.requests] == ["/bucket/object?X-Amz-Signature=hidden"]


def test_public_objects_of_s3_need_no_credentials(monkeypatch):
    opened = []

    def record(url, kind, nbytes, options=None):
        opened.append((kind.name, nbytes))
        if kind is RemoteEndpointType.S3:
            raise kvikio.CuFileError(13, "the server answered with status 403")
        return kind

    monkeypatch.setattr(remote_file.RemoteFile, "_open", record)
    url = "https://bucket.s3.eu-north-1.amazonaws.com/object"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert RemoteFile.open(url, nbytes=3) is RemoteEndpointType.S3_PUBLIC
    assert opened == [("S3_PUBLIC", 3)]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    assert RemoteFile.open(url) is RemoteEndpointType.S3_PUBLIC
    assert opened[1:] == [("S3", None), ("S3_PUBLIC", None)]
    for refused in (lambda: RemoteFile.open(url, allow_list=[RemoteEndpointType.S3]), lambda: RemoteFile.open("s3://a/b")):
        with pytest.raises(kvikio.CuFileError, match="403"):
            refused()


def test_kinds_that_do_not_fit_are_refused(server):
    url = f"{server.url}/data"
    with pytest.raises(RuntimeError, match="S3 is not in the allowlist"):
        RemoteFile.open(url, RemoteEndpointType.S3, [RemoteEndpointType.HTTP])
    with pytest.raises(RuntimeError, match="Invalid URL for S3_PRESIGNED_URL"):
        RemoteFile.open(url, RemoteEndpointType.S3_PRESIGNED_URL)
    with pytest.raises(RuntimeError, match="Unsupported endpoint URL"):
        RemoteFile.open(url, allow_list=[RemoteEndpointType.S3])
    for call in (RemoteFile.open_webhdfs, RemoteFile.open):
        with pytest.raises(NotImplementedError, match="gpufile does not read WebHDFS: http://h:1/webhdfs/v1/data"):
            call("http://h:1/webhdfs/v1/data?user.name=hidden")


def test_refused_objects_raise_the_error_of_kvikio(server):
    for call in (RemoteFile.open_http, RemoteFile.open):
        with pytest.raises(RuntimeError, match="URL returned error: 404") as caught:
            call(f"{server.url}/data?hidden")
        error = caught.value
        assert type(error) is kvikio.CuFileError and (error.errno, error.filename) == (2, f"{server.url}/data")
        assert "hidden" not in str(error)
    with pytest.raises(kvikio.CuFileError, match='"ftp://h/data"'):
        RemoteFile.open_http("ftp://a:hidden@h/data?hidden")
    server.files["/data"] = bytes(100)
    with RemoteFile.open_http(f"{server.url}/data") as file:
        server.etag = '"2"'
        with pytest.raises(kvikio.CuFileError, match="the object changed"):
            file.pread(bytearray(100)).get()


def test_settings_of_http_hold_for_objects_that_are_opened(server):
    server.files["/data"] = bytes(100)
    url = f"{server.url}/data"
    server.statuses = [503, 503]
    with RemoteFile.open_http(url) as file:
        assert file.nbytes() == 100 and len(server.requests) == 3
    for setting, value, text in [
        ("http_max_attempts", 1, "503"),
        ("http_status_codes", [429], "503"),
        ("http_timeout", 1, "too little within 1 seconds"),
    ]:
        server.requests.clear()
        with defaults.set({"http_max_attempts": 2} | {setting: value}), pytest.raises(RuntimeError, match=text):
            if setting == "http_timeout":
                server.go_on.clear()
            else:
                server.statuses = [503]
            RemoteFile.open_http(url)
        assert len(server.requests) == (2 if setting == "http_timeout" else 1)


def test_variables_of_kvikio_are_settings_of_http(monkeypatch):
    # Other tests leave values that they have set.
    monkeypatch.setattr(defaults, "_values", {defaults._CHANGE: object()})
    for name, text, value in [("max_attempts", "7", 7), ("timeout", "11", 11), ("status_codes", "429, 418", [429, 418])]:
        monkeypatch.setenv(f"KVIKIO_HTTP_{name.upper()}", text)
        assert defaults.get(f"http_{name}") == value
        with defaults.set(f"http_{name}", [3] if name == "status_codes" else 3):
            assert defaults.get(f"http_{name}") in (3, [3])
        for wrong in ("x", "", "-1" if name != "status_codes" else "429;503"):
            monkeypatch.setenv(f"KVIKIO_HTTP_{name.upper()}", wrong)
            with pytest.raises(ValueError, match=f"KVIKIO_HTTP_{name.upper()} is '{wrong}': expected a"):
                defaults.get(f"http_{name}")
        monkeypatch.delenv(f"KVIKIO_HTTP_{name.upper()}")


def test_monitors_count_reads_of_servers(server, device_array):
    server.files["/data"] = bytes(1000)
    with RemoteFile.open_http(f"{server.url}/data") as file, kvikio.SummaryMonitor() as monitor:
        file.read(bytearray(1000))
        file.pread(device_array(600)).get()
        counted = monitor.get()
    assert (counted.num_reads, counted.bytes_read) == (2, 1600)
    assert counted.by_backend["REMOTE_HTTP"]["bytes_transferred"] == 1600


def test_folders_are_served_to_tests(tmp_path):
    (tmp_path / "data").write_bytes(b"0123456789")
    with LocalHttpServer(tmp_path, range_support=False, max_lifetime=60) as local:
        with urllib.request.urlopen(f"{local.url}/data", timeout=60) as answer:
            assert answer.read() == b"0123456789"
        host = bytearray(4)
        with RemoteFile.open_http(f"{local.url}/data") as file:
            assert file.read(host, file_offset=3) == 4 and host == b"3456"
    with pytest.raises(ConnectionRefusedError):
        gpufile.RemoteFile(f"{local.url}/data", tries=1)


@pytest.fixture
def arrays(server, tmp_path):
    """Returns the values of two arrays of zarr, which the server has at ``/arrays``."""
    zarr = pytest.importorskip("zarr")
    values = np.random.default_rng(3).random((70, 33), dtype="f4")
    zarr.create_array(tmp_path / "a", shape=(70, 33), chunks=(16, 11), dtype="<f4")[:] = values
    sharded = {"chunks": (8, 11), "shards": (16, 33)}
    zarr.create_array(tmp_path / "folder" / "b", shape=(70, 33), dtype="<f4", **sharded)[:] = values
    for path in tmp_path.rglob("*"):
        if path.is_file():
            server.files[f"/arrays/{path.relative_to(tmp_path)}"] = path.read_bytes()
    return values


def test_zarr_arrays_are_read_from_servers(server, arrays):
    import zarr
    from gpufile.kvikio.zarr import GDSStore

    store = GDSStore.at_url(f"{server.url}/arrays?hidden", headers={"X-Key": "hidden"}, engine=gpufile.Engine(threads=3))
    for name in ("a", "folder/b"):
        array = zarr.open_array(store, path=name, mode="r")
        assert np.array_equal(array[:], arrays) and np.array_equal(array[5:9, 3:20], arrays[5:9, 3:20])
    assert {request.headers["X-Key"] for request in server.requests} == {"hidden"}
    assert all(request.path.endswith("?hidden") for request in server.requests)
    assert repr(store) == f"GDSStore.at_url('{server.url}/arrays')"
    # Chunks without an object have the value that fills them.
    del server.files["/arrays/a/c/0/0"]
    assert not zarr.open_array(store, path="a", mode="r")[:16, :11].any()
    with pytest.raises(FileNotFoundError):
        zarr.open_array(store, path="none", mode="r")
    server.statuses = [403] * 50
    with pytest.raises(PermissionError, match="status 403") as caught:
        zarr.open_array(store, path="a", mode="r")
    assert "hidden" not in str(caught.value)


def test_zarr_arrays_are_read_from_s3(server, arrays):
    import zarr
    from gpufile.kvikio.zarr import GDSStore

    options = {
        "AWS_ENDPOINT_URL": server.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-north-1",
        "AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "hidden",
    }  # fmt: skip
    store = pickle.loads(pickle.dumps(GDSStore.at_url("s3://arrays", storage_options=options)))
    assert np.array_equal(zarr.open_array(store, path="folder/b", mode="r")[:], arrays)
    assert all("X-Amz-Signature=" in request.path for request in server.requests)
    assert "hidden" not in f"{store} {store!r}"


def test_addresses_with_escapes_name_the_other_spelling(server, arrays):
    import zarr
    from gpufile.kvikio.zarr import GDSStore

    # The server keeps the path as it was sent.
    server.files |= {f"/b/with%20space{name[7:]}": content for name, content in list(server.files.items())}
    options = {
        "AWS_ENDPOINT_URL": server.url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-north-1",
        "AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "hidden",
    }  # fmt: skip
    store = GDSStore.at_url("s3a://b/with space", storage_options=options)
    assert np.array_equal(zarr.open_array(store, path="a", mode="r")[:], arrays)
    store = GDSStore.at_url("s3a://b/with%20space", storage_options=options)
    with pytest.warns(UserWarning, match="a key is written without escapes"), pytest.raises(FileNotFoundError):
        zarr.open_array(store, path="a", mode="r")


def test_stores_of_objects_are_only_read(server, arrays):
    import zarr
    from gpufile.kvikio.zarr import GDSStore

    store = GDSStore.at_url(f"{server.url}/arrays")
    assert store == GDSStore.at_url(f"{server.url}/arrays") != GDSStore.at_url(f"{server.url}/other")
    assert (store.read_only, store.supports_writes, store.supports_deletes, store.supports_listing) == (True,) + (False,) * 3
    with pytest.raises(ValueError, match="read-only"):
        zarr.create_array(store, name="new", shape=(3,), dtype="<f4")
    with pytest.raises(NotImplementedError, match="not listed"):
        store.list_dir("")
    for key in ("../secret", "a//b", ""):
        with pytest.raises(ValueError, match="names no object"):
            asyncio.run(store.get(key))
    assert asyncio.run(store.exists("a/zarr.json")) and not asyncio.run(store.exists("a/none"))
    for call, error, text in [
        (lambda: GDSStore.at_url("ftp://h/a?hidden"), ValueError, 'the scheme "ftp" is not known'),
        (lambda: GDSStore.at_url(5), TypeError, "url: expected a string"),
        (lambda: GDSStore.at_url(server.url, threads=5), TypeError, "threads is no option of objects"),
        (lambda: GDSStore.at_url(server.url, tries=0), ValueError, "tries is 0"),
    ]:
        with pytest.raises(error, match=text) as caught:
            call()
        assert "hidden" not in str(caught.value)
