"""Refusals of tensors that have no bytes, or not all, in this process."""

from __future__ import annotations

from typing import Any


def refuse_without_memory(name: str, tensor: Any) -> None:
    """Raises ``RuntimeError`` for tensors of the device ``meta`` and fake tensors."""
    if tensor.device.type == "meta" or getattr(tensor, "fake_mode", None) is not None:
        # Programs look for the text of torch, which safetensors raises.
        start = "Cannot copy out of meta tensor: " if tensor.device.type == "meta" else ""
        kind = "on the device meta" if start else "a fake tensor"
        raise RuntimeError(f"{start}tensor {name!r} is {kind}, which has no bytes; materialize it first")


def refuse_parts(name: str, tensor: Any) -> None:
    """Raises ``ValueError`` for DTensors, which are spread over ranks."""
    if hasattr(tensor, "full_tensor"):
        raise ValueError(
            f"tensor {name!r} is a DTensor, and this rank has only a part; save its `.full_tensor()`, or the parts of all"
            " ranks with gpufile.torch.StorageWriter"
        )
