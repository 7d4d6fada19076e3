"""The linearizability checker, compared with one that tries every order."""

import itertools
import math
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.checks.api import CheckFailedError, Operation
from simulation.checks.ledger import Ledger
from simulation.checks.linearizability import (
    UNKNOWN,
    Entry,
    Existence,
    Linearizability,
    Register,
    SearchBoundError,
    check,
    check_register,
    existence_entry,
    register_entry,
)

OPEN = math.inf


def write(begin: float, end: float, value: str) -> Entry:
    return Entry(begin, end, ("write", value), UNKNOWN if end == OPEN else None)


def read(begin: float, end: float, value: str | None) -> Entry:
    return Entry(begin, end, ("read",), value)


def _tried_in_every_order(history: list[Entry], model: Register | Existence) -> bool:
    closed = [entry for entry in history if not entry.is_open]
    opened = [entry for entry in history if entry.is_open]
    for count in range(len(opened) + 1):
        for chosen in itertools.combinations(opened, count):
            for order in itertools.permutations([*closed, *chosen]):
                if any(
                    later.returned_at < earlier.invoked_at
                    for earlier, later in itertools.combinations(order, 2)
                ):
                    continue
                state = model.initial
                for entry in order:
                    fits, state = model.step(state, entry.call, entry.result)
                    if not fits:
                        break
                else:
                    return True
    return False


GOOD = [
    [],
    [write(0, 1, "a"), read(2, 3, "a")],
    [write(0, 5, "a"), write(1, 4, "b"), read(6, 7, "a")],
    [write(0, 5, "a"), read(1, 2, None), read(3, 4, "a")],
    # Unknown: takes effect late, or never.
    [write(0, OPEN, "a"), write(1, 2, "b"), read(3, 4, "b"), read(5, 6, "a")],
    [write(0, OPEN, "a"), write(1, 2, "b"), read(3, 4, "b")],
    # One ends when the other begins: they may have overlapped.
    [write(0, 1, "a"), read(1, 2, None)],
]
BAD = [
    # A lost write.
    [write(0, 1, "a"), read(2, 3, None)],
    # A stale read.
    [write(0, 1, "a"), write(2, 3, "b"), read(4, 5, "a")],
    # Seen, then unseen.
    [write(0, 9, "a"), read(1, 2, "a"), read(3, 4, None)],
    # Of two overlapping writes each reader sees another one last.
    [write(0, 5, "a"), write(0, 5, "b"), read(6, 7, "a"), read(8, 9, "b")],
    # Read before anybody wrote it.
    [read(0, 1, "a"), write(2, 3, "a")],
    # An unknown write takes effect twice.
    [write(0, OPEN, "a"), read(1, 2, "a"), write(3, 4, "b"), read(5, 6, "b"), read(7, 8, "a")],
]


@pytest.mark.parametrize("history", GOOD)
def test_linearizable_histories_pass(history: list[Entry]) -> None:
    assert check(history, Register())
    assert check_register(history)


@pytest.mark.parametrize("history", BAD)
def test_bad_histories_are_refused(history: list[Entry]) -> None:
    assert not check(history, Register())
    assert not check_register(history)


def test_second_creation_without_a_deletion_is_a_failure() -> None:
    def call(begin: float, end: float, name: str, did: bool = True) -> Entry:
        return Entry(begin, end, (name,), UNKNOWN if end == OPEN else did)

    assert not check([call(0, 1, "create"), call(2, 3, "create")], Existence())
    assert not check([call(0, 1, "create", False)], Existence())
    assert not check([call(0, 1, "create"), call(2, 3, "delete", False)], Existence())
    assert check([call(0, 1, "create"), call(0, OPEN, "delete"), call(4, 5, "create")], Existence())
    assert check(
        [call(0, 1, "create"), call(2, 3, "create", False), call(4, 5, "delete")], Existence()
    )


@st.composite
def _histories(draw: st.DrawFn, kind: str) -> list[Entry]:
    entries = []
    for number in range(draw(st.integers(1, 6))):
        begin = draw(st.integers(0, 8))
        end = draw(st.sampled_from([*range(begin, 10), OPEN]))
        if kind == "register":
            if draw(st.booleans()):
                entries.append(write(begin, end, f"v{number}"))
            else:
                value = draw(st.sampled_from([None, *(f"v{n}" for n in range(6))]))
                entries.append(Entry(begin, end, ("read",), UNKNOWN if end == OPEN else value))
        else:
            name = draw(st.sampled_from(["create", "delete", "exists"]))
            entries.append(
                Entry(begin, end, (name,), UNKNOWN if end == OPEN else draw(st.booleans()))
            )
    return entries


@settings(max_examples=300, deadline=None)
@given(_histories("register"))
def test_register_check_agrees_with_trying_every_order(history: list[Entry]) -> None:
    expected = _tried_in_every_order(history, Register())
    assert check(history, Register()) == expected
    assert check_register(history) == expected


@settings(max_examples=300, deadline=None)
@given(_histories("existence"))
def test_existence_check_agrees_with_trying_every_order(history: list[Entry]) -> None:
    assert check(history, Existence()) == _tried_in_every_order(history, Existence())


def test_search_at_its_bound_is_reported() -> None:
    history = [write(0, 9, f"v{n}") for n in range(12)] + [read(10, 11, "never written")]
    with pytest.raises(SearchBoundError):
        check(history, Register(), max_states=500)


def test_long_history_with_many_unknown_outcomes_is_cheap() -> None:
    history = []
    for n in range(0, 2000, 2):
        history += [
            write(n, OPEN, f"u{n}"),
            write(n, n + 1, f"v{n}"),
            read(n + 1.2, n + 1.5, f"v{n}"),
        ]
    assert check_register(history)
    assert not check_register([*history, read(3000, 3001, "v0")])


def test_many_concurrent_writes_are_cheap() -> None:
    history = [write(0, 9, f"v{n}") for n in range(2000)]
    assert check_register([*history, read(10, 11, "v7")])
    assert not check_register([*history, read(10, 11, "v7"), read(12, 13, "v8")])
    with pytest.raises(ValueError, match="twice"):
        check_register([*history, write(1, 2, "v1")])


def test_many_unknown_creations_and_deletions_are_cheap() -> None:
    history = []
    for n in range(0, 60, 3):
        history += [
            Entry(n, OPEN, ("create",)),
            Entry(n, OPEN, ("delete",)),
            Entry(n + 1, n + 2, ("exists",), n % 2 == 0),
        ]
    assert check(history, Existence(), max_states=10_000)
    # Created twice more than it can have been deleted.
    history = [entry for entry in history if entry.call != ("delete",)]
    assert not check(history, Existence(), max_states=10_000)


class _World:
    controllers = ()
    brokers = ()

    def now(self) -> float:
        return 100.0

    def note(self, who: str, what: str) -> None: ...


def _did(
    kind: str, begin: float, end: float, outcome: str, value: str = "", error: str = ""
) -> Operation:
    given: Any = {"outcome": outcome, "error": error}
    of: Any = kind
    return Operation(1, "client", of, "k", value, invoked_at=begin, returned_at=end, **given)


def _checker(*operations: Operation) -> Linearizability:
    checker = Linearizability(Ledger())
    checker.begin(cast(Any, _World()))
    for operation in operations:
        checker.client_invoked(operation)
    return checker


def test_operations_are_converted_to_calls() -> None:
    assert register_entry(_did("write_config", 1, 2, "failed", "a")) is None
    assert register_entry(_did("write_config", 1, 2, "unknown", "a")) == write(1, OPEN, "a")
    assert register_entry(_did("write_config", 1, OPEN, "pending", "a")) == write(1, OPEN, "a")
    assert existence_entry(_did("create_topic", 1, 2, "failed", error="POLICY_VIOLATION")) is None
    refused = existence_entry(_did("create_topic", 1, 2, "failed", error="TOPIC_ALREADY_EXISTS"))
    assert refused == Entry(1, 2, ("create",), False)


def test_final_state_must_follow_from_the_writes() -> None:
    writes = _did("write_config", 1, 2, "ok", "a"), _did("write_config", 3, 4, "unknown", "b")
    _checker(*writes).check_configs({"k": "a"})
    _checker(*writes).check_configs({"k": "b"})
    with pytest.raises(CheckFailedError, match="config k"):
        _checker(*writes).check_configs({})
    with pytest.raises(CheckFailedError):
        _checker(_did("write_config", 1, 2, "failed", "a")).check_configs({"k": "a"})
    topic = _did("create_topic", 1, 2, "ok")
    _checker(topic).check_topics({"k"})
    with pytest.raises(CheckFailedError, match="topic k"):
        _checker(topic).check_topics(set())
    with pytest.raises(CheckFailedError):
        _checker(topic, _did("create_topic", 3, 4, "ok")).check_topics({"k"})
