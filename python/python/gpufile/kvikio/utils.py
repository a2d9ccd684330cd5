"""Decorators of functions, and notices for what is deprecated."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

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
    lock = threading.RLock()

    @functools.wraps(func)
    def first_result(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with lock:
            if not results:
                results.append(func(*args, **kwargs))
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
