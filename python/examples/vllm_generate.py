"""Generates text with a model that vLLM loads by gpufile.

    python vllm_generate.py MODEL [PROMPT]

`vllm serve MODEL --load-format gpufile` does the same for a server.
"""

import sys

from vllm import LLM

if __name__ == "__main__":
    prompt = sys.argv[2] if len(sys.argv) > 2 else "The fastest way from a file to a GPU is"
    model = LLM(model=sys.argv[1], load_format="gpufile", model_loader_extra_config={"memory_budget": 2 << 30})
    print(model.generate([prompt])[0].outputs[0].text)
