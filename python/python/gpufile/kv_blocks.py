"""A store of the blocks of a KV cache, for connectors of inference servers.

An inference server keeps the keys and values of its tokens in paged memory: each layer has a tensor, and a block of tokens has a
page in each of them. A store keeps such blocks in the files of a folder, and finds them by their keys. Calls do not block, and
each block has an outcome.

>>> import numpy
>>> from gpufile.kv_blocks import BlockStore, Outcome, Region, prefix_keys
>>> page = 4096
>>> layers = [numpy.full((8, page), 7, numpy.uint8) for _ in range(4)]  # or tensors on a GPU
>>> regions = [Region(layer) for layer in layers]
>>> store = BlockStore("cache", block_bytes=4 * page)
>>> keys = prefix_keys(range(32), 16, "a model")
>>> store.store(keys, regions, [3 * page, 5 * page], page).result()  # pages 3 and 5 of each layer
[<Outcome.OK: 'ok'>, <Outcome.OK: 'ok'>]
>>> future = store.fetch([*keys, 78], regions, [0, page, 2 * page], page, timeout=5)
>>> future.result()  # or await future
[<Outcome.OK: 'ok'>, <Outcome.OK: 'ok'>, <Outcome.MISSING: 'missing'>]

A block ends at its deadline, and a cancelled call at once, whatever the storage does. The memory of such blocks stays in use
until the storage has answered.
"""

from __future__ import annotations

import array
import enum
import hashlib
import sys
from collections.abc import Iterable

from ._gpufile import BlockReader, BlockStore, Region

__all__ = ["BlockReader", "BlockStore", "Outcome", "Region", "prefix_keys"]


def __dir__() -> list[str]:
    return __all__


class Outcome(enum.Enum):
    """The outcome of a block. A block whose transfer failed, or whose arguments are wrong, has a ``TransferError`` instead."""

    #: The block was stored or fetched.
    OK = "ok"
    #: The store does not have the block.
    MISSING = "missing"
    #: The bytes of the block changed in its file, or the file ends before them. A store has removed it.
    CORRUPT = "corrupt"
    #: All blocks are pinned, or being read or written, or the store does not evict.
    NO_ROOM = "no room"
    #: Another transfer uses some of the block's memory.
    IN_USE = "in use"
    #: The timeout has passed. The memory may be in use for longer, and the block may be stored after all.
    DEADLINE = "deadline"
    #: The call was cancelled. The memory may be in use for longer, and the block may be stored after all.
    CANCELLED = "cancelled"


def prefix_keys(tokens: Iterable[int], block_tokens: int, model: str | bytes) -> list[int]:
    """Returns the key of each full block of tokens: a hash of the model and of all tokens up to the end of the block.

    ``model`` names everything else that the blocks depend on: the model, its type, the layout of its cache, and the worker's
    part of it.
    """
    if block_tokens < 1:
        raise ValueError(f"block_tokens is {block_tokens}: expected at least 1")
    numbers = array.array("q", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    name = model.encode() if isinstance(model, str) else model
    key = hashlib.blake2b(name, digest_size=16).digest()
    keys = []
    for end in range(block_tokens, len(numbers) + 1, block_tokens):
        key = hashlib.blake2b(key + numbers[end - block_tokens : end].tobytes(), digest_size=16).digest()
        keys.append(int.from_bytes(key, "big"))
    return keys
