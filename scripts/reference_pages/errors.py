"""The error codes: names, numbers and meanings of ``raftlog/errors.py``, gRPC statuses, and who
tries again by itself.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Set
from itertools import pairwise

from raftlog.client import broker_client, consumer, producer, session
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.statuses import status_of
from reference_pages.markdown import cell
from reference_pages.markdown import table as markdown_table

RETRIED_BY: Mapping[str, Set[ErrorCode]] = {
    "reads": broker_client.ELSEWHERE,
    "session": session.TRANSIENT,
    "producer": producer.RETRIABLE,
    "consumer": consumer.RETRIABLE,
}
"""The parts of the client library, and the codes after which each sends a request again."""


def meanings() -> dict[str, str]:
    """Of each code: the text below it in its class."""
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


def table() -> str:
    """All codes but NONE, in the order of their numbers."""
    means = meanings()
    rows = (
        (
            code.name,
            str(code.value),
            status_of(ApiError(code, "")).name,
            ", ".join(who for who, codes in RETRIED_BY.items() if code in codes),
            cell(means[code.name]),
        )
        for code in sorted(set(ErrorCode) - {ErrorCode.NONE})
    )
    return markdown_table(("Code", "Number", "gRPC status", "Retried by", "Meaning"), rows)
