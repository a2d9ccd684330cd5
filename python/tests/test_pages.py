"""The blocks of Python and TOML in the pages of the repository."""

import json
import pathlib
import struct
import sys
import tomllib
import types

import pytest

import gpufile.safetensors

REPOSITORY = pathlib.Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("*/*.md")]


def blocks(language):
    """Returns each block in a language. Its name is the page and the line where it starts."""
    for page in sorted(set(PAGES)):
        block = None
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if block is None and line == f"```{language}":
                block, name = [], f"{page.relative_to(REPOSITORY)}:{number}"
            elif block is not None and line == "```":
                yield pytest.param("\n".join(block), id=name)
                block = None
            elif block is not None:
                block.append(line)


@pytest.fixture
def prepared(tmp_path, monkeypatch, server):
    """Makes the files that the blocks name, also on a server, and returns the names that the pages leave to their readers."""
    torch = pytest.importorskip("torch")
    from gpufile.safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    pathlib.Path("model.bin").write_bytes(bytes(range(256)) * 16)
    pathlib.Path("table.bin").write_bytes(bytes(80 * 4096))
    weights = {"embedding": torch.arange(4096.0).reshape(2048, 2)}
    weights |= {f"layers.0.{name}_proj.weight": torch.rand(2048, 2048) for name in "qo"}
    save_file(weights, "model.safetensors")
    pathlib.Path("Llama-3.1-8B").mkdir()
    layers = {f"layers.0.{name}_proj.weight": torch.rand(4, 6) for name in ("q", "o", "up", "k")}
    save_file(layers, "Llama-3.1-8B/model.safetensors")
    text = lambda value: struct.pack("<Q", len(value)) + value
    pathlib.Path("llama.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(b"general.architecture") + b"\x08\0\0\0" + text(b"llama"))
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }".ljust(117) + b"\n"
    pathlib.Path("array.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + bytes(12))
    server.files["/model.bin"] = pathlib.Path("model.bin").read_bytes() * 2
    server.files["/llama/model.safetensors"] = pathlib.Path("Llama-3.1-8B/model.safetensors").read_bytes()
    index = {"weight_map": dict.fromkeys(layers, "model.safetensors")}
    server.files["/llama/model.safetensors.index.json"] = json.dumps(index).encode()
    server.files["/bucket/llama/model.safetensors"] = server.files["/llama/model.safetensors"]

    # The cache of the Hub.
    monkeypatch.setattr("gpufile.safetensors._hub.local_path", lambda address: address.rpartition("/")[2])
    # The server takes objects, too.
    account = {"ENDPOINT_URL": server.url, "ALLOW_HTTP": "true", "ACCESS_KEY_ID": "KEY", "SECRET_ACCESS_KEY": "hidden"}
    for name, value in account.items():
        monkeypatch.setenv(f"AWS_{name}", value)

    class Model:
        @classmethod
        def from_pretrained(cls, path, *, config, state_dict, device_map):
            assert path is None and sorted(state_dict) == sorted(layers)

    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(LlamaForCausalLM=Model))
    model = torch.nn.Linear(3, 2)
    # What the pages share from a GPU is on the host here.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    strategy = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    yield {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters()),
        "state_dict": model.state_dict(),
        "train": lambda model: None,
        "config": None,
        "folder": "Llama-3.1-8B",
        "serve": lambda weights: None,
    }
    torch.multiprocessing.set_sharing_strategy(strategy)
    gpufile.safetensors.uninstall()


@pytest.mark.parametrize("block", [*blocks("python")])
def test_blocks_of_python_run(gpu, prepared, server, block):
    block = block.replace("https://example.org", server.url)
    # torch has no GPU here.
    for device in ("cuda:0", "cuda:1", "cuda"):
        block = block.replace(f'"{device}"', '"cpu"')
    try:
        exec(compile(block.replace("1 << 30", "1 << 12"), "block", "exec"), prepared)
    except ImportError as error:
        if "need a newer torch" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("block", [*blocks("toml")])
def test_blocks_of_toml_are_valid(block):
    assert tomllib.loads(block)


def test_blocks_are_found():
    assert len(list(blocks("python"))) >= 9
