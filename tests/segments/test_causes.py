"""Decisions rest on the cause of a broker's change and not on its words: in logs of before, in
those of now, reworded or not.
"""

from __future__ import annotations

from typing import Any

import pytest
from old_texts import OLD, OLD_LEVEL, OldLog, Story, counting, decoded, images, reported, unpacked

from controller.rules import fencing
from controller.rules.fencing import without_cause
from raftlog.errors import CorruptLogError
from raftlog.metadata.causes import OLD_TEXT_OF, OLD_TEXTS, Cause, cause_name, cause_of
from raftlog.metadata.entities import Broker, CausedBroker, format_hash, said_cause, with_cause
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType, UnknownRecordError, record
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.wire.records.v1 import records_pb2 as pb


@pytest.fixture
def _reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {
        cause: f"for reason {number}, caught up" for number, cause in enumerate(fencing._WORDS)
    }
    monkeypatch.setattr(fencing, "_WORDS", words)


def test_the_enum_is_that_of_the_records() -> None:
    named = {name.removeprefix("CAUSE_"): number for name, number in pb.BrokerCause.items()}
    assert named == {cause.name: cause.value for cause in Cause}


def test_the_table_has_each_text_that_an_earlier_build_wrote() -> None:
    """Those of OLD, which were written by the code of then; and that of a registration, which the
    fold gives.
    """
    assert set(OLD_TEXTS) == {*OLD["texts"], "registered"}
    assert set(OLD_TEXT_OF) == set(Cause) - {Cause.UNSPECIFIED}
    assert cause_of(0, "Session timed out") == cause_of(0, "") == Cause.UNSPECIFIED
    assert cause_of(Cause.METADATA_LAG, "caught up") == Cause.METADATA_LAG


def test_a_cause_has_its_name_and_an_unknown_one_its_number() -> None:
    assert [cause_name(Cause, number) for number in (0, Cause.CAUGHT_UP, 99)] == [
        None,
        "CAUGHT_UP",
        "99",
    ]


def test_the_words_are_still_those_of_before() -> None:
    """Rewording them is allowed: the test is to be changed then, and the table is not."""
    assert {
        cause: text for cause, text in OLD_TEXT_OF.items() if cause != Cause.REGISTERED
    } == fencing._WORDS


def test_a_log_of_before_is_the_same_state_and_counts_the_same() -> None:
    batches = OldLog().batches
    found = images(batches)
    assert {str(image.offset): format_hash(image.state_hash) for image in found} == OLD[
        "state_hashes"
    ]
    assert counting(batches) == OLD["members"]
    ends = {image.offset: image for image in found}
    assert [[offset, reported(ends[offset])] for offset, _ in OLD["claims"]] == OLD["claims"]
    assert {type(broker) for image in found for broker in image.brokers.values()} == {Broker}


def test_snapshots_of_before_are_loaded_and_written_as_they_were() -> None:
    for data, (offset, said) in zip(map(unpacked, OLD["snapshots"]), OLD["claims"], strict=True):
        header, image = load([data])
        assert image.offset == offset
        assert reported(image) == said
        assert b"".join(pieces(image, header)) == data


@pytest.mark.usefixtures("_reworded")
def test_below_the_level_this_build_writes_the_bytes_of_the_one_before_however_it_would_word_them() -> (
    None
):
    assert b"".join(Story(OLD_LEVEL).batches) == OldLog().data


@pytest.mark.usefixtures("_reworded")
def test_at_the_level_other_words_change_no_decision() -> None:
    story = Story(LATEST_METADATA_VERSION)
    said = {
        (each.message.reason, each.message.cause)
        for data in story.batches
        for each in decoded(data)[1]
        if each.type == RecordType.BROKER_REGISTRATION_CHANGE
    }
    assert len(said) == len(OLD["texts"])
    assert all(reason.startswith("for reason") and cause for reason, cause in said)
    assert counting(story.batches) == OLD["members"]
    assert [[image.offset, reported(image)] for image in story.claimed_at] == OLD["claims"]


@pytest.mark.usefixtures("_reworded")
def test_a_snapshot_keeps_the_cause() -> None:
    for image in Story(LATEST_METADATA_VERSION).claimed_at:
        header, loaded = load(pieces(image, header_of(image, cluster_id="c", generations=())))
        assert (header.end_offset, loaded.state_hash) == (image.offset + 1, image.state_hash)
        assert [said_cause(loaded.brokers[id_]) for id_ in (2, 3)] == [
            Cause.ACTIVE_WITHOUT_HEARTBEATS,
            Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS,
        ]
        assert reported(loaded) == reported(image)


def test_taking_the_causes_back_gives_the_state_that_words_would_have_given() -> None:
    caused, plain = (
        ImageBuilder(Story(LATEST_METADATA_VERSION).claimed_at[1]),
        Story(OLD_LEVEL).claimed_at[1],
    )
    brokers = [caused.brokers[id_] for id_ in sorted(plain.brokers)]
    assert any(map(said_cause, brokers))
    records = [without_cause(broker) for broker in brokers if said_cause(broker)]
    caused.apply_batch(records, base_offset=caused.offset + 1, epoch=caused.epoch, timestamp_ms=0)
    after = caused.snapshot()
    assert [after.brokers[id_] for id_ in sorted(plain.brokers)] == [
        plain.brokers[id_] for id_ in sorted(plain.brokers)
    ]


def test_a_cause_that_this_build_does_not_know_stops_it() -> None:
    draft = ImageBuilder(Image())
    first = record(pb.RegisterBrokerRecord(broker_id=1, broker_epoch=0))
    draft.apply_batch([first], base_offset=0, epoch=1, timestamp_ms=0)
    change = pb.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=0)
    change.ParseFromString(change.SerializeToString() + b"\x30\x63")
    assert change.cause == 99
    with pytest.raises(UnknownRecordError, match="the cause 99 at offset 1"):
        draft.apply_batch([record(change)], base_offset=1, epoch=1, timestamp_ms=0)


@pytest.mark.parametrize("said", [0, 99])
def test_a_snapshot_with_a_cause_that_is_none_is_corrupt(said: int) -> None:
    """A cause of 0 is not the canonical form of none."""
    draft = ImageBuilder(Image())
    draft.apply_batch(
        [record(pb.RegisterBrokerRecord(broker_id=1))], base_offset=0, epoch=1, timestamp_ms=0
    )
    broker = draft.brokers[1]
    values = [getattr(broker, name) for name in Broker.__struct_fields__]
    make: Any = CausedBroker
    draft.brokers[1] = make(*values, said_cause=said)
    draft.replace("broker", (1,), broker, draft.brokers[1])
    image = draft.snapshot()
    with pytest.raises(CorruptLogError):
        load(pieces(image, header_of(image, cluster_id="c", generations=())))


def test_a_broker_without_a_cause_has_the_bytes_of_before() -> None:
    draft = ImageBuilder(Image())
    draft.apply_batch(
        [record(pb.RegisterBrokerRecord(broker_id=1))], base_offset=0, epoch=1, timestamp_ms=0
    )
    broker = draft.brokers[1]
    caused = with_cause(broker, Cause.CAUGHT_UP)
    assert (type(caused), caused.cause) == (CausedBroker, Cause.CAUGHT_UP)
    assert with_cause(caused, 0) == broker
    assert (type(with_cause(caused, 0)), broker.cause) == (Broker, Cause.REGISTERED)
