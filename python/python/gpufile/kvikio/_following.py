"""Open files that follow the settings of ``defaults``."""

from __future__ import annotations

from .. import Engine, File
from . import defaults
from ._error import translated


class Following:
    """An open file, whose transfers are those of the engine of the present settings."""

    def __init__(self, file: File, engine: Engine) -> None:
        """Takes a file that was opened with this engine. It keeps its descriptor."""
        #: The file as it was opened.
        self.opened = file
        self._current, self._engine = file, engine

    def file(self, task_size: int | None = None) -> File:
        """Returns the file for a transfer by the present settings, in chunks of ``task_size`` bytes if there is one."""
        engine = defaults.engine()
        if engine is not self._engine:
            with translated():
                self._current, self._engine = self.opened.with_engine(engine), engine
        return self._current.with_chunk_bytes(task_size) if task_size else self._current

    def close(self) -> None:
        """Closes the file."""
        self.opened.close()
        self._current.close()
