"""The exception and the warning of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING


class _SafetensorError(Exception):
    """The file is not a safetensors file, lacks a tensor, or has a type that the framework lacks.

    It is the class of the package safetensors if that is installed. Files that cannot be opened, read or written raise
    ``OSError`` instead.
    """


if TYPE_CHECKING:
    SafetensorError = _SafetensorError
else:
    try:
        # Programs that catch the one of the package safetensors catch this one.
        from safetensors import SafetensorError
    except ImportError:
        SafetensorError = _SafetensorError
        SafetensorError.__name__ = SafetensorError.__qualname__ = "SafetensorError"


class MissingTensorError(SafetensorError, KeyError):
    """A tensor that a file lacks. It is a ``KeyError`` too, for programs that use a model like a dict."""

    # KeyError quotes the text.
    __str__ = Exception.__str__


class ModelWarning(UserWarning):
    """Part of a model is not loaded, for example tensors that its index does not name."""


class DtypeError(KeyError, ValueError):
    """A type that the format lacks. safetensors raises ``KeyError`` for it."""

    def __str__(self) -> str:
        # KeyError quotes the text.
        return str(self.args[0])
