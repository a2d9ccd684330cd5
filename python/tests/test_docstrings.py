"""``help()`` of everything public says something, and shows the arguments."""

import ast
import importlib
import inspect
import pathlib

import pytest

pytest.importorskip("numpy")

from gpufile import _gpufile

MODULES = [
    "gpufile",
    *(f"gpufile.safetensors{name}" for name in ("", ".numpy", ".torch", ".flax")),
    *(f"gpufile.kvikio{name}" for name in ("", ".buffer", ".cufile", ".cufile_driver", ".defaults", ".mmap", ".numpy")),
    *(f"gpufile.kvikio{name}" for name in (".page_cache", ".remote_file", ".statistics", ".stream", ".utils", ".zarr")),
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
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")


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
