"""Verifying a model: everything that is wrong with it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from .._gpufile import verify_model as _verify_model
from .._paths import address_of, paths_of
from . import _error
from ._arguments import Path, Source


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
    if isinstance(paths[0], str) and paths[0].startswith("hf://"):
        from ._hub import local_path

        paths = [local_path(paths[0])]
    if address_of(paths[0]) is not None:
        raise ValueError("path: only models in local files are verified, not those of a server")
    return Verification(*_verify_model(paths, contents, hash_list))


@contextlib.contextmanager
def beside(path: Source | Iterable[Path], hash_list: Path | None) -> Iterator[None]:
    """Compares the files of a model with their hashes while a load runs. Raises ``SafetensorError`` if a file differs or has none."""
    with ThreadPoolExecutor(1, thread_name_prefix="gpufile-verify") as thread:
        verifying = thread.submit(verify, path, contents=hash_list is None, hash_list=hash_list)  # type: ignore[arg-type]
        yield
        found = verifying.result()
    problems = found.problems
    if not problems and found.hashed < len(found.files):
        where = "the names of a Hugging Face cache" if hash_list is None else os.fsdecode(hash_list)
        problems = [f"verify: {len(found.files) - found.hashed} of {len(found.files)} files have no hash in {where}"]
    if problems:
        raise _error.SafetensorError("\n".join(problems))
