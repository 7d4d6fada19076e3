"""A log in which brokers leave and return for every cause."""

from typing import Any

from log_history import LogHistory

from controller.rules.fencing import (
    begin_shutdown,
    complete_shutdown,
    fence,
    registration_change,
    unfence,
)
from controller.visibility.lao import LaoTracker
from raftlog import batch
from raftlog.metadata.entities import Broker, Cause
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, parse, record
from raftlog.wire.records.v1 import records_pb2 as pb


class Story(LogHistory):
    """Fences, shutdowns, a double roll and a re-registration, of five brokers."""

    def __init__(self) -> None:
        super().__init__(5, brokers=5)
        self._heartbeats(1)
        self.create_topic("a", 3)
        self.progress()
        self._write(3)
        self.progress()
        causes = (
            Cause.SESSION_TIMED_OUT,
            Cause.PROCESS_GONE,
            Cause.METADATA_LAG,
            Cause.ASKED_TO_BE_FENCED,
            Cause.LOG_TAKEN_BACK,
        )
        for broker_id, cause in enumerate(causes, 1):
            self._write(1)
            self._out_and_back(broker_id, cause)
        self._leave()
        self._roll()
        self._end()

    def register(self, broker_id: int) -> int:
        epoch = self.end_offset
        first = pb.RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=f"{self.rng.getrandbits(64):016x}",
            broker_epoch=epoch,
            end_points=[pb.Listener(name="PLAINTEXT", host=f"host-{broker_id}", port=9092)],
            fenced=True,
            rack=f"rack-{broker_id % 2}",
            registration_version=1,
        )
        return self.append(first, *self.removals(broker_id), *self._mapping(broker_id))

    def set_fenced(self, broker_id: int, *, fenced: bool) -> None:
        assert not fenced
        self._do(unfence(self.draft, self.broker(broker_id)))

    def broker(self, broker_id: int) -> Broker:
        found = self.draft.brokers[broker_id]
        return found

    def _do(self, records: list[Record]) -> None:
        self.append(*[each.message for each in records])

    def _heartbeats(self, level: int) -> None:
        self.append(
            pb.FeatureLevelRecord(name="broker.heartbeat.version", feature_level=level),
            pb.FeatureLevelRecord(name="lao.version", feature_level=level),
        )

    def _wait(self, ms: int) -> None:
        self.timestamp_ms += ms

    def _write(self, times: int) -> None:
        for value in range(times):
            self._wait(100)
            self.alter_config("a", "retention.ms", str(value))

    def _out_and_back(self, broker_id: int, cause: Cause) -> None:
        self._wait(4000)
        self._do(fence(self.draft, self.broker(broker_id), cause))
        self._wait(3000)
        self._write(2)
        self.progress()
        self._wait(2000)
        self._do(unfence(self.draft, self.broker(broker_id)))
        self._wait(1000)
        self.progress()

    def _leave(self) -> None:
        self._write(1)
        self._wait(4000)
        self._do(begin_shutdown(self.draft, self.broker(1)))
        self._wait(500)
        self._do(complete_shutdown(self.draft, self.broker(1)))
        self._wait(2000)
        self.progress()
        self.register(1)
        self._wait(500)
        self.set_fenced(1, fenced=False)
        self.progress()
        self._do(complete_shutdown(self.draft, self.broker(5)))
        self._wait(1000)
        self.progress()
        self.register(5)

    def _roll(self) -> None:
        self._heartbeats(0)
        for broker_id in (5, 2):
            if not self.broker(broker_id).fenced:
                self._do(fence(self.draft, self.broker(broker_id), Cause.SESSION_TIMED_OUT))
            self._wait(300)
            self._join(broker_id)
        self._write(1)
        for broker_id in (3, 4):
            self.register(broker_id)
            self._join(broker_id)
            self._do(begin_shutdown(self.draft, self.broker(broker_id)))
        self.claimed_at = [self.draft.snapshot()]
        self._do(complete_shutdown(self.draft, self.broker(4)))
        self._amend(self.broker(2))

    def _join(self, broker_id: int) -> None:
        self._do(unfence(self.draft, self.broker(broker_id), Cause.ACTIVE_WITHOUT_HEARTBEATS))

    def _amend(self, broker: Broker) -> None:
        """Restore what the registration would otherwise reset."""
        amended = pb.RegisterBrokerRecord(
            broker_id=broker.id,
            broker_epoch=broker.epoch,
            incarnation_id=broker.incarnation_id,
            end_points=[pb.Listener(name="PLAINTEXT", host=f"host-{broker.id}", port=9092)],
            rack="other",
            fenced=broker.fenced,
            registration_version=1,
        )
        self.append(amended, registration_change(broker, broker.cause).message)

    def _end(self) -> None:
        self._heartbeats(1)
        self._wait(3000)
        self._write(2)
        self._wait(4000)
        self.claimed_at.append(self.draft.snapshot())
        self._do(fence(self.draft, self.broker(3), Cause.SESSION_TIMED_OUT))
        self._wait(500)
        self.progress()
        self._write(1)
        self._wait(500)
        self._do(fence(self.draft, self.broker(2), Cause.DISK_HANGS))
        self.progress()


def decoded(data: bytes) -> tuple[batch.BatchHeader, list[Record]]:
    (header,) = batch.headers(data)
    return header, [
        Record(one.type, one.version, one.body, parse(one)) for one in batch.records(data, header)
    ]


def images(batches: list[bytes]) -> list[Image]:
    """Yield the image after each batch."""
    draft, found = ImageBuilder(Image()), []
    for data in batches:
        header, records = decoded(data)
        draft.apply_decoded(header, records)
        found.append(draft.snapshot())
    return found


def counting(batches: list[bytes]) -> list[list[Any]]:
    """Return after each batch: its offset; the brokers that count for LAO, and those that were
    unfenced whatever they had applied, for a controller that claims then. Both again for one with
    every batch in its tail.
    """
    tail, found = LaoTracker(9, 10**9), []
    tail.seed(Image())
    for data, image in zip(batches, images(batches), strict=True):
        header, records = decoded(data)
        tail.proposed(records, header.base_offset)
        claims = LaoTracker(9, image.offset + 1)
        claims.seed(image)
        found.append([image.offset, *_counting(claims), *_counting(tail)])
    return found


def _counting(tracker: LaoTracker) -> tuple[list[int], list[int]]:
    return sorted(tracker.members), sorted(
        id_ for id_, each in tracker._registrations.current.items() if each.unvouched
    )


def reported(image: Image) -> list[Any]:
    """Claim at the image and enable heartbeats: what reports count for, and LAO; then after."""
    at = image.offset + 1
    tracker = LaoTracker(9, at)
    tracker.seed(image)
    levels = ("broker.heartbeat.version", "lao.version")
    tracker.proposed([record(pb.NoOpRecord())], at)
    tracker.proposed(
        [record(pb.FeatureLevelRecord(name=name, feature_level=1)) for name in levels], at + 1
    )
    tracker.proposed([record(pb.NoOpRecord())] * 4, at + 3)
    tracker.committed(at + 7)
    ids = sorted(image.brokers)
    for id_ in ids:
        tracker.report(id_, image.brokers[id_].epoch, 9, at, -1)
    first = [{str(id_): tracker.applied_of(id_) for id_ in ids}, tracker.lao, list(tracker.members)]
    for id_ in ids:
        tracker.report(id_, image.brokers[id_].epoch, 9, at + 4, -1)
    return [*first, tracker.lao]
