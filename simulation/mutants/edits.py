"""Edits of functions in the running program.

An edit replaces text in one function's source, which is compiled and installed as the function's
code, so that every reference uses it. Line breaks and trailing commas do not matter. A text that is
not found exactly once is an error, never a mutant without effect.
"""

from __future__ import annotations
import __future__

import builtins
import dis
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<skipped>\s+|\#[^\n]*|\\\n)
    |(?:[rbfuRBFU]{0,2})(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |\w+|\*\*=?|//=?|<<=?|>>=?|[-+*/%&|^@:<>=!]=|->|\S
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = frozenset(")]}")
_PACKAGES = ("raftlog", "controller", "broker", "replay", "simulation")


class StaleMutantError(Exception):
    """The code for which an edit was made no longer exists."""


class Edit(NamedTuple):
    """In the function ``target`` ("package.module:Class.method") ``old`` is replaced by ``new``."""

    target: str
    old: str
    new: str


@cache
def _module_names() -> list[str]:
    root = Path(__file__).parents[2]
    paths = (path for package in _PACKAGES for path in (root / package).rglob("*.py"))
    return [".".join(path.relative_to(root).with_suffix("").parts) for path in paths]


def in_full(target: str) -> str:
    """Return a target with its module's full name, unless the short name is ambiguous."""
    module, _, path = target.partition(":")
    found = [name for name in _module_names() if f".{name}".endswith(f".{module}")]
    return f"{found[0]}:{path}" if len(found) == 1 else target


def find_function(target: str) -> FunctionType:
    """Return the function with a name, for a property its getter. Raises StaleMutantError."""
    module_name, _, path = target.partition(":")
    found: Any
    try:
        found = importlib.import_module(module_name)
        for name in path.split("."):
            # Not by getattr: an inherited method is another class's, and a class method would come
            # bound.
            found = vars(found)[name]
    except (ImportError, KeyError) as error:
        raise StaleMutantError(f"there is no {target}{_moved_to(path)}: {error!r}") from error
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(found, FunctionType):
        raise StaleMutantError(f"{target} is a {type(found).__name__}, not a function")
    return found


def _moved_to(path: str) -> str:
    """Return a hint about modules that define such a function now; empty if there are none."""
    modules = [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]
    places = [name for name in modules if _defines(sys.modules[name], path)]
    return f"; {path} is in {' and '.join(sorted(places))}" if places else ""


def _defines(module: Any, path: str) -> bool:
    found = module
    for name in path.split("."):
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    return getattr(found, "__module__", None) == module.__name__


def _compiled(function: FunctionType, source: str, target: str) -> CodeType:
    """Return the code of an edited source, with the same free variables as the function has now."""
    free = function.__code__.co_freevars
    # A method's source is indented as it is: like that it is a body.
    body = source if source[0].isspace() else textwrap.indent(source, "    ")
    text = f"def _enclosing({', '.join(free)}):\n{body}"
    flags = __future__.annotations.compiler_flag
    code: CodeType | None
    try:
        code = compile(text, f"<{target}, edited>", "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        raise StaleMutantError(f"{target}, edited, is not Python: {error}") from error
    for name in ("_enclosing", function.__code__.co_name):
        assert code is not None
        code = next(
            (c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name), None
        )
    if code is None or code.co_freevars != free:
        raise StaleMutantError(
            f"{target} cannot be edited: it does not compile to a function with the names {free}"
        )
    if unknown := sorted(_globals_of(code) - function.__globals__.keys() - vars(builtins).keys()):
        raise StaleMutantError(
            f"{target}, edited, uses names that its module does not have: {unknown}"
        )
    # Tracebacks and filters go by the qualified name.
    return code.replace(co_qualname=function.__code__.co_qualname)


def _globals_of(code: CodeType) -> set[str]:
    """Return the global names that code uses. An unknown one would crash instead of breaking a
    rule.
    """
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    own = (one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL")
    return set(own).union(*map(_globals_of, inner))


def _replaced(source: str, target: str, old: str, new: str) -> str:
    count = source.count(old)
    if count == 1:
        return source.replace(old, new)
    spans = find_spans(source, old) if not count else []
    if len(spans) != 1:
        raise StaleMutantError(
            f"{target} contains this {count or len(spans)} times, not once: {old!r}"
        )
    return put(source, spans[0], old, new)


class Span(NamedTuple):
    """Begin and end of a fragment in the source, in characters."""

    begin: int
    end: int


class _Token(NamedTuple):
    text: str
    begin: int
    end: int


def find_spans(source: str, fragment: str) -> list[Span]:
    """Return each place of the fragment's tokens in the source, in order; none if it has no tokens."""
    there, wanted = _tokens(source), [token.text for token in _tokens(fragment)]
    if not wanted:
        return []
    texts = [token.text for token in there]
    count = len(wanted)
    return [
        Span(there[at].begin, there[at + count - 1].end)
        for at in range(len(texts) - count + 1)
        if texts[at : at + count] == wanted
    ]


def put(source: str, span: Span, fragment: str, instead: str) -> str:
    """Return the source with ``instead`` at ``span``; the whitespace around ``fragment`` is kept."""
    begin = instead.lstrip() if fragment[:1].isspace() else instead
    return (
        source[: span.begin]
        + (begin.rstrip() if fragment[-1:].isspace() else begin)
        + source[span.end :]
    )


def _tokens(source: str) -> list[_Token]:
    """Return the tokens without blanks, comments, and commas before a closing bracket."""
    found: list[_Token] = []
    for match in _TOKEN.finditer(source):
        if match["skipped"] is not None:
            continue
        if match[0] in _CLOSERS and found and found[-1].text == ",":
            found.pop()
        found.append(_Token(match[0], match.start(), match.end()))
    return found


@contextmanager
def edited(edits: Sequence[Edit]) -> Iterator[None]:
    """Apply all edits, and undo them at the end. Raises StaleMutantError before any change."""
    sources: dict[FunctionType, tuple[str, str]] = {}
    for target, old, new in edits:
        function = find_function(target)
        source = sources[function][1] if function in sources else inspect.getsource(function)
        sources[function] = target, _replaced(source, target, old, new)
    codes = {
        function: _compiled(function, source, target)
        for function, (target, source) in sources.items()
    }
    originals = {function: function.__code__ for function in codes}
    try:
        for function, code in codes.items():
            function.__code__ = code
        yield
    finally:
        for function, original in originals.items():
            function.__code__ = original
