"""``help()`` of everything public says something, and shows the arguments with their types."""

import ast
import importlib
import inspect
import pathlib
import re
import typing

import pytest

pytest.importorskip("numpy")

from gpufile import _gpufile

MODULES = [
    "gpufile",
    *(f"gpufile.safetensors{name}" for name in ("", ".numpy", ".torch", ".flax")),
    *(f"gpufile.kvikio{name}" for name in ("", ".buffer", ".cufile", ".cufile_driver", ".defaults", ".mmap", ".numpy")),
    *(f"gpufile.kvikio{name}" for name in (".page_cache", ".remote_file", ".statistics", ".stream", ".utils", ".zarr")),
    "gpufile.gguf",
    "gpufile.kv_blocks",
    "gpufile.npy",
    "gpufile.sglang",
    "gpufile.torch",
    "gpufile.vllm",
]  # fmt: skip


def is_public(name):
    return not name.startswith("_")


def members_of(where, value):
    """Yields the public functions, classes, methods and properties, each with its place."""
    if inspect.isclass(value):
        yield where, value
        for name, member in vars(value).items():
            if is_public(name):
                yield from members_of(f"{where}.{name}", getattr(member, "__func__", member))
    elif inspect.isroutine(value) or inspect.isdatadescriptor(value):
        yield where, value


def module_or_skip(name):
    try:
        module = importlib.import_module(name)
        assert all(hasattr(module, public) for public in getattr(module, "__all__", ()))
        return module
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
    except ImportError as error:
        if "need a newer torch" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_help(name):
    module = module_or_skip(name)
    assert module.__doc__
    found = 0
    for public in getattr(module, "__all__", filter(is_public, vars(module))):
        value = getattr(module, public)
        if not getattr(value, "__module__", "").startswith("gpufile"):
            continue
        for where, member in members_of(f"{name}.{public}", value):
            assert inspect.getdoc(member), where
            if inspect.isroutine(member):
                assert inspect.signature(member) is not None, where
            found += 1
    assert found


@pytest.mark.parametrize("name", MODULES)
def test_dir_shows_only_public_names(name):
    module = module_or_skip(name)
    assert sorted(dir(module)) == sorted(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)


def documented(body, owner):
    """Yields the public classes and functions of a stub, each with the object that it describes."""
    for node in body:
        is_public_node = is_public(getattr(node, "name", "_"))
        is_of_stub = any(getattr(each, "id", "") == "type_check_only" for each in getattr(node, "decorator_list", []))
        if is_public_node and not is_of_stub:
            yield node, getattr(owner, node.name)
            if isinstance(node, ast.ClassDef):
                yield from documented(node.body, getattr(owner, node.name))


def test_stubs_have_the_docs_of_the_module():
    stubs = ast.parse(pathlib.Path(_gpufile.__file__).with_name("_gpufile.pyi").read_text())
    found = 0
    for node, described in documented(stubs.body, _gpufile):
        text = ast.get_docstring(node)
        assert text and "\n" not in text, node.name
        assert " ".join(described.__doc__.split()).startswith(text.removesuffix(".")), node.name
        found += 1
    assert found > 100


#: Classes whose objects programs do not keep, or make themselves.
WITHOUT_REPR = {"ConfigContextManager", "DriverProperties", "FileLike", "LikeWrapper", "LocalHttpServer"}


@pytest.mark.parametrize("name", MODULES)
def test_public_types_have_their_own_repr(name):
    module = module_or_skip(name)
    types = [value for public in module.__all__ if inspect.isclass(value := getattr(module, public))]
    bare = {kind.__name__ for kind in types if kind.__repr__ is object.__repr__}
    assert bare <= WITHOUT_REPR


def annotations_of(function):
    """Yields the arguments and the result of a function, each with the text of its type."""
    for form in typing.get_overloads(function) or [function]:
        signature = inspect.signature(form)
        for parameter in signature.parameters.values():
            yield parameter.name, str(parameter.annotation)
        yield "return", str(signature.return_annotation)


def untyped_in(name):
    """Returns the places of ``Any`` in the public functions and methods of a module."""
    module, found = module_or_skip(name), set()
    for public in module.__all__:
        value = getattr(module, public)
        if not getattr(value, "__module__", "").startswith("gpufile"):
            continue
        members = list(members_of(public, value))
        if inspect.isclass(value):
            members += [(f"{public}.{key}", member) for key, member in vars(value).items() if key[:2] == "__"]
        for where, member in members:
            function = getattr(member, "fget", member)
            if inspect.isfunction(function):
                found |= {f"{where} {key}" for key, text in annotations_of(function) if re.search(r"\bAny\b", text)}
    return found


#: The places of ``Any``, by the reason for it.
UNTYPED = {
    "the framework decides on the types of tensors and of its indices": {
        "gpufile.safetensors": {
            "LazyModel.__init__ dtype", "load_file dtype", "load_model dtype", "LazyModel.__getitem__ return", "PrefetchLoader.__init__ framework", "PrefetchLoader.__iter__ return",
            "PrefetchLoader.take return", "SafeSlice.__getitem__ index", "SafeSlice.__getitem__ return",
            "SafeSlice.__init__ framework", "load_file return", "load_model return", "safe_open.__getitem__ return",
            "safe_open.__iter__ return", "safe_open.get_tensor return", "safe_open.get_tensors return",
            "safe_open.items return", "safe_open.iter_tensors return", "save_file tensors",
        },
        "gpufile.gguf": {"load_file dtype", "load_file return"},
        "gpufile.npy": {"load return"},
        "gpufile.kvikio.numpy": {
            "LikeWrapper.__init__ like", "fromfile dtype", "fromfile file", "fromfile like", "fromfile return", "tofile ary",
            "tofile file", *(f"LikeWrapper.__array_function__ {key}" for key in ("func", "types", "args", "kwargs", "return")),
        },
    },
    "the file decides on the shape and the type of an array": {
        "gpufile.safetensors.numpy": {"load return", "load_file return", "save tensor_dict", "save_file tensor_dict"},
    },
    "numpy decides on what stands for a type": {
        "gpufile.safetensors.flax": {"load_file dtype"},
        "gpufile.safetensors.numpy": {"load_file dtype"},
    },
    "the package safetensors has it": {"gpufile.safetensors": {"deserialize return"}},
    "torch has it": {
        "gpufile.torch": {
            "StorageReader.__init__ _extension_registry", "StorageReader.read_data return", "StorageWriter.__init__ _extensions",
            "StorageWriter.stage return", "StorageWriter.stage state_dict", "StorageWriter.write_data return",
        },
    },
    "the file decides on the values": {"gpufile.gguf": {"metadata return"}},
    "asyncio and concurrent.futures have it": {
        "gpufile": {"Future.__await__ return", "Future.__getattr__ return"},
        "gpufile.kvikio": {"IOFuture.__await__ return"},
        "gpufile.kvikio.cufile": {"IOFuture.__await__ return"},
    },
    "a program's own state": {"gpufile.torch": {"Saver.save tensors", "load_state return"}},
    "the name decides on the type of the value": {
        "gpufile.kvikio.defaults": {"ConfigContextManager.__init__ config", "get return", "set config", "set value"},
        "gpufile.kvikio.utils": {"LocalHttpServer.__init__ handler_options"},
        "gpufile.kvikio.zarr": {"GDSStore.at_url options"},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_any_has_a_reason(name):
    expected = [places.get(name, set()) for places in UNTYPED.values()]
    assert untyped_in(name) == set().union(*expected)


def test_any_in_the_stubs_has_a_reason():
    stubs = ast.parse(pathlib.Path(_gpufile.__file__).with_name("_gpufile.pyi").read_text())
    functions = [node for node in ast.walk(stubs) if isinstance(node, ast.FunctionDef)]
    # The values of a file, the streams of other libraries, and what the package safetensors returns.
    untyped = ["open_gguf", "__dlpack__", "contents"]
    assert [node.name for node in functions if re.search(r"\bAny\b", ast.unparse(node))] == untyped
