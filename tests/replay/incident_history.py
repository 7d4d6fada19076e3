"""Two hours of a cluster with known incidents."""

from log_history import LogHistory

from raftlog.metadata.entities import Partition
from raftlog.wire.records.v1 import records_pb2 as pb

BEGIN_MS = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC, where every LogHistory begins."""
BROKERS = 6


class IncidentHistory(LogHistory):
    """A clock in seconds since the beginning, which each record advances by some milliseconds."""

    def __init__(self, seed: int = 61) -> None:
        super().__init__(seed, brokers=0)
        self.brokers = BROKERS
        self.held: dict[int, int] = {}
        """Brokers that apply nothing beyond an offset."""

    def at(self, seconds: float) -> None:
        """Advance to that time, with a progress record at once and every ten seconds."""
        until = BEGIN_MS + round(seconds * 1000)
        self.timestamp_ms += 300
        self.progress()
        while self.timestamp_ms + 10_000 < until:
            self.timestamp_ms += 10_000 - self.timestamp_ms % 10_000
            self.tick()
        self.timestamp_ms = max(self.timestamp_ms, until)

    def wait(self, seconds: float) -> None:
        """Advance to that time without a record."""
        self.timestamp_ms = max(self.timestamp_ms, BEGIN_MS + round(seconds * 1000))

    def tick(self) -> None:
        """Append a no-op and a progress record."""
        self.append(pb.NoOpRecord())
        self.progress()

    def progress(self) -> None:
        high_watermark = self.end_offset
        applied = {
            broker_id: min(high_watermark - 1, self.held.get(broker_id, high_watermark))
            for broker_id in self.active()
        }
        entries = [
            pb.AppliedOffset(
                broker_id=broker_id,
                broker_epoch=self.draft.brokers[broker_id].epoch,
                applied_offset=offset,
            )
            for broker_id, offset in applied.items()
        ]
        lowest = min(applied.values(), default=-1)
        self.append(
            pb.ProgressRecord(
                lowest_acknowledged_offset=lowest, high_watermark=high_watermark, applied=entries
            )
        )

    def partitions(self) -> list[Partition]:
        topics = [self.draft.topics[topic_id] for _, topic_id in sorted(self.topics.items())]
        return [
            self.draft.partitions[topic.id, index]
            for topic in topics
            for index in range(topic.partition_count)
        ]

    def active(self) -> list[int]:
        brokers = [self.draft.brokers.get(broker_id) for broker_id in range(1, self.brokers + 1)]
        return [broker.id for broker in brokers if broker is not None and not broker.fenced]

    def rejoin(self, broker_id: int) -> None:
        """Return to every ISR that it left; the last member of a leaderless one leads."""
        for old in self.partitions():
            if broker_id in old.replicas and old.leader == -1:
                self.append(
                    pb.PartitionChangeRecord(
                        topic_id=old.topic_id, partition_id=old.index, leader=broker_id
                    )
                )
            elif broker_id in old.replicas and broker_id not in old.isr:
                name = self.draft.topics[old.topic_id].name
                self.alter_isr(
                    name,
                    old.index,
                    [member for member in old.replicas if member in {*old.isr, broker_id}],
                )


def two_hours() -> IncidentHistory:
    """Return the history with the steps below."""
    log = IncidentHistory()
    log.wait(0)
    for broker_id in range(1, BROKERS + 1):
        log.register(broker_id)
        log.wait(2 + broker_id / 10)
        log.set_fenced(broker_id, fenced=False)
    log.at(60)
    _create(log, "orders", [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 1], [6, 1, 2]])
    _create(log, "payments", [[2, 4, 6], [5, 1, 3], [4, 6, 2]])
    _create(log, "clicks", [[3], [4], [5, 3], [1, 6]])
    log.alter_config("orders", "min.insync.replicas", "2")
    log.at(22 * 60)
    log.alter_config("orders", "retention.ms", "3600000")
    _controlled_restart(log)
    log.at(41 * 60)
    log.wait(41 * 60 + 7)
    log.elect(2)
    log.at(58 * 60)
    log.append(
        pb.ConfigRecord(resource_type=4, resource_name="3", name="num.replica.fetchers", value="8"),
        principal="User:deploy",
    )
    _broker_dies_while_the_controller_moves(log)
    _flapping(log)
    _slow_broker(log)
    log.at(120 * 60)
    return log


def _create(log: IncidentHistory, name: str, assignments: list[list[int]]) -> None:
    topic_id = log.rng.getrandbits(128).to_bytes(16, "big")
    created = [
        pb.PartitionRecord(
            topic_id=topic_id,
            partition_id=index,
            replicas=replicas,
            isr=replicas,
            leader=replicas[0],
        )
        for index, replicas in enumerate(assignments)
    ]
    log.append(pb.TopicRecord(name=name, topic_id=topic_id), *created, principal="User:alice")
    log.topics[name] = topic_id


def _controlled_restart(log: IncidentHistory) -> None:
    """Broker 2, from 25:00; back in the ISRs at 26:05."""
    log.at(25 * 60)
    log.append(log.leaving(2), *log.removals(2))
    log.wait(25 * 60 + 4)
    log.append(log.leaving(2, fenced=True))
    log.at(25 * 60 + 40)
    log.register(2)
    log.wait(25 * 60 + 45)
    log.set_fenced(2, fenced=False)
    log.at(26 * 60 + 5)
    log.rejoin(2)


def _broker_dies_while_the_controller_moves(log: IncidentHistory) -> None:
    """Broker 3 is silent from 60:03 and fenced at 60:12; the controller moves at 61:10; the broker
    is back at 64:10.

    From 63:30 to then no progress record is written: LAO stands still, and nobody can say for whom.
    """
    log.at(60 * 60)
    log.held[3] = log.end_offset - 1
    log.alter_config("orders", "retention.ms", "7200000", "User:bob")
    log.wait(60 * 60 + 12)
    epoch = log.draft.brokers[3].epoch
    gone = pb.BrokerRegistrationChangeRecord(
        broker_id=3,
        broker_epoch=epoch,
        fenced=True,
        in_controlled_shutdown=False,
        reason="session timed out",
        cause=pb.SESSION_TIMED_OUT,
    )
    alone = [
        pb.PartitionChangeRecord(topic_id=old.topic_id, partition_id=old.index, leader=-1)
        for old in log.partitions()
        if old.isr == (3,)
    ]
    log.append(gone, *log.removals(3), *alone)
    log.at(61 * 60)
    log.append(pb.NoOpRecord())
    log.wait(61 * 60 + 10)
    log.elect(3)
    del log.held[3]
    log.at(63 * 60 + 30)
    log.register(3)
    log.wait(64 * 60 + 10)
    log.set_fenced(3, fenced=False)
    log.rejoin(3)


def _flapping(log: IncidentHistory) -> None:
    """Broker 3 leaves and joins the ISR of payments-1 nine times from 85:00 on."""
    for turn in range(9):
        log.at(85 * 60 + turn * 40)
        log.alter_isr("payments", 1, [5, 1])
        log.at(85 * 60 + turn * 40 + 20)
        log.alter_isr("payments", 1, [5, 1, 3])


def _slow_broker(log: IncidentHistory) -> None:
    """Broker 6 delays LAO from 105:00 for two minutes, stays unfenced, and catches up at once."""
    log.at(105 * 60)
    log.held[6] = log.end_offset - 1
    log.alter_config("payments", "retention.ms", "60000", "User:bob")
    log.at(107 * 60)
    del log.held[6]
    log.tick()
