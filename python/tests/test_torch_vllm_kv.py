"""The KV connector of examples/vllm_kv_connector.py against a stand-in for vLLM, on the CPU and where torch has a GPU there.

`run_vllm_kv_tests.py` tries it in vLLM itself, on the CPU. With `GPUFILE_TEST_VLLM`, the folder of vLLM's sources, the connector has
vLLM's own base class here.
"""

import enum
import hashlib
import importlib.util
import os
import pathlib
import sys
import time
import types
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch")

from gpufile.kv_blocks import BlockStore

BLOCK_TOKENS, PAGES, LAYERS, HEADS = 16, 40, ["layers.0", "layers.1", "layers.2"], 2
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"))]
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
PROMPTS = {"a": list(range(100)), "b": [*range(48), *range(900, 950)], "c": [7] * 40, "short": [1, 2, 3]}


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class Base:
    def __init__(self, config, role, kv_cache_config):
        self._kv_transfer_config, self.role = config.kv_transfer_config, role

    def bind_connector_metadata(self, metadata):
        self._metadata = metadata

    def _get_connector_metadata(self):
        return self._metadata


class Status(enum.Enum):
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()


@pytest.fixture
def connector(monkeypatch):
    """Returns the module of the connector."""
    base = types.ModuleType(BASE)
    base.KVConnectorBase_V1, base.KVConnectorMetadata, base.KVConnectorRole = Base, object, Role
    if sources := os.environ.get("GPUFILE_TEST_VLLM"):
        for name in ("logger", "v1.attention.backend", "v1.core.sched.output", "v1.metrics.cache_hit_source", "v1.outputs"):
            monkeypatch.setitem(sys.modules, f"vllm.{name}", MagicMock())
        spec = importlib.util.spec_from_file_location(BASE, pathlib.Path(sources, *BASE.split(".")).with_suffix(".py"))
        base = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(base)
    request = types.ModuleType("vllm.v1.request")
    request.RequestStatus = Status
    for module in (base, request):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    path = pathlib.Path(__file__).parents[1] / "examples/vllm_kv_connector.py"
    spec = importlib.util.spec_from_file_location("vllm_kv_connector", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "KEYS_FRESH", 0)
    return module


class Server:
    """A scheduler, and a worker with its memory, as in a process of vLLM. Requests come one after the other."""

    def __init__(self, module, folder, way, head, device):
        self.device = device
        spec = types.SimpleNamespace(block_size=BLOCK_TOKENS, page_size_bytes=HEADS * BLOCK_TOKENS * head * 2)
        group = types.SimpleNamespace(layer_names=LAYERS, kv_cache_spec=spec)
        caches = types.SimpleNamespace(kv_cache_groups=[group], num_blocks=PAGES)
        options = {"folder": str(folder), "limit_bytes": 1 << 24}
        config = types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(get_from_extra_config=lambda name, other: options.get(name, other)),
            parallel_config=types.SimpleNamespace(rank=0),
            model_config=types.SimpleNamespace(model="model", revision="main"),
            cache_config=types.SimpleNamespace(cache_dtype="auto"),
        )
        roles = module.KVConnectorRole
        # The reader of the scheduler needs the store of the worker.
        self.worker = module.GpufileConnector(config, roles.WORKER, caches)
        self.scheduler = module.GpufileConnector(config, roles.SCHEDULER, caches)
        new = lambda *shape: torch.zeros(shape, dtype=torch.float16, device=device)  # noqa: E731
        if way == "layers":
            self.caches = {name: new(PAGES, HEADS, BLOCK_TOKENS, head) for name in LAYERS}
        elif way == "permuted":
            self.caches = {name: new(PAGES, BLOCK_TOKENS, HEADS, head).transpose(1, 2) for name in LAYERS}
        else:
            every = new(PAGES, len(LAYERS), HEADS, BLOCK_TOKENS, head)
            self.caches = {name: every[:, number] for number, name in enumerate(LAYERS)}
        self.worker.register_kv_caches(self.caches)
        self.next_page = 0

    def step(self, request, place):
        """Hands the work of the scheduler to the worker, and waits until it has finished that of the request."""
        self.worker.bind_connector_metadata(self.scheduler.build_connector_meta(None))
        self.worker.start_load_kv(None)
        end = time.monotonic() + 60
        while request not in (self.worker.get_finished(set())[place] or ()):
            assert time.monotonic() < end
            time.sleep(0.001)

    def serve(self, name, tokens, status=Status.FINISHED_STOPPED, lose=slice(0)):
        """Serves a request, and checks all of its memory. The store loses some of its blocks after the scheduler has read the keys.

        Returns the number of tokens that were loaded.
        """
        request = types.SimpleNamespace(
            request_id=name, all_token_ids=tokens, num_tokens=len(tokens), num_computed_tokens=len(tokens), status=status,
            mm_features=[], lora_request=None, cache_salt=None,
        )  # fmt: skip
        count = -(-len(tokens) // BLOCK_TOKENS)
        pages = [(self.next_page + 7 * number) % PAGES for number in range(count)]
        self.next_page += 3
        found, is_async = self.scheduler.get_num_new_matched_tokens(request, 0)
        assert is_async == (found > 0)
        self.worker._store.remove(self.scheduler._keys(request, tokens)[lose])
        self.scheduler.update_state_after_alloc(request, types.SimpleNamespace(get_block_ids=lambda: (pages,)), found)
        loaded = set()
        if found:
            self.step(name, 1)
            lost = self.worker.get_block_ids_with_load_errors()
            self.scheduler.update_connector_output(types.SimpleNamespace(invalid_block_ids=lost))
            loaded = {page for page in pages[: found // BLOCK_TOKENS] if page not in lost}
        expected = torch.stack([self.slots(tokens, layer, count) for layer in LAYERS])
        if self.device == "cuda":
            # The blocks are to be stored when the kernels that write them have ended, not before.
            torch.cuda._sleep(50_000_000)
        for layer, slots in zip(LAYERS, expected):
            for page, slot in zip(pages, slots.to(self.device, non_blocking=True)):
                if page not in loaded:
                    self.caches[layer][page] = slot[..., None]
        is_storing, _ = self.scheduler.request_finished(request, pages)
        if is_storing:
            self.step(name, 0)
        for layer, slots in zip(LAYERS, expected):
            for page, slot in zip(pages, slots):
                assert (self.caches[layer][page].cpu() == slot[..., None]).all(), (name, layer, page)
        # Other requests get the pages.
        for cache in self.caches.values():
            cache.fill_(-1)
        return len(loaded) * BLOCK_TOKENS

    def slots(self, tokens, layer, count):
        """Returns a number for each token and head of the pages, which depends on all tokens before."""
        values, digest = torch.zeros(count, HEADS, BLOCK_TOKENS), hashlib.sha256(layer.encode())
        for position, token in enumerate(tokens):
            digest.update(repr(token).encode())
            for head in range(HEADS):
                values[position // BLOCK_TOKENS, head, position % BLOCK_TOKENS] = digest.digest()[head] + 1
        return values.half()

    def close(self):
        self.scheduler.shutdown()
        self.worker.shutdown()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head", [16, 1023])
@pytest.mark.parametrize("way", ["layers", "permuted", "one"])
def test_blocks_come_back_in_other_processes(connector, tmp_path, way, head, device):
    first = Server(connector, tmp_path, way, head, device)
    assert [first.serve(name, tokens) for name, tokens in PROMPTS.items()] == [0, 48, 0, 0]
    assert first.serve("aborted", [5] * 64, Status.FINISHED_ABORTED) == 0
    first.close()
    # Whole blocks come back, except that of the last token.
    second = Server(connector, tmp_path, way, head, device)
    assert [second.serve(name, tokens) for name, tokens in PROMPTS.items()] == [96, 96, 32, 0]
    assert second.serve("longer", PROMPTS["a"][:96] + [5] * 40) == 96
    assert second.serve("other", [1] + PROMPTS["a"][1:]) == second.serve("aborted", [5] * 64) == 0
    # Blocks that the store has lost since the scheduler read its keys are computed.
    assert second.serve("lost", PROMPTS["a"], lose=slice(2, 4)) == 64
    second.close()
    with BlockStore(tmp_path / "0", len(LAYERS) * HEADS * BLOCK_TOKENS * head * 2, limit_bytes=1 << 24) as store:
        assert store.recovery["damaged"] == 0 and store.recovery["whole"] > 0, store.recovery
