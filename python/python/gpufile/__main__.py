"""The command ``python -m gpufile``: the program ``gpufile``, and ``run`` for programs that import safetensors.

``python -m gpufile run SCRIPT [ARGUMENTS]`` and ``python -m gpufile run -m MODULE [ARGUMENTS]`` run a Python program with this
package in the place of safetensors, in all its processes. They set the variable ``GPUFILE_INSTALL``.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys

from . import _program

_USAGE = "usage: python -m gpufile run SCRIPT [ARGUMENTS], or python -m gpufile run -m MODULE [ARGUMENTS]"


def _run(arguments: list[str]) -> None:
    """Becomes Python with a program, with the options of this Python, or exits with the reason why not."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        sys.exit()
    if arguments in ([], ["-m"]):
        sys.exit(_USAGE)
    if importlib.util.find_spec("safetensors") is None:
        sys.exit("gpufile run: this Python has no package safetensors to take the place of")
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    if sys.flags.no_site or not any(os.path.exists(os.path.join(folder, "gpufile_install.pth")) for folder in folders):
        sys.exit(
            f"gpufile run: this Python reads no gpufile_install.pth at its start; install gpufile into {folders[0]}, and"
            " leave out -S"
        )
    os.environ["GPUFILE_INSTALL"] = "1"
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *_options(), *arguments])


def _options() -> list[str]:
    """Returns the options of this Python before ``-m gpufile``."""
    options = sys.orig_argv[1 : -len(sys.argv[1:])]
    if options[-1] == "gpufile":
        options.pop()
    options[-1] = options[-1].removesuffix("gpufile").removesuffix("m")
    return options if options[-1] != "-" else options[:-1]


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        _run(sys.argv[2:])
    sys.exit(_program())
