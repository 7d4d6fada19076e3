"""How ``raftlog certs`` shows a certificate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from raftlog.cli.output import print_line
from raftlog.identity import NodeRule

if TYPE_CHECKING:
    from raftlog.security.inspection import Inspected


def row_of(found: Inspected, rule: NodeRule, now: datetime) -> dict[str, Any]:
    """What --json prints of one certificate."""
    return {
        "subject": found.subject,
        "issuer": found.issuer,
        "names": list(found.names),
        "authority": found.authority,
        "usages": None if found.usages is None else list(found.usages),
        "nodes": sorted(rule.nodes_of(found.identity)),
        "not_before": found.not_before.isoformat(),
        "not_after": found.not_after.isoformat(),
        "validity": str(found.validity(now)),
        "days_left": found.days_left(now),
        "fingerprint_sha256": found.fingerprint,
    }


def show_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """For people, one line for each thing that a certificate says."""
    for at, row in enumerate(rows):
        if at:
            print_line("")
        begin, end = (
            minute(datetime.fromisoformat(row[key])) for key in ("not_before", "not_after")
        )
        valid = row["validity"] == "valid"
        usages = ["any"] if row["usages"] is None else row["usages"]
        lines = {
            "subject": row["subject"],
            "issuer": row["issuer"],
            "names": ", ".join(row["names"]),
            "node": ", ".join(map(str, row["nodes"])),
            "authority": "yes" if row["authority"] else "no",
            "usages": ", ".join(usages),
            "from": begin,
            "until": end,
            "validity": str(row["validity"]) + (f", {row['days_left']} days left" if valid else ""),
            "SHA-256": row["fingerprint_sha256"],
        }
        for key, value in lines.items():
            print_line(f"{key:<11}{value or '-'}")


def minute(time: datetime) -> str:
    """A time as people read it."""
    return f"{time:%Y-%m-%d %H:%M} UTC"
