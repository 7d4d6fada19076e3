"""The contracts: services and messages as described by the generated code, with the comments of the
``.proto`` files.

Descriptors in generated code carry no comments, so those are read from the files; a declaration
that occurs in only one of the two is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.node.v1 import node_pb2
from raftlog.wire.quorum.v1 import quorum_pb2
from raftlog.wire.records.v1 import records_pb2
from reference_pages.markdown import cell, paragraph, table

PROTO = Path(__file__).resolve().parents[2] / "proto"
FILES: tuple[Any, ...] = tuple(
    module.DESCRIPTOR
    for module in (
        controller_pb2,
        broker_pb2,
        data_pb2,
        quorum_pb2,
        node_pb2,
        common_pb2,
        records_pb2,
    )
)
TITLES = {"common": "Common messages", "records": "Records of the log"}
SCALARS = (
    "",
    "double",
    "float",
    "int64",
    "uint64",
    "int32",
    "fixed64",
    "fixed32",
    "bool",
    "string",
    "",
    "",
    "bytes",
    "uint32",
    "",
    "sfixed32",
    "sfixed64",
    "sint32",
    "sint64",
)
"""Names of field types by their numbers in a descriptor; messages and enums have their own
names.
"""

_OPENS = re.compile(r"(message|enum|service|oneof)\s+(\w+)\s*\{(\s*\})?")
_RPC = re.compile(r"rpc\s+(\w+)")
_FIELD = re.compile(r"(?:repeated\s+|optional\s+)?(?:[\w.]+(?:<.*>)?\s+)?(\w+)\s*=\s*-?\d+")


class Comments:
    """The comments in a file, by full name of the declaration below them; ``groups``: those
    separated from the next declaration by a blank line.
    """

    def __init__(self, text: str) -> None:
        self.by_name: dict[str, str] = {}
        self.groups: dict[str, str] = {}
        self.package = ""
        self._scopes: list[str] = []
        self._group = ""
        above: list[str] = []
        for line in map(str.strip, text.splitlines()):
            if line.startswith("//"):
                above.append(line[2:].strip())
                continue
            if line:
                self._declared(line, " ".join(above))
            elif above:
                self._group = " ".join(above)
            above = []

    def _declared(self, line: str, comment: str) -> None:
        if line.startswith("package "):
            self._scopes = [line.removeprefix("package ").rstrip(";")]
            self.package = comment
        elif opened := _OPENS.match(line):
            # Fields of a oneof are named like other fields.
            self._scopes.append("" if opened[1] == "oneof" else opened[2])
            self._note(comment)
            if opened[3]:
                self._scopes.pop()
        elif line.startswith("}"):
            self._scopes.pop()
        elif named := _RPC.match(line) or _FIELD.match(line):
            self._scopes.append(named[1])
            self._note(comment)
            self._scopes.pop()

    def _note(self, comment: str) -> None:
        if not self._scopes[-1]:
            return
        name = ".".join(filter(None, self._scopes))
        self.by_name[name] = comment
        if self._group:
            self.groups[name], self._group = self._group, ""


def pages() -> dict[str, str]:
    """Return one page per file."""
    return {f"{_page(file)}.md": _text(file) for file in FILES}


def _page(file: Any) -> str:
    return Path(file.name).stem


def _text(file: Any) -> str:
    comments = Comments((PROTO / file.name).read_text())
    page = _page(file)
    parts = [f"# {TITLES.get(page, f'{page.capitalize()} RPCs')}\n\n`proto/{file.name}`"]
    if comments.package:
        parts.append(paragraph(comments.package))
    parts += [
        part for service in file.services_by_name.values() for part in _service(service, comments)
    ]
    parts += [
        part
        for message in file.message_types_by_name.values()
        for part in _message(message, comments)
    ]
    parts += [part for enum in file.enum_types_by_name.values() for part in _enum(enum, comments)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _service(service: Any, comments: Comments) -> Iterator[str]:
    yield f"## Service {service.name}"
    yield from _note(comments.by_name[service.full_name])
    rows: list[Sequence[str]] = []
    for method in service.methods:
        if group := comments.groups.get(method.full_name):
            yield from _rpcs(rows)
            yield paragraph(cell(group))
            rows = []
        asks = ("stream " if method.client_streaming else "") + _link(
            method.input_type, service.file
        )
        tells = ("stream " if method.server_streaming else "") + _link(
            method.output_type, service.file
        )
        rows.append((f"`{method.name}`", asks, tells, cell(comments.by_name[method.full_name])))
    yield from _rpcs(rows)


def _rpcs(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if any(row[3] for row in rows):
        yield table(("RPC", "Request", "Response", "Meaning"), rows)
    elif rows:
        yield table(("RPC", "Request", "Response"), [row[:3] for row in rows])


def _message(message: Any, comments: Comments) -> Iterator[str]:
    yield f"## {_name(message)}"
    yield from _note(comments.by_name[message.full_name])
    fields = sorted(message.fields, key=lambda field: field.number)
    if fields:
        yield table(
            ("Number", "Field", "Type", "Meaning"),
            [
                (
                    str(one.number),
                    f"`{one.name}`",
                    _type(one),
                    cell(comments.by_name[f"{message.full_name}.{one.name}"]),
                )
                for one in fields
            ],
        )
        for oneof in message.oneofs:
            members = [f"`{field.name}`" for field in oneof.fields]
            if len(members) > 1:
                yield paragraph(
                    f"At most one of these is set (`{oneof.name}`): {', '.join(members)}."
                )
    else:
        yield "No fields."
    for nested in message.nested_types:
        yield from _message(nested, comments)
    for enum in message.enum_types:
        yield from _enum(enum, comments)


def _enum(enum: Any, comments: Comments) -> Iterator[str]:
    yield f"## {_name(enum)}"
    yield from _note(comments.by_name[enum.full_name])
    names = f"{enum.full_name}."
    yield table(
        ("Number", "Name", "Meaning"),
        [
            (str(one.number), f"`{one.name}`", cell(comments.by_name[names + one.name]))
            for one in enum.values
        ],
    )


def _note(comment: str) -> Iterator[str]:
    if comment:
        yield paragraph(cell(comment))


def _type(field: Any) -> str:
    named = field.message_type or field.enum_type
    name = _link(named, field.file) if named else SCALARS[field.type]
    if field.is_repeated:
        return f"repeated {name}"
    alone = field.containing_oneof is not None and len(field.containing_oneof.fields) == 1
    return f"optional {name}" if alone else name


def _name(declared: Any) -> str:
    return declared.full_name.removeprefix(f"{declared.file.package}.")


def _link(declared: Any, file: Any) -> str:
    name = _name(declared)
    if declared.file not in FILES:
        return f"`{declared.full_name}`"
    page = "" if declared.file is file else f"{_page(declared.file)}.md"
    return f"[{name}]({page}#{name.replace('.', '').lower()})"
