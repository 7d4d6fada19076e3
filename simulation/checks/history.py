"""Operations of clients as histories of single objects, checked for linearizability (I13).

What is linearizable in raftlog: what the active controller decides. A write is a write of its key's
register; creating and deleting topics are calls on the topic's existence, and their errors
TOPIC_ALREADY_EXISTS and UNKNOWN_TOPIC_OR_PARTITION are reads of it, each given only after a
read-index round. Reads at brokers are not linearizable and promise other things (``visibility``);
what is committed in the end, which all nodes show (I10), is one read of each key after everything.

Catches: a deposed controller that answers, a lost or resurrected write, an error told about a state
that never was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from typing_extensions import override

from raftlog.errors import ErrorCode
from simulation.checks.api import Checker, CheckFailedError, Operation
from simulation.checks.ledger import Ledger
from simulation.checks.linearizability import (
    MAX_STATES,
    UNKNOWN,
    Entry,
    Existence,
    check,
)
from simulation.checks.registers import check_register

TOPIC_KINDS = {"create_topic": "create", "delete_topic": "delete"}
REFUSALS = {
    "create_topic": ErrorCode.TOPIC_ALREADY_EXISTS.name,
    "delete_topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name,
}
"""The errors that say that the topic is there, or is not."""
CLIENT_METRICS = 16
"""Kafka's resource type of the config resources that clients write: their names are free."""
CONFIG_KEY = "match"
"""The key that clients write in each of them."""


def register_entry(operation: Operation) -> Entry | None:
    """Return a config write as a call on a register; None if it certainly changed nothing."""
    if operation.outcome == "failed":
        return None
    if operation.outcome == "ok":
        return Entry(operation.invoked_at, operation.returned_at, ("write", operation.value), None)
    return Entry(operation.invoked_at, math.inf, ("write", operation.value))


def existence_entry(operation: Operation) -> Entry | None:
    """Return a topic's creation or deletion as a call on its existence; None if it says nothing
    about it.
    """
    call = (TOPIC_KINDS[operation.kind],)
    if operation.outcome == "ok":
        return Entry(operation.invoked_at, operation.returned_at, call, True)
    if operation.outcome == "failed":
        if operation.error != REFUSALS[operation.kind]:
            return None
        return Entry(operation.invoked_at, operation.returned_at, call, False)
    return Entry(operation.invoked_at, math.inf, call, UNKNOWN)


def by_key(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Operations of each key, in order of invocation."""
    found: dict[str, list[Operation]] = {}
    for operation in operations:
        found.setdefault(operation.key, []).append(operation)
    return found


class Linearizability(Checker):
    """Checker of I13: every key's history, the state at rest included, is linearizable."""

    def __init__(self, ledger: Ledger, max_states: int = MAX_STATES) -> None:
        self._golden = ledger.golden
        self._max_states = max_states
        self._writes: list[Operation] = []
        self._topics: list[Operation] = []

    @override
    def looked_at(self) -> dict[str, int]:
        return {"writes": len(self._writes), "topics": len(self._topics)}

    @override
    def client_invoked(self, operation: Operation) -> None:
        # Outcomes are written into the same object: it is looked at in the end.
        if operation.kind == "write_config":
            self._writes.append(operation)
        elif operation.kind in TOPIC_KINDS:
            self._topics.append(operation)

    @override
    def end(self) -> None:
        golden = self._golden
        last = golden.end - 1
        keys = {operation.key for operation in self._writes}
        self.check_configs(
            {key: golden.config(CLIENT_METRICS, key, CONFIG_KEY, last) for key in keys}
        )
        self.check_topics(set(golden.topics(last)))

    def check_configs(self, at_rest: dict[str, str | None]) -> None:
        """Raises CheckFailedError."""
        for key, operations in by_key(self._writes).items():
            history = [
                entry
                for operation in operations
                if (entry := register_entry(operation)) is not None
            ]
            now = self.world.now() + 1
            history.append(Entry(now, now, ("read",), at_rest.get(key)))
            if not check_register(history):
                raise CheckFailedError(
                    f"config {key}: ends as {at_rest.get(key)!r}, which no order of its writes"
                    f" explains: {history}"
                )

    def check_topics(self, at_rest: set[str]) -> None:
        """Raises CheckFailedError."""
        for key, operations in by_key(self._topics).items():
            history = [
                entry
                for operation in operations
                if (entry := existence_entry(operation)) is not None
            ]
            now = self.world.now() + 1
            history.append(Entry(now, now, ("exists",), key in at_rest))
            if not check(history, Existence(), max_states=self._max_states):
                raise CheckFailedError(
                    f"topic {key}: no order of its creations and deletions explains them: {history}"
                )
