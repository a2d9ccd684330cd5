"""``help()`` of everything public says something, and shows the arguments."""

import importlib
import inspect

import pytest

pytest.importorskip("numpy")

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


@pytest.mark.parametrize("name", MODULES)
def test_everything_public_has_help(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
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
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
    assert sorted(dir(module)) == sorted(module.__all__)
    assert all(hasattr(module, public) for public in module.__all__)
