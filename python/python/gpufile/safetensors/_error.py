"""The exception and the warning of this package."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING


class _SafetensorError(Exception):
    """The file is not a safetensors file, lacks a tensor, or has a type that the framework lacks.

    It is the class of the package safetensors if that is installed. Files that cannot be opened, read or written raise
    ``OSError`` instead.
    """


class _MissingTensorError(KeyError):
    """A tensor that a file lacks. It is a ``KeyError`` too, for programs that use a model like a dict."""

    # KeyError quotes the text.
    __str__ = Exception.__str__


if TYPE_CHECKING:
    SafetensorError = _SafetensorError

    class MissingTensorError(SafetensorError, _MissingTensorError): ...

else:

    def __getattr__(name):
        # The package safetensors takes long to import, and programs that see no error need none of it.
        if name == "SafetensorError":
            made = _safetensor_error()
        elif name == "MissingTensorError":
            base = sys.modules[__name__].SafetensorError
            made = type(name, (base, _MissingTensorError), {"__module__": __name__, "__doc__": _MissingTensorError.__doc__})
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Another thread may have made it.
        return globals().setdefault(name, made)


def _safetensor_error() -> type[Exception]:
    try:
        # Programs that catch the one of the package safetensors catch this one.
        from safetensors import SafetensorError as installed
    except ImportError:
        _SafetensorError.__name__ = _SafetensorError.__qualname__ = "SafetensorError"
        return _SafetensorError
    return installed


class ModelWarning(UserWarning):
    """Part of a model is not loaded, for example tensors that its index does not name."""


class DtypeError(KeyError, ValueError):
    """A type that the format lacks. safetensors raises ``KeyError`` for it."""

    def __str__(self) -> str:
        # KeyError quotes the text.
        return str(self.args[0])
