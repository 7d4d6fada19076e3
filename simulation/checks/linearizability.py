"""Linearizability of small histories: Wing & Gong's search with Lowe's memoisation, one key at a
time.

A history is a list of :class:`Entry`: calls with the time they were made, the time they returned
(infinity: never heard of again), and what they returned. It is linearizable if every call can be
given one moment between the two, so that the calls in that order are what the sequential model
does. A call that never returned may have its moment at any time after it was made, or never.

Locality: objects are independent, so a history over many keys is linearizable if it is so for each
key. The caller partitions.

Cost: exponential in the calls that overlap, at worst. ``max_states`` bounds the states visited; a
search that meets the bound raises :class:`SearchBoundError` and has decided nothing, it never
passes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulation.checks.api import CheckFailedError

MAX_STATES = 200_000
ALWAYS = 1
"""The bit of what is always placed; that of call n is n + 1."""
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
        """True if the outcome of the call is unknown."""
        return self.returned_at == math.inf


class Model(Protocol):
    """Sequential behaviour of one object: one call at a time."""

    initial: Hashable

    def step(self, state: Any, call: tuple[Any, ...], result: Any) -> tuple[bool, Hashable]:
        """Return whether ``call`` may answer ``result`` in ``state``, and the state after it."""


class Register:
    """A config key.

    Calls: ("write", value) -> None; ("read",) -> the value, None if not set.
    """

    initial: Hashable = None

    def step(self, state: Any, call: tuple[Any, ...], result: Any) -> tuple[bool, Hashable]:
        """A write always succeeds; a read returns what was written last."""
        if call[0] == "write":
            return True, call[1]
        return result in (UNKNOWN, state), state


class Existence:
    """A topic.

    Calls: ("create",) and ("delete",) -> whether it changed; ("exists",) -> whether it exists.
    """

    initial: Hashable = False

    def step(self, state: Any, call: tuple[Any, ...], result: Any) -> tuple[bool, Hashable]:
        """Creating succeeds if it is not there, deleting if it is."""
        if call[0] == "exists":
            return result in (UNKNOWN, state), state
        wanted = call[0] == "create"
        return result in (UNKNOWN, state != wanted), wanted


def _twins_before(history: Sequence[Entry]) -> list[int]:
    """Return for each open call the bit of the same call made before it; that of ALWAYS without
    one.

    Which of two such calls takes effect makes no difference, and the older one may do so whenever
    the younger one may: trying them in that order only is enough. So is leaving out those that
    would change nothing.
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
    """(time, 0 for a call and 1 for a return, number of the entry), in order.

    At one moment calls come before returns: who returned then and who was called then may have
    overlapped.
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
    open_calls = sum(1 for entry in history if entry.is_open)
    to_place = len(history) - open_calls
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


def without_unread_writes(history: Sequence[Entry]) -> list[Entry]:
    """Return a register's history without the open writes that no read has seen, which is
    linearizable exactly if the whole one is.

    Values are unique: such a write may as well never have happened. What makes histories with many
    unknown outcomes affordable.
    """
    read = {entry.result for entry in history if entry.call[0] == "read"}
    return [
        e for e in history if not (e.is_open and e.call[0] == "write" and e.call[1] not in read)
    ]
