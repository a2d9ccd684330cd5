"""Refusals of tensors that have no bytes, or not all, in this process."""

from __future__ import annotations

from typing import Any


def refuse_without_memory(name: str, tensor: Any) -> None:
    """Raises ``NotImplementedError`` for tensors of the device ``meta``, as torch does, and ``RuntimeError`` for fake tensors."""
    advice = "which has no bytes; materialize it first"
    if getattr(tensor, "fake_mode", None) is not None:
        raise RuntimeError(f"tensor {name!r} is a fake tensor, {advice}")
    if tensor.is_meta:
        # Programs look for the text of torch, which safetensors raises.
        raise NotImplementedError(f"Cannot copy out of meta tensor: tensor {name!r} is on the device meta, {advice}")


def refuse_parts(name: str, tensor: Any) -> None:
    """Raises ``ValueError`` for DTensors, which are spread over ranks."""
    if hasattr(tensor, "full_tensor"):
        raise ValueError(
            f"tensor {name!r} is a DTensor, and this rank has only a part; save its `.full_tensor()`, or the parts of all"
            " ranks with gpufile.torch.StorageWriter"
        )
