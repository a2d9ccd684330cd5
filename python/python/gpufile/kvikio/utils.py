"""Decorators of functions, notices for what is deprecated, and a server for tests."""

from __future__ import annotations

import functools
import http.server
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from .._gpufile import Lock
from .._paths import text_of

__all__ = ["LocalHttpServer", "call_once", "kvikio_deprecate_module", "kvikio_deprecation_notice"]


def __dir__() -> list[str]:
    return __all__

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _check(func: Any) -> None:
    if not callable(func):
        raise TypeError(f"func: expected a function, not {type(func).__name__}")


def call_once(func: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorates a function that runs once. Later calls return the first result, whatever their arguments.

    A call that raises does not count.
    """
    _check(func)
    results: list[_Result] = []
    lock = Lock()

    @functools.wraps(func)
    def first_result(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        def call() -> None:
            if not results:
                results.append(func(*args, **kwargs))

        if not results:
            lock.run(call)
        return results[0]

    return first_result


def kvikio_deprecation_notice(
    msg: str = "This function is deprecated.", *, since: str
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorates a deprecated function: each call warns with ``FutureWarning``, and the docstring begins with the notice."""

    def decorate(func: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        _check(func)

        @functools.wraps(func)
        def warning(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            warnings.warn(msg, FutureWarning, stacklevel=2)
            return func(*args, **kwargs)

        warning.__doc__ = f".. deprecated:: {since} {msg}\n\n{func.__doc__ or ''}"
        return warning

    return decorate


def kvikio_deprecate_module(msg: str = "", *, since: str) -> None:
    """Warns with ``FutureWarning`` that the calling module is deprecated since a version."""
    warnings.warn(f"This module is deprecated since {since}. {msg}".rstrip(), FutureWarning, stacklevel=2)


class LocalHttpServer:
    """A server of a folder on loopback, in another process, as a context. It is slow, and for tests.

    >>> with LocalHttpServer("/data") as server:
    ...     file = kvikio.RemoteFile.open_http(f"{server.url}/file")

    ``RemoteFile`` needs ranges, for which the package ``rangehttpserver`` must be installed. Another ``handler`` of
    ``http.server`` is called with ``handler_options`` and the folder. The server ends after ``max_lifetime`` seconds.
    """

    url: str

    def __init__(
        self,
        root_path: str | os.PathLike[str],
        range_support: bool = True,
        max_lifetime: int = 120,
        handler: type[http.server.BaseHTTPRequestHandler] | None = None,
        handler_options: dict[str, Any] | None = None,
    ) -> None:
        folder = text_of("root_path", root_path)
        if handler is None:
            handler = _handler_of_ranges() if range_support else http.server.SimpleHTTPRequestHandler
        options = {**(handler_options or {}), "directory": folder}
        self._answer, self._max_lifetime = functools.partial(handler, **options), max_lifetime

    def __enter__(self) -> LocalHttpServer:
        port, child = multiprocessing.Pipe(duplex=False)
        self.process = multiprocessing.Process(
            target=_serve, args=(self._answer, self._max_lifetime, child), daemon=True
        )
        self.process.start()
        child.close()
        try:
            self.ip, self.port = "127.0.0.1", port.recv()
        except EOFError:
            raise RuntimeError("the process of the server ended before it served") from None
        self.url = f"http://{self.ip}:{self.port}"
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.join()


def _serve(answer: Any, max_lifetime: int, port: Any) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port.send(server.server_address[1])
    time.sleep(max_lifetime)


def _handler_of_ranges() -> type[http.server.BaseHTTPRequestHandler]:
    from RangeHTTPServer import RangeRequestHandler

    handler: type[http.server.BaseHTTPRequestHandler] = RangeRequestHandler
    return handler
