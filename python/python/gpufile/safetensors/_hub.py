"""Models of the Hugging Face Hub by their addresses, through the package huggingface_hub and its cache."""

from __future__ import annotations

import json
import pathlib
import re
from urllib.parse import unquote

#: The names of the files that have a model, as for a folder, the first that exists. The second name of each is that of an index.
_USUAL = ("model", "diffusion_pytorch_model", "adapter_model", "consolidated")
_ADDRESS = re.compile(r"hf://(?P<repo>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[^/@]+))?(/(?P<path>[^@]+?))?/?")


def local_path(address: str) -> str:
    """Fetches the files of a model into the cache of huggingface_hub, and returns the path of its file or its index there.

    Raises ``ImportError`` without huggingface_hub, ``ValueError`` for another address, and what huggingface_hub raises.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or match["repo"].split("/")[0] in ("datasets", "spaces"):
        raise ValueError(f"{address!r}: expected hf://OWNER/NAME, hf://OWNER/NAME@REVISION, or one of these with /FILE")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError
    except ImportError as error:
        raise ImportError(f"{address}: install huggingface_hub, which fetches models of the Hub ({error})") from error
    revision = unquote(match["revision"]) if match["revision"] else None
    names = [match["path"] or ""]
    if not names[0].endswith((".safetensors", ".json")):
        folder = f"{names[0]}/" if names[0] else ""
        names = [f"{folder}{name}.safetensors{end}" for name in _USUAL for end in (".index.json", "")]
    for name in names:
        try:
            found = hf_hub_download(match["repo"], name, revision=revision)
        except EntryNotFoundError:
            continue
        if name.endswith(".json"):
            _fetch_shards(match["repo"], pathlib.Path(found), name)
        return found
    raise FileNotFoundError(f"{address}: found none of {', '.join(names)}, on the Hub or in its cache")


def _fetch_shards(repo: str, index: pathlib.Path, name: str) -> None:
    """Fetches the files that an index names, of the same commit as the index."""
    from huggingface_hub import snapshot_download

    files = set(json.loads(index.read_bytes()).get("weight_map", {}).values())
    folder, _, _ = name.rpartition("/")
    commit = index.parents[name.count("/")].name
    snapshot_download(repo, revision=commit, allow_patterns=[f"{folder}/{file}" if folder else file for file in sorted(files)])
