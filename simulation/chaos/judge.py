"""The verdict on the clients' history and the nodes' final contents, by the simulation's checkers.
They receive the whole final log first, then the clients' operations. Checks that need the inside of
nodes, such as whether a broker was unfenced when it answered, are left out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from raftlog.client.consumer import Record
from simulation.chaos.clients import History
from simulation.checks.api import Checker, CheckFailedError, Operation, World, fail
from simulation.checks.exactly_once import ExactlyOnce
from simulation.checks.ledger import Ledger
from simulation.checks.linearizability import Linearizability
from simulation.checks.node_log import LogMatching, NodeLog
from simulation.checks.strict import StrictReads
from simulation.checks.visibility import Visibility


class _AtRest:
    """The world of checkers that come afterwards: nothing happens in it."""

    controllers: Sequence[Any] = ()
    brokers: Sequence[Any] = ()

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def note(self, who: str, what: str) -> None:
        pass


@dataclass(slots=True)
class Verdict:
    """Verdict: violations, and the amount of evidence, without which a verdict proves nothing."""

    violations: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)


def judge(
    history: History,
    log: Sequence[bytes],
    node_logs: dict[str, tuple[int, Sequence[bytes]]],
    consumed: Iterable[Record],
) -> Verdict:
    """Check a run. ``log``: the committed chunks. ``node_logs``: start offset and chunks on each
    controller's disk. ``consumed``: all committed records of the producers' topic.
    """
    verdict = Verdict()
    checks: list[Callable[[], None]] = [
        lambda: _metadata(history, log, verdict),
        lambda: _logs_match(log, node_logs, verdict),
        lambda: _records(history.produced, consumed, verdict),
    ]
    for check in checks:
        try:
            check()
        except CheckFailedError as error:
            verdict.violations.append(str(error))
    return verdict


def _metadata(history: History, log: Sequence[bytes], verdict: Verdict) -> None:
    ledger = Ledger()
    exactly_once, visibility, strict = ExactlyOnce(ledger), Visibility(ledger), StrictReads(ledger)
    checkers: list[Checker] = [exactly_once, visibility, strict, Linearizability(ledger)]
    last = max((operation.invoked_at for _, operation in history.events), default=0.0) + 1e6
    for checker in checkers:
        checker.begin(cast("World", _AtRest(last)))
    # The announced LAO is not visible from outside: any is possible.
    ledger.lao_announced(cast("Any", None), 0, 1 << 62)
    for returned, operation in history.events:
        if not returned:
            exactly_once.client_invoked(operation)
    committed = NodeLog("the committed log", ledger.matching, 0, 0, 0)
    for chunk in log:
        committed.append(committed.end, chunk)
    for logged in committed.between(0, committed.end):
        ledger.golden.append(logged)
    for returned, operation in history.events:
        for checker in checkers:
            if returned:
                checker.client_returned(operation)
            elif checker is not exactly_once:
                checker.client_invoked(operation)
    _real_time_order(history)
    for checker in checkers:
        checker.end()
    outcomes: Counter[str] = Counter()
    for _, operation in history.events:
        name = f"{operation.kind} {operation.outcome}"
        outcomes[name] += 1
    verdict.seen |= {name: (count + 1) // 2 for name, count in sorted(outcomes.items())}
    verdict.seen |= {
        "committed records": ledger.golden.end,
        "strict reads held to a floor": strict.held_to,
    }


def _real_time_order(history: History) -> None:
    """Check that a write that returned before another was invoked precedes it in the log."""
    highest = -1
    floors: dict[int, int] = {}
    for returned, operation in history.events:
        if operation.kind != "write_config":
            continue
        if not returned:
            floors[operation.number] = highest
        elif operation.outcome == "ok":
            floor = floors[operation.number]
            if operation.offset <= floor:
                fail(
                    f"I14: write {operation.number} is at {operation.offset}; one at {floor} had"
                    " returned before it was invoked"
                )
            highest = max(highest, operation.offset)


def _logs_match(
    log: Sequence[bytes], node_logs: dict[str, tuple[int, Sequence[bytes]]], verdict: Verdict
) -> None:
    matching = LogMatching()
    committed = NodeLog("the committed log", matching, 0, 0, 0)
    for chunk in log:
        committed.append(committed.end, chunk)
    for name, (start, chunks) in node_logs.items():
        at = committed.at(start)
        if at is None:
            fail(f"I9: the log of {name} begins at {start}, where no committed batch ends")
        mine = NodeLog(name, matching, start, *at)
        for chunk in chunks:
            mine.append(mine.end, chunk)
        common = min(mine.end, committed.end)
        if mine.at(common) != committed.at(common):
            fail(f"I6: below {common} {name} has {mine.at(common)}, not {committed.at(common)}")
        verdict.seen[f"log of {name} up to"] = mine.end


def _records(produced: Iterable[Operation], consumed: Iterable[Record], verdict: Verdict) -> None:
    """Check that each acknowledged record is at its offset once, refused ones nowhere (I26)."""
    sent = {operation.value: operation for operation in produced}
    places: dict[str, tuple[int, int]] = {}
    for record in consumed:
        value, place = (record.value or b"").decode(), (record.partition, record.offset)
        operation = sent.get(value)
        if operation is None:
            fail(f"I26: {value!r} is at {place}, nobody has sent it")
        if value in places:
            fail(f"I26: {value!r} was sent once, and is at {places[value]} and {place}")
        if operation.outcome == "failed":
            fail(f"I26: {value!r} was refused with {operation.error}, and is at {place}")
        places[value] = place
    for operation in sent.values():
        said = (int(operation.key.rpartition("-")[2]), operation.record_offset)
        there = places.get(operation.value) or "no place"
        if operation.outcome == "ok" and there != said:
            fail(f"I26: {operation.value!r} was acknowledged at {said}, and is at {there}")
    verdict.seen["records consumed"] = len(places)
