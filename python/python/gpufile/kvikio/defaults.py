"""The settings of this package's transfers: ``get``, and ``set`` permanently or for a ``with`` block."""

from __future__ import annotations

import copy
import enum
import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, overload

from .. import Engine
from .._gpufile import driver_properties, kvikio_settings
from ._error import integer as _integer
from ._error import not_negative as _not_negative

__all__ = [
    "CompatMode",
    "ConfigContextManager",
    "RemoteIOBackend",
    "RemoteReactorDispatch",
    "compat_mode",
    "engine",
    "get",
    "is_compat_mode_preferred",
    "set",
]


def __dir__() -> list[str]:
    return __all__


class CompatMode(enum.IntEnum):
    """The choice between cuFile and plain reads and writes."""

    #: cuFile, and an error where it does not work.
    OFF = 0
    #: Plain reads and writes.
    ON = 1
    #: The faster of both.
    AUTO = 2


class RemoteIOBackend(enum.IntEnum):
    """The setting ``remote_io_backend``, which has no effect: gpufile has one way to read remote files."""

    EASY_THREADPOOL = 0
    MULTI_POLL = 1


class RemoteReactorDispatch(enum.IntEnum):
    """The setting ``remote_io_reactor_dispatch``, which has no effect."""

    PER_CHUNK = 0
    PER_PREAD = 1


def _member(kind: type[enum.IntEnum], name: str, value: Any) -> enum.IntEnum:
    """Returns the member of an enumeration with a number or a name."""
    members = {member.name: member for member in kind} | {member.value: member for member in kind}
    found = members.get(value.upper() if isinstance(value, str) else _integer(name, value))
    if found is None:
        raise ValueError(f"{name} is {value!r}: expected one of {', '.join(kind.__members__)}")
    return found


def _is_on(name: str, value: Any) -> bool:
    return bool(value)


def _positive(name: str, value: Any) -> int:
    number = _not_negative(name, value)
    if number == 0:
        raise ValueError(f"{name} is 0: expected a positive integer")
    return number


def _status_codes(name: str, value: Any) -> list[int]:
    if not isinstance(value, Iterable):
        raise TypeError(f"{name}: expected a list of integers, not {type(value).__name__}")
    return [_integer(f"{name}[{number}]", code) for number, code in enumerate(value)]


class _Kind(NamedTuple):
    """The values of a setting: here, and as an argument of ``Engine``."""

    check: Callable[[str, Any], Any]
    of_engine: Callable[[Any], Any] = lambda value: value
    to_engine: Callable[[Any], Any] = lambda value: value


_POLICIES = {"cufile": CompatMode.OFF, "posix": CompatMode.ON, "auto": CompatMode.AUTO}
_DIRECT = _Kind(_is_on, lambda word: word != "never", lambda is_on: "auto" if is_on else "never")

#: The arguments of ``Engine`` that set what a setting of kvikio sets.
_KINDS = {
    "policy": _Kind(
        functools.partial(_member, CompatMode),
        lambda word: _POLICIES.get(word, CompatMode.AUTO),
        {mode: word for word, mode in _POLICIES.items()}.__getitem__,
    ),
    "threads": _Kind(_positive),
    "chunk_bytes": _Kind(_positive, lambda length: length or 4 << 20),
    "gds_threshold_bytes": _Kind(_not_negative),
    "bounce_buffer_bytes": _Kind(_positive),
    "direct_read": _DIRECT,
    "direct_write": _DIRECT,
    "overread": _Kind(_is_on),
}
#: kvikio's name of each. The table is in Rust, with the environment variables of kvikio.
_ARGUMENTS = kvikio_settings()
#: Settings of remote files, each with the check of a value, and the value until one is set. Those with ``remote_io`` are kept and
#: have no effect.
_REMOTE: dict[str, tuple[Callable[[str, Any], Any], Any]] = {
    "http_max_attempts": (_positive, 3),
    "http_status_codes": (_status_codes, [429, 500, 502, 503, 504]),
    "http_timeout": (_positive, 60),
    "remote_io_backend": (functools.partial(_member, RemoteIOBackend), RemoteIOBackend.EASY_THREADPOOL),
    "remote_io_num_reactors": (_positive, 1),
    "remote_io_reactor_dispatch": (
        functools.partial(_member, RemoteReactorDispatch),
        RemoteReactorDispatch.PER_CHUNK,
    ),
    "remote_io_max_concurrent_requests": (_not_negative, 256),
}
#: The values of settings that kvikio takes from variables of the environment, such as ``KVIKIO_HTTP_TIMEOUT``.
_OF_TEXT: dict[str, Callable[[str], Any]] = {
    "http_max_attempts": int,
    "http_status_codes": lambda text: [int(code) for code in text.split(",")],
    "http_timeout": int,
}
#: Those that kvikio cannot change back, so ``set`` takes one of them at a time and returns None.
_FINAL = frozenset({"remote_io_num_reactors", "remote_io_reactor_dispatch", "remote_io_max_concurrent_requests"})
_ALIASES = {"thread_pool_nthreads": "num_threads"}

#: The values that were set, and a new object for each change. One call changes all of that, so no lock is needed, which an
#: exception or a fork could leave locked.
_CHANGE = ""
_values: dict[str, Any] = {_CHANGE: None}
#: The engine that follows the settings, and the last change before it was made.
_made: tuple[Any, Engine] | None = None


def _known(name: str) -> str:
    name = _ALIASES.get(name, name)
    if name not in _ARGUMENTS and name not in _REMOTE:
        raise KeyError(name)
    return name


def _checked(name: str, value: Any) -> Any:
    check = _KINDS[_ARGUMENTS[name]].check if name in _ARGUMENTS else _REMOTE[name][0]
    return check(name, value)


def get(config_name: str) -> Any:
    """Returns the value of a setting."""
    name = _known(config_name)
    value = _values.get(name)
    if value is not None:
        return value
    if name in _REMOTE:
        return _of_environment(name)
    argument = _ARGUMENTS[name]
    return _KINDS[argument].of_engine(getattr(Engine.default(), argument))


def _of_environment(name: str) -> Any:
    """Returns the value of a setting of remote files until one is set."""
    check, default = _REMOTE[name]
    variable = f"KVIKIO_{name.upper()}"
    if name not in _OF_TEXT or variable not in os.environ:
        return copy.copy(default)
    text = os.environ[variable]
    try:
        return check(name, _OF_TEXT[name](text))
    except (OverflowError, ValueError):
        expected = "positive integer" if default.__class__ is int else "list of integers such as 429,503"
        raise ValueError(f"{variable} is {text!r}: expected a {expected}") from None


class ConfigContextManager:
    """The effect of ``set``, which the end of a ``with`` block undoes."""

    def __init__(self, config: dict[str, Any]) -> None:
        new = {_known(name): _checked(_known(name), value) for name, value in config.items()}
        self._old = {name: _values.get(name) for name in new}
        _replace(new)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        _replace(self._old)


def _replace(new: dict[str, Any]) -> None:
    _values.update({**new, _CHANGE: object()})


@overload
def set(config: dict[str, Any], /) -> ConfigContextManager: ...
@overload
def set(key: str, value: Any, /) -> ConfigContextManager: ...
def set(*config: Any) -> ConfigContextManager | None:
    """Sets one setting, ``set(name, value)``, or several, ``set({name: value})``.

    Later transfers use them. In a ``with`` statement, the old values return at the end of the block. As in kvikio,
    ``remote_io_num_reactors``, ``remote_io_reactor_dispatch`` and ``remote_io_max_concurrent_requests`` are set one at a
    time, and that returns None.
    """
    if len(config) == 1 and isinstance(config[0], dict):
        if final := sorted(_FINAL & config[0].keys()):
            raise ValueError(f"{', '.join(final)}: call set(name, value), because the old value cannot return")
        return ConfigContextManager(config[0])
    if len(config) == 2 and isinstance(config[0], str):
        manager = ConfigContextManager({config[0]: config[1]})
        return None if config[0] in _FINAL else manager
    raise ValueError("call set(name, value) or set({name: value})")


def is_compat_mode_preferred() -> bool:
    """Returns whether transfers use plain I/O: because of ``compat_mode``, or because cuFile has no direct path."""
    mode = get("compat_mode")
    if mode != CompatMode.AUTO:
        return bool(mode == CompatMode.ON)
    try:
        return not driver_properties()["has_direct_path"]
    except OSError:
        return True


def engine() -> Engine:
    """Returns the engine that follows the settings."""
    global _made
    made = _made
    if made is None or made[0] is not _values[_CHANGE]:
        values = _values.copy()
        is_set = any(value is not None for name, value in values.items() if name != _CHANGE)
        made = _made = (values[_CHANGE], _build(values) if is_set else Engine.default())
    return made[1]


def _build(values: dict[str, Any]) -> Engine:
    are_set = [(name, argument) for name, argument in _ARGUMENTS.items() if values.get(name) is not None]
    return Engine(**{argument: _KINDS[argument].to_engine(values[name]) for name, argument in are_set})


def compat_mode() -> CompatMode:
    """Returns ``ON`` if transfers use plain reads and writes, and ``OFF`` if they use cuFile.

    Only ``ON`` is true. ``get("compat_mode")`` returns the setting, which may be ``AUTO``.
    """
    return CompatMode(is_compat_mode_preferred())


def __getattr__(name: str) -> Callable[..., Any]:
    """Returns a function that kvikio had before ``get`` and ``set``.

    For each setting, these are ``NAME()``, and ``set_NAME(value)``, ``reset_NAME(value)`` and
    ``NAME_reset(value)``, which return what ``set`` returns.
    """
    if name == "get_num_threads":
        return functools.partial(get, "num_threads")
    setting = name.removeprefix("set_").removeprefix("reset_").removesuffix("_reset")
    sets = setting != name
    try:
        _known(setting)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return functools.partial(set if sets else get, setting)
