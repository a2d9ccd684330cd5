"""Puts gpufile in the place of the package safetensors in each Python that starts with the variable GPUFILE_INSTALL.

Python runs the line in ``gpufile_install.pth`` at its start. gpufile itself is imported when the process first imports
safetensors, so that other processes cost next to nothing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Waiting:
    """A finder of modules that waits for the import of safetensors."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Lets gpufile find safetensors, whose functions it then replaces."""
        if fullname != "safetensors":
            return None
        cancel()
        from gpufile.safetensors._install import find_first

        return find_first(fullname, path, target)


def start(value: str) -> None:
    """Begins to wait for the import of safetensors, if the variable has a value that turns it on."""
    switch = value.strip().lower()
    if switch in ("on", "true", "yes", "1"):
        sys.meta_path.insert(0, _Waiting())
    elif switch not in ("off", "false", "no", "0", ""):
        import warnings

        warnings.warn(f"GPUFILE_INSTALL={value!r} has no effect; expected on, true, yes or 1, or off, false, no or 0")


def cancel() -> None:
    """Ends the wait."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Waiting)]
