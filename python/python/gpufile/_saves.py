"""Saves on a thread of their own, in their order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from . import _forks


class Save(Future[int]):
    """A save that has begun, or will. In a forked child, which has no thread for it, it has failed."""

    def __init__(self) -> None:
        super().__init__()
        _forks.register(self)

    def _forked(self) -> None:
        # A thread of the parent may have held the lock of the future, so the child makes another.
        super().__init__()
        self.set_exception(RuntimeError("the save belongs to the parent process, which forked this one"))

    def _run(self, write: Callable[[], int]) -> None:
        if self.set_running_or_notify_cancel():
            try:
                self.set_result(write())
            except BaseException as error:
                self.set_exception(error)

    @property
    def has_failed(self) -> bool:
        """Returns whether the save has ended, and failed."""
        return self.done() and not self.cancelled() and self.exception() is not None


class Saves:
    """The thread, and the saves that it has not done or that failed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpufile-saver")
        self._saves: list[Save] = []
        self._is_inherited = False
        _forks.register(self)

    def _forked(self) -> None:
        self._is_inherited = True

    def start(self, write: Callable[[], int]) -> Save:
        """Starts a save, or queues it behind the others."""
        if self._is_inherited:
            raise RuntimeError("this saver belongs to the parent process; create a new one after the fork")
        save = Save()
        self._saves = [save for save in self._saves if not save.done() or save.has_failed] + [save]
        self._thread.submit(save._run, write)
        return save

    def pending(self) -> list[Save]:
        """Returns the saves that run or wait, in their order. In a forked child, there are none."""
        return [] if self._is_inherited else [save for save in self._saves if not save.done()]

    def end(self) -> list[Save]:
        """Waits for all saves, and returns those that failed. In a forked child, there are none."""
        if self._is_inherited:
            return []
        self._thread.shutdown()
        saves, self._saves = self._saves, []
        return [save for save in saves if save.has_failed]
