"""Tensors of torch that share memory. The names of the functions are those that ``safetensors.torch`` has for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch


def storage_ptr(tensor: torch.Tensor) -> int:
    """Returns the address of the tensor's storage."""
    return int(tensor.untyped_storage().data_ptr())


def storage_size(tensor: torch.Tensor) -> int:
    """Returns the number of bytes of the tensor's storage."""
    return int(tensor.untyped_storage().nbytes())


def _end_ptr(tensor: torch.Tensor) -> int:
    """Returns the address behind the tensor's last element."""
    start = int(tensor.data_ptr())
    if tensor.numel() == 0:
        return start
    last = sum((axis - 1) * stride for axis, stride in zip(tensor.shape, tensor.stride()))
    return start + int((last + 1) * tensor.element_size())


def _is_complete(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor has all bytes of its storage."""
    return _has_range(tensor, storage_ptr(tensor), storage_ptr(tensor) + storage_size(tensor))


def _has_range(tensor: torch.Tensor, start: int, stop: int) -> bool:
    """Returns whether the tensor has all bytes between two addresses, and no others."""
    return int(tensor.data_ptr()) == start and int(tensor.numel() * tensor.element_size()) == stop - start


def _find_shared_tensors(tensors: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """Returns the names of tensors in sets that share memory. A tensor that shares none is alone in its set."""
    storages: dict[tuple[torch.device, int, int], list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.is_meta:
            continue
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address != 0 and size != 0:
            storages.setdefault((tensor.device, address, size), []).append(name)
    found: list[set[str]] = []
    for names in storages.values():
        if len(names) == 1:
            found.append(set(names))
            continue
        end = -1
        for start, stop, name in sorted((tensors[name].data_ptr(), _end_ptr(tensors[name]), name) for name in names):
            if start >= end:
                found.append(set())
            found[-1].add(name)
            end = max(end, stop)
    return found


def _remove_duplicate_names(
    state_dict: Mapping[str, torch.Tensor],
    *,
    preferred_names: Iterable[str] | None = None,
    discard_names: Iterable[str] | None = None,
) -> dict[str, list[str]]:
    """Chooses names as ``duplicate_names``. Raises as safetensors does if no tensor of a set has all of its storage."""
    for names in _find_shared_tensors(state_dict):
        if not any(_is_complete(state_dict[name]) for name in names):
            raise RuntimeError(
                f"None of the tensors {sorted(names)} has all bytes of its storage. Clone the tensors that you want to save."
            )
    return duplicate_names(state_dict, preferred_names=preferred_names, discard_names=discard_names)


def duplicate_names(
    state_dict: Mapping[str, torch.Tensor],
    *,
    preferred_names: Iterable[str] | None = None,
    discard_names: Iterable[str] | None = None,
) -> dict[str, list[str]]:
    """Chooses one name of each set that shares memory, and returns it with the other names.

    The chosen tensor has all bytes of the set. Preferred names come first, then those that need not be discarded.
    """
    preferred, discarded = set(preferred_names or ()), set(discard_names or ())
    duplicates: dict[str, list[str]] = {}
    for names in _find_shared_tensors(state_dict):
        # The storage may be longer than the set: loaded tensors are parts of one allocation.
        if len(names) == 1:
            continue
        start = min(state_dict[name].data_ptr() for name in names)
        stop = max(_end_ptr(state_dict[name]) for name in names)
        complete = {name for name in names if _has_range(state_dict[name], start, stop)}
        if not complete:
            raise RuntimeError(
                f"None of the tensors {sorted(names)} covers the memory that they share, so a file with one of them"
                " would have fewer or more bytes than the model needs. Clone the tensors that you want to save."
            )
        kept = min(complete & preferred or complete - discarded or complete)
        duplicates[kept] = sorted(names - {kept})
    return duplicates
