"""The generated sections of written pages: error codes, permissions, node events, configuration
keys, mutants, rows of the proposals.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import pairwise

from raftlog.client import broker_client, consumer, producer, session
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.selectors import PLURAL
from raftlog.node.config.reference import reference
from raftlog.node.observability.journal import KINDS
from raftlog.node.security.permissions import (
    BROKER,
    CONTROLLER,
    LOG,
    OF_ANY_NODE,
    WATCH,
    All,
    Each,
    EachPartition,
    Forwarded,
    Listed,
    OfAnybody,
    OfNode,
    Row,
    Whole,
)
from raftlog.transport.statuses import status_of
from reference_pages.markdown import cell, paragraph, table
from simulation.mutants.registry import NO_EDIT, ROWS, SEEDED

RETRIED_BY: Mapping[str, Set[ErrorCode]] = {
    "reads": broker_client.ELSEWHERE,
    "session": session.TRANSIENT,
    "producer": producer.RETRIABLE,
    "consumer": consumer.RETRIABLE,
}
"""The parts of the client library, with the codes after which each retries a request."""


def error_codes() -> str:
    """Return the table of all codes except NONE, sorted by number."""
    meanings = _meanings()
    rows = (
        (
            code.name,
            str(code.value),
            status_of(ApiError(code, "")).name,
            ", ".join(part for part, codes in RETRIED_BY.items() if code in codes),
            cell(meanings[code.name]),
        )
        for code in sorted(set(ErrorCode) - {ErrorCode.NONE})
    )
    return table(("Code", "Number", "gRPC status", "Retried by", "Meaning"), rows)


def _meanings() -> dict[str, str]:
    """Return the docstring of each code in its class, by the code's name."""
    body = next(
        node
        for node in ast.parse(inspect.getsource(ErrorCode)).body
        if isinstance(node, ast.ClassDef)
    ).body
    return {
        ast.unparse(code.targets[0]): ast.literal_eval(text.value)
        for code, text in pairwise(body)
        if isinstance(code, ast.Assign) and isinstance(text, ast.Expr)
    }


def node_events() -> str:
    """Return the table of the kinds of events in a node's journal."""
    rows = (
        (f"`{kind}`", ", ".join(f"`{name}`" for name in about.details), cell(about.meaning))
        for kind, about in KINDS.items()
    )
    return table(("Event", "Details", "Meaning"), rows)


def configuration_keys() -> str:
    """Return the list of all keys, like ``raftlog config keys``."""
    items = []
    for key in reference():
        default = f"default `{key.default}`" if key.default else "no default"
        unit = f" {key.unit}" if key.default and key.unit else ""
        text = f"* **`{key.key}`** ({' and '.join(key.roles)}; {default}{unit}). {key.doc}"
        items.append(paragraph(text, indent="  ") + "\n")
    return "".join(items)


def mutants() -> str:
    """Return the table of all mutants."""
    rows = ((f"`{name}`", cell(one.rule), str(one.seeds)) for name, one in SEEDED.items())
    return table(("Mutant", "What it breaks", "Killed within seeds"), rows)


def proposal_rows() -> str:
    """Return the table of the rows on the proposals' page: the edits that make each row false, and
    the tests that detect them.
    """
    rows = [
        (one.row, one.rule, "`" + "`, `".join(edit.target for edit in one.edits) + "`", tests)
        for one in ROWS
        for tests in [", ".join(f"`{test}`" for test in one.tests)]
    ]
    rows += [(row, f"No edit makes it false: {why}", "", "") for row, why in NO_EDIT.items()]
    heads = ("Row", "What an edit breaks", "Where", "Tests that detect it")
    return table(heads, ((row, cell(text), *rest) for row, text, *rest in rows))


def permissions() -> str:
    """Return the table of the rights that requests need, without requests between nodes."""
    return table(("Request", "To", "Needs", "On"), _permission_rows())


def _permission_rows() -> Iterator[tuple[str, ...]]:
    for where, rows in (("controller", CONTROLLER), ("broker", BROKER)):
        for body, row in rows.items():
            if not isinstance(row, OfNode | Forwarded):
                yield ("".join(word.capitalize() for word in body.split("_")), where, *_needs(row))
    for method, row in LOG.items():
        if not isinstance(row, OfNode):
            if method in OF_ANY_NODE:
                yield (method, "any node", *_needs(row))
            else:
                yield (f"{method} without a node id", "controller", *_needs(row))

    for kind, watched in WATCH.items():
        of = watched.of if watched.of.startswith("its ") else f"its {watched.of}"
        yield (
            f"Watch of {PLURAL[kind]}",
            "broker",
            watched.operation.name,
            "CLUSTER" if watched.of == "CLUSTER" else of,
        )


def _needs(row: Row) -> tuple[str, str]:
    match row:
        case Whole():
            own = ", or a node about itself" if row.own_field else ""
            return row.operation.name, row.of + own
        case Each():
            other = f"; or {row.instead.operation.name} CLUSTER" if row.instead else ""
            return row.operation.name, f"each {row.of}{other}"
        case All():
            also = (
                f"; with a {row.also[0]}: {' on a '.join(_needs(row.also[1]))}" if row.also else ""
            )
            return row.operation.name, f"every {row.of}{also}"
        case EachPartition():
            return row.operation.name, "each partition's TOPIC"
        case Listed():
            also = f"; {', '.join(row.of_cluster)}: CLUSTER" if row.of_cluster else ""
            return "DESCRIBE", f"each {row.of} shown{also}"
        case OfAnybody():
            return "nothing", row.why
    raise AssertionError(row)


SECTIONS: Mapping[str, Callable[[], str]] = {
    "error codes": error_codes,
    "permissions": permissions,
    "node events": node_events,
    "configuration keys": configuration_keys,
    "mutants": mutants,
    "rows": proposal_rows,
}
"""Section name, as in ``<!-- generated: NAME -->`` on a page -> function that generates the
section.
"""
