"""This package in the place of the package safetensors, in a whole process.

The modules of safetensors stay, with other functions in them. Modules that imported such a function by its name get the
other one, too. What takes a function's place is a copy, so that `uninstall` finds it, and leaves alone what programs
imported from this package themselves.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from .._gpufile import Lock, places_of
from ._mapped import map_by_default
from ._open import FRAMEWORKS, safe_open

#: The modules of safetensors, with the modules that take their place.
_MODULES = {f"safetensors{name}": f"{__package__}{name}" for name in ("", ".torch", ".numpy", ".flax")}
#: The functions and classes that read and write.
_NAMES = (
    "TensorSpec", "_safe_open_handle", "deserialize", "load", "load_file", "load_model", "safe_open", "save", "save_file",
    "save_model", "serialize", "serialize_file",
)  # fmt: skip
#: The classes of what these return. Older versions of safetensors lack some.
_RESULTS = {"PrefetchLoader": "PrefetchLoader", "PySafeSlice": "SafeSlice", "TensorMeta": "TensorMeta"}
_MISSING = object()


def install(*, mapped: bool | None = None) -> None:
    """Puts this package in the place of the package safetensors, in this process, until ``uninstall``.

    >>> import gpufile.safetensors, transformers
    >>> gpufile.safetensors.install()
    >>> model = transformers.AutoModel.from_pretrained("Llama-3.1-8B", device_map="cuda")

    This works for transformers, accelerate, diffusers, peft, sentence-transformers and others, whether they are imported
    before or after. ``mapped`` is for the calls that do not choose: with ``True``, arrays of numpy on the host are in
    mappings of the files, too, and with ``False``, tensors of torch are not.

    Two kinds of places keep the functions of safetensors: those outside of modules, such as default arguments of
    functions, and processes that are started, except forks. For these, set the environment variable ``GPUFILE_INSTALL=1``,
    or start the program with ``python -m gpufile run``. Raises ``ImportError`` if safetensors is not installed.
    """
    if not isinstance(mapped, (bool, type(None))):
        raise TypeError(f"mapped: expected True, False or None, not {type(mapped).__name__}")
    # Not under the lock, for which another thread may wait that imports it.
    try:
        importlib.import_module("safetensors")
    except ImportError as error:
        raise ImportError(
            "install() takes the place of the package safetensors, which cannot be imported here; import"
            f" gpufile.safetensors itself instead ({error})"
        ) from error
    _lock.run(partial(_install, mapped))


def uninstall() -> None:
    """Ends ``install``: the functions of the package safetensors take their places again."""
    _lock.run(_uninstall)


class _Installation(MetaPathFinder):
    """The functions that were replaced, and the watch for modules of safetensors that are imported later."""

    def __init__(self) -> None:
        #: The functions of safetensors by their identities, each with what took its place.
        self._replaced: dict[int, tuple[Any, Any]] = {}
        #: The module of safetensors, the name, and its value before and now.
        self._changes: list[tuple[types.ModuleType, str, Any, Any]] = []

    def replace(self, module: types.ModuleType) -> None:
        """Replaces the functions of a module of safetensors."""
        ours = importlib.import_module(_MODULES[module.__name__])
        for name in _NAMES:
            original, own = vars(module).get(name), getattr(ours, name, None)
            if original is not None and own is not None:
                if id(original) not in self._replaced:
                    self._replaced[id(original)] = original, _copy(own, original, f"{module.__name__}.{name}")
                self._change(module, name, self._replaced[id(original)][1])
        if module.__name__ == "safetensors":
            for name, own_name in _RESULTS.items():
                self._change(module, name, getattr(ours, own_name))

    def _change(self, module: types.ModuleType, name: str, value: Any) -> None:
        self._changes.append((module, name, vars(module).get(name, _MISSING), value))
        setattr(module, name, value)

    def replace_elsewhere(self) -> None:
        """Replaces the functions in all other modules."""
        _exchange(self._replaced)

    def restore(self) -> None:
        """Puts the functions of safetensors back, everywhere."""
        for module, name, before, now in reversed(self._changes):
            if vars(module).get(name) is not now:
                continue
            if before is _MISSING:
                delattr(module, name)
            else:
                setattr(module, name, before)
        _exchange({id(copy): (copy, original) for original, copy in self._replaced.values()})

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a module of safetensors as without this, and replaces its functions once it is imported."""
        if fullname not in _MODULES:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Replacing(spec.loader)
                return spec
        return None


class _Replacing(Loader):
    """A loader that replaces the functions of the module after the other loader has run it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        """Creates the module as the other loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs the module, and replaces its functions."""
        self._loader.exec_module(module)
        _lock.run(partial(_replace_late, module))


_lock = Lock()
_installation: _Installation | None = None


def _install(mapped: bool | None) -> None:
    global _installation
    if _installation is not None:
        map_by_default(mapped)
        return
    installation = _Installation()
    for name in _MODULES:
        if (module := sys.modules.get(name)) is not None:
            installation.replace(module)
    installation.replace_elsewhere()
    sys.meta_path.insert(0, installation)
    _installation = installation
    map_by_default(mapped)


def find_first(fullname: str, path: Sequence[str] | None, target: types.ModuleType | None) -> ModuleSpec | None:
    """Installs this package, and finds the module safetensors, which nothing has imported yet."""
    _lock.run(partial(_install, None))
    return None if _installation is None else _installation.find_spec(fullname, path, target)


def _replace_late(module: types.ModuleType) -> None:
    if _installation is not None:
        _installation.replace(module)


def _uninstall() -> None:
    global _installation
    if (waiting := sys.modules.get("_gpufile_install")) is not None:
        waiting.cancel()
    if _installation is None:
        return
    installation, _installation = _installation, None
    if installation in sys.meta_path:
        sys.meta_path.remove(installation)
    installation.restore()
    map_by_default(None)


def _copy(value: Any, original: Any, path: str) -> Any:
    """Returns a function or a class that does the same and is another object. Its path is the one at which it takes the place
    of the original: there, ``pickle`` finds it."""
    module, _, name = path.rpartition(".")
    if isinstance(value, type):
        own: dict[str, Any] = {"__module__": module, "__qualname__": name, "__doc__": value.__doc__, "__slots__": ()}
        if issubclass(value, safe_open):
            own["__new__"] = _new_of(value, original)
        return type(name, (value,), own)
    copy = types.FunctionType(value.__code__, value.__globals__, name, value.__defaults__, value.__closure__)
    copy.__kwdefaults__ = value.__kwdefaults__
    copy.__dict__.update(value.__dict__)
    copy.__doc__, copy.__module__, copy.__qualname__ = value.__doc__, module, name
    copy.__annotations__ = value.__annotations__
    return copy


def _new_of(value: Any, original: Any) -> Any:
    """Returns the ``__new__`` of a class for open models, which leaves frameworks that only safetensors has to the original."""

    def new(cls: Any, *arguments: Any, **options: Any) -> Any:
        framework = options.get("framework", *arguments[1:2])
        # A program's class may take other arguments.
        if framework is None or framework in FRAMEWORKS or cls.__init__ is not value.__init__:
            return object.__new__(cls)
        return original(*arguments, **options)

    return new


def _exchange(values: dict[int, tuple[Any, Any]]) -> None:
    """Replaces values in the modules of programs. ``values`` has each value and its replacement, by the ``id`` of the value."""
    for module_name, name in places_of(sys.modules, list(values)):
        is_kept = module_name.partition(".")[0] == "gpufile" or module_name in _MODULES or module_name.startswith("safetensors._")
        if is_kept or (module := sys.modules.get(module_name)) is None:
            continue
        found = values.get(id(vars(module).get(name)))
        if found is not None:
            vars(module)[name] = found[1]
