"""The simulator uses public names of the shipped code, and replaces none of it."""

import ast
from collections.abc import Iterator
from pathlib import Path

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
