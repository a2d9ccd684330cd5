"""Tests of torch's tensors as memory."""

import gpufile
import pytest

torch = pytest.importorskip("torch")


def test_tensors_with_a_negative_bit_are_refused(tmp_path):
    with gpufile.File(tmp_path / "data", "w+") as file:
        file.write_from(torch.tensor([1.0, 2.0]))
        for negated in [torch._neg_view(torch.tensor([1.0, 2.0])), torch.tensor([1 + 2j]).conj().imag]:
            for transfer in [file.read_into, file.write_from]:
                with pytest.raises(BufferError, match="resolve_neg"):
                    transfer(negated)
            assert file.write_from(negated.resolve_neg()) == negated.nbytes
