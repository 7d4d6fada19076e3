"""The simulator uses public names of the shipped code, and replaces none of it."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType

ROOT = Path(__file__).parents[2]
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make"}
"""Public, and named so that no field is named like it."""
ASYNCIO = {"_args", "_callback", "_cancelled", "_context", "_log_destroy_pending", "_scheduled"}
"""Private names of asyncio's Handle and Task. An event loop has to run handles, and asyncio offers
a foreign loop no public way to do that.
"""
TAMPERED = {"_node"}
"""A node that breaks the protocol: the shipped code gives nobody a way to do that, and must not."""
EXCEPTIONS = {"simulation/twins/loop.py": ASYNCIO, "simulation/faults/voters.py": TAMPERED}


def _reached_into(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Private attributes of anything except ``self``, ``cls`` and ``super()``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name, owner = node.attr, ast.unparse(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            name, owner = getattr(node.args[1], "value", ""), ""
        else:
            continue
        is_private = name.startswith("_") and not name.startswith("__")
        if is_private and name not in NAMED_TUPLE and owner not in ("self", "cls", "super()"):
            yield node.lineno, name


def test_simulator_uses_public_names_only() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "simulation").rglob("*.py"))
        for line, name in _reached_into(ast.parse(path.read_text()))
        if name not in EXCEPTIONS.get(str(path.relative_to(ROOT)), ())
    ]
    assert found == []


def test_simulator_replaces_no_method() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "simulation").rglob("*.py"))
        if "[method-assign]" in path.read_text() or "setattr(" in path.read_text()
    ]
    assert found == []


def test_private_names_are_detected() -> None:
    text = "self._a; b._c; cls._d; e.f._g; getattr(h, '_i'); super()._j; k._replace(); m.__n__"
    assert [name for _, name in _reached_into(ast.parse(text))] == ["_c", "_g", "_i"]


def _methods(module: str) -> Iterator[tuple[str, str]]:
    """Yield the class and the name of each method of a module that overrides no other one."""
    for kind in vars(import_module(module)).values():
        if isinstance(kind, type) and kind.__module__ == module:
            inherited = {name for base in kind.__mro__[1:] for name in vars(base)}
            for name, value in vars(kind).items():
                if isinstance(value, FunctionType) and name not in inherited | NAMED_TUPLE:
                    yield kind.__name__, name


def test_each_method_overrides_one_or_is_called() -> None:
    """A hook of a checker whose name is wrong would never be called, and check nothing."""
    packages = ("raftlog", "controller", "broker", "simulation", "tests")
    texts = {
        path: path.read_text() for name in packages for path in sorted((ROOT / name).rglob("*.py"))
    }
    called = {name for text in texts.values() for name in re.findall(r'[."](\w+)', text)}
    found = [
        (path.name, *method)
        for path, text in texts.items()
        if path.is_relative_to(ROOT / "simulation") and "pyspark" not in text
        for method in _methods(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if method[1] not in called and not method[1].startswith(("__", "pytest_"))
    ]
    assert found == []
