"""The exception and the warning of this package."""


class SafetensorError(Exception):
    """A file that is no safetensors file, a tensor that it lacks, or a type that the framework lacks.

    Files that cannot be opened, read or written raise ``OSError`` instead.
    """


class ModelWarning(UserWarning):
    """A part of a model that is not loaded: tensors that its index does not name, for example."""
