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
        #: The GPUs that copy.
        self.devices: set[torch.device] = set()
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
            if device not in self.devices:
                self.devices.add(device)
                self._stream.wait_stream(_cuda.current_stream(device))
            self._context.enter_context(_cuda.stream(self._stream))
            self._current = device
        return self._stream


class Ends:
    """The ends of copies on GPUs."""

    #: Seconds between two looks. The program's thread gets the interpreter first, and no processor spins.
    BETWEEN_LOOKS = 0.002

    def __init__(self) -> None:
        self._events: dict[torch.device, Any] = {}

    def mark(self, device: torch.device, stream: Any = None) -> None:
        """Takes the end of the work so far, of the stream for copies or of another."""
        event = self._events[device] = _cuda.Event()
        event.record(stream or stream_of(device))

    def add(self, ends: Ends) -> None:
        """Takes later ends, which take the place of those of the same GPUs."""
        self._events |= ends._events

    def order(self) -> None:
        """Lets the current streams of this thread wait for the copies, on the GPUs."""
        for device, event in self._events.items():
            _cuda.current_stream(device).wait_event(event)

    def wait(self) -> None:
        """Waits on the host until the copies have ended."""
        for event in self._events.values():
            while not event.query():
                time.sleep(self.BETWEEN_LOOKS)
