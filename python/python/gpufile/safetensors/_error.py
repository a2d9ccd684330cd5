"""The exception of this package."""


class SafetensorError(Exception):
    """A file that is no safetensors file, a tensor that it lacks, or a type that the framework lacks.

    Files that cannot be opened, read or written raise ``OSError`` instead.
    """
