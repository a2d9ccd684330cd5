"""The stream on which each GPU copies tensors for saves, and the ends of the copies there.

The streams of the program wait for a copy on the GPU, or not at all, and the program does not wait for it on the host.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

#: Some versions of torch have no types for its parts.
_cuda: Any = torch.cuda

#: The stream of each GPU. All copies use it, because torch keeps freed memory for the stream that it was made on.
_streams: dict[torch.device, Any] = {}


def stream_of(device: torch.device) -> Any:
    """Returns the stream for the copies of a GPU's memory."""
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = _cuda.Stream(device)
    return stream


class Copying:
    """A block of code that copies. Use it in a ``with`` statement.

    The program waits for the calls that start copies, so there are few for each copy: the stream for copies stays the
    current one from copy to copy.
    """

    def __init__(self) -> None:
        #: The tensors that the GPUs read, for ``Ends.mark``.
        self.read: dict[torch.device, list[torch.Tensor]] = {}
        self._current: torch.device | None = None
        self._stream: Any = None
        self._context = contextlib.ExitStack()

    def __enter__(self) -> Copying:
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.close()

    def on(self, device: torch.device) -> Any:
        """Makes the stream for copies of a GPU the current one, and returns it. It follows the work of the program's
        stream until the first call."""
        if device != self._current:
            self._context.close()
            self._stream = stream_of(device)
            if device not in self.read:
                self.read[device] = []
                self._stream.wait_stream(_cuda.current_stream(device))
            self._context.enter_context(_cuda.stream(self._stream))
            self._current = device
        return self._stream


class _End:
    """The end of copies on a GPU."""

    def __init__(self, stream: Any, read: list[torch.Tensor]) -> None:
        self.stream, self.read = stream, read
        self.event = _cuda.Event()
        self.event.record(stream)

    def is_over(self) -> bool:
        """Returns whether the copies have ended. Then forgets the tensors that they read."""
        if not self.event.query():
            return False
        self.read = []
        return True

    def let_go(self) -> None:
        """Forgets the tensors. Their memory is used again after the copies."""
        read, self.read = self.read, []
        for tensor in read:
            tensor.record_stream(self.stream)

    def __del__(self) -> None:
        self.let_go()


class Ends:
    """The ends of copies on GPUs, and the tensors that the copies read.

    The program may drop a tensor while it is copied. So it is kept until somebody sees that the copies have ended. Otherwise
    the allocator is told to keep the memory until then, which takes as long as starting a copy.
    """

    #: Seconds between two looks. The program's thread gets the interpreter first, and no processor spins.
    BETWEEN_LOOKS = 0.002

    def __init__(self) -> None:
        self._ends: dict[torch.device, _End] = {}

    def mark(self, device: torch.device, stream: Any = None) -> None:
        """Records an event after the present work of the stream for copies, or of another stream."""
        self._ends[device] = _End(stream or stream_of(device), [])

    def mark_all(self, copying: Copying) -> None:
        """Takes the ends of all copies of a block of code."""
        for device, read in copying.read.items():
            self._ends[device] = _End(stream_of(device), read)

    def order(self) -> None:
        """Lets the current streams of this thread wait for the copies, on the GPUs."""
        for device, end in self._ends.items():
            _cuda.current_stream(device).wait_event(end.event)

    def look(self) -> None:
        """Forgets the tensors whose copies have ended."""
        for end in list(self._ends.values()):
            end.is_over()

    def let_go(self) -> None:
        """Forgets all tensors. Nobody may look for the ends of their copies."""
        for end in list(self._ends.values()):
            end.let_go()

    def wait(self) -> None:
        """Waits on the host until the copies have ended."""
        for end in list(self._ends.values()):
            while not end.is_over():
                time.sleep(self.BETWEEN_LOOKS)
