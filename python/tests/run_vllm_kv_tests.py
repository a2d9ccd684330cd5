"""Runs the connector of examples/vllm_kv_connector.py with vLLM's own scheduler, factory and runner mixin, on the CPU.

    python python/tests/run_vllm_kv_tests.py vllm-0.33.0

The sources of vLLM are those of run_vllm_tests.py. A worker here has the paged memory, but no model: it fills the slot of each token
with bytes that depend on all tokens before. So the slots of a request show whether they were computed or loaded, and from where.
"""

import hashlib
import json
import os
import pathlib
import sys
import tempfile
import time
from collections import Counter

BLOCK_TOKENS, PAGES, LAYERS = 16, 40, ["layers.0", "layers.1", "layers.2"]
HEADS, HEAD = 2, 16


def configuration(folder):
    """Returns vLLM's configurations, with a model of which only the numbers are used."""
    import torch
    from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    model = folder / "model"
    model.mkdir(exist_ok=True)
    numbers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 1000}
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", **numbers}))
    connector = {"kv_connector": "GpufileConnector", "kv_connector_module_path": "vllm_kv_connector", "kv_role": "kv_both"}
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), skip_tokenizer_init=True, dtype="float16", max_model_len=512),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=512, max_model_len=512, is_encoder_decoder=False,
            disable_hybrid_kv_cache_manager=True, async_scheduling=False,
        ),  # fmt: skip
        cache_config=CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=True),
        kv_transfer_config=KVTransferConfig(
            **connector, kv_load_failure_policy="recompute", kv_connector_extra_config={"folder": str(folder / "kv"), "limit_bytes": 1 << 24}
        ),
        device_config=DeviceConfig("cpu"),
    )
    # The engine resolves it before there are connectors.
    config.cache_config.kv_cache_layout, config.cache_config.num_gpu_blocks = "LBNHC", PAGES
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=HEADS, head_size=HEAD, dtype=torch.float16)
    return config, KVCacheConfig(num_blocks=PAGES, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(LAYERS, spec)])


def caches(spec, way):
    """Returns the memory of each layer by its pages: for itself, in another order of the axes, or one for all, by the page."""
    import torch

    states = spec.page_size_bytes // BLOCK_TOKENS // HEADS // 2
    shape = (PAGES, HEADS, BLOCK_TOKENS, states)
    if way == "layers":
        return {name: torch.zeros(shape, dtype=torch.float16) for name in LAYERS}
    if way == "permuted":
        physical = (PAGES, BLOCK_TOKENS, HEADS, states)
        return {name: torch.zeros(physical, dtype=torch.float16).transpose(1, 2) for name in LAYERS}
    every = torch.zeros(PAGES, len(LAYERS), *shape[1:], dtype=torch.float16)
    return {name: every[:, number] for number, name in enumerate(LAYERS)}


class Worker:
    """The runner of a model, without the model."""

    def __init__(self, config, cache_config, way):
        from vllm.distributed import kv_transfer

        kv_transfer.ensure_kv_transfer_initialized(config, cache_config)
        self.config, self.connector = config, kv_transfer.get_kv_transfer_group()
        self.caches = caches(cache_config.kv_cache_groups[0].kv_cache_spec, way)
        self.connector.register_kv_caches(self.caches)
        self.tokens, self.pages, self.computed = {}, {}, Counter()

    def slot(self, request, position):
        """Returns the memory of a token in all layers."""
        page = self.pages[request][position // BLOCK_TOKENS]
        return [cache[page, :, position % BLOCK_TOKENS] for cache in self.caches.values()]

    def value(self, request, position, layer):
        """Returns the number that all bytes of a token's slot come from."""
        text = repr((self.tokens[request][: position + 1], layer)).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:2], "little") % 2048 + 1

    def check(self, request, tokens):
        """Compares the slots of the first tokens of a request."""
        for position in range(tokens):
            for layer, slot in enumerate(self.slot(request, position)):
                assert (slot == self.value(request, position, layer)).all(), (request, position, layer)

    def run(self, step):
        """Carries out a step of the scheduler. Each request gets a token that its tokens decide on."""
        from vllm.forward_context import set_forward_context
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin as Mixin

        if not step.total_num_scheduled_tokens:
            return Mixin.kv_connector_no_forward(step, self.config)
        with set_forward_context(None, self.config), Mixin.maybe_get_kv_connector_output(step) as output:
            starts = {}
            for new in step.scheduled_new_reqs:
                self.tokens[new.req_id], self.pages[new.req_id] = list(new.prompt_token_ids), list(new.block_ids[0])
                starts[new.req_id] = new.num_computed_tokens
            cached = step.scheduled_cached_reqs
            for request, pages, start in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
                if pages is not None:
                    self.pages[request] = (list(pages[0]) if request in cached.resumed_req_ids else self.pages[request] + list(pages[0]))
                starts[request] = start
            sampled = {}
            for request, count in step.num_scheduled_tokens.items():
                for position in range(starts[request], starts[request] + count):
                    self.computed[request] += 1
                    for layer, slot in enumerate(self.slot(request, position)):
                        slot[:] = self.value(request, position, layer)
                if starts[request] + count == len(self.tokens[request]):
                    # Also what was loaded, and what this step computes for another request.
                    self.check(request, starts[request] + count)
                    sampled[request] = self.value(request, len(self.tokens[request]) - 1, "next") % 900
                    self.tokens[request].append(sampled[request])
        ids = list(step.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request: number for number, request in enumerate(ids)},
            sampled_token_ids=[[sampled[request]] if request in sampled else [] for request in ids],
            kv_connector_output=output,
        )


class Server:
    """A scheduler and a worker, as in a process of vLLM."""

    def __init__(self, folder, way):
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.structured_output import StructuredOutputManager

        self.config, self.cache_config = configuration(folder)
        self.worker = Worker(self.config, self.cache_config, way)
        manager = StructuredOutputManager(self.config)
        self.scheduler = Scheduler(self.config, self.cache_config, manager, BLOCK_TOKENS)

    def serve(self, prompts, max_tokens=20):
        """Serves requests until all have finished, and their blocks are stored. Returns the tokens of each."""
        from vllm import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        init_none_hash(sha256)
        for name, tokens in prompts.items():
            parameters = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
            self.scheduler.add_request(Request(name, tokens, parameters, None, block_hasher=hasher))
        end = time.monotonic() + 60
        while self.scheduler.requests:
            assert time.monotonic() < end, self.scheduler.requests
            step = self.scheduler.schedule()
            self.scheduler.update_from_output(step, self.worker.run(step))
        return {name: self.worker.tokens[name] for name in prompts}

    def close(self):
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

        ensure_kv_transfer_shutdown()
        self.scheduler.connector.shutdown()


def main():
    if len(sys.argv) != 2 or not (pathlib.Path(sys.argv[1]) / "vllm/v1").is_dir():
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.path[:0] = [sys.argv[1], str(pathlib.Path(__file__).parents[1] / "examples")]
    # vLLM looks at models in other processes.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.argv[1], os.environ.get("PYTHONPATH")]))
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    import vllm.config
    from vllm import distributed

    from gpufile.kv_blocks import BlockStore

    with tempfile.TemporaryDirectory() as folder, vllm.config.set_current_vllm_config(vllm.config.VllmConfig()):
        distributed.init_distributed_environment(1, 0, f"file://{folder}/group", 0, "gloo")
        distributed.initialize_model_parallel(1, backend="gloo")
    prompts = {"a": list(range(100)), "b": list(range(50)) + list(range(900, 950)), "c": [7] * 40, "short": [1, 2, 3]}
    for way in ("layers", "permuted", "one"):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            first = Server(folder, way)
            expected = first.serve(prompts)
            computed = dict(first.worker.computed)
            first.close()
            # Another process of vLLM has an empty cache, and loads whole blocks, except that of the last token.
            second = Server(folder, way)
            assert second.serve(prompts) == expected
            loaded = {name: computed[name] - second.worker.computed[name] for name in prompts}
            assert loaded["a"] == 96 and loaded["b"] >= 48 and loaded["c"] == 32 and loaded["short"] == 0, loaded
            second.close()
            # Answers are stored, too, and tokens after another prefix are others.
            third = Server(folder, way)
            third.serve({"longer": expected["a"] + [5], "other": [1] + prompts["a"][1:]}, 2)
            assert third.worker.computed == {"longer": 121 - 112 + 1, "other": 101}, third.worker.computed
            third.close()
            # vLLM computes what the store has lost since the scheduler read its keys.
            fourth = Server(folder, way)
            fourth.scheduler.connector._read_keys()
            keys = fourth.worker.connector._store.keys()
            fourth.worker.connector._store.remove(keys)
            assert fourth.serve(prompts) == expected
            # Of requests with the same first tokens, any computes them.
            assert sum(fourth.worker.computed.values()) == sum(computed.values()), fourth.worker.computed
            print(f"{way}: {sum(loaded.values())} of {sum(computed.values())} tokens loaded; {len(keys)} blocks lost and computed")
            fourth.close()
            page_bytes = fourth.cache_config.kv_cache_groups[0].kv_cache_spec.page_size_bytes
            with BlockStore(folder / "kv/0", len(LAYERS) * page_bytes, limit_bytes=1 << 24) as store:
                # The blocks of all prompts and answers, which were stored again: 7, 4, 3 and 1.
                assert store.recovery == {"whole": 15, "damaged": 0, "unsynced": 0}, store.recovery
    distributed.destroy_model_parallel()
    distributed.destroy_distributed_environment()
    print("passed")


if __name__ == "__main__":
    main()
