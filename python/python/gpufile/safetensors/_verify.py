"""Verifying a model: everything that is wrong with it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable

from .._gpufile import verify_model as _verify_model
from .._paths import address_of, paths_of
from ._arguments import Path


@dataclasses.dataclass(frozen=True)
class Verification:
    """The outcome of :func:`verify`. It is true if nothing is wrong."""

    #: The files of the model; none if there are problems.
    files: list[pathlib.Path]
    #: The number of tensors, and of their bytes.
    tensors: int
    len_bytes: int
    #: The number of files whose contents were compared with a hash.
    hashed: int
    #: The parts of the model that are not loaded.
    warnings: list[str]
    #: Everything that is wrong.
    problems: list[str]

    def __bool__(self) -> bool:
        return not self.problems


def verify(path: Path | Iterable[Path], *, contents: bool = False, hash_list: Path | None = None) -> Verification:
    """Verifies a model: a folder, an index, a file, or several files, as for :func:`load_model`.

    A model is good if it is complete, its index matches its files, and each header fits its file. Tensors are not read,
    with two exceptions. ``contents`` compares each file of a Hugging Face cache with the SHA-256 in its name.
    ``hash_list`` names a file written by ``sha256sum``, and compares each file with it.

    >>> found = verify("models/llama")
    >>> if not found:
    ...     raise SystemExit("\\n".join(found.problems))
    """
    paths = paths_of("path", path)
    if address_of(paths[0]) is not None:
        raise ValueError("path: only models in local files are verified, not those of a server")
    return Verification(*_verify_model(paths, contents, hash_list))
