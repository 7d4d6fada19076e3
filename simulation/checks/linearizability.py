"""Linearizability of small histories (I13): Wing & Gong's search with Lowe's memoisation, per key.

A history is a list of :class:`Entry`: calls with invocation, return (infinity: none) and result. It
is linearizable if each call can be given a moment between the two such that the calls in that order
follow the sequential model; a call without a return may have its moment at any time, or never.
Objects are independent, so histories are checked per key. The search is exponential in overlapping
calls at worst; at ``max_states`` it raises :class:`SearchBoundError` and never passes.

What is linearizable in raftlog are the active controller's decisions: writes of a key's register;
creations and deletions of topics, whose errors TOPIC_ALREADY_EXISTS and UNKNOWN_TOPIC_OR_PARTITION
are reads after a read-index round. Reads at brokers promise other things (``visibility``); the
final committed state (I10) is one read of each key.

A register with unique values is decided exactly in O(n log n) (Gibbons and Korach 1997): a value's
*cluster* is its write and its reads. With ``f`` its first return and ``s`` its last invocation,
cluster i must precede j if f_i < s_j; the history is linearizable exactly if no two clusters must
precede each other.
"""

import math
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from raftlog.errors import ErrorCode
from simulation.checks.api import Checker, CheckFailedError, Operation, fail
from simulation.checks.ledger import Ledger

MAX_STATES = 200_000
ALWAYS = 1
"""The bit of the operations that are always placed; call n has bit n + 1."""
UNKNOWN: Any = "?"
"""The result of a call that never returned: any is possible."""


class SearchBoundError(CheckFailedError):
    """The search was given up: the history is neither accepted nor refused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A call. ``returned_at`` infinity: outcome unknown, then ``result`` is UNKNOWN."""

    invoked_at: float
    returned_at: float
    call: tuple[Any, ...]
    result: Any = UNKNOWN

    @property
    def is_open(self) -> bool:
        return self.returned_at == math.inf


class Model(Protocol):
    """Sequential behaviour of one object: one call at a time."""

    initial: Hashable

    def step(self, state: Any, call: tuple[Any, ...], result: Any) -> tuple[bool, Hashable]:
        """Return whether ``call`` may answer ``result`` in ``state``, and the state after it."""


class Register:
    """A config key. Calls: ("write", value) -> None; ("read",) -> the value, or None."""

    initial: Hashable = None

    def step(self, state: Any, call: tuple[Any, ...], result: Any) -> tuple[bool, Hashable]:
        if call[0] == "write":
            return True, call[1]
        return result in (UNKNOWN, state), state


class Existence:
    """A topic. Calls: ("create",), ("delete",) -> whether it changed; ("exists",) -> bool."""

    initial: Hashable = False

    def step(self, state: Any, call: tuple[Any, ...], result: Any) -> tuple[bool, Hashable]:
        if call[0] == "exists":
            return result in (UNKNOWN, state), state
        wanted = call[0] == "create"
        return result in (UNKNOWN, state != wanted), wanted


def _twins_before(history: Sequence[Entry]) -> list[int]:
    """Return for each open call the bit of the latest equal open call before it, else ALWAYS. Only
    this order of equal calls has to be tried.
    """
    before = [0] * len(history)
    newest: dict[tuple[Any, ...], int] = {}
    for number in sorted(range(len(history)), key=lambda number: history[number].invoked_at):
        entry = history[number]
        if entry.is_open:
            before[number] = newest.get(entry.call, 0)
            newest[entry.call] = number + 1
    return before


def _timeline(history: Sequence[Entry]) -> list[tuple[float, int, int]]:
    """Return (time, 0 for a call or 1 for a return, entry number) in order. At equal times calls
    come first: they may have overlapped.
    """
    events: list[tuple[float, int, int]] = []
    for number, entry in enumerate(history):
        events.append((entry.invoked_at, 0, number))
        if not entry.is_open:
            events.append((entry.returned_at, 1, number))
    events.sort()
    return events


def check(history: Sequence[Entry], model: Model, *, max_states: int = MAX_STATES) -> bool:
    """Return whether the history is linearizable. Raises SearchBoundError."""
    # The classic shape: a doubly linked list of calls and returns in order of time; position 0 is
    # the head.
    events = _timeline(history)
    size = len(events) + 2
    after, before = [*range(1, size), 0], [0, *range(size - 1)]
    call_at, return_at = [0] * len(history), [0] * len(history)
    for position, (_, kind, number) in enumerate(events, 1):
        (return_at if kind else call_at)[number] = position

    def unlink(position: int) -> None:
        after[before[position]], before[after[position]] = after[position], before[position]

    def relink(position: int) -> None:
        after[before[position]] = before[after[position]] = position

    twin_before = _twins_before(history)
    to_place = len(history) - sum(1 for entry in history if entry.is_open)
    tail = size - 1
    state: Hashable = model.initial
    placed = ALWAYS  # as a set of bits
    seen: set[tuple[int, Hashable]] = {(placed, state)}
    trail: list[tuple[int, Hashable]] = []
    at = after[0]
    while to_place:
        if at != tail and events[at - 1][1] == 0:
            number = events[at - 1][2]
            entry = history[number]
            fits, following = model.step(state, entry.call, entry.result)
            if entry.is_open and (following == state or not placed >> twin_before[number] & 1):
                fits = False
            mark = (placed | 2 << number, following)
            if fits and mark not in seen:
                if len(seen) >= max_states:
                    raise SearchBoundError(
                        f"{len(history)} calls: more than {max_states} states, nothing is decided"
                    )
                seen.add(mark)
                trail.append((number, state))
                placed, state = mark
                unlink(call_at[number])
                if not entry.is_open:
                    unlink(return_at[number])
                    to_place -= 1
                at = after[0]
            else:
                at = after[at]
            continue
        # A return whose call has no place yet, or the end: the last choice was wrong.
        if not trail:
            return False
        number, state = trail.pop()
        placed &= ~(2 << number)
        if not history[number].is_open:
            relink(return_at[number])
            to_place += 1
        relink(call_at[number])
        at = after[call_at[number]]
    return True


def check_register(history: Sequence[Entry]) -> bool:
    """Return whether a register's history is linearizable. ValueError: a value is written twice."""
    writes: dict[object, tuple[float, float]] = {None: (-math.inf, -math.inf)}
    reads = [entry for entry in history if entry.call[0] == "read" and entry.result != UNKNOWN]
    read_values = {entry.result for entry in reads}
    for entry in history:
        if entry.call[0] != "write" or (entry.is_open and entry.call[1] not in read_values):
            # Of an unknown write that nobody has seen nothing follows.
            continue
        if entry.call[1] in writes:
            raise ValueError(f"{entry.call[1]!r} is written twice")
        writes[entry.call[1]] = entry.invoked_at, entry.returned_at
    first = {value: returned for value, (_, returned) in writes.items()}
    last = {value: invoked for value, (invoked, _) in writes.items()}
    for entry in reads:
        value = entry.result
        if value not in writes or entry.returned_at < writes[value][0]:
            return False
        first[value] = min(first[value], entry.returned_at)
        last[value] = max(last[value], entry.invoked_at)
    return _no_two_before_each_other([(first[value], last[value]) for value in writes])


def _no_two_before_each_other(clusters: list[tuple[float, float]]) -> bool:
    """Return whether the clusters (f, s) have no pair i, j with f_i < s_j and f_j < s_i."""
    # Clusters with f < s span [f, s] and must not overlap; one with s <= f must not lie within such
    # a span. Others never collide.
    spans = sorted((f, s) for f, s in clusters if f < s)
    if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
        return False
    for f, s in clusters:
        if s <= f:
            at = bisect_left(spans, (s, -math.inf)) - 1
            if at >= 0 and f < spans[at][1]:
                return False
    return True


TOPIC_KINDS = {"create_topic": "create", "delete_topic": "delete"}
REFUSALS = {
    "create_topic": ErrorCode.TOPIC_ALREADY_EXISTS.name,
    "delete_topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name,
}
"""The errors that say that the topic is there, or is not."""
CLIENT_METRICS = 16
"""Kafka's resource type of the config resources that clients write: their names are free."""
CONFIG_KEY = "match"


def register_entry(operation: Operation) -> Entry | None:
    """Return a config write as a call on a register; None if it has certainly failed."""
    if operation.outcome == "failed":
        return None
    if operation.outcome == "ok":
        return Entry(operation.invoked_at, operation.returned_at, ("write", operation.value), None)
    return Entry(operation.invoked_at, math.inf, ("write", operation.value))


def existence_entry(operation: Operation) -> Entry | None:
    """Return a topic's creation or deletion as a call; None if it says nothing about existence."""
    call = (TOPIC_KINDS[operation.kind],)
    if operation.outcome == "ok":
        return Entry(operation.invoked_at, operation.returned_at, call, True)
    if operation.outcome == "failed":
        if operation.error != REFUSALS[operation.kind]:
            return None
        return Entry(operation.invoked_at, operation.returned_at, call, False)
    return Entry(operation.invoked_at, math.inf, call, UNKNOWN)


def by_key(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
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

    def looked_at(self) -> dict[str, int]:
        return {"writes": len(self._writes), "topics": len(self._topics)}

    def client_invoked(self, operation: Operation) -> None:
        # Outcomes are written into the same object: it is looked at in the end.
        if operation.kind == "write_config":
            self._writes.append(operation)
        elif operation.kind in TOPIC_KINDS:
            self._topics.append(operation)

    def end(self) -> None:
        golden = self._golden
        last = golden.end - 1
        keys = {operation.key for operation in self._writes}
        self.check_configs(
            {key: golden.config(CLIENT_METRICS, key, CONFIG_KEY, last) for key in keys}
        )
        self.check_topics(set(golden.topics(last)))

    def check_configs(self, at_rest: dict[str, str | None]) -> None:
        for key, operations in by_key(self._writes).items():
            history = [*filter(None, map(register_entry, operations))]
            now = self.world.now() + 1
            history.append(Entry(now, now, ("read",), at_rest.get(key)))
            if not check_register(history):
                fail(f"config {key}: no order of writes explains {at_rest.get(key)!r}: {history}")

    def check_topics(self, at_rest: set[str]) -> None:
        for key, operations in by_key(self._topics).items():
            history = [*filter(None, map(existence_entry, operations))]
            now = self.world.now() + 1
            history.append(Entry(now, now, ("exists",), key in at_rest))
            if not check(history, Existence(), max_states=self._max_states):
                fail(f"topic {key}: no order of its creations and deletions explains {history}")
