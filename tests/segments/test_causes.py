"""The cause of a broker's change, in records and snapshots. What it decides: tests/controller/test_broker_causes.py."""

from typing import Any

import pytest
from msgspec import structs

from controller.visibility.lao import LaoTracker
from raftlog.errors import CorruptLogError
from raftlog.metadata.entities import Cause, cause_name
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import UnknownRecordError, record
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.wire.records.v1 import records_pb2 as pb


def test_cause_enum_matches_the_records() -> None:
    named = {name.removeprefix("CAUSE_"): number for name, number in pb.BrokerCause.items()}
    assert named == {cause.name: cause.value for cause in Cause}


def test_cause_has_its_name_and_an_unknown_one_its_number() -> None:
    names = [cause_name(Cause, number) for number in (0, Cause.CAUGHT_UP, 99)]
    assert names == [None, "CAUGHT_UP", "99"]


def registration(broker_id: int, epoch: int) -> pb.RegisterBrokerRecord:
    return pb.RegisterBrokerRecord(
        broker_id=broker_id, broker_epoch=epoch, fenced=True, registration_version=1
    )


def with_brokers(*changes: pb.BrokerRegistrationChangeRecord) -> ImageBuilder:
    """Register brokers with the ids 0, 1, …, and change each."""
    draft = ImageBuilder(Image())
    for id_, change in enumerate(changes):
        registered = record(registration(id_, draft.offset + 1))
        change.broker_id, change.broker_epoch = id_, draft.offset + 1
        for each in (registered, record(change)):
            draft.apply_batch([each], base_offset=draft.offset + 1, epoch=1, timestamp_ms=0)
    return draft


def test_snapshot_keeps_the_cause() -> None:
    causes: list[Any] = [cause.value for cause in Cause]
    changed = [pb.BrokerRegistrationChangeRecord(cause=cause) for cause in causes]
    image = with_brokers(*changed).snapshot()
    header, loaded = load(pieces(image, header_of(image, cluster_id="c", generations=())))
    assert (header.end_offset, loaded.state_hash) == (image.offset + 1, image.state_hash)
    assert [loaded.brokers[id_].cause for id_ in range(1, len(Cause))] == list(Cause)[1:]


def lao_after(cause: Cause, reason: str, *, in_tail: bool) -> list[Any]:
    """Return for what the reports of a broker that changed so count, and LAO, once heartbeats are
    enabled. ``in_tail``: the controller has proposed the change itself.
    """
    number: Any = cause.value
    change = pb.BrokerRegistrationChangeRecord(fenced=False, cause=number, reason=reason)
    image = with_brokers(change).snapshot()
    at = image.offset + 1
    tracker = LaoTracker(9, 0 if in_tail else at)
    tracker.seed(Image() if in_tail else image)
    if in_tail:
        tracker.proposed([record(registration(0, 0))], 0)
        tracker.proposed([record(change)], 1)
    heartbeats = "broker.heartbeat.version"
    for offset, name, level in ((at, "metadata.version", 2), (at + 1, heartbeats, 1)):
        change_level = pb.FeatureLevelRecord(name=name, feature_level=level)
        tracker.proposed([record(change_level)], offset)
    tracker.proposed([record(pb.NoOpRecord())] * 5, at + 2)
    tracker.committed(at + 7)
    told: list[Any] = []
    for applied in (at, at + 4):
        tracker.report(0, 0, 9, applied, -1)
        told += [tracker.applied_of(0), tracker.lao, list(tracker.members)]
    return told


@pytest.mark.parametrize("in_tail", [False, True])
def test_lao_depends_on_the_cause_and_not_on_its_text(in_tail: bool) -> None:
    by_cause = []
    for cause in (Cause.ACTIVE_WITHOUT_HEARTBEATS, Cause.CAUGHT_UP):
        one, other = (
            lao_after(cause, reason, in_tail=in_tail)
            for reason in ("caught up", "active without heartbeats")
        )
        assert one == other
        by_cause.append(one)
    assert by_cause[0] != by_cause[1]


def test_unknown_cause_stops_this_build() -> None:
    change = pb.BrokerRegistrationChangeRecord.FromString(b"\x30\x63")
    assert change.cause == 99
    with pytest.raises(UnknownRecordError, match="cause 99 at offset 1"):
        with_brokers(change)


def test_snapshot_with_an_unknown_cause_is_corrupt() -> None:
    draft = with_brokers(pb.BrokerRegistrationChangeRecord())
    broker = draft.brokers[0]
    unknown: Any = 99
    draft.brokers[0] = structs.replace(broker, cause=unknown)
    draft.replace("broker", (0,), broker, draft.brokers[0])
    image = draft.snapshot()
    with pytest.raises(CorruptLogError):
        load(pieces(image, header_of(image, cluster_id="c", generations=())))
