"""Each public function has a row in the tables of wrong arguments."""

import ast
import enum
import importlib.util
import inspect
import pathlib
import typing

import pytest

pytest.importorskip("numpy")

import gpufile
from gpufile.safetensors import _plan, _prefetch

HERE = pathlib.Path(__file__).parent


def load(name):
    """Returns a module of tests, or None if what it tests is not installed."""
    spec = importlib.util.spec_from_file_location(f"loaded_{name}", HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except pytest.skip.Exception:
        return None
    return module


DOCSTRINGS = load("test_docstrings")


class Instance:
    """An object of a class, of which only the class is known."""

    def __init__(self, of):
        self.of = of


#: The arguments of rows and tests that a fixture fills.
FIXTURES = {"file": Instance(gpufile.File), "data": Instance(gpufile.File)}


def is_installed(name):
    """Returns whether a module can be imported, with what it needs."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def key(value):
    """Returns the place where a function or class is defined, however it was found."""
    value = inspect.unwrap(getattr(value, "__func__", value))
    module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
    return module or "gpufile._gpufile", value.__qualname__


class Rows(ast.NodeVisitor):
    """The functions and classes that a module of tests names, also as methods of objects that it makes."""

    def __init__(self, module):
        self.names, self.found = dict(vars(module)), set()
        self.visit(ast.parse(inspect.getsource(module)))
        for test in vars(module).values():
            for mark in getattr(test, "pytestmark", []):
                if mark.args[0] == "method":
                    self.found |= {key(getattr(gpufile.File, name)) for name in mark.args[1]}

    def visit_Lambda(self, node):
        outer, self.names = self.names, self.names | FIXTURES
        self.generic_visit(node)
        self.names = outer

    visit_FunctionDef = visit_Lambda

    def visit_withitem(self, node):
        self.generic_visit(node)
        if isinstance(node.optional_vars, ast.Name):
            self.names[node.optional_vars.id] = self.value(node.context_expr)

    def visit_Assign(self, node):
        self.generic_visit(node)
        value = self.value(node.value)
        if value is not None and isinstance(node.targets[0], ast.Name):
            self.names[node.targets[0].id] = value

    def visit_Attribute(self, node):
        value = self.value(node)
        if callable(value) and hasattr(value, "__qualname__"):
            self.found.add(key(value))
        self.generic_visit(node)

    visit_Name = visit_Attribute

    def value(self, node):
        """Returns the value of an expression, or None if it is not known."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            return getattr(owner.of if isinstance(owner, Instance) else owner, node.attr, None)
        if isinstance(node, ast.Call):
            called = self.value(node.func)
            if called is pytest.importorskip:
                return importlib.import_module(node.args[0].value) if is_installed(node.args[0].value) else None
            if inspect.isclass(called):
                return Instance(called)
            # Native functions have no hints.
            if getattr(called, "__name__", "").endswith("_async"):
                return Instance(gpufile.Future)
            try:
                return Instance(typing.get_type_hints(called, localns={"_plan": _plan, "_prefetch": _prefetch}).get("return"))
            except (NameError, TypeError):
                return None
        return None


#: Classes whose objects the package makes, and programs do not.
MADE_BY_OTHERS = {
    "BackendTotals",
    "ConfigContextManager",
    "Future",
    "IOFuture",
    "IOFutureStream",
    "PrefetchLoader",
    "QuantizedTensor",
    "SafeSlice",
    "Share",
    "Summary",
    "TensorMeta",
    "Verification",
}
#: Functions whose arguments are true or false, or any object at all.
ANY_OBJECT = {"LikeWrapper", "clear_page_cache", "drop_system_page_cache"}


def is_called_by_others(owner, name):
    """Returns whether a method implements the interface of another package, which calls it."""
    bases = owner.__mro__[1:] if inspect.isclass(owner) else ()
    others = [base for base in bases if not base.__module__.startswith("gpufile") and base is not object]
    return owner is not gpufile.Future and any(hasattr(base, name) for base in others)


def public_functions():
    """Yields the key of each public function, method and class, with the object."""
    for name in DOCSTRINGS.MODULES:
        if not is_installed(name):
            continue
        module = importlib.import_module(name)
        # Without a list, what a module imports is not its own.
        origin = "gpufile" if hasattr(module, "__all__") else name
        for public in getattr(module, "__all__", filter(DOCSTRINGS.is_public, vars(module))):
            value = getattr(module, public)
            if not getattr(value, "__module__", "").startswith(origin):
                continue
            for where, member in DOCSTRINGS.members_of(public, value):
                if not is_called_by_others(value, where.rpartition(".")[2]) and callable(member):
                    yield key(member), member


def takes_arguments(function):
    if function.__name__ in MADE_BY_OTHERS | ANY_OBJECT:
        return False
    # Enumerations check their values themselves, and protocols have no objects.
    if inspect.isclass(function) and (issubclass(function, enum.Enum) or getattr(function, "_is_protocol", False)):
        return False
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return False
    return bool([name for name in parameters if name not in ("self", "cls", "exception")])


def test_each_public_function_has_a_row():
    rows = set()
    for name in ("test_arguments", "test_torch_arguments"):
        module = load(name)
        rows |= Rows(module).found if module else set()
    missing = {where for where, function in public_functions() if takes_arguments(function)} - rows
    assert not missing, "\n".join(sorted(map(".".join, missing)))
