"""Every method of ``File``: a row in ``WAYS`` if it takes memory, otherwise in ``CALLS``, and the tests that all of them pass.

Other tests take the methods from here, too: those of forks, wrong arguments, interrupts and repeated calls.
"""

import inspect

import gpufile
import pytest


class Way:
    """A method: the arguments that it takes, and what a read does at the end of the file.

    ``takes`` is ``"one"`` for a buffer and its offset, ``"stream"`` for these with a stream, and ``"list"`` for buffers and
    their offsets. ``at_end`` is ``"short"`` if the number of bytes is less, and ``"raises"`` if that is a failure.
    """

    def __init__(self, name, takes, at_end=None):
        self.name, self.takes, self.at_end = name, takes, at_end

    def start(self, file, buffers, offsets, stream=0):
        """Calls the method with a list, or with the first entry."""
        arguments = {"one": (buffers[0], offsets[0]), "stream": (buffers[0], stream, offsets[0]), "list": (buffers, offsets)}
        return getattr(file, self.name)(*arguments[self.takes])

    def call(self, file, buffers, offsets, stream=0):
        """Calls the method and waits. Returns the number of bytes, or None if the method returns none."""
        result = self.start(file, buffers, offsets, stream)
        result = result.result() if isinstance(result, gpufile.Future) else result
        for outcome in result if isinstance(result, list) else ():
            if isinstance(outcome, OSError):
                raise outcome
        return sum(result) if isinstance(result, list) else result

    @property
    def is_write(self):
        return self.at_end is None


WAYS = {way.name: way for way in (
    Way("read_into", "one", "short"),
    Way("read_exact", "one", "raises"),
    Way("write_from", "one"),
    Way("read_into_async", "one", "short"),
    Way("write_from_async", "one"),
    Way("read_into_on_stream", "stream", "short"),
    Way("write_from_on_stream", "stream"),
    Way("read_many", "list", "raises"),
    Way("write_many", "list"),
    Way("read_many_each", "list", "short"),
    Way("write_many_each", "list"),
    Way("read_many_async", "list", "raises"),
    Way("write_many_async", "list"),
    Way("read_many_each_async", "list", "short"),
    Way("write_many_each_async", "list"),
)}  # fmt: skip
#: The rows without a stream.
PLAIN = [way for way in WAYS.values() if way.takes != "stream"]


class Call:
    """A call of a method or property that takes no memory, and wrong arguments of the method: each with its error and text."""

    def __init__(self, call, *wrong):
        self.call, self.wrong = call, wrong


#: The rows of the methods and properties that take no memory.
CALLS = {
    "from_fd": Call(lambda file: type(file).from_fd(file.fileno())),
    "with_chunk_bytes": Call(
        lambda file: file.with_chunk_bytes(4096).read_into(bytearray(9)),
        ((0,), ValueError, "chunk_bytes is 0: expected at least 1"),
        ((-1,), ValueError, "chunk_bytes is -1: it cannot be negative"),
        (("x",), TypeError, "chunk_bytes: expected an integer, not str"),
    ),
    "with_engine": Call(
        lambda file: file.with_engine(gpufile.Engine(threads=1)).close(),
        ((5,), TypeError, "'int' object is not an instance of 'Engine'"),
    ),
    "route": Call(lambda file: file.route()),
    "size": Call(lambda file: file.size()),
    "truncate": Call(
        lambda file: file.truncate(file.size()),
        ((-1,), ValueError, "size is -1: it cannot be negative"),
        (("x",), TypeError, "size: expected an integer, not str"),
    ),
    "sync": Call(lambda file: file.sync()),
    "fileno": Call(lambda file: file.fileno()),
    "close": Call(lambda file: file.with_chunk_bytes(4096).close()),
    "closed": Call(lambda file: file.closed),
    "name": Call(lambda file: file.name),
    "mode": Call(lambda file: file.mode),
}


def named(ways):
    return pytest.mark.parametrize("way", ways, ids=lambda way: way.name)


@pytest.fixture(params=["host", "gpu"])
def new_buffer(request, device_array):
    """Returns a function that makes a buffer of some bytes."""
    return bytearray if request.param == "host" else lambda content: device_array(len(content)).set(content)


def bytes_of(buffer):
    return buffer.get() if hasattr(buffer, "get") else bytes(buffer)


@named([way for way in WAYS.values() if not way.is_write])
def test_reads_fill_buffers(path, content, new_buffer, way):
    for length in (1, 5000, 1_200_000):
        buffer = new_buffer(bytes(length))
        with gpufile.File(path) as file:
            assert way.call(file, [buffer], [777]) in (length, None)
        assert bytes_of(buffer) == content[777 : 777 + length]


@named([way for way in WAYS.values() if way.is_write])
def test_writes_change_only_their_range(path, content, new_buffer, way):
    for length in (1, 5000, 1_200_000):
        with gpufile.File(path, "r+") as file:
            assert way.call(file, [new_buffer(content[:length])], [777]) in (length, None)
        assert path.read_bytes() == content[:777] + content[:length] + content[777 + length :]
        path.write_bytes(content)


@named([way for way in WAYS.values() if not way.is_write])
def test_reads_end_with_the_file(path, content, new_buffer, way):
    buffer = new_buffer(bytes(100))
    with gpufile.File(path) as file:
        if way.at_end == "short":
            assert way.call(file, [buffer], [len(content) - 7]) == 7
        else:
            with pytest.raises(gpufile.TransferError) as raised:
                way.call(file, [buffer], [len(content) - 7])
            assert raised.value.bytes_done == 7
    assert bytes_of(buffer)[:7] == content[-7:]


@pytest.mark.parametrize("name", CALLS)
def test_calls_leave_the_bytes_alone(path, content, name):
    with gpufile.File(path, "r+") as file:
        CALLS[name].call(file)
        buffer = bytearray(len(content))
        assert file.read_into(buffer) == len(content) and buffer == content


def test_each_method_has_a_row():
    def takes_memory(name):
        member = getattr(gpufile.File, name)
        return callable(member) and {"buffer", "buffers"} & inspect.signature(member).parameters.keys()

    public = {name for name in vars(gpufile.File) if name[0] != "_"}
    assert {name for name in public if takes_memory(name)} == WAYS.keys()
    assert public - WAYS.keys() == CALLS.keys()
