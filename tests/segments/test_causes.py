"""Decisions depend on the cause of a broker's change, not on its text."""

from typing import Any

import pytest
from caused_log import Story, counting, decoded, reported
from msgspec import structs

from controller.rules import fencing
from raftlog.errors import CorruptLogError
from raftlog.metadata.entities import Cause, cause_name
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType, UnknownRecordError, record
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.wire.records.v1 import records_pb2 as pb


def reword(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {
        cause: f"for reason {number}, caught up" for number, cause in enumerate(fencing._WORDS)
    }
    monkeypatch.setattr(fencing, "_WORDS", words)


def test_cause_enum_matches_the_records() -> None:
    named = {name.removeprefix("CAUSE_"): number for name, number in pb.BrokerCause.items()}
    assert named == {cause.name: cause.value for cause in Cause}


def test_cause_has_its_name_and_an_unknown_one_its_number() -> None:
    assert [cause_name(Cause, number) for number in (0, Cause.CAUGHT_UP, 99)] == [
        None,
        "CAUGHT_UP",
        "99",
    ]


def test_texts_do_not_affect_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Story()
    reword(monkeypatch)
    story = Story()
    said = {
        (each.message.reason, each.message.cause)
        for data in story.batches
        for each in decoded(data)[1]
        if each.type == RecordType.BROKER_REGISTRATION_CHANGE
    }
    assert {cause for _, cause in said} == set(Cause) - {Cause.UNSPECIFIED, Cause.REGISTERED}
    assert all(reason.startswith("for reason") for reason, _ in said)
    assert counting(story.batches) == counting(plain.batches)
    told = [
        [(image.offset, reported(image)) for image in each.claimed_at] for each in (plain, story)
    ]
    assert told[0] == told[1]


def test_snapshot_keeps_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    reword(monkeypatch)
    for image in Story().claimed_at:
        header, loaded = load(pieces(image, header_of(image, cluster_id="c", generations=())))
        assert (header.end_offset, loaded.state_hash) == (image.offset + 1, image.state_hash)
        assert [loaded.brokers[id_].cause for id_ in (2, 3)] == [
            Cause.ACTIVE_WITHOUT_HEARTBEATS,
            Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS,
        ]
        assert reported(loaded) == reported(image)


def test_unknown_cause_stops_this_build() -> None:
    draft = ImageBuilder(Image())
    first = record(pb.RegisterBrokerRecord(broker_id=1, broker_epoch=0))
    draft.apply_batch([first], base_offset=0, epoch=1, timestamp_ms=0)
    change = pb.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=0)
    change.ParseFromString(change.SerializeToString() + b"\x30\x63")
    assert change.cause == 99
    with pytest.raises(UnknownRecordError, match="cause 99 at offset 1"):
        draft.apply_batch([record(change)], base_offset=1, epoch=1, timestamp_ms=0)


def test_snapshot_with_an_unknown_cause_is_corrupt() -> None:
    draft = ImageBuilder(Image())
    draft.apply_batch(
        [record(pb.RegisterBrokerRecord(broker_id=1))], base_offset=0, epoch=1, timestamp_ms=0
    )
    broker = draft.brokers[1]
    unknown: Any = 99
    draft.brokers[1] = structs.replace(broker, cause=unknown)
    draft.replace("broker", (1,), broker, draft.brokers[1])
    image = draft.snapshot()
    with pytest.raises(CorruptLogError):
        load(pieces(image, header_of(image, cluster_id="c", generations=())))
