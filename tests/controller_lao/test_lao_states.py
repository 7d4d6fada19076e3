"""Comparison of the shipped tracker, view and read gate with the specification of LAO: both have
the same reachable states, and keep the promises in each. The shipped code executes every order of
the steps that ``spec/Lao.tla`` allows, with two brokers, one or two controller epochs, and a few
writes and fencings; Raft and the messages are those of the module. States are counted as TLC counts
them, with interchangeable brokers; ``docs/specification.md`` has TLC's numbers. A rule that differs
between code and module changes the number of states.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from broker.metadata.read_gate import ReadGate
from broker.metadata.view import View
from controller.visibility.lao import LaoTracker
from raftlog import batch
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, record
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.mutants.edits import edited
from simulation.mutants.registry import SEEDED

BROKERS = (0, 1)
FIRST = 1
"""Offset of the first image."""
LEAD = record(pb.LeaderChangeRecord(leader_id=1))
WRITE = record(pb.ConfigRecord(resource_type=2, resource_name="t", name="k", value="v"))

Entry = tuple[str, int, int]
"""Kind, broker or -1, epoch of the writer."""
Log = tuple[Entry, ...]
"""Log entries from offset 1 on; the first one represents the first image."""


class NeverLeased:
    """A lease that is never granted."""

    def reader(self, now: float) -> None:
        """Do nothing: no lease is requested."""

    def held(self, now: float) -> bool:
        return False

    def refusal(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Controller:
    log: Log
    start: int
    hw: int
    limit: int
    tracker: Any

    def key(self) -> tuple[Any, ...]:
        tracker = self.tracker
        return (
            self.start,
            self.hw,
            self.limit,
            tracker._highest_lao,
            tracker._highest_min_known_lao,
        )


@dataclass(frozen=True, slots=True)
class Broker:
    """A process: the responses that it has accepted, and its view."""

    answers: tuple[tuple[Log, int, int], ...]
    """(log up to the applied offset, epoch, LAO) of each."""
    seen: int = 0
    applied: int = FIRST
    told: tuple[int, int] = (-1, -1)
    known: tuple[int, int] = (-1, -1)
    reported: tuple[tuple[int, int], ...] = ()
    """Newest report to each controller, if any: applied, known."""

    def key(self) -> tuple[Any, ...]:
        return (self.seen, self.applied, self.told, self.known, self.reported)


@dataclass(frozen=True, slots=True)
class State:
    unfenced: tuple[bool, ...]
    """True for each broker that is unfenced in the first image."""
    controllers: tuple[Controller, ...]
    chosen: int
    brokers: tuple[Broker, ...]

    def key(self) -> object:
        """Return the same for states that differ only in the names of the brokers."""
        return min(self._named(order) for order in (BROKERS, BROKERS[::-1]))

    def _named(self, order: tuple[int, ...]) -> Any:
        logs = tuple(
            tuple((kind, order[of] if of >= 0 else -1, epoch) for kind, of, epoch in one.log)
            for one in self.controllers
        )
        brokers = tuple((self.unfenced[order[at]], self.brokers[order[at]].key()) for at in BROKERS)
        return logs, tuple(one.key() for one in self.controllers), self.chosen, brokers


class BrokenPromiseError(AssertionError):
    """A reachable state that breaks a promise."""


class World:
    """All steps within bounds."""

    def __init__(
        self,
        epochs: int = 1,
        writes: int = 0,
        fences: int = 0,
        *,
        unfenced_at_first: tuple[int, ...] = (0, 1, 2),
        tracker: type[LaoTracker] = LaoTracker,
        view: type[View] = View,
    ) -> None:
        self.epochs, self.limits = epochs, {"w": writes, "fen": fences}
        self.at_first, self.tracker, self.view = unfenced_at_first, tracker, view
        self._views: dict[Any, View] = {}

    def count(self) -> int:
        """Return the number of reachable states. Raises BrokenPromiseError."""
        found: set[object] = set()
        level = list(self.beginnings())
        while level:
            following: list[State] = []
            for state in level:
                if (key := state.key()) not in found:
                    found.add(key)
                    self.check(state)
                    following += self.after(state)
            level = following
        return len(found)

    # --- the steps -------------------------------------------------------------------------------

    def beginnings(self) -> Iterator[State]:
        for unfenced in product((False, True), repeat=2):
            if sum(unfenced) in self.at_first:
                log: Log = (("first", -1, 1), ("lead", -1, 1))
                tracker = self.tracker(1, FIRST + 1)
                tracker.seed(_image(unfenced, log[:FIRST]))
                tracker.proposed([LEAD], FIRST + 1)
                first = Controller(log, FIRST, FIRST, FIRST, tracker)
                broker = Broker((), reported=((-1, -1),) * self.epochs)
                yield State(unfenced, (first,), FIRST, (broker, broker))

    def after(self, state: State) -> Iterator[State]:
        """Return the possible next states."""
        newest = len(state.controllers)
        leader = state.controllers[-1]
        if _count(leader.log, "w") < self.limits["w"]:
            yield self._proposed(state, ("w", -1, newest), WRITE)
        for broker in BROKERS:
            if _is_unfenced(state, leader.log, broker):
                if _count(leader.log, "fen") < self.limits["fen"]:
                    yield self._proposed(
                        state, ("fen", broker, newest), change(broker, fenced=True)
                    )
            elif leader.tracker.may_join(broker):
                yield self._proposed(state, ("unf", broker, newest), change(broker, fenced=False))
        for offset in range(max(leader.hw, leader.start) + 1, len(leader.log) + 1):
            yield replace(state, controllers=_learned(state, newest, offset), chosen=offset)
        for epoch, deposed in enumerate(state.controllers[:-1], 1):
            for offset in range(max(deposed.hw, deposed.start) + 1, deposed.limit + 1):
                yield replace(state, controllers=_learned(state, epoch, offset))
        if newest < self.epochs:
            yield from self._elected(state)
        for broker, epoch in product(BROKERS, range(1, newest + 1)):
            yield from self._answered(state, broker, epoch)
            if epoch != state.brokers[broker].seen > 0:
                yield self._misdirected(state, broker, epoch)

    def _proposed(self, state: State, entry: Entry, what: Record) -> State:
        leader = state.controllers[-1]
        tracker = _copied(leader.tracker)
        tracker.proposed([what], len(leader.log) + 1)
        leader = replace(leader, log=(*leader.log, entry), tracker=tracker)
        return replace(state, controllers=(*state.controllers[:-1], leader))

    def _elected(self, state: State) -> Iterator[State]:
        epoch, former = len(state.controllers) + 1, state.controllers[-1]
        for kept in range(state.chosen, len(former.log) + 1):
            tracker = self.tracker(epoch, kept + 1)
            tracker.seed(_image(state.unfenced, former.log[: former.hw]))
            for offset in range(former.hw + 1, kept + 1):
                tracker.proposed([_record(former.log[offset - 1])], offset)
            tracker.proposed([LEAD], kept + 1)
            log = (*former.log[:kept], ("lead", -1, epoch))
            for secret in {state.chosen, *range(max(former.start + 1, state.chosen), kept + 1)}:
                controllers = (
                    *state.controllers[:-1],
                    replace(former, limit=secret),
                    Controller(log, kept, former.hw, FIRST if epoch == 1 else 0, tracker),
                )
                yield replace(state, controllers=controllers, chosen=secret)

    def _answered(self, state: State, at: int, epoch: int) -> Iterator[State]:
        before, controller = state.brokers[at], state.controllers[epoch - 1]
        # The follower of the log drops what a deposed controller answers, a heartbeat does not.
        end = controller.hw if epoch >= before.seen else 0
        for applied in range(before.applied, max(before.applied, end) + 1):
            log = controller.log[:applied] if applied > before.applied else ()
            answers = (*before.answers, (log, epoch, controller.tracker.lao))
            view = self._view(at, state.unfenced, answers)
            tracker = _copied(controller.tracker)
            tracker.report(at, at, view.controller_epoch, view.applied, view.known_lao)
            reported = list(before.reported)
            if view.controller_epoch == epoch:
                reported[epoch - 1] = view.applied, view.known_lao
            after = Broker(
                answers,
                view.controller_epoch,
                view.applied,
                (view._received_lao, view._received_lao_epoch),
                (view.known_lao, view.known_lao_epoch),
                tuple(reported),
            )
            if after.key() == before.key():
                continue
            controllers = list(state.controllers)
            controllers[epoch - 1] = replace(controller, tracker=tracker)
            brokers = tuple(after if broker == at else state.brokers[broker] for broker in BROKERS)
            yield replace(state, controllers=tuple(controllers), brokers=brokers)

    def _misdirected(self, state: State, at: int, epoch: int) -> State:
        """A report arrives at another controller than the one that it was made for, and is ignored."""
        controllers, broker = list(state.controllers), state.brokers[at]
        tracker = _copied(controllers[epoch - 1].tracker)
        tracker.report(at, at, broker.seen, broker.applied, broker.known[0])
        controllers[epoch - 1] = replace(controllers[epoch - 1], tracker=tracker)
        return replace(state, controllers=tuple(controllers))

    # --- brokers ---------------------------------------------------------------------------------

    def _view(self, broker: int, unfenced: tuple[bool, ...], answers: Any) -> View:
        """Return the view of a broker that has accepted these responses; it is not modified."""
        if (broker, unfenced, answers) not in self._views:
            self._views[broker, unfenced, answers] = self._make_view(broker, unfenced, answers)
        return self._views[broker, unfenced, answers]

    def _make_view(self, broker: int, unfenced: tuple[bool, ...], answers: Any) -> View:
        view = self.view(broker, max_bytes=1 << 20)
        view.apply(_chunk(unfenced, (("first", -1, 1),), FIRST), high_watermark=FIRST + 1)
        for log, epoch, lao in answers:
            if len(log) > view.applied:
                chunk = _chunk(unfenced, log, view.applied + 1)
                view.apply(chunk, high_watermark=len(log) + 1)
            view.hear(epoch, lao)
        return view

    # --- the promises ----------------------------------------------------------------------------

    def check(self, state: State) -> None:
        """Raises BrokenPromiseError."""
        newest = state.controllers[-1]
        trackers = [one.tracker for one in state.controllers]
        acknowledged = max(one._highest_lao for one in trackers)
        visible = max(one._highest_min_known_lao for one in trackers)
        chosen = newest.log[: state.chosen]
        unfenced = [one for one in BROKERS if _is_unfenced(state, chosen, one)]
        for broker in unfenced:
            _require(state.brokers[broker].applied >= acknowledged, "LaoNeverAhead", state)
        laos = [one._highest_lao for one in trackers]
        _require(laos[-1] < 0 or laos == sorted(laos), "LaoNeverFalls", state)
        for broker in unfenced:
            view = self._view(broker, state.unfenced, state.brokers[broker].answers)
            mine = view.registration
            if mine is None or mine.fenced or view.lao_above_applied:
                continue
            gate: ReadGate[str] = ReadGate(
                view, NeverLeased(), max_parked=9, default_timeout_ms=1000
            )
            latest = gate.admit(
                "", broker_pb2.ReadOptions(mode=broker_pb2.LATEST), 0.0, why_fenced=""
            )
            _require(
                latest is not None and latest.offset >= acknowledged, "ReadAfterAcknowledged", state
            )
            shown = gate.admit("", broker_pb2.ReadOptions(), 0.0, why_fenced="")
            if shown is not None:
                _require(shown.offset >= visible, "ReadAfterVisible", state)
                for other in unfenced:
                    _require(shown.offset <= state.brokers[other].applied, "RepeatableRead", state)


def _require(holds: bool, promise: str, state: State) -> None:
    if not holds:
        raise BrokenPromiseError(f"{promise}: {state}")


def _copied(tracker: LaoTracker) -> LaoTracker:
    """Copy deeply, in a quarter of the time of ``copy.deepcopy``."""
    copied: LaoTracker = pickle.loads(pickle.dumps(tracker))
    return copied


def _count(log: Log, kind: str) -> int:
    return sum(one == kind for one, _, _ in log)


def _is_unfenced(state: State, log: Log, broker: int) -> bool:
    last = [kind for kind, of, _ in log if of == broker]
    return last[-1] == "unf" if last else state.unfenced[broker]


def _learned(state: State, epoch: int, offset: int) -> tuple[Controller, ...]:
    controllers = list(state.controllers)
    tracker = _copied(controllers[epoch - 1].tracker)
    tracker.committed(offset + 1)
    controllers[epoch - 1] = replace(controllers[epoch - 1], hw=offset, tracker=tracker)
    return tuple(controllers)


def _record(entry: Entry) -> Record:
    kind, broker, _ = entry
    if kind == "lead":
        return LEAD
    return WRITE if kind == "w" else change(broker, fenced=kind == "fen")


def change(broker: int, *, fenced: bool) -> Record:
    return record(
        pb.BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=broker, fenced=fenced)
    )


@cache
def _registrations(unfenced: tuple[bool, ...]) -> tuple[Record, ...]:
    return tuple(
        record(
            pb.RegisterBrokerRecord(
                broker_id=broker, broker_epoch=broker, registration_version=1,
                incarnation_id=str(broker), fenced=not unfenced[broker],
            )
        )
        for broker in BROKERS
    )  # fmt: skip


@cache
def _image(unfenced: tuple[bool, ...], log: Log) -> Image:
    builder = ImageBuilder(Image())
    builder.apply_batch(list(_registrations(unfenced)), base_offset=0, epoch=1, timestamp_ms=0)
    for offset, entry in enumerate(log[1:], FIRST + 1):
        builder.apply_batch([_record(entry)], base_offset=offset, epoch=entry[2], timestamp_ms=0)
    return builder.snapshot()


@cache
def _chunk(unfenced: tuple[bool, ...], log: Log, begin: int) -> bytes:
    """Return the batches of a log from an offset on."""
    frames = []
    for offset in range(begin, len(log) + 1):
        records = _registrations(unfenced) if offset == FIRST else (_record(log[offset - 1]),)
        frames.append(
            batch.encode(
                records, base_offset=0 if offset == FIRST else offset, epoch=log[offset - 1][2],
                timestamp_ms=0,
            )
        )  # fmt: skip
    return b"".join(frames)


@pytest.mark.parametrize(
    ("world", "states"),
    [
        (World(), 219),
        (World(2, unfenced_at_first=(2,)), 1203),
        pytest.param(World(writes=1), 1506, marks=pytest.mark.nightly),
        pytest.param(World(fences=1), 5123, marks=pytest.mark.nightly),
    ],
    ids=["one epoch", "two epochs", "a write", "a fencing"],
)
@pytest.mark.timeout(1200)
def test_code_has_as_many_states_as_the_specification(world: World, states: int) -> None:
    assert world.count() == states


def _is_found(world: World, states: int) -> bool:
    """Return whether a search distinguishes the world from one with this many states (0: unknown)."""
    try:
        return world.count() != states > 0
    except BrokenPromiseError:
        return True


@pytest.mark.parametrize(
    ("mutant", "world", "states"),
    [
        ("lao-ignores-slowest", World(2, unfenced_at_first=(2,)), 1203),
        ("lao-known-too-early", World(2, unfenced_at_first=(2,)), 1203),
        ("lao-from-uncommitted", World(2, unfenced_at_first=(2,)), 1203),
        ("reports-of-other-epochs", World(2, unfenced_at_first=(2,)), 1203),
        ("listens-to-deposed", World(2, unfenced_at_first=(2,)), 1203),
        ("repeatable-from-tip", World(2, unfenced_at_first=(2,)), 1203),
        ("joins-unapplied", World(writes=1, unfenced_at_first=(1,)), 0),
        ("joins-below-lao", World(writes=1, unfenced_at_first=(1,)), 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.timeout(600)
def test_mutated_lao_code_is_detected(mutant: str, world: World, states: int) -> None:
    with edited(SEEDED[mutant].edits):
        assert _is_found(world, states)
