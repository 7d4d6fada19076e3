"""The matrix of permissions as a whole: all its cases, and a summary for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from matrix_callers import LISTENERS, Caller
from matrix_cases import Case, Kind
from matrix_facts import Facts
from matrix_rpcs import OWN, Rpc
from matrix_verdicts import named_node, verdict_of

LETTERS = {
    Kind.ALLOWED: "a",
    Kind.PARTLY: "p",
    Kind.REFUSED: "r",
    Kind.ABSENT: "n",
    Kind.UNAUTHENTICATED: "u",
    Kind.NO_CONNECTION: "c",
}
LEGEND = (
    "a: allowed; p: some of its items refused; r: refused; n: not there; u: unauthenticated;"
    " c: no connection"
)


def cases_of(everybody: Iterable[Caller], rpcs: Sequence[Rpc], facts: Facts) -> list[Case]:
    """Everybody asks for everything everywhere; under its own id who has one."""
    return [
        Case(caller, listener, rpc, verdict_of(caller, listener, rpc, facts))
        for caller in everybody
        for listener in LISTENERS
        for rpc in rpcs
        if rpc.variant != OWN or named_node(caller) is not None
    ]


def summary(cases: Sequence[Case]) -> str:
    """Callers x listeners, how many cases of which kind."""
    counts: Counter[tuple[str, str, Kind]] = Counter(
        (case.caller.name, case.listener.name, case.verdict.kind) for case in cases
    )
    names = dict.fromkeys(case.caller.name for case in cases)
    rows = [["caller", *(one.name for one in LISTENERS), "cases"]]
    for name in names:
        cells = [_cell({kind: counts[name, one.name, kind] for kind in Kind}) for one in LISTENERS]
        total = sum(count for (caller, _, _), count in counts.items() if caller == name)
        rows.append([name, *cells, str(total)])
    kinds = Counter(case.verdict.kind for case in cases)
    rows.append(["all", _cell(kinds), "", "", str(len(cases))])
    widths = [max(len(row[at]) for row in rows[:-1]) for at in range(len(rows[0]))]
    lines = ["  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True))
             for row in rows]  # fmt: skip
    return "\n".join([*(line.rstrip() for line in lines), LEGEND])


def _cell(counts: Counter[Kind] | dict[Kind, int]) -> str:
    return " ".join(f"{counts[kind]}{letter}" for kind, letter in LETTERS.items() if counts[kind])
