"""The table of error codes in docs/protocol.md, made from the code: ``python scripts/error_table.py`` writes it, ``--check`` looks.

Names, numbers and meanings are those of ``raftlog/errors.py``, gRPC statuses those of ``raftlog/transport/statuses.py``.
"""

from __future__ import annotations

import ast
import inspect
import sys
from itertools import pairwise
from pathlib import Path

from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.statuses import status_of

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
BEGIN, END = "<!-- error codes: scripts/error_table.py -->\n", "<!-- end of error codes -->\n"


def meanings() -> dict[str, str]:
    """Of each code: the text below it in its class."""
    body = next(node for node in ast.parse(inspect.getsource(ErrorCode)).body if isinstance(node, ast.ClassDef)).body
    return {
        code.targets[0].id: " ".join(text.value.value.split())
        for code, text in pairwise(body)
        if isinstance(code, ast.Assign) and isinstance(text, ast.Expr)
    }


def table() -> str:
    """All codes but NONE, in the order of their numbers."""
    means = meanings()
    rows = (
        f"| {code.name} | {code.value} | {status_of(ApiError(code, '')).name} | {means[code.name]} |\n"
        for code in sorted(set(ErrorCode) - {ErrorCode.NONE})
    )
    return "| Code | Number | gRPC status | Meaning |\n|---|---|---|---|\n" + "".join(rows)


def renewed(document: str) -> str:
    """The document with the present table."""
    head, rest = document.split(BEGIN)
    return head + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    present = DOCUMENT.read_text()
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if renewed(present) == present else f"{DOCUMENT.name} is not current: python scripts/error_table.py")
    DOCUMENT.write_text(renewed(present))
