"""The documents that commands print with --json, as a page and as a JSON Schema.

Every document is an object with all its keys, even if there is nothing to list. Bytes are in hex
and times in milliseconds since 1970, unless the name says otherwise. ``offset`` next to a list is
the offset of the metadata shown; in a row, the row's docstring defines it.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, NamedTuple, TypedDict, Union, get_args, get_origin, is_typeddict

import msgspec
import typer

from raftlog.cli.command import Answer
from raftlog.cli.main import build
from raftlog.client.values import ItemResult, Listing
from raftlog.errors import ApiError
from raftlog.outcome import WriteResult
from raftlog.text import to_json
from reference_pages.markdown import cell, paragraph, table
from replay import documents as replayed

_REF = "#/$defs/"


class Printed(NamedTuple):
    """A document that a command prints."""

    documents: tuple[Any, ...]
    """Types of the document; several if options decide between them."""
    lines: bool = False
    """Whether one document per line is printed, or none if there is nothing to print."""


@cache
def names_of(module: ModuleType) -> dict[str, Any]:
    """Return the names in a module, including those that only type checkers import."""
    names = {**vars(module)}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(ast.unparse(ast.Module(node.body, [])), names)
    return names


def _commands(app: typer.Typer, path: str = "") -> Iterator[tuple[str, Any]]:
    for one in app.registered_commands:
        assert one.callback is not None
        if not one.hidden:
            name = one.name or one.callback.__name__.replace("_", "-")
            yield f"{path}{name}", inspect.unwrap(one.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _commands(group.typer_instance, f"{path}{group.name} ")


def _printed() -> dict[str, Printed]:
    found = {}
    for name, body in _commands(build()):
        returned = body.__annotations__.get("return")
        if str(returned).startswith("Answer["):
            names = names_of(sys.modules[body.__module__]) | {"Answer": Answer}
            answer = str(returned).removesuffix(" | None")
            (document,) = get_args(eval(answer, names))
            union = get_origin(document) in (Union, UnionType)
            found[name] = Printed(get_args(document) if union else (document,))
        elif (lines := getattr(body, "lines", None)) is not None:
            found[name] = Printed((lines,), lines=True)
    return found


PRINTED = _printed()
"""Documents of the commands, by command."""
NOT_DECLARED = ("export --follow", "import kafka --follow")
"""Commands with --json whose documents are not declared yet."""
_LINES = {*(name for name, one in PRINTED.items() if one.lines), "replay watch"}
_HEAD = """With `--json` a command prints JSON on standard output, and nothing else there; messages,
including errors, go to standard error. The document is an object with all its keys, even if there
is nothing to list; a command with *one document per line* prints nothing then. Nothing is
shortened. A release may add keys; it changes none without an entry in the changelog."""
_OFFSETS = """`offset` next to a list is that of the metadata shown; in a row, the row's description
defines it. Bytes are in hex and times in milliseconds since 1970, unless the name of the key says
otherwise."""
_SCHEMA = """[The schema](json_schema.json) is for programs: each command's document is under
`properties`."""


def page() -> str:
    """Return the page: each document with the paths of its keys."""
    of, types = _schemas()
    commands: dict[str, list[str]] = {}
    for command, document in of.items():
        for one in document.get("anyOf", [document]):
            commands.setdefault(one["$ref"].removeprefix(_REF), []).append(command)
    text = f"# JSON of the commands\n\n{paragraph(_HEAD)}\n\n{paragraph(_OFFSETS)}\n\n"
    text += paragraph(_SCHEMA) + "\n\n"
    rest = ", ".join(f"`raftlog {one}`" for one in NOT_DECLARED)
    text += paragraph(f"Not declared yet, and subject to change: {rest}.") + "\n"
    for name, printing in commands.items():
        one = types[name]
        says = one["description"].replace("``", "`")
        says += " One document per line." if printing[0] in _LINES else ""
        text += f"\n## {', '.join(printing)}\n\n{paragraph(says)}\n\n"
        text += table(("Key", "Type", "Meaning"), _rows(one, types, ""))
    return text


def schema() -> str:
    """Return the JSON Schema: the document of each command under the command's name."""
    of, types = _schemas()
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of raftlog commands with --json, by command",
        "type": "object",
        "properties": of,
        "$defs": types,
    }
    return json.dumps(document, indent=1) + "\n"


def _schemas() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the document of each command, and all types by name with the meaning of their keys."""
    declared, types = _declared()
    found, results = msgspec.json.schema_components(
        replayed.PRINTED.values(), ref_template=f"{_REF}replay.{{name}}"
    )
    for name, said in _docstrings(replayed).items():
        for key, text in said.items():
            if text:
                results[name]["properties"][key]["description"] = text
    for result in results.values():
        # In the form in which Python 3.13 and later keep docstrings.
        if "description" in result:
            result["description"] = inspect.cleandoc(result["description"])
    renamed = {f"replay.{name}": results[name] for name in sorted(results)}
    return declared | dict(zip(replayed.PRINTED, found, strict=True)), types | renamed


def _declared() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    each = [(name, _plain(one)) for name, printed in PRINTED.items() for one in printed.documents]
    references, types = msgspec.json.schema_components(
        [kind for _, kind in each], ref_template=_REF + "{name}"
    )
    of: dict[str, dict[str, Any]] = {}
    for (name, _), reference in zip(each, references, strict=True):
        others = of.get(name)
        of[name] = reference if others is None else {"anyOf": [others, reference]}
    for name, one in types.items():
        properties = {}
        for key, text in _said[name].items():
            description = {"description": text.replace("None", "null")} if text else {}
            properties[key] = {**one["properties"][key], **description}
        one |= {"properties": properties, "required": [*properties]}
    return of, dict(sorted(types.items()))


class Error(TypedDict):
    """The reason for a refusal."""

    code: str
    message: str
    field: str


_said: dict[str, dict[str, str]] = {"Error": {"code": "", "message": "", "field": ""}}
"""The docstrings of the fields of each class in the client, by key."""


def _plain(kind: Any) -> Any:
    """Return the type of the result of ``raftlog.cli.output.to_json`` for a value of this type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return Union[tuple(map(_plain, arguments))]  # noqa: UP007
    if origin is Literal:
        return kind
    if origin is not None and issubclass(origin, WriteResult | Listing):
        return _class(origin, arguments[0])
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, _plain(arguments[1])]  # type: ignore[misc]
    if origin is not None and issubclass(origin, Sequence):
        return list[_plain(arguments[0])]  # type: ignore[misc]
    if not isinstance(kind, type):
        return kind
    if issubclass(kind, ApiError):
        return Error
    if issubclass(kind, Enum):
        return Literal[tuple(to_json(one) for one in kind)]
    if issubclass(kind, int) and kind is not bool:
        return int
    keyed: Any = kind
    return _class(keyed) if _has_keys(keyed) else kind


def _has_keys(kind: Any) -> bool:
    return is_dataclass(kind) or is_typeddict(kind) or issubclass(kind, Listing | msgspec.Struct)


@cache
def _class(kind: type, item: Any = None) -> Any:
    """Return a class with the keys of another class; ``item``: the item type of a generic
    listing.
    """
    name = kind.__name__
    if item is not None:
        name = f"{item.__name__}List" if issubclass(kind, Listing) else f"{item.__name__}Write"
    keys: dict[str, Any] = {}
    said: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one.__module__ in sys.modules and _has_keys(one):
            module = sys.modules[one.__module__]
            said |= _docstrings(module).get(one.__name__, {})
            names = names_of(module) | {"ItemT_co": item or ItemResult}
            for key, annotation in vars(one).get("__annotations__", {}).items():
                text = getattr(annotation, "__forward_arg__", annotation)
                keys[key] = _plain(eval(text, names) if isinstance(text, str) else text)
    if issubclass(kind, Listing):
        of = item or get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]
        keys["items"] = list[_plain(of)]  # type: ignore[misc]
    _said[name] = {key: said.get(key, "") for key in keys}
    made = TypedDict(name, keys)  # type: ignore[misc]
    made.__doc__ = inspect.cleandoc(kind.__doc__ or "")
    return made


def _docstrings(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return docstrings by class and key, in the order of declaration; "" if the name suffices."""
    found: dict[str, dict[str, str]] = {}
    tree = ast.parse(Path(module.__file__ or "").read_text())
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        own: dict[str, str] = {}
        key = ""
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                key = line.target.id
                own[key] = ""
            elif isinstance(line, ast.Expr) and key and isinstance(line.value, ast.Constant):
                own[key] = " ".join(str(line.value.value).split())
        inherited = (found.get(ast.unparse(base), {}) for base in node.bases)
        found[node.name] = own | {name: text for of in inherited for name, text in of.items()}
    return found


def _rows(one: Mapping[str, Any], types: Mapping[str, Any], before: str) -> Iterator[list[str]]:
    for key, of in one["properties"].items():
        path = f"{before}{key}"
        inner, text, suffix = _type(of, types)
        yield [f"`{path}`", text, cell(of.get("description", "").replace("``", "`"))]
        if inner is not None:
            yield from _rows(types[inner], types, f"{path}{suffix}.")


def _type(of: Mapping[str, Any], types: Mapping[str, Any]) -> tuple[str | None, str, str]:
    """Return the nested object, a text about the type, and the path suffix that leads to the
    object.
    """
    if "anyOf" in of:
        found = [_type(one, types) for one in of["anyOf"]]
        inner, _, suffix = next((one for one in found if one[0]), (None, "", ""))
        return inner, " or ".join(text for _, text, _ in found), suffix
    if "$ref" in of:
        return of["$ref"].removeprefix(_REF), "object", ""
    if "enum" in of:
        return None, ", ".join(f"`{one}`" for one in of["enum"]), ""
    if "prefixItems" in of:
        parts = (_type(one, types)[1] for one in of["prefixItems"])
        return None, f"list of {', '.join(parts)}", ""
    if of.get("type") == "array":
        inner, text, suffix = _type(of.get("items") or {}, types)
        return inner, f"list of {text}s" if inner else f"list of {text}", f"[]{suffix}"
    if of.get("type") == "object":
        values = of.get("additionalProperties") or {}
        inner, text, suffix = _type(values, types)
        return inner, f"object by name, of {text}", f"[NAME]{suffix}"
    return None, of.get("type", "any"), ""
