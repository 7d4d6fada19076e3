"""A small world around the real LaoTracker: an abstract Raft, controllers that may be deposed, and
brokers by the rules.

One random step at a time; after each, everything LAO promises is checked against what only an
onlooker can see: the log that is really chosen, and what every broker really has applied and been
told.

The Raft is abstract but not kinder than the real one. A new controller's log holds all that is
chosen and any prefix of somebody's tail beyond; it knows a lower high watermark than is true; a
deposed controller goes on proposing, listening, unfencing and announcing, and may still learn that
what was chosen before its deposition is committed. Messages are lost, delayed, reordered and
repeated, and reach any controller.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, TypeVar

from controller.visibility.lao import LaoTracker
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, RecordType, record
from raftlog.wire.records.v1 import records_pb2 as pb

BROKERS = 3
MESSAGES_MAX = 10
PHASE_STEPS = 25
WRITE = record(pb.ConfigRecord(resource_type=2, resource_name="t", name="k", value="v"))

T = TypeVar("T")


class PromiseBrokenError(Exception):
    """The model saw a promise of LAO broken."""


class Entry(NamedTuple):
    """A batch of one record."""

    epoch: int
    record: Record


class Standing(NamedTuple):
    """The state of one broker id in a log.

    ``unfenced_by``: the epoch of the controller that wrote the unfencing.
    """

    epoch: int
    process: str
    fenced: bool
    unfenced_by: int


def stand(standings: dict[int, Standing], entry: Entry) -> None:
    """Apply an entry to what the log says of the brokers."""
    type_, message = entry.record.type, entry.record.message
    if type_ == RecordType.REGISTER_BROKER:
        standings[message.broker_id] = Standing(
            message.broker_epoch, message.incarnation_id, True, 0
        )
    elif type_ == RecordType.UNREGISTER_BROKER:
        del standings[message.broker_id]
    elif type_ == RecordType.BROKER_REGISTRATION_CHANGE:
        by = 0 if message.fenced else entry.epoch
        standings[message.broker_id] = standings[message.broker_id]._replace(
            fenced=message.fenced, unfenced_by=by
        )


class Report(NamedTuple):
    broker_id: int
    broker_epoch: int
    controller_epoch: int
    applied: int
    known_lao: int


class Answer(NamedTuple):
    controller_epoch: int
    high_watermark: int
    lao: int


class ModelBroker:
    """One process of a broker, by the rules of the protocol and nothing else."""

    def __init__(self, broker_id: int, process: str) -> None:
        self.broker_id = broker_id
        self.process = process
        self.epoch = -1
        self.alive = True
        self.seen = 0
        self.applied = -1
        self.known_lao = -1
        self.told_by = 0
        self.standings: dict[int, Standing] = {}

    def answered(self, answer: Answer, log: list[Entry], end: int) -> bool:
        """Apply what an answer brings, up to ``end``; False: it was ignored."""
        if answer.controller_epoch < self.seen:
            return False
        self.seen = answer.controller_epoch
        while self.applied + 1 < min(end, answer.high_watermark):
            self.applied += 1
            stand(self.standings, log[self.applied])
        if answer.lao >= self.known_lao and answer.lao >= 0:
            self.known_lao, self.told_by = answer.lao, answer.controller_epoch
        return True

    def report(self) -> Report:
        return Report(self.broker_id, self.epoch, self.seen, self.applied, self.known_lao)

    def serves(self) -> bool:
        """Unfenced by its own applied image and epoch; whoever is told more than it has applied is
        not counted.
        """
        mine = self.standings.get(self.broker_id)
        return (
            self.alive
            and mine is not None
            and mine.epoch == self.epoch
            and not mine.fenced
            and self.known_lao <= self.applied
        )

    def repeatable(self) -> int:
        """The offset that a plain repeatable read is answered from; -1: the error that LAO is not
        known.
        """
        return self.known_lao if self.told_by >= self.standings[self.broker_id].unfenced_by else -1


@dataclass(eq=False)
class ModelController:
    epoch: int
    log: list[Entry]
    tracker: LaoTracker
    high_watermark: int
    start: int
    chosen_limit: int = -1
    """Length of the chosen log that this controller can ever learn; -1: all, as it leads."""
    standings: dict[int, Standing] = field(default_factory=dict)
    announced: int = -1

    def append(self, record: Record) -> None:
        offset = len(self.log)
        self.log.append(Entry(self.epoch, record))
        stand(self.standings, self.log[-1])
        self.tracker.proposed([record], offset)


class World:
    """Brokers, controllers, messages and the onlooker."""

    def __init__(
        self,
        seed: int,
        *,
        tracker: type[LaoTracker] = LaoTracker,
        broker: type[ModelBroker] = ModelBroker,
        epochs_max: int = 3,
    ) -> None:
        self.random = Random(seed)
        self.tracker_type = tracker
        self.broker_type = broker
        self.epochs_max = epochs_max
        self.chosen: list[Entry] = []
        self.standings: dict[int, Standing] = {}
        self.controllers: list[ModelController] = []
        self.processes: dict[str, ModelBroker] = {}
        self.brokers: list[ModelBroker] = []
        self.reports: list[Report] = []
        self.answers: list[Answer] = []
        self.visible = -1
        self.accepted: dict[int, int] = {}
        self.steps = 0
        for broker_id in range(BROKERS):
            self.brokers.append(self._process(broker_id))
        self._begin()
        self._talkative = [1.0] * BROKERS
        self._lag = 0.0

    def run(self, steps: int) -> None:
        """Raises PromiseBrokenError."""
        for _ in range(steps // PHASE_STEPS):
            for move in self.random.choices(list(MOVES), self._mood(), k=PHASE_STEPS):
                move(self)
                self.steps += 1
                self.check()

    def calm_down(self) -> None:
        """No more faults: the dead are fenced, all is committed and delivered.

        Then LAO must be all that is committed.

        A LAO that stands still for ever breaks no promise of safety, and is worth nothing.
        """
        leader = self.controllers[-1]
        for broker_id, standing in sorted(leader.standings.items()):
            if not standing.fenced and not self.processes[standing.process].alive:
                leader.append(change(broker_id, standing.epoch, fenced=True))
        self.settle()
        standings = leader.standings
        present = [broker for broker in self.brokers if broker.epoch >= 0]
        for _ in range(8):
            for broker in present:
                leader.tracker.report(*broker.report())
                broker.answered(self._answer(leader), self.chosen, leader.high_watermark)
                self.check()
        tracker, last = leader.tracker, leader.high_watermark - 1
        unfenced = sorted(broker_id for broker_id in standings if not standings[broker_id].fenced)
        require(
            list(tracker.members) == unfenced, f"members are {tracker.members}, unfenced {unfenced}"
        )
        if unfenced:
            require(
                tracker.lao == tracker.min_known_lao == last,
                f"LAO stays at {tracker.lao}, committed is {last}",
            )
            require(
                not tracker.held_back_by() and not tracker.unknown_reason,
                "LAO is held back by nobody",
            )
        for broker in present:
            require(tracker.may_join(broker.broker_id), f"broker {broker.broker_id} may never join")

    def _mood(self) -> list[float]:
        """The world changes: now nobody is fenced, now one broker is hardly heard, now all apply
        slowly, ...

        Deep stories are made of such phases; one even mixture would hardly ever tell them.
        """
        self._talkative = [self.random.choice((0.05, 1, 1)) for _ in range(BROKERS)]
        self._lag = self.random.choice((0, 0.3, 0.9))
        return [weight * self.random.choice((0.1, 1, 1, 4)) for weight in MOVES.values()]

    # --- the world's moves -----------------------------------------------------------------------

    def _begin(self) -> None:
        """Epoch 1 with all brokers registered and some of them unfenced, by the ordinary moves."""
        self._claim([], 0)
        first = self.controllers[0]
        for broker_id in range(BROKERS):
            self._register_at(first, self.brokers[broker_id])
        self._choose(first, len(first.log))
        self._know(first, len(first.log))
        for broker in self.brokers:
            broker.answered(Answer(1, first.high_watermark, -1), self.chosen, first.high_watermark)
            first.tracker.report(*broker.report())
        for broker_id in range(self.random.randrange(BROKERS + 1)):
            self._unfence_at(first, broker_id)

    def _claim(self, log: list[Entry], known: int) -> None:
        epoch = len(self.controllers) + 1
        if self.controllers:
            self.controllers[-1].chosen_limit = len(self.chosen)
        tracker = self.tracker_type(epoch, len(log))
        tracker.seed(fold(log[:known]))
        controller = ModelController(epoch, list(log), tracker, known, len(log))
        for offset, entry in enumerate(log):
            stand(controller.standings, entry)
            if offset >= known:
                tracker.proposed([entry.record], offset)
        self.controllers.append(controller)
        controller.append(record(pb.LeaderChangeRecord(leader_id=epoch)))
        tracker.committed(known)

    def elect(self) -> None:
        if len(self.controllers) == self.epochs_max:
            return
        chosen = len(self.chosen)
        sources = [c for c in self.controllers if c.log[:chosen] == self.chosen]
        log = self.random.choice(sources).log
        log = log[: self.random.randint(chosen, len(log))]
        self._claim(log, max(0, chosen - self.random.choice((0, 1, 2, 3, 5, 8))))

    def _choose(self, controller: ModelController, end: int) -> None:
        for entry in controller.log[len(self.chosen) : end]:
            self.chosen.append(entry)
            stand(self.standings, entry)
            if entry.record.type == RecordType.REGISTER_BROKER:
                self.processes[entry.record.message.incarnation_id].epoch = len(self.chosen) - 1

    def commit(self) -> None:
        leader = self.controllers[-1]
        first = max(len(self.chosen), leader.start) + 1
        if first <= len(leader.log):
            self._choose(leader, self.random.randint(first, len(leader.log)))

    def _know(self, controller: ModelController, high_watermark: int) -> None:
        controller.high_watermark = high_watermark
        controller.tracker.committed(high_watermark)

    def learn(self) -> None:
        controller = self._any_controller()
        limit = len(self.chosen) if controller.chosen_limit < 0 else controller.chosen_limit
        first = max(controller.high_watermark, controller.start) + 1
        if first <= limit:
            self._know(controller, self.random.randint(first, limit))

    def write(self) -> None:
        self._any_controller().append(WRITE)

    def fence(self) -> None:
        controller, broker_id = self._any_controller(), self.random.randrange(BROKERS)
        standing = controller.standings.get(broker_id)
        if standing is not None and not standing.fenced:
            controller.append(change(broker_id, standing.epoch, fenced=True))

    def unfence(self) -> None:
        self._unfence_at(self._any_controller(), self.random.randrange(BROKERS))

    def _unfence_at(self, controller: ModelController, broker_id: int) -> None:
        standing = controller.standings.get(broker_id)
        if standing is not None and standing.fenced and controller.tracker.may_join(broker_id):
            controller.append(change(broker_id, standing.epoch, fenced=False))

    def send_report(self) -> None:
        broker = self._any_broker()
        if broker.epoch >= 0:
            self._put(self.reports, broker.report())

    def deliver_report(self) -> None:
        if self.reports:
            self._any_controller().tracker.report(*self._take(self.reports))

    def send_answer(self) -> None:
        self._put(self.answers, self._answer(self._any_controller()))

    def deliver_answer(self) -> None:
        if self.answers:
            self._accept(self._any_broker(), self._take(self.answers))

    def _answer(self, controller: ModelController) -> Answer:
        return Answer(controller.epoch, controller.high_watermark, controller.tracker.lao)

    def _accept(self, broker: ModelBroker, answer: Answer) -> None:
        lags = self.random.random() < self._lag
        end = self.random.randint(0, answer.high_watermark) if lags else answer.high_watermark
        if broker.answered(answer, self.chosen, end) and answer.lao >= 0:
            epoch = answer.controller_epoch
            before = max((lao for by, lao in self.accepted.items() if by < epoch), default=-1)
            require(
                answer.lao >= before,
                f"a broker was told {answer.lao} by epoch {epoch}, after {before} before it",
            )
            self.accepted[epoch] = max(answer.lao, self.accepted.get(epoch, -1))

    def restart(self) -> None:
        broker_id = self.random.randrange(BROKERS)
        self.brokers[broker_id].alive = False
        self.brokers[broker_id] = self._process(broker_id)

    def register(self) -> None:
        self._register_at(self._any_controller(), self.random.choice(self.brokers))

    def _register_at(self, controller: ModelController, broker: ModelBroker) -> None:
        standing = controller.standings.get(broker.broker_id)
        if broker.epoch < 0 and (standing is None or standing.process != broker.process):
            message = pb.RegisterBrokerRecord(
                broker_id=broker.broker_id,
                broker_epoch=len(controller.log),
                incarnation_id=broker.process,
                registration_version=1,
                fenced=True,
            )
            controller.append(record(message))

    def unregister(self) -> None:
        """Unregister a broker whose process is gone."""
        controller, broker = self._any_controller(), self.random.choice(self.brokers)
        standing = controller.standings.get(broker.broker_id)
        if standing is not None and standing.process != broker.process:
            message = pb.UnregisterBrokerRecord(
                broker_id=broker.broker_id, broker_epoch=standing.epoch
            )
            controller.append(record(message))

    def _process(self, broker_id: int) -> ModelBroker:
        process = f"{broker_id}.{len(self.processes)}"
        self.processes[process] = self.broker_type(broker_id, process)
        return self.processes[process]

    def _any_controller(self) -> ModelController:
        """The newest one mostly, but every deposed one goes on."""
        return (
            self.controllers[-1]
            if self.random.random() < 0.6
            else self.random.choice(self.controllers)
        )

    def settle(self) -> None:
        """The leader commits all it has, and knows it."""
        leader = self.controllers[-1]
        self._choose(leader, len(leader.log))
        self._know(leader, len(leader.log))

    def round_trip(self) -> None:
        """A report and its answer, without delay."""
        controller, broker = self._any_controller(), self._any_broker()
        if broker.epoch >= 0:
            controller.tracker.report(*broker.report())
        self._accept(broker, self._answer(controller))

    def _any_broker(self) -> ModelBroker:
        return self.random.choices(self.brokers, self._talkative)[0]

    def _put(self, messages: list[T], message: T) -> None:
        if len(messages) == MESSAGES_MAX:
            del messages[self.random.randrange(MESSAGES_MAX)]
        messages.append(message)

    def _take(self, messages: list[T]) -> T:
        index = self.random.randrange(len(messages))
        return messages[index] if self.random.random() < 0.3 else messages.pop(index)

    # --- the onlooker ----------------------------------------------------------------------------

    def check(self) -> None:
        highest = -1
        for controller in self.controllers:
            lao, epoch, high_watermark = (
                controller.tracker.lao,
                controller.epoch,
                controller.high_watermark,
            )
            if lao >= 0:
                require(
                    high_watermark > controller.start,
                    f"epoch {epoch} says LAO {lao} before its own commit",
                )
                require(
                    lao < high_watermark,
                    f"epoch {epoch} says LAO {lao}, high watermark {high_watermark}",
                )
                require(
                    lao >= controller.announced,
                    f"epoch {epoch} went from {controller.announced} to {lao}",
                )
                controller.announced = lao
            if controller.announced >= 0:
                require(
                    controller.announced >= highest,
                    f"epoch {epoch} says LAO {lao}, an earlier one {highest}",
                )
                highest = controller.announced
            self.visible = max(
                self.visible, min(controller.tracker.min_known_lao, high_watermark - 1)
            )
        for broker_id, standing in self.standings.items():
            if standing.fenced:
                continue
            broker = self.processes[standing.process]
            require(
                broker.applied >= highest,
                f"LAO {highest}: unfenced broker {broker_id} has applied {broker.applied}",
            )
            if broker.serves():
                read = broker.repeatable()
                require(
                    read <= broker.applied,
                    f"broker {broker_id} reads at {read}, has applied {broker.applied}",
                )
                require(
                    read < 0 or read >= self.visible,
                    f"{self.visible} was answered visible, broker {broker_id} reads at {read}",
                )


MOVES: dict[Callable[[World], None], float] = {
    World.elect: 0.6,
    World.commit: 6,
    World.learn: 6,
    World.write: 6,
    World.fence: 2,
    World.unfence: 5,
    World.send_report: 10,
    World.deliver_report: 10,
    World.send_answer: 10,
    World.deliver_answer: 10,
    World.round_trip: 25,
    World.settle: 3,
    World.restart: 0.6,
    World.register: 2,
    World.unregister: 0.15,
}
"""Possible steps with their frequency."""


def fold(log: list[Entry]) -> Image:
    """The image at the end of a log."""
    builder = ImageBuilder(Image())
    for offset, entry in enumerate(log):
        builder.apply_batch([entry.record], base_offset=offset, epoch=entry.epoch, timestamp_ms=0)
    return builder.snapshot()


def change(broker_id: int, epoch: int, *, fenced: bool) -> Record:
    return record(
        pb.BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=fenced)
    )


def require(holds: bool, message: str) -> None:
    if not holds:
        raise PromiseBrokenError(message)
