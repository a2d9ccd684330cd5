"""What every public function of safetensors does, and what others then do with the results, is the same with gpufile."""

import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

for package in ("numpy", "safetensors", "torch"):
    pytest.importorskip(package)

HERE = pathlib.Path(__file__).parent
PROGRAM = HERE / "safetensors_outcomes.py"
#: The only rows that differ, by the start of their names, and the line of README.md that says so.
DIFFERENCES = {
    "torch_save_file-conj": "Conjugated tensors, and arrays of any stride, are saved by their values",
    "torch_save-conj": "Conjugated tensors, and arrays of any stride, are saved by their values",
    "numpy_save": "Conjugated tensors, and arrays of any stride, are saved by their values",
    "torch_save_file-__metadata__": "A tensor cannot be called `__metadata__`",
    "torch_save-__metadata__": "A tensor cannot be called `__metadata__`",
    "torch_save_metadata-empty": "Empty metadata are no metadata",
    "parts_of_one_allocation": "`save_model` and `load_model` accept a module whose tensors are parts of one allocation",
    "save_where_no_file_can_be": "A save that fails raises an `OSError`",
    "load_what_is_no_model-folder": "A path may be a folder",
}


def program():
    """Returns the module of the program."""
    spec = importlib.util.spec_from_file_location(PROGRAM.stem, PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def outcomes(mode, group):
    """Returns the outcome of each row in a process of its own."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        arguments = [sys.executable, PROGRAM, mode, group, os.path.join(folder, "rows")]
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def is_same(theirs, ours):
    """Returns whether a program that expects the outcome of safetensors finds it."""
    if theirs.get("raised", [None])[0] not in ours.get("raised", [None]):
        return False
    return all(theirs.get(field) == ours.get(field) for field in ("returned", "files"))


def check(group, mode):
    theirs, ours = outcomes("theirs", group), outcomes(mode, group)
    assert theirs.keys() == ours.keys()
    differ = {name for name in theirs if not is_same(theirs[name], ours[name])}
    known = {name for name in differ if any(name.startswith(start) for start in DIFFERENCES)}
    assert differ == known, json.dumps({name: [theirs[name], ours[name]] for name in sorted(differ - known)}, indent=1)
    return differ


@pytest.mark.parametrize("mode", ["ours", "installed"])
def test_functions_have_the_outcomes_of_safetensors(mode):
    differ = check("base", mode)
    # A line that no row needs is no difference.
    assert all(any(name.startswith(start) for name in differ) for start in DIFFERENCES)


@pytest.mark.parametrize("mode", ["ours", "installed"])
def test_packages_do_the_same_with_the_results(mode):
    for package in ("accelerate", "huggingface_hub", "transformers"):
        pytest.importorskip(package)
    assert not check("dependents", mode)


def test_each_function_of_safetensors_has_a_row():
    text = PROGRAM.read_text()
    import safetensors
    import safetensors.numpy
    import safetensors.torch

    public = {f"api.base.{name}" for name in ("safe_open", "deserialize", "serialize", "serialize_file")}
    for part in ("torch", "numpy"):
        module = getattr(safetensors, part)
        functions = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        public |= {f"api.{part}.{name}" for name in functions if not name.startswith("_")}
    text = text.replace("getattr(api, case)", "api.torch.load_file api.numpy.load_file")
    assert {name for name in public if name not in text} == {"api.torch.storage_ptr", "api.torch.storage_size"}


def test_the_page_has_the_differences():
    page = (HERE.parent / "README.md").read_text()
    section = page[page.index("### Differences from safetensors") :]
    lines = [" ".join(line.split()) for line in section[: section.index("\n## ")].split("\n- ")[1:]]
    assert len(lines) <= 5
    # Each line is of a row, and each row has a line.
    assert all(any(text in line for text in DIFFERENCES.values()) for line in lines), lines
    assert all(any(text in line for line in lines) for text in DIFFERENCES.values()), lines
