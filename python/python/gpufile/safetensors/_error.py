"""The exception and the warning of this package."""


class SafetensorError(Exception):
    """The file is not a safetensors file, lacks a tensor, or has a type that the framework lacks.

    Files that cannot be opened, read or written raise ``OSError`` instead.
    """


class ModelWarning(UserWarning):
    """Part of a model is not loaded, for example tensors that its index does not name."""
