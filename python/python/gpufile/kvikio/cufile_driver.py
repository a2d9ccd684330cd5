"""The cuFile driver: its version, its properties, and its opening."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from .._gpufile import (
    close_driver,
    driver_properties,
    open_driver,
    set_driver_limit,
    set_poll_mode,
)
from .._gpufile import libcufile_version as _version
from ._error import not_negative, translated

if TYPE_CHECKING:
    from .._gpufile import _DriverProperties

__all__ = [
    "ConfigContextManager",
    "DriverProperties",
    "driver_close",
    "driver_open",
    "get",
    "initialize",
    "libcufile_version",
    "properties",
    "set",
]


def __dir__() -> list[str]:
    return __all__

_KIB = 1024

# Lengths have the unit of cuFile's own calls, KiB.
_GETTERS: dict[str, Callable[[_DriverProperties], int]] = {
    "is_gds_available": lambda properties: properties["has_direct_path"],
    "major_version": lambda properties: (properties["nvidia_fs"] or (0, 0))[0],
    "minor_version": lambda properties: (properties["nvidia_fs"] or (0, 0))[1],
    "allow_compat_mode": lambda properties: properties["allow_compat_mode"],
    "per_buffer_cache_size": lambda properties: properties["per_buffer_cache_bytes"] // _KIB,
    "poll_mode": lambda properties: properties["poll_mode"],
    "poll_thresh_size": lambda properties: properties["poll_threshold_bytes"] // _KIB,
    "max_device_cache_size": lambda properties: properties["max_device_cache_bytes"] // _KIB,
    "max_pinned_memory_size": lambda properties: properties["max_device_pinned_bytes"] // _KIB,
}
_SETTERS: dict[str, Callable[[int], None]] = {
    "poll_mode": lambda value: set_poll_mode(bool(value), get("poll_thresh_size") * _KIB),
    "poll_thresh_size": lambda value: set_poll_mode(bool(get("poll_mode")), value * _KIB),
    "max_device_cache_size": lambda value: set_driver_limit("max_device_cache_bytes", value * _KIB),
    "max_pinned_memory_size": lambda value: set_driver_limit("max_device_pinned_bytes", value * _KIB),
}
_LENGTHS = _SETTERS.keys() - {"poll_mode"}


#: The properties where the driver cannot be opened.
_NO_DRIVER: _DriverProperties = {
    "has_direct_path": False,
    "nvidia_fs": None,
    "allow_compat_mode": False,
    "poll_mode": False,
    "poll_threshold_bytes": 0,
    "max_device_cache_bytes": 0,
    "per_buffer_cache_bytes": 0,
    "max_device_pinned_bytes": 0,
}


def get(config_name: str) -> int:
    """Returns a property of the driver. Opens the driver if it is not open. Lengths are in KiB.

    Returns 0 or False if the driver cannot be opened. ``driver_open`` then raises the reason.
    """
    getter = _GETTERS[config_name]
    try:
        return getter(driver_properties())
    except OSError:
        return getter(_NO_DRIVER)


class DriverProperties:
    """The properties of the driver as attributes: reading one is ``get``, and assigning to it is ``set``."""

    def __getattr__(self, name: str) -> int:
        if name not in _GETTERS:
            raise AttributeError(f"the cuFile driver has no property {name!r}")
        return get(name)

    def __setattr__(self, name: str, value: int) -> None:
        if name not in _SETTERS:
            reason = "is read-only" if name in _GETTERS else "is no property of the cuFile driver"
            raise AttributeError(f"{name} {reason}")
        set(name, value)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_GETTERS]


#: The properties of the driver of this process.
properties = DriverProperties()


class ConfigContextManager:
    """The effect of ``set``, which the end of a ``with`` block undoes."""

    def __init__(self, config: dict[str, int]) -> None:
        for name in config:
            if name not in _GETTERS:
                raise KeyError(name)
            if name not in _SETTERS:
                raise KeyError(f"{name} is read-only")
            if name in _LENGTHS:
                not_negative(name, config[name])
        self._old = {name: get(name) for name in config}
        _apply(config)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        _apply(self._old)


def _apply(config: dict[str, int]) -> None:
    for name, value in config.items():
        with translated(f"cannot set {name} for the next opening of the cuFile driver"):
            _SETTERS[name](value)


@overload
def set(config: dict[str, int], /) -> ConfigContextManager: ...
@overload
def set(key: str, value: int, /) -> ConfigContextManager: ...
def set(*config: Any) -> ConfigContextManager:
    """Sets one property, ``set(name, value)``, or several, ``set({name: value})``, for the next opening of the driver.

    cuFile reads them when the driver opens, so this raises ``RuntimeError`` while it is open. In a ``with`` statement,
    the old values return at the end of the block.
    """
    if len(config) == 1 and isinstance(config[0], dict):
        return ConfigContextManager(config[0])
    if len(config) == 2 and isinstance(config[0], str):
        return ConfigContextManager({config[0]: config[1]})
    raise ValueError("call set(name, value) or set({name: value})")


def libcufile_version() -> tuple[int, int]:
    """Returns the version of libcufile, and (0, 0) without it."""
    try:
        return _version()
    except OSError:
        return (0, 0)


def driver_open() -> None:
    """Opens the driver until ``driver_close``. Without this call, transfers open it when needed."""
    with translated():
        open_driver()


def driver_close() -> None:
    """Closes the driver, once every ``driver_open`` has a matching ``driver_close``."""
    with translated():
        close_driver()


def initialize() -> None:
    """Opens the driver, and closes it when the interpreter exits."""
    driver_open()
    atexit.register(driver_close)
