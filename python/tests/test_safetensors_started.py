"""Processes that start with this package in the place of the package safetensors: by a variable, and by a command."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("numpy")
pytest.importorskip("safetensors")

import gpufile

#: The texts that a process with the installed functions prints, and one without.
OURS, THEIRS = "gpufile gpufile\n", "safetensors safetensors\n"
#: A module of functions for children, which prints what loads models in this process.
LOADER = """
import pathlib
def loader(*_):
    import safetensors, safetensors.numpy
    loads = pathlib.Path(safetensors.numpy.load_file.__code__.co_filename)
    return " ".join([loads.parts[-3 if "gpufile" in loads.parts else -2], safetensors.safe_open.__base__.__module__.split(".")[0]
                     .replace("builtins", "safetensors")])
def show(*_):
    print(loader(), flush=True)
"""


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts Python, and returns what it prints and its errors."""
    (tmp_path / "loaders.py").write_text(LOADER)

    def start(*arguments, status=0, variable=None, **variables):
        variables |= {} if variable is None else {"GPUFILE_INSTALL": variable}
        path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        kept = {name: value for name, value in os.environ.items() if name != "GPUFILE_INSTALL"}
        run = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=kept | {"PYTHONPATH": path} | variables, capture_output=True, text=True
        )
        assert run.returncode == status, (run.returncode, run.stdout, run.stderr)
        return run.stdout, run.stderr

    return start


def program(tmp_path, source):
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    return str(tmp_path / "program.py")


@pytest.mark.parametrize(
    "value, expected, is_wrong",
    [(None, THEIRS, False), ("", THEIRS, False), ("0", THEIRS, False), ("1", OURS, False), (" On", OURS, False), ("2", THEIRS, True)],
)
def test_the_variable_decides_who_loads(start, value, expected, is_wrong):
    printed, errors = start("-c", "import loaders; loaders.show()", variable=value)
    assert printed == expected and ("GPUFILE_INSTALL='2' has no effect; expected on" in errors) == is_wrong
    assert is_wrong or not errors


def test_processes_that_import_no_safetensors_import_nothing(start):
    source = "import sys; print(sorted(name for name in sys.modules if 'gpufile' in name))"
    assert start("-c", source)[0] == "[]\n"
    assert start("-c", source, variable="1")[0] == "['_gpufile_install']\n"


@pytest.mark.parametrize("method", ["subprocess", "spawn", "forkserver", "fork"])
def test_children_load_with_the_variable_alone(start, tmp_path, method):
    path = program(
        tmp_path,
        """
        import multiprocessing, subprocess, sys
        import loaders
        if __name__ == "__main__":
            if sys.argv[1] == "subprocess":
                subprocess.run([sys.executable, "-c", "import loaders; loaders.show()"], check=True)
            else:
                process = multiprocessing.get_context(sys.argv[1]).Process(target=loaders.show)
                process.start()
                process.join()
        """,
    )
    assert start(path, method, variable="1")[0] == OURS
    assert start(path, method)[0] == THEIRS


def test_spawned_workers_of_a_data_loader_load_with_the_variable(start, tmp_path):
    pytest.importorskip("torch")
    path = program(
        tmp_path,
        """
        import loaders, torch
        class Loaders(torch.utils.data.Dataset):
            __getitem__ = loaders.loader
            def __len__(self):
                return 4
        if __name__ == "__main__":
            found = torch.utils.data.DataLoader(Loaders(), batch_size=None, num_workers=2, multiprocessing_context="spawn")
            print(*set(found))
        """,
    )
    assert start(path, variable="1")[0] == OURS
    assert start(path)[0] == THEIRS


def test_uninstall_ends_what_the_variable_began(start):
    source = "import gpufile.safetensors as gs, loaders; {} gs.uninstall(); import safetensors; loaders.show()"
    assert start("-c", source.format(""), variable="1")[0] == THEIRS
    assert start("-c", source.format("loaders.show();"), variable="1")[0] == OURS + THEIRS
    assert start("-c", source.format("gs.install(); loaders.show();"), variable="1")[0] == OURS + THEIRS


@pytest.mark.parametrize("first", ["gs.SafetensorError", "gs.install()", "import gpufile.safetensors.numpy", "gs.uninstall(); gs.install()"])
def test_the_variable_works_whatever_is_imported_first(start, first):
    source = f"import gpufile.safetensors as gs; {first}; import loaders; loaders.show()"
    assert start("-c", source, variable="1")[0] == OURS


def test_threads_that_import_at_once_get_our_functions(start):
    source = """
import loaders, threading
import gpufile.safetensors as gs
ready = threading.Barrier(4)
def run(call):
    ready.wait()
    call()
threads = [threading.Thread(target=run, args=(call,)) for call in (loaders.loader, gs.install, loaders.loader, gs.install)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
loaders.show()
"""
    for _ in range(3):
        assert start("-c", source, variable="1")[0] == OURS


@pytest.fixture
def alone(tmp_path):
    """Returns a folder with this package, for a Python that has no other."""
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "gpufile").symlink_to(pathlib.Path(gpufile.__file__).parent)
    return str(folder)


def test_without_safetensors_its_import_fails_as_always(start, alone):
    source = f"""
import os, sys
sys.path[:] = [{alone!r}, *(path for path in sys.path if not os.path.exists(os.path.join(path, "safetensors")))]
for _ in range(2):
    try:
        import safetensors.numpy
    except ModuleNotFoundError as error:
        print(error)
"""
    assert start("-c", source, variable="1") == ("No module named 'safetensors'\n" * 2, "")


def test_run_sets_the_variable_for_a_program(start, tmp_path):
    path = program(
        tmp_path,
        """
        import loaders, os, sys
        loaders.show()
        print(os.environ["GPUFILE_INSTALL"], *sys.argv[1:], sys.flags.utf8_mode, sys.stdout.write_through, sys.path[0], __name__)
        sys.exit(7)
        """,
    )
    for options in (["-X", "utf8", "-u", "-m", "gpufile"], ["-Xutf8", "-umgpufile"], ["-X", "utf8=1", "-um", "gpufile"]):
        printed, errors = start(*options, "run", path, "-m", "run", "", status=7)
        assert printed == f"{OURS}1 -m run  1 True {tmp_path} __main__\n", errors
    assert start("-m", "gpufile", "run", "-m", "program", status=7)[0].startswith(OURS)


@pytest.mark.parametrize("arguments, status", [([], 1), (["-m"], 1), (["--help"], 0), (["-h"], 0)])
def test_run_shows_its_usage(start, arguments, status):
    printed, errors = start("-m", "gpufile", "run", *arguments, status=status)
    assert (errors if status else printed).startswith("usage: python -m gpufile run SCRIPT [ARGUMENTS]")


def test_run_names_what_is_missing(start, alone):
    started = ["-m", "gpufile", "run", "-c", "1"]
    assert "has no package safetensors" in start("-S", *started, status=1, PYTHONPATH=alone)[1]
    whole = os.pathsep.join(path for path in sys.path if path)
    assert "reads no gpufile_install.pth at its start" in start("-S", *started, status=1, PYTHONPATH=whole)[1]
    source = f"""
import runpy, site, sys
site.getsitepackages, site.getusersitepackages = lambda: ["/nowhere"], lambda: "/nowhere"
sys.argv = {started[1:]!r}
runpy.run_module("gpufile", run_name="__main__")
"""
    assert "install gpufile into /nowhere" in start("-c", source, status=1)[1]


def test_the_module_runs_the_program_too(start):
    assert start("-m", "gpufile", "--version")[0] == f"gpufile {gpufile.__version__}\n"
