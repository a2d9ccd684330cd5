"""Nested states as named tensors, and the way back.

A file of named tensors has no place for the nesting, the numbers and the texts in the state of an optimizer, nor for
two names of one tensor. A text in the file's metadata has them: a tree in JSON, whose leaves name the tensors.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from ._tensors import refuse_parts, refuse_without_memory

#: The name of the tree in the metadata.
KEY = "gpufile.state"


class Flat:
    """The tensors of a state, each once, by names."""

    def __init__(self, state: dict[Any, Any]) -> None:
        """Finds the tensors. Raises ``TypeError`` for values that a file cannot have."""
        self.tensors: dict[str, torch.Tensor] = {}
        #: The names of tensors that have the memory of another, with the name of the other.
        self.tied: dict[str, str] = {}
        self._names: dict[Any, str] = {}
        #: The nodes of the numbers and texts, in the order of the state.
        self._values: list[dict[str, Any]] = []
        self._open: set[int] = set()
        self._tree = self._node(state, ())
        #: A flat dict of tensors needs no tree if the file has its order.
        self.is_flat = not self.tied and list(self.tensors) == list(state)

    def metadata(self, given: dict[str, str] | None) -> dict[str, str] | None:
        """Returns the metadata of the file."""
        if self.is_flat:
            return given
        if given and KEY in given:
            raise ValueError(f"metadata: the name {KEY!r} is reserved for the structure of the state")
        # Readers of the package safetensors know the tied names.
        return self.tied | (given or {}) | {KEY: json.dumps(self._tree)}

    def replace_values(self, values: list[Any]) -> None:
        """Takes other numbers and texts, in the same order."""
        for node, value in zip(self._values, values, strict=True):
            node["value"] = value

    def forget_tensors(self) -> None:
        """Drops the tensors. The metadata does not need them."""
        self.tensors = {}

    def _node(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, torch.Tensor):
            return {"tensor": self._name(value, path)}
        if value is None or isinstance(value, (bool, int, float, str)):
            self._values.append({"value": value})
            return self._values[-1]
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if type(value) is getattr(sys.modules.get("numpy"), "ndarray", None):
            return {"array": self._name(_tensor_of(value, path), path)}
        # A named tuple would come back as another class, without the names.
        if not isinstance(value, (dict, list, tuple)) or hasattr(value, "_fields"):
            kinds = "tensor, array, number, text, dict, list or tuple"
            raise TypeError(f"{_text(path)}: cannot save a {type(value).__name__}; convert it to a {kinds}")
        if id(value) in self._open:
            raise ValueError(f"{_text(path)}: the state contains itself")
        self._open.add(id(value))
        try:
            if isinstance(value, dict):
                return {"dict": [[_key(key, path), self._node(item, (*path, str(key)))] for key, item in value.items()]}
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self._node(item, (*path, str(number))) for number, item in enumerate(value)]}
        finally:
            self._open.discard(id(value))

    def _name(self, tensor: torch.Tensor, path: tuple[str, ...]) -> str:
        name = ".".join(path)
        refuse_without_memory(name, tensor)
        refuse_parts(name, tensor)
        while name in self.tensors or name in self.tied:
            name += "'"
        memory: Any = id(tensor)
        if tensor.layout == torch.strided and tensor.numel():
            view = tensor.is_conj(), tensor.is_neg()
            memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), view)
        kept = self._names.setdefault(memory, name)
        if kept != name:
            self.tied[name] = kept
        else:
            self.tensors[name] = tensor
        return kept


def _tensor_of(array: Any, path: tuple[str, ...]) -> torch.Tensor:
    """Returns an array as a tensor, which has its memory where torch takes that."""
    try:
        if not array.flags.c_contiguous or not array.flags.writeable or not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="), order="C")
        return torch.from_numpy(array)
    except TypeError:
        raise TypeError(f"{_text(path)}: cannot save an array of {array.dtype}; torch has no such type") from None


def _key(key: Any, path: tuple[str, ...]) -> str | int:
    if isinstance(key, (str, int)) and not isinstance(key, bool):
        return key
    raise TypeError(f"{_text(path)}: cannot save the key {key!r}; keys are texts and integers")


def _text(path: tuple[str, ...]) -> str:
    return f"state {'.'.join(path)!r}" if path else "state"


def restore(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None, path: str) -> Any:
    """Returns the state of a file with these tensors and metadata. Without a tree, they are the state."""
    if not metadata or KEY not in metadata:
        return tensors
    try:
        return _value(json.loads(metadata[KEY]), tensors)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"cannot load {path!r}: the structure of the state in its metadata is damaged: {error!r}") from None


def _value(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].cpu().numpy()
    if kind == "dtype":
        dtype = getattr(torch, content)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{content!r} is no type of torch")
        return dtype
    if kind == "value":
        return content
    if kind == "dict":
        return {key: _value(item, tensors) for key, item in content}
    if kind not in ("list", "tuple"):
        raise ValueError(f"{kind!r} is unknown")
    items = [_value(item, tensors) for item in content]
    return items if kind == "list" else tuple(items)
