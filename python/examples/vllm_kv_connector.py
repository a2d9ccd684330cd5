"""A KV connector of vLLM that keeps the blocks of finished requests in a store on disk, and loads them for later ones.

    PYTHONPATH=python/examples vllm serve MODEL --kv-transfer-config '{"kv_connector": "GpufileConnector",
        "kv_connector_module_path": "vllm_kv_connector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"folder": "/data/kv", "limit_bytes": 1000000000000}}'

It was written for vLLM 0.33.0, and for models whose layers are one group with full attention. Loads and stores go on while vLLM
computes. Each worker has a store of its own in ``folder``. The scheduler reads the store of the first one; where another
worker's store lacks a block, vLLM computes it again.
"""

from __future__ import annotations

import concurrent.futures
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.v1.request import RequestStatus

from gpufile.kv_blocks import BlockReader, BlockStore, Outcome, Region, prefix_keys

#: Seconds after which the scheduler reads the keys of the store again.
KEYS_FRESH = 1.0
#: The statuses of requests whose blocks are stored. Those of others may not be complete.
COMPLETE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


@dataclass
class Work(KVConnectorMetadata):
    """The work of a step: the keys and the pages of the blocks of each request."""

    loads: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    stores: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)


class GpufileConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """The scheduler's part looks for keys and plans work, the workers' part carries it out."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        (group,) = kv_cache_config.kv_cache_groups
        self._layers, self._pages, spec = group.layer_names, kv_cache_config.num_blocks, group.kv_cache_spec
        self._block_tokens, self._page_bytes = spec.block_size, spec.page_size_bytes
        block_bytes = self._page_bytes * len(self._layers)
        option = self._kv_transfer_config.get_from_extra_config
        folder, rank = Path(option("folder", None)), vllm_config.parallel_config.rank
        self._timeout = option("timeout", 10.0)
        if role is KVConnectorRole.SCHEDULER:
            model = vllm_config.model_config
            self._model = f"{model.model} {model.revision} {vllm_config.cache_config.cache_dtype} {self._block_tokens} {block_bytes}"
            self._reader, self._stored, self._read_at = BlockReader(folder / "0", block_bytes), set[int](), -KEYS_FRESH
            self._found: dict[str, tuple[int, list[int]]] = {}
            self._work = Work()
        else:
            folder.mkdir(parents=True, exist_ok=True)
            limit_bytes = option("limit_bytes", 64 << 30)
            self._store = BlockStore(folder / str(rank), block_bytes, limit_bytes=limit_bytes)
            self._threads = concurrent.futures.ThreadPoolExecutor(4, "kv-store")
            self._loading: dict[str, tuple[list[int], Any]] = {}
            self._storing: dict[str, Any] = {}
            self._failed: set[int] = set()

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    # The scheduler's part.

    def _keys(self, request: Any, tokens: Any) -> list[int]:
        """Returns the keys of the full blocks of tokens. Images are not in the tokens, so such requests have none."""
        if request.mm_features:
            return []
        lora = request.lora_request.lora_name if request.lora_request else None
        return prefix_keys(tokens, self._block_tokens, f"{self._model} {lora} {request.cache_salt}")

    def _read_keys(self) -> None:
        if time.monotonic() - self._read_at >= KEYS_FRESH:
            self._stored, self._read_at = set(self._reader.keys()), time.monotonic()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        # vLLM computes at least the last token.
        keys = self._keys(request, request.all_token_ids[: request.num_tokens - 1])
        self._read_keys()
        first = last = num_computed_tokens // self._block_tokens
        while last < len(keys) and keys[last] in self._stored:
            last += 1
        self._found[request.request_id] = first, keys[first:last]
        return (last - first) * self._block_tokens, last > first

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            first, keys = self._found[request.request_id]
            keys = keys[: num_external_tokens // self._block_tokens]
            self._work.loads[request.request_id] = keys, blocks.get_block_ids()[0][first : first + len(keys)]

    def update_connector_output(self, connector_output: Any) -> None:
        if connector_output.invalid_block_ids:
            # A store has lost blocks, so the next request reads the keys again.
            self._read_at = -KEYS_FRESH

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        work, self._work = self._work, Work()
        return work

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._found.pop(request.request_id, None)
        if request.status not in COMPLETE:
            return False, None
        tokens = request.all_token_ids[: request.num_computed_tokens]
        new = [(key, page) for key, page in zip(self._keys(request, tokens), block_ids) if key not in self._stored]
        if new:
            keys, pages = zip(*new)
            self._work.stores[request.request_id] = list(keys), list(pages)
        # vLLM frees the blocks when `get_finished` returns the request.
        return bool(new), None

    # The workers' part.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Makes a region of each allocation, in which the pages of a layer have a start and a distance."""
        regions: dict[int, Region] = {}
        self._regions, starts, strides = [], [], []
        for name in self._layers:
            tensor, item = kv_caches[name], kv_caches[name].element_size()
            page = tensor[0]
            span = sum((size - 1) * stride for size, stride in zip(page.shape, page.stride())) + 1
            if tensor.shape[0] != self._pages or page.nbytes != self._page_bytes or span != page.numel():
                raise ValueError(f"the cache of {name} has no pages of {self._page_bytes} bytes: {tensor.shape}, {tensor.stride()}")
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in regions:
                flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                regions[storage.data_ptr()] = Region(flat)
            self._regions.append(regions[storage.data_ptr()])
            starts.append(tensor.storage_offset() * item)
            strides.append(tensor.stride(0) * item)
        self._is_on_gpu = tensor.is_cuda
        self._starts, self._strides = np.array(starts), np.array(strides)

    def _memory(self, pages: list[int]) -> tuple[list[Region], Any, int]:
        """Returns the arguments that name the memory of these pages in all layers."""
        return self._regions, self._starts + np.array(pages)[:, None] * self._strides, self._page_bytes

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        work = self._get_connector_metadata()
        assert isinstance(work, Work)
        for request, (keys, pages) in work.loads.items():
            self._loading[request] = pages, self._store.fetch(keys, *self._memory(pages), timeout=self._timeout)
        written = torch.cuda.current_stream().record_event() if work.stores and self._is_on_gpu else None
        for request, (keys, pages) in work.stores.items():
            self._storing[request] = self._threads.submit(self._store_after, written, keys, pages)

    def _store_after(self, written: Any, keys: list[int], pages: list[int]) -> list[Any]:
        """Stores blocks when the kernels that write them have ended."""
        if written is not None:
            written.synchronize()
        return self._store.store(keys, *self._memory(pages)).result()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        stored = {request for request, future in self._storing.items() if future.done()}
        loaded = {request for request, (_, future) in self._loading.items() if future.done()}
        for request in stored:
            del self._storing[request]
        for request in loaded:
            pages, future = self._loading.pop(request)
            self._failed |= {page for page, outcome in zip(pages, future.result()) if outcome is not Outcome.OK}
        return stored or None, loaded or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Returns at once: vLLM schedules a request when all its blocks are there."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Does nothing: the blocks of a request are stored when it has finished."""

    def wait_for_save(self) -> None:
        """Returns at once: vLLM keeps the blocks until they are stored."""

    def shutdown(self) -> None:
        if self.role is KVConnectorRole.SCHEDULER:
            self._reader.close()
        else:
            self._threads.shutdown()
            self._store.close()
