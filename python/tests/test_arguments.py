"""Wrong arguments: each call raises the error that a user needs, which names the argument."""

import asyncio
import errno
import os

import pytest

np = pytest.importorskip("numpy")

import gpufile
import gpufile.safetensors as gs
from gpufile.safetensors._error import MissingTensorError
from gpufile import _gpufile as native
from gpufile import gguf, kv_blocks, kvikio, npy
from gpufile.kvikio import cufile_driver, defaults, page_cache, utils
from gpufile.kvikio import numpy as arrays
from gpufile.safetensors import Placement, SafetensorError, Share, TensorSpec, safe_open
from gpufile.safetensors import numpy as ours
from test_methods import CALLS, WAYS

BIG = 1 << 70


@pytest.fixture
def data(path):
    with gpufile.File(path, "r+") as file:
        yield file


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    ours.save_file({"w": np.zeros((4, 5), np.float32), "weight": np.zeros(3), "scalar": np.float32(1)}, path, sync=False)
    return path


def refused(call, error, text, argument=None):
    """Checks an error. Its text names the argument, or the note that Python prints below it."""
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error and text in str(caught.value), repr(caught.value)
    said = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    assert argument is None or any(argument in line for line in said), said


# The keywords of a transfer, the error, and its text, which names the argument.
POSITIONS = [
    ({"offset": -1}, ValueError, "offset is -1: it cannot be negative"),
    ({"offset": BIG}, ValueError, f"offset is {BIG}: it can be at most 18446744073709551615"),
    ({"offset": "0"}, TypeError, "offset: expected an integer, not str"),
    ({"offset": 1.5}, TypeError, "offset: expected an integer, not float"),
    ({"offset": None}, TypeError, "offset: expected an integer, not NoneType"),
    ({"length": -1}, ValueError, "length is -1: it cannot be negative"),
    ({"length": BIG}, ValueError, f"length is {BIG}: it can be at most"),
    ({"length": "5"}, TypeError, "length: expected an integer, not str"),
    ({"length": 101}, ValueError, "101 bytes from byte 0 exceed the buffer of 100 bytes"),
    ({"buffer_offset": -1}, ValueError, "buffer_offset is -1: it cannot be negative"),
    ({"buffer_offset": "1"}, TypeError, "buffer_offset: expected an integer, not str"),
    ({"buffer_offset": 101}, ValueError, "the bytes from byte 101 exceed the buffer of 100 bytes"),
    ({"buffer_offset": 95, "length": 10}, ValueError, "10 bytes from byte 95 exceed the buffer of 100 bytes"),
    ({"buffer": 5}, TypeError, "int has no memory: expected a buffer"),
    ({"buffer": "text"}, TypeError, "str has no memory: expected a buffer"),
    ({"buffer": None}, TypeError, "NoneType has no memory: expected a buffer"),
    ({"buffer": np.zeros((9, 9), np.uint8)[:, ::2]}, ValueError, "the array is not contiguous"),
    ({"nonsense": 1}, TypeError, "unexpected keyword argument 'nonsense'"),
]
TRANSFERS = [way.name for way in WAYS.values() if way.takes != "list"]


@pytest.mark.parametrize("method", TRANSFERS)
@pytest.mark.parametrize(("keywords", "error", "text"), POSITIONS)
def test_transfers_refuse_wrong_positions(data, method, keywords, error, text):
    keywords = {"buffer": bytearray(100)} | ({"stream": None} if WAYS[method].takes == "stream" else {}) | keywords
    refused(lambda: getattr(data, method)(**keywords), error, text)


@pytest.mark.parametrize("method", [name for name in TRANSFERS if not WAYS[name].is_write])
def test_reads_refuse_read_only_memory(data, method):
    refused(lambda: WAYS[method].start(data, [bytes(9)], [0], None), ValueError, "the memory is read-only")


@pytest.mark.parametrize("method", [name for name in TRANSFERS if WAYS[name].takes == "stream"])
@pytest.mark.parametrize("stream", ["x", -1, 1.5, b""])
def test_streams_are_integers_or_objects(data, method, stream):
    text = f"{type(stream).__name__} is not a CUDA stream: expected an integer"
    refused(lambda: getattr(data, method)(bytearray(9), stream), TypeError, text)


LISTS = [
    ([bytearray(9)], [0, 1], ValueError, "there are 1 buffers but 2 offsets"),
    ([bytearray(9), 5], [0, 1], TypeError, "buffers[1]: int has no memory"),
    ([bytearray(9)], ["x"], TypeError, "offsets[0]: expected an integer, not str"),
    ([bytearray(9)] * 2, [0, -1], ValueError, "offsets[1] is -1: it cannot be negative"),
    ([bytearray(9)], [BIG], ValueError, f"offsets[0] is {BIG}: it can be at most"),
    ([bytearray(9)], 5, TypeError, "offsets: expected integers in a list, not int"),
    ([bytearray(9)], "0", TypeError, "offsets[0]: expected an integer, not str"),
    (5, [0], TypeError, "buffers: expected buffers in a list, not int"),
]


@pytest.mark.parametrize("method", [way.name for way in WAYS.values() if way.takes == "list"])
@pytest.mark.parametrize(("buffers", "offsets", "error", "text"), LISTS)
def test_lists_refuse_wrong_entries(data, method, buffers, offsets, error, text):
    refused(lambda: getattr(data, method)(buffers, offsets), error, text)


@pytest.mark.parametrize("method", [name for name, row in CALLS.items() if row.wrong])
def test_methods_without_memory_refuse_wrong_arguments(data, method):
    for arguments, error, text in CALLS[method].wrong:
        refused(lambda: getattr(data, method)(*arguments), error, text)


def test_offsets_of_numpy_and_generators_are_taken(data, content):
    buffers = [bytearray(9), bytearray(9)]
    assert data.read_many(buffers, np.array([5, 100])) == 18
    assert data.read_many(buffers, (offset for offset in (5, 100))) == 18
    assert bytes(buffers[1]) == content[100:109]


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"threads": 0}, ValueError, "threads is 0: expected 1 to 1024"),
        ({"threads": -1}, ValueError, "threads is -1: it cannot be negative"),
        ({"threads": "x"}, TypeError, "threads: expected an integer, not str"),
        ({"chunk_bytes": 0}, ValueError, "chunk_bytes is 0: expected at least 1"),
        ({"chunk_bytes": -5}, ValueError, "chunk_bytes is -5: it cannot be negative"),
        ({"bounce_buffer_bytes": 0}, ValueError, "bounce_buffer_bytes is 0: expected 1 to"),
        ({"bounce_buffer_bytes": 1.0}, TypeError, "bounce_buffer_bytes: expected an integer, not float"),
        ({"bounce_memory_bytes": -1}, ValueError, "bounce_memory_bytes is -1: it cannot be negative"),
        ({"gds_threshold_bytes": BIG}, ValueError, f"gds_threshold_bytes is {BIG}: it can be at most"),
        ({"policy": "fast"}, ValueError, 'policy is "fast": use "auto", "cufile", "posix"'),
        ({"policy": 3}, TypeError, 'policy: expected one of "auto", "cufile", "posix", not int'),
        ({"direct_read": "maybe"}, ValueError, 'direct_read is "maybe": use "auto", "always", "never"'),
        ({"direct_write": True}, TypeError, 'direct_write: expected one of "auto", "always", "never", not bool'),
        ({"overread": "x"}, TypeError, "'str' object is not an instance of 'bool'"),
        ({"nonsense": 1}, TypeError, "unexpected keyword argument 'nonsense'"),
    ],
)
def test_engines_refuse_wrong_settings(keywords, error, text):
    (name,) = keywords
    refused(lambda: gpufile.Engine(**keywords), error, text, name)


@pytest.mark.parametrize(
    ("call", "error", "text", "argument"),
    [
        (lambda file: file.with_engine(5), TypeError, "'int' object is not an instance of 'Engine'", "engine"),
        (lambda file: gpufile.Engine().warm_up(5), TypeError, "devices: expected integers in a list, not int", None),
        (lambda file: gpufile.Engine().warm_up([-1]), ValueError, "devices[0] is -1: it cannot be negative", None),
        (lambda file: gpufile.Engine().warm_up(["x"]), TypeError, "devices[0]: expected an integer", None),
        (lambda file: file.read_into_async(bytearray(9)).result("x"), TypeError, "must be real number", "timeout"),
        (lambda file: file.read_into_async(bytearray(9)).result(float("nan")), ValueError, "timeout: expected seconds", None),
        (lambda file: file.read_into_async(bytearray(9)).result(1e300), ValueError, "timeout: expected seconds", None),
        (lambda file: file.read_into_async(bytearray(9)).exception("x"), TypeError, "must be real number", "timeout"),
        (lambda file: gpufile.File(5), TypeError, "expected str, bytes or os.PathLike object, not int", None),
        (lambda file: gpufile.File("a\0b"), ValueError, "embedded null byte", None),
        (lambda file: gpufile.File(file.name, 5), TypeError, "'int' object is not an instance of 'str'", "mode"),
        (lambda file: gpufile.File(file.name, "z"), ValueError, '"z"', None),
        (lambda file: gpufile.File(file.name, engine=3), TypeError, "'int' object is not an instance", "engine"),
        (lambda file: gpufile.File.from_fd("x"), TypeError, "fd: expected a descriptor, or an object with fileno, not str", None),
        (lambda file: gpufile.RemoteFile(5), TypeError, "url: expected a string, not int", None),
        (lambda file: gpufile.RemoteFile(""), ValueError, "no URL", None),
        (lambda file: gpufile.RemoteFile("ftp://h/a"), ValueError, '"ftp://h/a": the request cannot be made: the scheme "ftp"', None),
        (lambda file: gpufile.RemoteFile("http://a:b@h/"), ValueError, '"http://h/": the request cannot be made: the URL has a user', None),
        (lambda file: gpufile.RemoteFile("s3://bucket"), ValueError, "the name of the object is empty", None),
        (lambda file: gpufile.RemoteFile("http://h/", engine=3), TypeError, "'int' object is not an instance of 'Engine'", "engine"),
        (lambda file: gpufile.RemoteFile("http://h/", headers=[1]), TypeError, "headers: expected a dict of strings, not list", None),
        (lambda file: gpufile.RemoteFile("http://h/", headers={"a": 1}), TypeError, 'headers["a"]: expected a string, not int', None),
        (lambda file: gpufile.RemoteFile("http://h/", headers={1: "a"}), TypeError, "a name in headers: expected a string, not int", None),
        (lambda file: gpufile.RemoteFile("http://h/", headers={"Host": "a"}), ValueError, 'the header "Host" cannot be sent', None),
        (lambda file: gpufile.RemoteFile("http://h/", timeout="x"), TypeError, "timeout: expected seconds, not str", None),
        (lambda file: gpufile.RemoteFile("http://h/", timeout=0), ValueError, "timeout is 0: expected more than 0 seconds", None),
        (lambda file: gpufile.RemoteFile("http://h/", timeout=float("nan")), ValueError, "timeout is NaN: expected more than 0", None),
        (lambda file: gpufile.RemoteFile("http://h/", tries=0), ValueError, "tries is 0: expected at least 1", None),
        (lambda file: gpufile.RemoteFile("http://h/", tries="x"), TypeError, "tries: expected an integer, not str", None),
        (lambda file: gpufile.RemoteFile("http://h/", statuses=5), TypeError, "statuses: expected integers in a list, not int", None),
        (lambda file: gpufile.RemoteFile("http://h/", statuses=[-1]), ValueError, "statuses[0] is -1: it cannot be negative", None),
        (lambda file: gpufile.RemoteFile("http://h/", statuses=[1 << 16]), ValueError, "statuses[0] is 65536: it can be at most 65535", None),
        (lambda file: gpufile.RemoteFile("http://h/", trust="x"), TypeError, "'str' object is not an instance of 'bytes'", "trust"),
        (lambda file: gpufile.RemoteFile("http://h/", trust=b"x"), ValueError, "trust: ", None),
        (lambda file: gpufile.RemoteFile("http://h/", cache="folder"), TypeError, "cache: expected a folder and a number of bytes, not str", None),
        (lambda file: gpufile.RemoteFile("http://h/", cache=(5, 5)), TypeError, "cache[0]: expected str, bytes or os.PathLike object, not int", None),
        (lambda file: gpufile.RemoteFile("http://h/", cache=("a", "b")), TypeError, "cache[1]: expected an integer, not str", None),
        (lambda file: gpufile.RemoteFile("http://h/", cache=("a", -1)), ValueError, "cache[1] is -1: it cannot be negative", None),
        (lambda file: gpufile.RemoteFile("http://h/", proxy=5), TypeError, "proxy: expected a string, not int", None),
        (lambda file: gpufile.RemoteFile("http://h/", proxy="socks5://p"), ValueError, "proxy: ", None),
        (lambda file: gpufile.RemoteFile("http://h/", storage_options=5), TypeError, "storage_options: expected a dict of strings", None),
        (lambda file: gpufile.RemoteFile("http://h/a", storage_options={"x": "y"}), ValueError, '"x" is no option of S3', None),
        (lambda file: gpufile.RemoteFile("az://h/a", storage_options={"x": "y"}), ValueError, '"x" is no option of Azure', None),
        (lambda file: gpufile.RemoteFile("gs://h/a", storage_options={"x": "y"}), ValueError, '"x" is no option of Google Cloud Storage', None),
        (lambda file: gpufile.RemoteFile("GCS://h/a", storage_options={"x": "y"}), ValueError, '"x" is no option of Google Cloud Storage', None),
        (lambda file: gpufile.register(5), TypeError, "int has no memory", None),
        (lambda file: gpufile.register(bytearray(5)), ValueError, "only GPU memory can be registered", None),
        (lambda file: gpufile.deregister(5), TypeError, "int has no memory", None),
        (lambda file: gpufile.check(5), TypeError, "expected str, bytes or os.PathLike object, not int", None),
    ],
)
def test_other_calls_name_the_argument(data, call, error, text, argument):
    refused(lambda: call(data), error, text, argument)


def test_objects_of_servers_name_the_argument(server):
    server.files["/data"] = bytes(100)
    with gpufile.RemoteFile(f"{server.url}/data") as remote:
        refused(lambda: remote.with_chunk_bytes(0), ValueError, "chunk_bytes is 0: expected at least 1")
        refused(lambda: remote.with_engine(5), TypeError, "'int' object is not an instance of 'Engine'", "engine")
        for keywords, error, text in POSITIONS:
            refused(lambda: remote.read_into(**{"buffer": bytearray(100)} | keywords), error, text)


REMOTE = [
    (lambda: kvikio.infer_remote_endpoint_type(5), TypeError, "url: expected a string, not int"),
    (lambda: kvikio.RemoteFile(5, 0), TypeError, "handle: make a RemoteFile by RemoteFile.open, not from int"),
    (lambda: kvikio.RemoteFile.open(5), TypeError, "url: expected a string, not int"),
    (lambda: kvikio.RemoteFile.open("http://h/a", 5), TypeError, "remote_endpoint_type: expected a RemoteEndpointType, not int"),
    (lambda: kvikio.RemoteFile.open("http://h/a", allow_list=[5]), TypeError, "allow_list: expected a RemoteEndpointType, not int"),
    (lambda: kvikio.RemoteFile.open("http://h/a", nbytes="x"), TypeError, "nbytes: expected an integer, not str"),
    (lambda: kvikio.RemoteFile.open_http(b"http://h/a"), TypeError, "url: expected a string, not bytes"),
    (lambda: kvikio.RemoteFile.open_http("http://h/a", -1), OverflowError, "nbytes is -1: can't convert negative value"),
    (lambda: kvikio.RemoteFile.open_s3(5, "object"), TypeError, "bucket_name: expected a string, not int"),
    (lambda: kvikio.RemoteFile.open_s3("bucket", 5), TypeError, "object_name: expected a string, not int"),
    (lambda: kvikio.RemoteFile.open_s3("bucket", "a", aws_region_name=5), TypeError, "aws_region_name: expected a string, not int"),
    (lambda: kvikio.RemoteFile.open_s3_url(5), TypeError, "url: expected a string, not int"),
    (lambda: kvikio.RemoteFile.open_s3_url("s3://a/b", aws_session_token=5), TypeError, "aws_session_token: expected a string, not int"),
    (lambda: kvikio.RemoteFile.open_s3_public(5), TypeError, "url: expected a string, not int"),
    (lambda: kvikio.RemoteFile.open_s3_presigned_url(5), TypeError, "url: expected a string, not int"),
    (lambda: kvikio.RemoteFile.open_webhdfs(5), TypeError, "url: expected a string, not int"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REMOTE)
def test_remote_files_of_kvikio_name_the_argument(call, error, text):
    refused(call, error, text)


def test_reads_of_remote_files_name_the_argument(server):
    server.files["/data"] = bytes(100)
    with kvikio.RemoteFile.open_http(f"{server.url}/data") as remote:
        refused(lambda: remote.read(5), TypeError, "int has no memory")
        refused(lambda: remote.pread(bytearray(9), "x"), TypeError, "size: expected an integer, not str")
        refused(lambda: remote.read(bytearray(9), 10), ValueError, "10 bytes from byte 0 exceed the buffer of 9 bytes")
        refused(lambda: remote.pread(bytearray(9), None, -1), OverflowError, "file_offset is -1: can't convert negative value")


@pytest.mark.parametrize(
    ("call", "error", "code", "name"),
    [
        (lambda file, at: gpufile.File(at / "none"), FileNotFoundError, errno.ENOENT, lambda at: str(at / "none")),
        (lambda file, at: gpufile.File(at), IsADirectoryError, errno.EISDIR, str),
        (lambda file, at: gpufile.File(file.name, "x"), FileExistsError, errno.EEXIST, None),
        (lambda file, at: gpufile.File(file.name).write_from(b"x"), gpufile.TransferError, errno.EBADF, None),
        (lambda file, at: file.read_into(bytearray(9), 1 << 63), gpufile.TransferError, errno.EOVERFLOW, None),
        (lambda file, at: gpufile.File(file.name).truncate(5), OSError, errno.EINVAL, None),
        (lambda file, at: gpufile.File.from_fd(-1), OSError, errno.EBADF, lambda at: "descriptor -1"),
        (lambda file, at: gpufile.File.from_fd(1 << 40), OSError, errno.EBADF, lambda at: f"descriptor {1 << 40}"),
        (lambda file, at: gs.verify(file.name, hash_list=at / "none"), FileNotFoundError, errno.ENOENT, lambda at: str(at / "none")),
        (lambda file, at: ours.save_file({}, at / "no" / "x"), FileNotFoundError, errno.ENOENT, lambda at: str(at / "no" / "x")),
        (lambda file, at: ours.save_file({}, at), IsADirectoryError, errno.EISDIR, str),
    ],
)  # fmt: skip
def test_errors_of_the_system_have_errno_and_path(data, tmp_path, call, error, code, name):
    with pytest.raises(OSError) as caught:
        call(data, tmp_path)
    assert caught.type is error and caught.value.errno == code
    assert os.fspath(caught.value.filename) == (name(tmp_path) if name else data.name)


def test_missing_models_have_errno_and_path(tmp_path):
    for call in (gs.load_model, lambda path: safe_open(path, "np"), ours.load_file):
        with pytest.raises(FileNotFoundError, match=str(tmp_path / "none")) as caught:
            call(tmp_path / "none")
        # safetensors sets no file name.
        assert caught.value.errno == errno.ENOENT


PATH = "path: expected str, bytes, os.PathLike or a list of these, not int"
MODELS = [
    (lambda model: gs.load_model(5, framework="np"), TypeError, PATH),
    (lambda model: gs.load_model([5], framework="np"), TypeError, "path[0]: expected str, bytes or os.PathLike object, not int"),
    (lambda model: ours.load_file(5), TypeError, PATH),
    (lambda model: safe_open(5, "np"), TypeError, PATH),
    (lambda model: gs.LazyModel(5), TypeError, PATH),
    (lambda model: gs.verify(5), TypeError, PATH),
    (lambda model: gs.verify(model, hash_list=5), TypeError, "expected str, bytes or os.PathLike object, not int"),
    (lambda model: gs.verify(model, contents="x"), TypeError, "'str' object is not an instance of 'bool'"),
    (lambda model: gguf.load_file(model, framework="np", only="weight"), TypeError, "only: expected a list of names, not str"),
    (lambda model: gguf.load_file(model, framework="np"), ValueError, "model.safetensors"),
    (lambda model: gguf.load_file(model, storage_options={}, framework="np"), ValueError, "storage_options are for URLs"),
    (lambda model: gguf.metadata(5), TypeError, "file: expected str, bytes or os.PathLike object, not int"),
    (lambda model: npy.load(model, "cuda", framework="np"), gs.SafetensorError, "Device cuda is not supported"),
    (lambda model: npy.load(model, framework="np"), ValueError, "model.safetensors"),
    (lambda model: npy.load(model, framework="np", storage_options=5), ValueError, "storage_options are for URLs"),
    (lambda model: gs.load_model(model, framework="tf"), gs.SafetensorError, "framework tf is invalid; use one of pt"),
    (lambda model: gs.load_model(model, "cuda", framework="np"), gs.SafetensorError, "Device cuda is not supported"),
    (lambda model: gs.load_model(model, framework="np", only="weight"), TypeError, "only: expected a list of names, not str"),
    (lambda model: gs.load_model(model, framework="np", only=5), TypeError, "only: expected a list of names, not int"),
    (lambda model: gs.load_model(model, framework="np", only=["w", 5]), TypeError, "only[1]: expected a name, not int"),
    (lambda model: gs.load_model(model, framework="np", only=["x"]), gs.SafetensorError, "does not contain tensor x"),
    (lambda model: gs.load_model(model, framework="np", only=["x*"]), gs.SafetensorError, "does not contain a tensor that matches x*"),
    (lambda model: gs.load_model(model, framework="np", dtype=5), TypeError, "dtype: expected a type or a name of float16, bfloat16, float32, float64, not 5"),
    (lambda model: gs.load_model(model, framework="np", dtype="int8"), ValueError, "dtype: expected a type or a name of float16"),
    (lambda model: gs.LazyModel(model, framework="np", dtype="x"), ValueError, "dtype: expected a type or a name of float16"),
    (lambda model: gs.LazyModel(model, framework="np", only=["x"]), gs.SafetensorError, "does not contain tensor x"),
    (lambda model: gs.load_file(model, framework="np", dtype=np.int8), ValueError, "float64, not <class 'numpy.int8'>"),
    (lambda model: ours.load_file(model, dtype="F32"), ValueError, "float64, not 'F32'"),
    (lambda model: gs.load_model(model, ["cpu"], framework="np", placement=Placement.all(), dtype="int8"), ValueError, "dtype: expected a type or a name of float16"),
    (lambda model: gs.load_model(model, framework="np", memory_budget=-1), ValueError, "memory_budget is -1: it cannot be negative"),
    (lambda model: gs.load_model(model, framework="np", memory_budget="5"), TypeError, "memory_budget: expected an integer, not str"),
    (lambda model: ours.load_file(model, memory_budget=1.5), TypeError, "memory_budget: expected an integer, not float"),
    (lambda model: gs.load_model(model, framework="np", mapped="yes"), TypeError, "mapped: expected True or False, not str"),
    (lambda model: gs.load_file(model, framework="np", mapped=1), TypeError, "mapped: expected True or False, not int"),
    (lambda model: gs.install(mapped="no"), TypeError, "mapped: expected True, False or None, not str"),
    (lambda model: ours.load_file(model, mapped="no"), TypeError, "mapped: expected True or False, not str"),
    (lambda model: ours.load_file(model, mapped=True, memory_budget=-1), ValueError, "memory_budget is -1: it cannot be negative"),
    (lambda model: ours.load_file(model, mapped=True, progress=5), TypeError, "progress: expected True, False or a function"),
    (lambda model: gs.load_model(model, ["cpu"], framework="np", placement=Placement.all(), mapped=True), ValueError, "mapped=True is for one device, and works without a placement"),
    (lambda model: safe_open(model, "np", mapped="x"), TypeError, "mapped: expected True or False, not str"),
    (lambda model: safe_open(model, "np", mapped=True).get_tensor("x"), MissingTensorError, "does not contain tensor x"),
    (lambda model: ours.load_file(model, progress="yes"), TypeError, "progress: expected True, False or a function, not str"),
    (lambda model: gs.load_model(model, ["cpu"], framework="np", placement=5), TypeError, "placement: expected a Placement, not int"),
    (lambda model: gs.load_model(model, "cpu", framework="np", placement=Placement.all()), ValueError, "a placement needs a list of devices"),
    (lambda model: gs.load_model(model, ["cpu"], framework="np"), ValueError, "several devices need a placement"),
    (lambda model: gs.load_model(model, ["cpu"], framework="np", placement=Placement.all(), memory_budget=-1), ValueError, "memory_budget is -1"),
    (lambda model: Share.on("x"), TypeError, "device: expected an integer, not str"),
    (lambda model: Share.on(-1), ValueError, "device is -1: expected a position in the list of devices"),
    (lambda model: Share.slice(1.5), TypeError, "axis: expected an integer, not float"),
    (lambda model: Share.slice(0, cut="x"), ValueError, "cut is 'x': use"),
    (lambda model: Share.slice(0, cut=5), ValueError, 'cut is 5: use "even" or "chunks"'),
    (lambda model: Placement.by(5), TypeError, "rule: expected a function of name, type and shape, not int"),
    (lambda model: safe_open(model, "np", backend="x"), gs.SafetensorError, 'backend "x" is invalid'),
    (lambda model: ours.load_file(model, backend="x"), gs.SafetensorError, 'backend "x" is invalid'),
    (lambda model: safe_open(model, "np").get_tensor("x"), MissingTensorError, "does not contain tensor x"),
    (lambda model: safe_open(model, "np").get_tensor(5), TypeError, "'int' object is not an instance of 'str'"),
    (lambda model: safe_open(model, "np").get_slice("x"), MissingTensorError, "does not contain tensor x"),
    (lambda model: safe_open(model, "np").get_slice(5), TypeError, "'int' object is not an instance of 'str'"),
    (lambda model: safe_open(model, "np").get_slice("w")["x"], IndexError, "only integers, slices"),
    (lambda model: safe_open(model, "np").get_slice("w")[4], gs.SafetensorError, "index 4 out of bounds"),
    (lambda model: safe_open(model, "np").get_tensor_meta("x"), MissingTensorError, "does not contain tensor x"),
    (lambda model: safe_open(model, "np").get_tensor_meta(5), TypeError, "'int' object is not an instance of 'str'"),
    (lambda model: safe_open(model, "np").prefetch().take("x"), gs.SafetensorError, "tensor x is not in the prefetch plan"),
    (lambda model: safe_open(model, "np").iter_tensors("w"), TypeError, "names: expected a list of names, not str"),
    (lambda model: safe_open(model, "np").iter_tensors(5), TypeError, "names: expected a list of names, not int"),
    (lambda model: safe_open(model, "np").iter_tensors(memory_budget=None), TypeError, "memory_budget: expected an integer, not NoneType"),
    (lambda model: safe_open(model, "np").iter_tensors(memory_budget=-1), ValueError, "memory_budget is -1: it cannot be negative"),
    (lambda model: list(safe_open(model, "np").iter_tensors(progress=5)), TypeError, "progress: expected True, False or a function"),
    (lambda model: ours.load("text"), TypeError, "data: expected bytes or an object with the buffer protocol, not str"),
    (lambda model: ours.save_file(5, model), TypeError, "tensors: expected a dict of names and tensors, not int"),
    (lambda model: ours.save(5), TypeError, "tensors: expected a dict of names and tensors, not int"),
    (lambda model: ours.save({}, metadata=5), TypeError, "metadata: expected a dict of strings, not int"),
    (lambda model: gs.save_file(5, model), TypeError, "tensors: expected a dict of names and tensors, not int"),
    (lambda model: gs.save_file({}, 5), TypeError, "expected str, bytes or os.PathLike object, not int"),
    (lambda model: gs.load_file(5), TypeError, PATH),
    (lambda model: gs.deserialize("text"), TypeError, "data: expected bytes or an object with the buffer protocol, not str"),
    (lambda model: gs.serialize_file(5, model), TypeError, "tensors: expected a dict of names and tensors, not int"),
    (lambda model: gs.serialize_file({}, 5), TypeError, "expected str, bytes or os.PathLike object, not int"),
    (lambda model: TensorSpec(dtype=5, shape=[2], data_ptr=0, data_len=8), gs.SafetensorError, "5"),
    (lambda model: TensorSpec(dtype="float32", shape=5, data_ptr=0, data_len=8), TypeError, "shape: expected integers in a list, not int"),
    (lambda model: TensorSpec(dtype="float32", shape=[2], data_ptr="x", data_len=8), TypeError, "data_ptr: expected an integer, not str"),
    (lambda model: TensorSpec(dtype="float32", shape=[2], data_ptr=0, data_len=-1), ValueError, "data_len is -1: it cannot be negative"),
    (lambda model: gs.serialize(5), TypeError, "tensors: expected a dict of names and tensors, not int"),
    (lambda model: gs.serialize({"a": 5}), TypeError, "tensor 'a' must be a TensorSpec, but is a int"),
    (lambda model: ours.save_file({}, 5), TypeError, "expected str, bytes or os.PathLike object, not int"),
    (lambda model: ours.save_file({}, model, metadata=5), TypeError, "metadata: expected a dict of strings, not int"),
    (lambda model: ours.save_file({}, model, metadata={"a": 5}), TypeError, 'metadata["a"]: expected a string, not int'),
    (lambda model: ours.save_file({"a": np.zeros(3, object)}, model), gs.SafetensorError, "Unknown dtype 'object'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), MODELS)
def test_models_name_the_argument(model, call, error, text):
    before = model.read_bytes()
    refused(lambda: call(model), error, text)
    assert model.read_bytes() == before


def test_kvikio_raises_its_own_error_for_negative_numbers(path):
    with kvikio.CuFile(path, "r+") as file:
        for method in (file.read, file.write, file.pread, file.pwrite):
            for name in ("size", "file_offset", "task_size"):
                with pytest.raises(OverflowError, match=f"{name} is -1: can't convert negative value"):
                    method(bytearray(9), **{name: -1})


NO_INTEGER = [
    ({"size": "5"}, "size: expected an integer, not str"),
    ({"file_offset": 1.5}, "file_offset: expected an integer, not float"),
    ({"task_size": "5"}, "task_size: expected an integer, not str"),
    ({"dev_offset": b""}, "dev_offset: expected an integer, not bytes"),
]


@pytest.mark.parametrize(("keywords", "text"), NO_INTEGER)
def test_files_of_kvikio_name_the_argument(path, keywords, text):
    with kvikio.CuFile(path, "r+") as file:
        methods = [file.raw_read, file.raw_write] if "dev_offset" in keywords else [file.read, file.write]
        for method in methods if "dev_offset" in keywords else [*methods, file.pread, file.pwrite]:
            refused(lambda: method(bytearray(9), **keywords), TypeError, text)
        if "task_size" not in keywords:
            for method in (file.raw_read_async, file.raw_write_async):
                refused(lambda: method(bytearray(9), 0, **keywords), TypeError, text)


SETTINGS = [
    (lambda: defaults.get("x"), KeyError, "x"),
    (lambda: defaults.set("x", 1), KeyError, "x"),
    (lambda: defaults.set(5), ValueError, "call set(name, value) or set({name: value})"),
    (lambda: defaults.set("num_threads"), ValueError, "call set(name, value) or set({name: value})"),
    (lambda: defaults.set("num_threads", "x"), TypeError, "num_threads: expected an integer, not str"),
    (lambda: defaults.set("num_threads", 0), ValueError, "num_threads is 0: expected a positive integer"),
    (lambda: defaults.set("task_size", -1), OverflowError, "task_size is -1: can't convert negative value"),
    (lambda: defaults.set("compat_mode", "x"), ValueError, "compat_mode is 'x': expected one of OFF, ON, AUTO"),
    (lambda: defaults.set("compat_mode", 7), ValueError, "compat_mode is 7: expected one of OFF, ON, AUTO"),
    (lambda: defaults.set("compat_mode", None), TypeError, "compat_mode: expected an integer, not NoneType"),
    (lambda: defaults.set("http_status_codes", 5), TypeError, "http_status_codes: expected a list of integers, not int"),
    (lambda: defaults.set("http_status_codes", [5, "a"]), TypeError, "http_status_codes[1]: expected an integer, not str"),
    (lambda: cufile_driver.get("x"), KeyError, "x"),
    (lambda: cufile_driver.set("x", 1), KeyError, "x"),
    (lambda: cufile_driver.set("major_version", 1), KeyError, "major_version is read-only"),
    (lambda: cufile_driver.set(5), ValueError, "call set(name, value) or set({name: value})"),
    (lambda: cufile_driver.set("poll_thresh_size", "x"), TypeError, "poll_thresh_size: expected an integer, not str"),
    (lambda: cufile_driver.set("max_device_cache_size", -1), OverflowError, "max_device_cache_size is -1: can't convert"),
    (lambda: kvikio.SummaryMonitor().since(5), TypeError, "previous: expected a Summary, not int"),
    (lambda: kvikio.SummaryMonitor().get().since(None), TypeError, "previous: expected a Summary, not NoneType"),
    (lambda: kvikio.Summary.deserialize("text"), TypeError, "data: expected bytes, not str"),
    (lambda: kvikio.Summary.deserialize(b"text"), ValueError, "data: not the bytes of a summary"),
    (lambda: utils.LocalHttpServer(5), TypeError, "expected str, bytes or os.PathLike object, not int"),
    (lambda: utils.call_once(5), TypeError, "func: expected a function, not int"),
    (lambda: utils.kvikio_deprecation_notice(since="1")(5), TypeError, "func: expected a function, not int"),
    (lambda: utils.kvikio_deprecation_notice("x"), TypeError, "missing 1 required keyword-only argument: 'since'"),
    (lambda: utils.kvikio_deprecate_module("x"), TypeError, "missing 1 required keyword-only argument: 'since'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), SETTINGS)
def test_settings_of_kvikio_name_the_argument(call, error, text):
    refused(call, error, text)


KEYS = [
    (["x"], TypeError, "keys[0]: expected an integer, not str"),
    ([1, 1.5], TypeError, "keys[1]: expected an integer, not float"),
    ([-1], ValueError, "keys[0] is -1: it cannot be negative"),
    ([1 << 128], ValueError, f"keys[0] is {1 << 128}: it can be at most {(1 << 128) - 1}"),
    ([b"short"], ValueError, "keys[0] has 5 bytes: expected 16"),
    (b"0123456789abcdef", TypeError, "keys: expected a list of integers or of 16 bytes each, not bytes"),
    (5, TypeError, "keys: expected a list of integers or of 16 bytes each, not int"),
]


@pytest.mark.parametrize(("keys", "error", "text"), KEYS)
def test_stores_of_blocks_refuse_wrong_keys(tmp_path, keys, error, text):
    region = kv_blocks.Region(bytearray(9))
    with kv_blocks.BlockStore(tmp_path / "blocks", 9) as store, kv_blocks.BlockReader(tmp_path / "blocks", 9) as reader:
        calls = [store.contains, store.prefix, store.pin, store.unpin, store.remove]
        calls += [lambda keys: method(keys, region, [0], 9) for method in (store.store, store.fetch, reader.fetch)]
        for call in calls:
            refused(lambda: call(keys), error, text)


#: Keywords of a transfer of two blocks with three pieces each.
BLOCKS = [
    ({"regions": bytearray(9)}, TypeError, "regions[0]: expected gpufile.kv_blocks.Region, not int"),
    ({"regions": 5}, TypeError, "regions: expected gpufile.kv_blocks.Region, not int"),
    ({"regions": []}, ValueError, "regions is empty: pass the region of each piece of a block"),
    ({"offsets": [0] * 5}, ValueError, "there are 5 offsets for 2 blocks and 3 regions; pass one offset for each block"),
    ({"offsets": []}, ValueError, "there are 0 offsets for 2 blocks"),
    ({"offsets": [0, -1]}, ValueError, "offsets[1] is -1: it cannot be negative"),
    ({"offsets": np.array([3, -7])}, ValueError, "offsets[1] is -7: it cannot be negative"),
    ({"offsets": np.array([0.5, 1.5])}, TypeError, "offsets[0]: expected an integer, not float"),
    ({"offsets": 5}, TypeError, "offsets: expected integers in a list, not int"),
    ({"piece_bytes": "9"}, TypeError, "piece_bytes[0]: expected an integer, not str"),
    ({"piece_bytes": -9}, ValueError, "piece_bytes is -9: it cannot be negative"),
    ({"piece_bytes": [3, 3]}, ValueError, "piece_bytes has 2 lengths, and a block 3 pieces; pass one length for all"),
    ({"timeout": "x"}, TypeError, "timeout[0]: expected seconds, not str"),
    ({"timeout": -1}, ValueError, "timeout is -1: expected seconds, or None"),
    ({"timeout": [1, float("nan")]}, ValueError, "timeout[1] is NaN: expected seconds, or None"),
    ({"timeout": [1]}, ValueError, "there are 1 timeouts for 2 blocks; pass one for all, or one for each"),
]


@pytest.mark.parametrize(("keywords", "error", "text"), BLOCKS)
def test_stores_of_blocks_refuse_wrong_pieces(tmp_path, keywords, error, text):
    region = kv_blocks.Region(bytearray(9))
    keywords = {"keys": [1, 2], "regions": [region] * 3, "offsets": [0, 3], "piece_bytes": 3} | keywords
    with kv_blocks.BlockStore(tmp_path / "blocks", 9) as store, kv_blocks.BlockReader(tmp_path / "blocks", 9) as reader:
        for method in (store.store, store.fetch, reader.fetch):
            refused(lambda: method(**keywords), error, text)
        for method in (store.fetch, reader.fetch):
            refused(lambda: method(**keywords, block_offset=-1), ValueError, "block_offset is -1: it cannot be negative")


STORES = [
    (lambda path: kv_blocks.BlockStore(5, 9), TypeError, "folders: expected str, bytes, os.PathLike or a list of these, not int"),
    (lambda path: kv_blocks.BlockStore([], 9), ValueError, "folders: expected a path, or a list of paths, not an empty list"),
    (lambda path: kv_blocks.BlockStore([path, 5], 9), TypeError, "folders[1]: expected str, bytes or os.PathLike object, not int"),
    (lambda path: kv_blocks.BlockStore(path, 0), ValueError, "block_bytes is 0: expected at least 1"),
    (lambda path: kv_blocks.BlockStore(path, "9"), TypeError, "block_bytes: expected an integer, not str"),
    (lambda path: kv_blocks.BlockStore(path, 9, limit_bytes=-1), ValueError, "limit_bytes is -1: it cannot be negative"),
    (lambda path: kv_blocks.BlockStore(path, 9, limit_bytes=8), OSError, "a limit of 8 bytes has no room for a block"),
    (lambda path: kv_blocks.BlockStore(path, 9, blocks_per_file=0), OSError, "files have at least one block"),
    (lambda path: kv_blocks.BlockStore(path, 9, checksums=5), TypeError, "'int' object is not an instance of 'bool'"),
    (lambda path: kv_blocks.BlockStore(path, 9, engine=5), TypeError, "'int' object is not an instance of 'Engine'"),
    (lambda path: kv_blocks.BlockReader(5, 9), TypeError, "folders: expected str, bytes, os.PathLike or a list of these, not int"),
    (lambda path: kv_blocks.BlockReader(path, 0), ValueError, "block_bytes is 0: expected at least 1"),
    (lambda path: kv_blocks.BlockReader(path, 9), FileNotFoundError, "No such file or directory"),
    (lambda path: kv_blocks.Region(5), TypeError, "int has no memory"),
    (lambda path: kv_blocks.prefix_keys([1], 0, "model"), ValueError, "block_tokens is 0: expected at least 1"),
]


@pytest.mark.parametrize(("call", "error", "text"), STORES)
def test_stores_of_blocks_name_the_argument(tmp_path, call, error, text):
    refused(lambda: call(tmp_path / "blocks"), error, text)
    assert not os.listdir(tmp_path)


def test_zarr_stores_refuse_wrong_keys(tmp_path):
    zarr = pytest.importorskip("gpufile.kvikio.zarr")
    store = zarr.GDSStore(tmp_path)
    refused(lambda: zarr.GDSStore(5), TypeError, "root: expected str, bytes or os.PathLike object, not int")
    refused(lambda: asyncio.run(store.get(5)), TypeError, "key: expected a str, not int")
    refused(lambda: asyncio.run(store.get_partial_values(None, [(5, None)])), TypeError, "key: expected a str, not int")
    (tmp_path / "x").write_bytes(b"bytes")
    refused(lambda: asyncio.run(store.get("x", byte_range=5)), TypeError, "Unexpected byte_range, got 5")
    refused(lambda: zarr.GDSStore.at_url(5), TypeError, "url: expected a string, not int")
    refused(lambda: zarr.GDSStore.at_url("http://h", timeout="x"), TypeError, "timeout: ")
    refused(lambda: zarr.GDSStore.at_url("http://h", threads=5), TypeError, "threads is no option of objects")


def test_models_of_jax_name_the_argument(model):
    flax = pytest.importorskip("gpufile.safetensors.flax")
    refused(lambda: flax.load("text"), TypeError, "data: expected bytes or an object with the buffer protocol, not str")
    refused(lambda: flax.load_file(5), TypeError, PATH)
    refused(lambda: flax.save(5), TypeError, "tensors: expected a dict of names and tensors, not int")
    refused(lambda: flax.save_file(5, model), TypeError, "tensors: expected a dict of names and tensors, not int")
    refused(lambda: flax.save_file({}, 5), TypeError, "expected str, bytes or os.PathLike object, not int")


PLANS = [
    ({"nope": None}, SafetensorError, "File does not contain tensor nope"),
    ({"nope.*": None}, SafetensorError, "File does not contain a tensor that matches nope.*"),
    ({}, SafetensorError, "the plan selects no tensors"),
    ([("w", None)], TypeError, "plan: expected a dict of names and slices, or None, not list"),
    ({1: None}, SafetensorError, "the keys of the plan must be tensor names or patterns, not int"),
    ({"w": 3}, SafetensorError, "the part of w in the plan must be None or a slice"),
    ({"w": [slice(0, 1)]}, SafetensorError, "must be None or a slice, or a tuple of one for each axis, not list"),
    ({"w": (0,)}, SafetensorError, "axis 0 of w in the plan: expected a slice or a list of slices, not int"),
    ({"w": (slice(0, 1),) * 4}, SafetensorError, "the plan slices 4 axes of w, which has 2"),
    ({"w": slice(0, 4, 2)}, SafetensorError, "axis 0 of w in the plan: slices must have step 1, not 2"),
    ({"w": slice(0, 4, 0)}, SafetensorError, "invalid prefetch plan slice: slice step cannot be zero"),
    ({"w": slice(0.5, 4)}, SafetensorError, "invalid prefetch plan slice: slice indices must be integers"),
    ({"w": slice(0, 6)}, SafetensorError, "axis 0 of w in the plan: stop 6 is out of range for length 4"),
    ({"w": (slice(0, 4), slice(-6, 4))}, SafetensorError, "axis 1 of w in the plan: start -6 is out of range"),
    ({"scalar": slice(0, 1)}, SafetensorError, "the plan slices scalar, which is 0-d"),
]


@pytest.mark.parametrize(("plan", "error", "text"), PLANS)
def test_plans_of_prefetches_are_checked(model, plan, error, text):
    refused(lambda: safe_open(model, "np").prefetch(plan), error, text)


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"threads": 0}, ValueError, "threads is 0: expected at least 1"),
        ({"threads": -1}, ValueError, "threads is -1: expected at least 1"),
        ({"threads": "x"}, TypeError, "threads: expected an integer, not str"),
        ({"device": "cuda"}, SafetensorError, "Device cuda is not supported for framework numpy"),
        ({"nonsense": 1}, TypeError, "unexpected keyword argument 'nonsense'"),
    ],
)
def test_prefetches_refuse_wrong_arguments(model, keywords, error, text):
    refused(lambda: safe_open(model, "np").prefetch(**keywords), error, text)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda at: kvikio.Mmap(at, initial_map_size="5"), TypeError, "initial_map_size: expected an integer, not str"),
        (lambda at: kvikio.Mmap(at, initial_map_size=-5), OverflowError, "initial_map_size is -5: it cannot be negative"),
        (lambda at: kvikio.Mmap(at, initial_map_offset=1.5), TypeError, "initial_map_offset: expected an integer, not float"),
        (lambda at: kvikio.Mmap(at, initial_map_offset=1 << 40), IndexError, "Offset must be less than the file size"),
        (lambda at: kvikio.Mmap(at, flags=5), TypeError, "flags: expected a mode like 'r', not int"),
        (lambda at: kvikio.Mmap(at, flags="z"), ValueError, "Unknown file open flag 'z'"),
        (lambda at: kvikio.Mmap(5), TypeError, "expected str, bytes or os.PathLike object, not int"),
        (lambda at: kvikio.Mmap(at).read(5), TypeError, "int has no memory: expected a buffer"),
        (lambda at: kvikio.Mmap(at).read(bytearray(9), "x"), TypeError, "size: expected an integer, not str"),
        (lambda at: kvikio.Mmap(at).read(bytearray(9), 5, "x"), TypeError, "offset: expected an integer, not str"),
        (lambda at: kvikio.Mmap(at).pread(bytearray(9), 5, 0, "x"), TypeError, "task_size: expected an integer, not str"),
        (lambda at: kvikio.Mmap(at).pread(bytearray(9), 5, 0, -1), OverflowError, "task_size is -1: can't convert"),
        (lambda at: kvikio.CuFile(5), TypeError, "expected str, bytes or os.PathLike object, not int"),
        (lambda at: kvikio.CuFile(at, "z"), ValueError, '"z"'),
        (lambda at: arrays.fromfile(5), TypeError, "expected str, bytes or os.PathLike object, not int"),
        (lambda at: arrays.fromfile(at, "nonsense"), TypeError, "data type 'nonsense' not understood"),
        (lambda at: arrays.fromfile(at, count="x"), TypeError, "count: expected an integer, not str"),
        (lambda at: arrays.fromfile(at, offset=1.5), TypeError, "offset: expected an integer, not float"),
        (lambda at: arrays.fromfile(at, sep=" "), NotImplementedError, "`sep`"),
        (lambda at: arrays.tofile(5, at), TypeError, "ary: expected an array, not int"),
        (lambda at: arrays.tofile(np.zeros(3), 5), TypeError, "expected str, bytes or os.PathLike object, not int"),
        (lambda at: kvikio.get_page_cache_info(at, offset="5"), TypeError, "offset: expected an integer, not str"),
        (lambda at: kvikio.get_page_cache_info(at, length=1.5), TypeError, "length: expected an integer, not float"),
        (lambda at: kvikio.get_page_cache_info(1.5), ValueError, "expected a path, a descriptor or a file, not 1.5"),
        (lambda at: kvikio.drop_file_page_cache(at, offset="5"), TypeError, "offset: expected an integer, not str"),
        (lambda at: kvikio.memory_register(5), TypeError, "buf: int has no memory: expected a buffer"),
        (lambda at: kvikio.memory_deregister("text"), TypeError, "buf: str has no memory: expected a buffer"),
        (lambda at: kvikio.stream_register("x", 0), TypeError, "raw_stream: expected an integer, not str"),
        (lambda at: kvikio.stream_register(0, None), TypeError, "flags: expected an integer, not NoneType"),
        (lambda at: kvikio.stream_deregister("x"), TypeError, "raw_stream: expected an integer, not str"),
        (lambda at: native.set_poll_mode(True, -1), ValueError, "threshold_bytes is -1: it cannot be negative"),
        (lambda at: native.set_poll_mode(True, BIG), ValueError, f"threshold_bytes is {BIG}: it can be at most"),
        (lambda at: native.set_poll_mode(True, "x"), TypeError, "threshold_bytes: expected an integer, not str"),
        (lambda at: native.set_driver_limit("max_device_cache_bytes", -1), ValueError, "bytes is -1: it cannot be negative"),
        (lambda at: native.set_driver_limit("max_device_cache_bytes", None), TypeError, "bytes: expected an integer, not NoneType"),
        (lambda at: native.set_driver_limit("x", 1), KeyError, "x"),
    ],
)  # fmt: skip
def test_kvikio_and_the_driver_name_the_argument(path, call, error, text):
    refused(lambda: call(path), error, text)
