"""What each request needs: the rows of ``raftlog/security/permissions.py``."""

from __future__ import annotations

from collections.abc import Iterator

from raftlog.metadata.selectors import PLURAL
from raftlog.security.permissions import (
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
from reference_pages.markdown import table as markdown_table


def table() -> str:
    """All requests but those of the quorum, which are of nodes."""
    return markdown_table(("Request", "To", "Needs", "On"), _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    for where, rows in (("controller", CONTROLLER), ("broker", BROKER)):
        for body, row in rows.items():
            if not isinstance(row, OfNode | Forwarded):
                yield (_rpc(body), where, *_needs(row))
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


def _rpc(body: str) -> str:
    return "".join(word.capitalize() for word in body.split("_"))


def _needs(row: Row) -> tuple[str, str]:
    match row:
        case Whole():
            own = ", or a node about itself" if row.own_field else ""
            return row.operation.name, row.of + own
        case Each():
            other = f"; or {row.instead.operation.name} CLUSTER" if row.instead else ""
            return row.operation.name, f"each {row.of}{other}"
        case All():
            return row.operation.name, f"every {row.of}"
        case EachPartition():
            return row.operation.name, "each partition's TOPIC"
        case Listed():
            also = f"; {', '.join(row.of_cluster)}: CLUSTER" if row.of_cluster else ""
            return "DESCRIBE", f"each {row.of} shown{also}"
        case OfAnybody():
            return "nothing", row.why
    raise AssertionError(row)
