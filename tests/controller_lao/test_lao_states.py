"""The shipped LaoTracker, and the specification of LAO, have the same reachable states.

Every order of proposals, commits, answers and reports of one controller epoch drives a real tracker,
with the brokers of `spec/Lao.tla`: two of them, unfenced or not in the first image. States are
counted as TLC counts them, with brokers that are interchangeable; `docs/specification.md` has TLC's
numbers. A rule that the tracker and the module have differently changes the number of states.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import lao_mutants
import pytest
from lao_model import WRITE, change

from controller.visibility.lao import LaoTracker
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb

BROKERS = (0, 1)


@dataclass(frozen=True)
class Broker:
    """What a broker has seen, applied, been told and knows; offsets inclusive, -1: nothing."""

    seen: int
    applied: int
    told: int = -1
    known: int = -1


@dataclass(frozen=True)
class State:
    """A state of the world, and the tracker that has come to it."""

    log: tuple[tuple[str, int], ...]
    """(kind, broker or -1) of each proposal of the epoch."""
    unfenced: tuple[bool, ...]
    """In the first image."""
    end: int
    """High watermark, exclusive."""
    min_known: int
    """Highest minimum of the known LAO so far."""
    brokers: tuple[Broker, ...]
    tracker: Any

    def key(self) -> object:
        """The same for states that differ in the names of the brokers alone."""
        return min(self._named(order) for order in (BROKERS, BROKERS[::-1]))

    def _named(self, order: tuple[int, ...]) -> Any:
        log = tuple((kind, order[broker] if broker >= 0 else -1) for kind, broker in self.log)
        of = [(self.unfenced[order[at]], repr(self.brokers[order[at]])) for at in BROKERS]
        return (log, self.end, self.min_known, self.tracker.lao, tuple(of))


class World:
    """All that may happen in one epoch with so many writes and fencings."""

    def __init__(self, tracker: type[LaoTracker], writes: int, fences: int) -> None:
        self.tracker, self.limits = tracker, {"w": writes, "fen": fences}

    def beginnings(self) -> Iterator[State]:
        for unfenced in product((False, True), repeat=2):
            records = [
                record(
                    pb.RegisterBrokerRecord(
                        broker_id=broker, broker_epoch=broker, registration_version=1,
                        incarnation_id=str(broker), fenced=not unfenced[broker],
                    )
                )
                for broker in BROKERS
            ]  # fmt: skip
            builder = ImageBuilder(Image())
            builder.apply_batch(records, base_offset=0, epoch=1, timestamp_ms=0)
            tracker = self.tracker(1, 2)
            tracker.seed(builder.snapshot())
            tracker.proposed([record(pb.LeaderChangeRecord(leader_id=1))], 2)
            brokers = tuple(Broker(0, 1) for _ in BROKERS)
            yield State((("lead", -1),), unfenced, 2, -1, brokers, tracker)

    def after(self, state: State) -> Iterator[State]:
        """The states that may follow."""
        if self._room(state, "w"):
            yield self._proposed(state, "w", -1, WRITE)
        for broker in BROKERS:
            if self._is_unfenced(state, broker):
                if self._room(state, "fen"):
                    yield self._proposed(state, "fen", broker, change(broker, broker, fenced=True))
            elif state.tracker.may_join(broker):
                yield self._proposed(state, "unf", broker, change(broker, broker, fenced=False))
        for end in range(max(state.end, 2) + 1, 2 + len(state.log) + 1):
            tracker = copy.deepcopy(state.tracker)
            tracker.committed(end)
            yield self._moved(replace(state, end=end, tracker=tracker))
        for broker in BROKERS:
            for applied in range(state.brokers[broker].applied, state.end):
                yield self._answered(state, broker, applied)

    def _room(self, state: State, kind: str) -> bool:
        return sum(one == kind for one, _ in state.log) < self.limits[kind]

    def _is_unfenced(self, state: State, broker: int) -> bool:
        last = [kind for kind, of in state.log if of == broker]
        return last[-1] == "unf" if last else state.unfenced[broker]

    def _proposed(self, state: State, kind: str, broker: int, entry: Record) -> State:
        tracker = copy.deepcopy(state.tracker)
        tracker.proposed([entry], 2 + len(state.log))
        return self._moved(replace(state, log=(*state.log, (kind, broker)), tracker=tracker))

    def _answered(self, state: State, at: int, applied: int) -> State:
        before, lao = state.brokers[at], state.tracker.lao
        told = lao if lao >= max(before.told, 0) else before.told
        known = told if 0 <= told <= applied else before.known
        after = Broker(1, applied, told, known)
        tracker = copy.deepcopy(state.tracker)
        tracker.report(at, at, 1, applied, known)
        brokers = tuple(after if broker == at else state.brokers[broker] for broker in BROKERS)
        return self._moved(replace(state, brokers=brokers, tracker=tracker))

    def _moved(self, state: State) -> State:
        return replace(state, min_known=max(state.min_known, state.tracker.min_known_lao))

    def count(self) -> int:
        """The number of reachable states."""
        found = {state.key(): state for state in self.beginnings()}
        level = list(found.values())
        while level:
            following = {}
            for state in level:
                for after in self.after(state):
                    key = after.key()
                    if key not in found:
                        found[key] = following[key] = after
            level = list(following.values())
        return len(found)


@pytest.mark.parametrize(
    ("writes", "fences", "states"),
    [
        (0, 0, 219),
        pytest.param(1, 0, 1506, marks=pytest.mark.nightly),
        pytest.param(0, 1, 5123, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.timeout(600)
def test_tracker_has_as_many_states_as_the_specification(
    writes: int, fences: int, states: int
) -> None:
    assert World(LaoTracker, writes, fences).count() == states


@pytest.mark.parametrize(
    "mutant",
    [
        lao_mutants.UnfencesWhenCommitted,
        lao_mutants.NeverParks,
        lao_mutants.KnowsBeforeAllReported,
        lao_mutants.EmptySetIsInfinite,
        lao_mutants.JoinsWithoutApplied,
        lao_mutants.JoinsBelowLao,
        lao_mutants.JoinsBelowEpochStart,
        lao_mutants.JoinsUntold,
    ],
)
def test_broken_tracker_has_another_number_of_states(mutant: type[LaoTracker]) -> None:
    assert World(mutant, 0, 0).count() != 219
