"""A program that calls every public function of safetensors: `safetensors_outcomes.py theirs|ours|installed GROUP FOLDER`.

It prints a line of JSON with the outcome of each row: the type of the exception, or what was returned, with the storage of each
tensor; and the files that the row left in its folder. The rows take the functions from safetensors (`theirs`), from gpufile by
its own name (`ours`), or from safetensors after `install` (`installed`).
"""

import copy
import hashlib
import importlib
import io
import json
import os
import pathlib
import pickle
import sys

import torch

ROWS = {"base": {}, "dependents": {}}


def row(function):
    ROWS["base"][function.__name__] = function
    return function


def dependent(function):
    ROWS["dependents"][function.__name__] = function
    return function


def rows(**cases):
    """Adds a row for each case, with its name behind that of the function."""

    def add(function):
        for name, case in cases.items():
            ROWS["base"][f"{function.__name__}-{name}"] = lambda api, at, case=case: function(api, at, case)
        return function

    return add


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def described(value):
    """Returns what two libraries must have in common in a result, as JSON has it."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        bits = digest(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        own = value.data_ptr() == storage.data_ptr() or not value.numel()
        return [str(value.dtype), list(value.shape), list(value.stride()), storage.nbytes(), own, value.requires_grad, bits]
    if hasattr(value, "__array_interface__"):
        return [value.dtype.str, list(value.shape), value.flags.c_contiguous, value.flags.writeable, digest(value.tobytes())]
    if isinstance(value, dict):
        found = {str(name): described(one) for name, one in sorted(value.items(), key=str)}
        tensors = [one for one in value.values() if isinstance(one, torch.Tensor) and one.numel()]
        return {"items": found, "storages": len({one.untyped_storage().data_ptr() for one in tensors})}
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__, len(value), digest(value)]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(described, value)]
    if isinstance(value, set):
        return ["set", *sorted(map(str, value))]
    return value if isinstance(value, (str, int, float, type(None))) else type(value).__name__


class Api:
    """The modules of a library."""

    def __init__(self, name):
        self.base = importlib.import_module(name)
        self.torch, self.numpy = (importlib.import_module(f"{name}.{part}") for part in ("torch", "numpy"))


def tensors():
    made = {f"w{number}": torch.arange(100.0 * number, 100.0 * number + 100).reshape(10, 10) for number in range(6)}
    types = [torch.bool, torch.uint8, torch.int16, torch.uint16, torch.float16, torch.bfloat16, torch.float64]
    types += [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]
    made |= {str(dtype): torch.ones(3, 5).to(dtype) for dtype in types}
    return made | {"none": torch.ones(0, 3), "scalar": torch.tensor(7), "odd": torch.ones(3, dtype=torch.uint8)}


def written(at):
    """Returns the path of a file that gpufile and safetensors did not write just now."""
    path = at / "model.safetensors"
    header = {"__metadata__": {"format": "pt", "a": "b"}}
    end, parts = 0, []
    codes = {torch.float32: "F32", torch.bool: "BOOL", torch.uint8: "U8", torch.int16: "I16", torch.uint16: "U16"}
    codes |= {torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64", torch.complex64: "C64", torch.int64: "I64"}
    codes |= {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}
    for name, tensor in sorted(tensors().items(), key=lambda item: (-item[1].element_size(), item[0])):
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": codes[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [end, end + len(data)]}
        end += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
    return path


def odd_tensors():
    base = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "plain": lambda: {"x": base.clone(), "y": torch.ones(2)},
        "types": tensors,
        "empty": lambda: {},
        "transposed": lambda: {"x": base[0].t()},
        "permuted": lambda: {"x": base.permute(1, 0, 2)},
        "step": lambda: {"x": base[:, ::2]},
        "channels": lambda: {"x": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)},
        "expanded": lambda: {"x": torch.ones(3).expand(2, 3)},
        "part": lambda: {"x": base[1]},
        "shared": lambda: {"x": base, "y": base},
        "views": lambda: {"x": base, "y": base[0]},
        "parts": lambda: {"x": base[0], "y": base[1]},
        "conj": lambda: {"x": torch.tensor([1 + 2j, 3 + 4j], dtype=torch.complex64).conj()},
        "grad": lambda: {"x": torch.nn.Parameter(torch.ones(2))},
        "sparse": lambda: {"x": torch.eye(3).to_sparse()},
        "meta": lambda: {"x": torch.ones(3, device="meta")},
        "complex128": lambda: {"x": torch.ones(3, dtype=torch.complex128)},
        "list": lambda: [torch.ones(2)],
        "number": lambda: {"x": 5},
        "none": lambda: {"x": None},
        "key": lambda: {3: torch.ones(2)},
        "__metadata__": lambda: {"__metadata__": torch.ones(2)},
    }


@rows(**odd_tensors())
def torch_save_file(api, at, case):
    return api.torch.save_file(case(), at / "x.safetensors", {"format": "pt"})


@rows(**odd_tensors())
def torch_save(api, at, case):
    return api.torch.save(case())


@rows(number={"epoch": 3}, text={"epoch": "3"}, key={3: "x"}, list=["x"], empty={}, none=None)
def torch_save_metadata(api, at, case):
    return api.torch.save_file({"x": torch.ones(2)}, at / "x.safetensors", case)


def odd_arrays():
    import numpy as np

    cube = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    return {
        "plain": lambda: {"x": cube, "y": np.ones(2)},
        "fortran": lambda: {"x": np.asfortranarray(cube)},
        "transposed": lambda: {"x": cube.T},
        "reversed": lambda: {"x": cube[::-1]},
        "step": lambda: {"x": cube[:, ::2]},
        "broadcast": lambda: {"x": np.broadcast_to(np.int8(1), (3, 3))},
        "big-endian": lambda: {"x": cube.astype(">i4")},
        "shared": lambda: {"x": cube, "y": cube},
        "scalar": lambda: {"x": np.array(3.0)},
        "none": lambda: {"x": np.ones((0, 3))},
        "dates": lambda: {"x": np.zeros(2, "M8[s]")},
        "objects": lambda: {"x": np.array([{}])},
    }


@rows(**odd_arrays())
def numpy_save_file(api, at, case):
    return api.numpy.save_file(case(), at / "x.safetensors")


@rows(**odd_arrays())
def numpy_save(api, at, case):
    return api.numpy.load(api.numpy.save(case()))


@rows(missing="missing/x.safetensors", folder=".", under_a_file="file/x.safetensors", null="x\0y", empty="")
def save_where_no_file_can_be(api, at, case):
    (at / "file").write_text("")
    return api.torch.save_file({"x": torch.ones(2)}, str(at / case) if case else "")


@rows(missing="missing", folder=".", empty="empty", text="text", short="short", long="long", header="header")
def load_what_is_no_model(api, at, case):
    whole = written(at).read_bytes()
    (at / "empty").write_bytes(b"")
    (at / "text").write_text("not a model, but a text of some length")
    (at / "short").write_bytes(whole[:-1])
    (at / "long").write_bytes(whole + b"x")
    (at / "header").write_bytes((1 << 60).to_bytes(8, "little") + whole[8:])
    return api.torch.load_file(at / case)


@rows(short=slice(0, -1), long=slice(0, None), empty=slice(0, 0), head=slice(0, 8))
def load_bytes(api, at, case):
    return api.torch.load((written(at).read_bytes() + b"x")[case])


@rows(torch="torch", numpy="numpy")
def load_file(api, at, case):
    path = written(at)
    if case == "numpy":
        safe = {name: tensor.numpy() for name, tensor in tensors().items() if name.startswith("w")}
        api.numpy.save_file(safe, path)
    return getattr(api, case).load_file(path)


@row
def load(api, at):
    return api.torch.load(written(at).read_bytes())


@rows(device="nonsense", number=17 << 20)
def load_to_no_device(api, at, case):
    return api.torch.load_file(written(at), case)


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.other = (torch.nn.Linear(4, 4) for _ in range(3))
        self.second.weight = self.first.weight


@row
def save_and_load_model(api, at):
    api.torch.save_model(Tied(), at / "x.safetensors")
    model = Tied()
    outcome = api.torch.load_model(model, at / "x.safetensors")
    return [outcome, dict(model.state_dict())]


@rows(strict=True, lenient=False)
def load_model_of_others(api, at, case):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(3, 3))
    api.torch.save_file({"0.weight": torch.ones(4, 4), "9.bias": torch.ones(2)}, at / "x.safetensors")
    missing, unexpected = api.torch.load_model(model, at / "x.safetensors", strict=case)
    return [sorted(missing), sorted(unexpected)]


@row
def load_model_of_another_shape(api, at):
    api.torch.save_file({"weight": torch.ones(2, 2), "bias": torch.ones(4)}, at / "x.safetensors")
    return api.torch.load_model(torch.nn.Linear(4, 4), at / "x.safetensors")


@rows(
    keys=lambda model: model.keys(),
    offset_keys=lambda model: model.offset_keys(),
    metadata=lambda model: model.metadata(),
    get_tensor=lambda model: {name: model.get_tensor(name) for name in model.keys()},
    get_tensors=lambda model: model.get_tensors(),
    missing=lambda model: model.get_tensor("missing"),
    missing_slice=lambda model: model.get_slice("missing"),
    rows_=lambda model: model.get_slice("w2")[2:5],
    columns=lambda model: model.get_slice("w2")[:, 2:5],
    negative=lambda model: model.get_slice("w2")[-3:, -1:],
    element=lambda model: model.get_slice("w2")[3],
    dots=lambda model: model.get_slice("w2")[...],
    beyond=lambda model: model.get_slice("w2")[11],
    shape=lambda model: [model.get_slice("w2").get_shape(), model.get_slice("w2").get_dtype()],
    number=lambda model: model.get_tensor(5),
)
def opened(api, at, case):
    with api.base.safe_open(written(at), "pt") as model:
        return case(model)


@row
def opened_and_closed(api, at):
    with api.base.safe_open(written(at), "pt") as model:
        pass
    return model.keys()


@rows(framework={"framework": "nonsense"}, device={"framework": "pt", "device": "nonsense"}, none={})
def open_with_wrong_options(api, at, case):
    return api.base.safe_open(written(at), **case).keys()


@row
def deserialize(api, at):
    return [[name, dict(content)] for name, content in sorted(api.base.deserialize(written(at).read_bytes()))]


@rows(plain={}, dtype={"dtype": "float99"}, length={"data_len": 5}, none={"data_len": 0})
def serialize(api, at, case):
    data = torch.arange(6, dtype=torch.float32)
    fields = {"dtype": "float32", "shape": [2, 3], "data_ptr": data.data_ptr(), "data_len": 24} | case
    if hasattr(api.base, "TensorSpec"):
        tensors = {"x": api.base.TensorSpec(**fields)}
    else:
        tensors = {"x": {"dtype": fields["dtype"], "shape": [2, 3], "data": bytes(24)}}
    api.base.serialize_file(tensors, at / "x.safetensors", {"a": "b"})
    return api.base.serialize(tensors)


@rows(load_file=lambda api, path: api.torch.load_file(path), load=lambda api, path: api.torch.load(path.read_bytes()))
def what_follows(api, at, case):
    loaded, found = case(api, written(at)), {}
    for name in ("w2", "scalar", "torch.float8_e4m3fn"):
        stream = io.BytesIO()
        torch.save(loaded[name], stream)
        found[name] = [stream.tell() // 256, copy.deepcopy(loaded[name]), len(pickle.dumps(loaded[name])) // 256]
    loaded["w1"].add_(1)
    return [found, {name: tensor._version for name, tensor in loaded.items()}, api.torch.save(loaded), loaded["w3"].share_memory_()]


def flat_model():
    """Returns a module whose parameters are parts of one allocation."""
    model, end, memory = layers(), 0, torch.arange(10_000.0)
    for parameter in model.parameters():
        parameter.data = memory[end : end + parameter.numel()].view_as(parameter)
        end += parameter.numel()
    return model


@rows(save=True, load=False)
def parts_of_one_allocation(api, at, case):
    if case:
        return api.torch.save_model(flat_model(), at / "x.safetensors")
    api.torch.save_model(layers(), at / "x.safetensors")
    return api.torch.load_model(flat_model(), at / "x.safetensors")


@row
def a_loaded_model_is_saved_again(api, at):
    model = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
    api.torch.save_model(model, at / "x.safetensors")
    model.load_state_dict(api.torch.load_file(at / "x.safetensors"), assign=True)
    return api.torch.save_model(model, at / "y.safetensors")


@row
def a_folder_keeps_what_a_save_did_not_name(api, at):
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"):
        (at / name).write_text("kept")
    return api.torch.save_file({"x": torch.ones(2)}, at / "model.safetensors")


def layers():
    return torch.nn.ModuleDict({f"l{number}": torch.nn.Linear(16, 16) for number in range(6)})


@dependent
def accelerate_saves_a_loaded_model(api, at):
    from accelerate import Accelerator

    torch.manual_seed(1)
    api.torch.save_model(layers(), at / "x.safetensors")
    model = layers()
    model.load_state_dict(api.torch.load_file(at / "x.safetensors"), assign=True)
    Accelerator(cpu=True).save_model(model, at / "saved", max_shard_size="3KB")


@dependent
def huggingface_hub_saves_loaded_tensors(api, at):
    from huggingface_hub import save_torch_state_dict, split_torch_state_dict_into_shards

    loaded = api.torch.load_file(written(at))
    save_torch_state_dict({name: loaded[name] for name in loaded if name.startswith("w")}, at, max_shard_size=900)
    split = split_torch_state_dict_into_shards(loaded, max_shard_size=900)
    return [split.is_sharded, dict(sorted(split.tensor_to_filename.items()))]


@dependent
def transformers_saves_loaded_tensors(api, at):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes))
    model.save_pretrained(at / "first")
    model.load_state_dict(api.torch.load_file(at / "first" / "model.safetensors"), assign=True)
    model.save_pretrained(at / "second", max_shard_size="9KB")


def outcome(act, api, at):
    at.mkdir()
    try:
        made = {"returned": described(act(api, at))}
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        made = {"raised": kinds, "text": str(error)[:200]}
    files = sorted(path for path in at.rglob("*") if path.is_file())
    made["files"] = {str(path.relative_to(at)): digest(path.read_bytes()) for path in files}
    return made


def main(mode, group, folder):
    api = Api("gpufile.safetensors" if mode == "ours" else "safetensors")
    if mode == "installed":
        importlib.import_module("gpufile.safetensors").install()
    os.makedirs(folder)
    found = {name: outcome(act, api, pathlib.Path(folder) / name) for name, act in ROWS[group].items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
