"""Objects that offer memory, and those that are refused."""

import array
import ctypes

import gpufile
import numpy as np
import pytest


@pytest.fixture
def file(path):
    with gpufile.File(path, "r+") as file:
        yield file


class Interface:
    """An object with `__array_interface__` alone."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.array = array


class DLPack:
    """An object with `__dlpack__` alone."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__(**arguments)


class OldDLPack(DLPack):
    """A producer from before DLPack 1.0, which knows no keyword but `stream`."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


class TorchInForkedChild(DLPack):
    """A producer on the host whose query for the device needs CUDA, as torch's tensors do."""

    is_cpu = True

    def __dlpack_device__(self):
        raise RuntimeError("initialization error")


@pytest.mark.parametrize(
    "wrap", [lambda a: a, Interface, DLPack, OldDLPack, TorchInForkedChild, memoryview]
)
def test_host_arrays_of_every_protocol_are_filled(file, content, wrap):
    for shape, dtype in [((1001,), np.uint8), ((7, 11, 13), "<f4"), ((), "<i8"), ((5, 0), "<f8"), ((1, 9, 1), "<c16")]:
        target = np.zeros(shape, dtype)
        assert file.read_into(wrap(target), 3) == target.nbytes
        assert target.tobytes() == content[3 : 3 + target.nbytes]


def orders():
    """Returns arrays whose elements are not in the order of C, without and with gaps."""
    cube = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    views = [cube.T, np.asfortranarray(cube), cube.transpose(1, 0, 2), cube.transpose(0, 2, 1), cube[:, ::-1], cube[..., 0]]
    return [*views, np.broadcast_to(np.int64(1), (3, 3)), np.lib.stride_tricks.as_strided(cube, (3, 3), (8, 8))]


@pytest.mark.parametrize("dtype", ["?", "u1", "<i2", "<f4", "<f8", "<c16", "M8[s]", "S3", "<U2"])
def test_arrays_of_another_order_are_refused(file, path, dtype):
    before = path.read_bytes()
    for array in orders():
        other = array.astype(dtype, order="K") if array.strides.count(0) == 0 else array
        if other.flags.c_contiguous:
            continue
        for wrapped in (other, Interface(other), *([memoryview(other), DLPack(other)] if dtype in "u1<i2<f4<f8" else [])):
            for call in (file.read_into, file.write_from, file.read_exact, lambda a: file.write_many([a], [0])):
                with pytest.raises((ValueError, BufferError), match="contiguous|read-only|readonly"):
                    call(wrapped)
    assert path.read_bytes() == before


def test_transposed_tensors_are_refused(file):
    torch = pytest.importorskip("torch")
    for tensor in (torch.ones(3, 4).t(), torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(3).expand(2, 3)):
        for call in (file.read_into, file.write_from):
            with pytest.raises(ValueError, match="contiguous"):
                call(tensor)


def test_dates_have_no_buffer_but_an_interface(file, content):
    dates = np.zeros(9, "<M8[s]")
    assert file.read_into(dates, 8) == 72
    assert dates.tobytes() == content[8:80]


def test_standard_buffers_are_written(file, path):
    for buffer in (b"bytes", bytearray(b"array"), array.array("H", [1, 2, 3]), (ctypes.c_int * 4)(1, 2, 3, 4)):
        length = file.write_from(buffer)
        assert path.read_bytes()[:length] == bytes(buffer)


def test_objects_that_cannot_be_filled_are_refused(file):
    frozen = np.zeros(10, np.uint8)
    frozen.flags.writeable = False
    for read_only in (b"bytes", frozen, memoryview(frozen), Interface(frozen)):
        with pytest.raises(ValueError, match="read-only"):
            file.read_into(read_only)
    matrix = np.zeros((4, 6), np.uint8)
    for gaps in (matrix[:, ::2], matrix[:, 1:], Interface(matrix[::2]), DLPack(matrix[:, :3]), matrix[::-1]):
        with pytest.raises(ValueError, match="not contiguous"):
            file.read_into(gaps)
    for nothing in (None, 5, "text", [1, 2], object()):
        with pytest.raises(TypeError, match="no memory"):
            file.read_into(nothing)
    with pytest.raises(BufferError, match="type 10"):
        file.read_into(DLPack(np.zeros(3), (10, 0)))


def test_gpu_arrays_that_cannot_be_filled_are_refused(file, device_array):
    with pytest.raises(ValueError, match="not contiguous"):
        file.read_into(device_array(100, shape=(10,), strides=(2,)))
    with pytest.raises(ValueError, match="masked"):
        file.read_into(device_array(100, mask=object()))
    array = device_array(100)
    with pytest.raises(ValueError, match="read-only"):
        file.read_into(device_array(100, data=(array.address, True)))
    with pytest.raises(BufferError, match="no CUDA memory"):
        file.read_into(device_array(100, data=(4096, False)))


@pytest.mark.parametrize("claimed", [101, 1 << 40, 1 << 50, 1 << 62, (1 << 63) - 1])
def test_gpu_claims_beyond_the_allocation_are_refused(file, device_array, claimed):
    array = device_array(100, shape=(claimed,))
    calls = [file.read_into, file.write_from, file.read_into_async, lambda buffer: file.read_many([buffer], [0])]
    for call in calls:
        with pytest.raises(ValueError, match=f"claims {claimed} bytes"):
            call(array)
    with pytest.raises(ValueError, match="claims 51 bytes"):
        file.read_into(device_array(100, shape=(51,), data=(array.address + 50, False)))
    assert file.read_into(device_array(100, shape=(50,), data=(array.address + 50, False))) == 50


@pytest.mark.parametrize("claimed", [1 << 46, 1 << 50, 1 << 62, (1 << 63) - 1])
def test_host_claims_beyond_memory_are_refused(file, claimed):
    array = np.zeros(100, np.uint8)

    class Claims:
        __array_interface__ = array.__array_interface__ | {"shape": (claimed,)}

    for call in (file.read_into, file.write_from, file.read_into_async):
        with pytest.raises(ValueError, match=f"claims {claimed} bytes"):
            call(Claims())


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": (1 << 40, 1 << 40)},
        {"typestr": f"<U{1 << 63}", "shape": (1,)},
        {"typestr": f"|V{(1 << 64) - 1}", "shape": (2,)},
        {"data": ((1 << 64) - 1, False)},
        {"data": ((1 << 64) - 50, False)},
    ],
)
def test_claims_that_overflow_are_refused(file, fields):
    array = np.zeros(100, np.uint8)

    class Claims:
        __array_interface__ = array.__array_interface__ | fields

    with pytest.raises(ValueError):
        file.read_into(Claims())


def test_gpu_arrays_have_any_shape_and_stream(file, content, device_array):
    array = device_array(96, shape=(2, 3, 4), typestr="<f4", strides=(48, 16, 4), stream=1)
    assert file.read_into(array, 11) == 96
    assert array.get() == content[11:107]
    assert file.read_into(device_array(0, shape=(0,), data=(0, False))) == 0


def test_ranges_beyond_the_buffer_are_refused(file):
    buffer = bytearray(10)
    for arguments in ((11, None), (0, 11), (5, 6), (2**63, 2**63)):
        with pytest.raises(ValueError, match="buffer of 10 bytes"):
            file.read_into(buffer, 0, arguments[1], buffer_offset=arguments[0])
    with pytest.raises(ValueError, match="offset is -1"):
        file.read_into(buffer, -1)


class Described:
    """An array that only has the dictionary of its memory."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


@pytest.mark.parametrize("wrap", [lambda array: array, Described])
def test_references_to_objects_are_refused(file, wrap):
    record = np.zeros(3, [("a", "i4"), ("b", [("c", "O"), ("d", "u1")])])
    for array in [np.array([1, "x", None] * 10, object), record]:
        for transfer in [file.read_into, file.write_from]:
            with pytest.raises(ValueError, match="objects"):
                transfer(wrap(array))
    # A field's name is no type.
    named = np.zeros(3, [("O", "i4"), ("xOy", "u1")])
    assert file.read_into(wrap(named)) == 15


def test_references_of_ctypes_are_refused(file):
    with pytest.raises(ValueError, match="objects"):
        file.read_into((ctypes.py_object * 3)(1, 2, 3))


class Delegate:
    """An object that has the attributes of another."""

    def __init__(self, other):
        self.other = other

    def __getattr__(self, name):
        return getattr(self.other, name)


class Negated(DLPack):
    """A tensor whose numbers are the negated bytes."""

    def is_neg(self):
        return True


class Fickle(DLPack):
    """A producer that exports once."""

    exports = 0

    def __dlpack__(self, **arguments):
        type(self).exports += 1
        if self.exports > 1:
            raise BufferError("a second time")
        return super().__dlpack__(**arguments)


def test_lists_mix_the_protocols(file, content):
    wraps = [lambda a: a, Interface, DLPack, OldDLPack, TorchInForkedChild, memoryview, lambda a: Delegate(DLPack(a))]
    alike = [wrap for wrap in wraps for _ in range(3)]
    for order in [alike, wraps * 3]:
        targets = [np.zeros(10, np.uint8) for _ in order]
        offsets = [13 * number for number in range(len(order))]
        buffers = [wrap(target) for wrap, target in zip(order, targets, strict=True)]
        assert file.read_many(buffers, offsets) == 10 * len(order)
        for target, offset in zip(targets, offsets, strict=True):
            assert target.tobytes() == content[offset : offset + 10]


def test_each_object_of_a_list_is_asked(file):
    arrays = [np.zeros(10, np.uint8) for _ in range(4)]
    good = [Delegate(DLPack(array)) for array in arrays[:3]]
    with pytest.raises(BufferError, match="resolve_neg"):
        file.read_many([*good, Delegate(Negated(arrays[3]))], [0] * 4)
    with pytest.raises(BufferError, match="a second time"):
        file.read_many([Fickle(array) for array in arrays], [0] * 4)
    with pytest.raises(TypeError, match=r"buffers\[3\]: Delegate has no memory"):
        file.read_many([*good, Delegate(object())], [0] * 4)
    assert not any(array.any() for array in arrays)


class Managed(ctypes.Structure):
    """The start of a tensor in a capsule `dltensor`."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "field, value, error",
    [("ndim", -1, "negative extent"), ("shape", (-1, 8), "negative extent"), ("shape", None, "no shape"),
     ("shape", (1 << 62, 1 << 62), "too large"), ("bits", 0, "0 bits"), ("lanes", 0, "0 bits"), ("bits", 4, "4 bits"),
     ("byte_offset", (1 << 64) - 1, "out of range"), ("data", None, "shorter"), ("device_type", 99, "type 99")],
)  # fmt: skip
def test_tensors_that_make_no_sense_are_refused(file, field, value, error):
    memory = np.ones((2, 4), np.float32)
    capsule = memory.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = Managed.from_address(pointer(capsule, b"dltensor"))
    tensor.strides = None
    extents = (ctypes.c_int64 * 2)(*value) if isinstance(value, tuple) else None
    before = getattr(tensor, field)
    setattr(tensor, field, ctypes.addressof(extents) if extents else value)
    producer = DLPack(memory)
    producer.__dlpack__ = lambda **arguments: capsule
    with pytest.raises((ValueError, BufferError), match=error):
        file.read_into(producer)
    assert (memory == 1).all()
    setattr(tensor, field, before)
    assert file.read_into(producer) == memory.nbytes
