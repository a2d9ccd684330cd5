"""Deferred tensors against tensors: the same values from fewer bytes."""

import pytest

torch = pytest.importorskip("torch")

from gpufile._deferred import Deferred, deferred
from gpufile.safetensors import SafeSlice, safe_open
from gpufile.safetensors.torch import save_file

SHAPE = (6, 8, 10)


@pytest.fixture
def tensor(tmp_path):
    tensor = torch.randn(SHAPE)
    save_file({"a": tensor}, tmp_path / "x", sync=False)
    return tensor


@pytest.fixture
def reads(monkeypatch):
    """Returns a list of the number of elements in each read."""
    read, counts = SafeSlice._read, []

    def count(source, bounds):
        made = read(source, bounds)
        counts.append(made.numel())
        return made

    monkeypatch.setattr(SafeSlice, "_read", count)
    return counts


def of(path):
    source = safe_open(path / "x", "pt").get_slice("a")
    return deferred(source, torch.float32, torch.device("cpu"))


SLICES = [
    lambda tensor: tensor.narrow(0, 2, 3),
    lambda tensor: tensor.narrow(-1, 9, 1),
    lambda tensor: tensor.narrow(1, 2, 4).narrow(1, 1, 2).narrow(0, 5, 1),
    lambda tensor: tensor[1:3, ..., -4:],
    lambda tensor: tensor[3],
    lambda tensor: tensor[-1].narrow(0, 0, 4)[2],
    lambda tensor: tensor[2, 3, 4],
    lambda tensor: tensor.chunk(3, dim=1)[2],
    lambda tensor: tensor.split(4)[1],
    lambda tensor: tensor.split([2, 5, 1], dim=1)[1],
    lambda tensor: tensor.tensor_split(4, dim=2)[3],
    lambda tensor: tensor.unbind(1)[7] if type(tensor) is torch.Tensor else tensor.select(1, 7),
    lambda tensor: tensor.transpose(0, 2).narrow(0, 3, 2),
    lambda tensor: tensor[4].t()[1:2],
    lambda tensor: tensor.permute(2, 0, 1)[5:, 1].narrow(1, 0, 3),
    lambda tensor: tensor.data.detach()[0:0],
]


@pytest.mark.parametrize("number", range(len(SLICES)))
def test_slices_read_only_their_bytes(tmp_path, tensor, reads, number):
    expected, found = SLICES[number](tensor), SLICES[number](of(tmp_path))
    assert isinstance(found, Deferred) and reads == []
    assert (found.shape, found.dtype, found.device) == (expected.shape, expected.dtype, expected.device)
    assert torch.equal(found.clone(), expected)
    assert torch.equal(found + 0, expected)
    assert reads == [expected.numel()]


@pytest.mark.parametrize(
    "operation",
    [
        lambda tensor: tensor[::2],
        lambda tensor: tensor.view(48, 10)[:4],
        lambda tensor: tensor.to(torch.bfloat16),
        lambda tensor: tensor.sum(),
        lambda tensor: torch.cat([tensor, tensor.narrow(0, 0, 1)]),
        lambda tensor: torch.zeros(SHAPE).copy_(tensor),
        lambda tensor: torch.nn.Parameter(torch.zeros(SHAPE), requires_grad=False).data.copy_(tensor),
        lambda tensor: tensor[torch.tensor([0, 5])],
        lambda tensor: tensor.contiguous().view(torch.int32),
        lambda tensor: torch.tensor(tensor.narrow(0, 1, 1).tolist()),
        lambda tensor: torch.tensor(tensor[2].numpy()),
        lambda tensor: torch.tensor(tensor[1, 2, 3].item()),
    ],
)
def test_other_operations_read_first(tmp_path, tensor, operation):
    found = operation(of(tmp_path))
    assert type(found) is torch.Tensor and torch.equal(found, operation(tensor))


@pytest.mark.parametrize(
    "operation",
    [
        lambda tensor: tensor.narrow(0, 5, 2),
        lambda tensor: tensor.narrow(3, 0, 1),
        lambda tensor: tensor[6],
        lambda tensor: tensor[0, 0, -11],
        lambda tensor: tensor.split([1, 2]),
        lambda tensor: tensor.split([7, -1]),
        lambda tensor: tensor.split(0),
        lambda tensor: tensor.permute(0, 0, 1),
        lambda tensor: tensor.transpose(0, 3),
        lambda tensor: tensor.view(7, 7),
    ],
)
def test_wrong_operations_raise_what_tensors_raise(tmp_path, tensor, operation):
    errors = []
    for value in (tensor, of(tmp_path)):
        with pytest.raises((RuntimeError, IndexError)) as error:
            operation(value)
        errors.append((error.type, str(error.value).partition("\n")[0]))
    assert errors[0] == errors[1]


def test_changed_values_reach_later_slices(tmp_path, tensor, reads):
    changed = of(tmp_path)
    changed.mul_(2)
    assert torch.equal(changed[3:] + 0, tensor[3:] * 2) and len(reads) == 1
    assert repr(of(tmp_path)[1:3]) == "Deferred(shape=(2, 8, 10), dtype=torch.float32, device=cpu)"
