"""This package in the place of the package safetensors, and back."""

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("numpy")
theirs = pytest.importorskip("safetensors")

import gpufile.safetensors as gs


def run(tmp_path, program):
    """Runs a program in a process of its own, because it changes modules of the whole process."""
    folders = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    (tmp_path / "early.py").write_text(
        "import safetensors\nimport safetensors.numpy as whole\nfrom safetensors import safe_open as opened\n"
        "from safetensors.numpy import load_file, save_file\n"
    )
    (tmp_path / "late.py").write_text(
        "from safetensors import SafetensorError, deserialize, safe_open\nfrom safetensors.numpy import load, load_file\n"
    )
    source = textwrap.dedent(program)
    run = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_error_is_that_of_safetensors():
    assert gs.SafetensorError is theirs.SafetensorError


def test_modules_imported_before_and_after_get_our_functions(tmp_path):
    run(
        tmp_path,
        """
        import early, gpufile.safetensors as gs, gpufile.safetensors.numpy as ours, numpy as np
        theirs = [early.load_file, early.opened, early.whole.save_file]
        gs.install()
        gs.install()
        import late
        assert early.load_file is early.whole.load_file is late.load_file and early.opened is late.safe_open
        assert early.load_file.__code__ is ours.load_file.__code__ and issubclass(early.opened, gs.safe_open)
        early.save_file({"x": np.arange(5)}, "x.safetensors")
        assert early.load_file("x.safetensors")["x"].tolist() == [0, 1, 2, 3, 4]
        with late.safe_open("x.safetensors", "np") as model:
            assert isinstance(model.prefetch(), early.safetensors.PrefetchLoader)
            assert isinstance(model.get_slice("x"), early.safetensors.PySafeSlice)
        assert late.load(open("x.safetensors", "rb").read())["x"].sum() == 10
        try:
            late.safe_open("late.py", "np")
        except late.SafetensorError:
            pass
        gs.uninstall()
        gs.uninstall()
        assert [early.load_file, early.opened, early.whole.save_file] == theirs
        assert late.load_file is theirs[0] and late.safe_open is theirs[1]
        assert not hasattr(early.opened, "install") and ours.load_file is not theirs[0]
        """,
    )


def test_submodules_imported_later_get_our_functions(tmp_path):
    run(
        tmp_path,
        """
        import sys, gpufile.safetensors as gs
        gs.install()
        assert "safetensors.numpy" not in sys.modules
        import inspect, late, safetensors.numpy
        is_ours = lambda: {"gpufile" in function.__code__.co_filename for function in (safetensors.numpy.load_file, late.load)}
        assert is_ours() == {True}
        assert "def load_file" in inspect.getsource(safetensors.numpy)
        gs.uninstall()
        assert is_ours() == {False}
        assert not any(type(finder).__module__.startswith("gpufile") for finder in sys.meta_path)
        """,
    )


def test_what_programs_imported_from_here_stays(tmp_path):
    (tmp_path / "direct.py").write_text("from gpufile.safetensors import safe_open\nfrom gpufile.safetensors.numpy import load_file\n")
    run(
        tmp_path,
        """
        import early, direct, gpufile.safetensors as gs, gpufile.safetensors.numpy as ours
        gs.install()
        gs.uninstall()
        assert direct.safe_open is gs.safe_open and direct.load_file is ours.load_file
        gs.install()
        assert early.load_file is not ours.load_file and early.load_file.__kwdefaults__ == ours.load_file.__kwdefaults__
        """,
    )


def test_attributes_that_programs_changed_stay(tmp_path):
    run(
        tmp_path,
        """
        import early, gpufile.safetensors as gs
        gs.install()
        early.whole.load_file = early.load_file = mine = lambda *_: None
        gs.uninstall()
        assert early.whole.load_file is early.load_file is mine
        """,
    )


def test_installed_functions_and_classes_can_be_pickled(tmp_path):
    run(
        tmp_path,
        """
        import early, gpufile.safetensors as gs, pickle
        originals = [early.load_file, early.safetensors.deserialize, early.opened]
        gs.install()
        installed = [early.load_file, early.safetensors.deserialize, early.opened]
        pickled = [pickle.dumps(value) for value in installed]
        assert [pickle.loads(value) for value in pickled] == installed
        gs.uninstall()
        assert [pickle.loads(value) for value in pickled] == originals
        """,
    )


def test_frameworks_that_only_safetensors_has_still_work(tmp_path):
    run(
        tmp_path,
        """
        import sys, types
        mlx = types.ModuleType("mlx")
        core = mlx.core = sys.modules["mlx.core"] = types.ModuleType("mlx.core")
        sys.modules["mlx"] = mlx
        core.array, core.float32 = lambda array, *_: array.tolist(), "float32"
        import early, gpufile.safetensors as gs, numpy as np
        early.save_file({"x": np.ones(3, np.float32)}, "x.safetensors")
        original = early.opened
        gs.install()
        assert early.opened("x.safetensors", framework="mlx").get_tensor("x") == [1, 1, 1]
        assert isinstance(early.opened("x.safetensors", framework="np"), gs.safe_open)

        class Model(early.opened):
            def __init__(self, device, path):
                super().__init__(path, "np", device)

        assert Model("cpu", "x.safetensors").get_tensor("x").sum() == 3
        with open("x.safetensors", "rb") as file:
            assert early.safetensors._safe_open_handle(f=file, framework="np").get_tensor("x").sum() == 3
        import safetensors.mlx as late
        assert late.load_file("x.safetensors") == {"x": [1, 1, 1]}
        try:
            early.opened("x.safetensors", "nothing")
        except gs.SafetensorError as error:
            assert "nothing" in str(error)
        gs.uninstall()
        assert late.safe_open is early.opened is original
        """,
    )


def test_without_safetensors_the_error_says_what_to_do(tmp_path):
    run(
        tmp_path,
        """
        import sys
        sys.modules["safetensors"] = None
        import gpufile.safetensors as gs
        assert gs.SafetensorError.__module__ == "gpufile.safetensors._error"
        try:
            gs.install()
        except ImportError as error:
            assert "import gpufile.safetensors itself instead" in str(error)
        else:
            raise AssertionError
        """,
    )


def test_names_that_other_packages_import_are_here():
    from gpufile.safetensors import numpy as ours
    from safetensors import numpy as real

    assert all(ours._TYPES[code](1) == dtype(1) for code, dtype in real._TYPES.items())
    data = ours.save({"x": ours.np.arange(6, dtype=ours.np.float32).reshape(2, 3)})
    assert ours._view2np(gs.deserialize(data))["x"].tolist() == real._view2np(theirs.deserialize(data))["x"].tolist()
    assert ours.safe_open is gs.safe_open and gs.__version__ and gs.PySafeSlice is gs.SafeSlice


def test_torch_names_that_other_packages_import_are_here():
    torch = pytest.importorskip("torch")
    from gpufile.safetensors import torch as ours
    from safetensors import torch as real

    # For a type that this torch lacks, it has None.
    types = {code: dtype for code, dtype in real._TYPES.items() if dtype is not None}
    sizes = {dtype: size for dtype, size in real._SIZE.items() if dtype is not None}
    assert types.items() <= ours._TYPES.items() and sizes.items() <= ours._SIZE.items()
    assert ours._getdtype("BF16") == torch.bfloat16
    data = ours.save({"x": torch.ones(2, 3), "empty": torch.ones(0, 3)})
    found, expected = ours._view2torch(gs.deserialize(data)), real._view2torch(theirs.deserialize(data))
    assert all(found[name].equal(expected[name]) for name in expected)


def test_installed_mappings_are_for_calls_that_do_not_choose(tmp_path):
    run(
        tmp_path,
        """
        import early, gpufile.safetensors as gs, numpy as np
        def is_mapped(call):
            loaded = call()
            return "x.safetensors" in open("/proc/self/maps").read()
        early.save_file({"x": np.arange(5)}, "x.safetensors")
        def calls(opened):
            yield lambda: early.load_file("x.safetensors")
            yield lambda: opened("x.safetensors", "np").get_tensor("x")
            yield lambda: opened("x.safetensors", "np").get_slice("x")[1:]
        gs.install(mapped=True)
        assert all(map(is_mapped, calls(early.opened)))
        assert not is_mapped(lambda: early.load_file("x.safetensors", mapped=False))
        gs.install()
        assert not any(map(is_mapped, calls(early.opened)))
        assert is_mapped(lambda: early.load_file("x.safetensors", mapped=True))
        gs.install(mapped=True)
        gs.uninstall()
        assert not any(map(is_mapped, calls(gs.safe_open)))
        """,
    )
