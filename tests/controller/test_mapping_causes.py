"""Why a host is mapped is read of the cause and not of the words: in logs of before, in those of
now, reworded or not.
"""

from __future__ import annotations

import json
from typing import Any

import old_mappings
import pytest
from old_mappings import (
    KNOWN_LEVEL,
    OLD_LEVEL,
    Controller,
    Story,
    alter,
    decided,
    images,
    old,
    old_batches,
    snapshot_of,
    unpacked,
)
from test_features import update

from controller.decisions.quorum.features import SAFE_DOWNGRADE
from controller.rules import mappings
from controller.rules.mappings import mapping_without_cause
from controller.settings import ControllerSettings
from raftlog.errors import CorruptLogError
from raftlog.metadata.causes import (
    OLD_HOSTNAME_TEXT_OF,
    OLD_HOSTNAME_TEXTS,
    HostnameCause,
    hostname_cause_of,
)
from raftlog.metadata.entities import (
    CausedHostname,
    Hostname,
    format_hash,
    mapping_with_cause,
    said_cause,
)
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType, UnknownRecordError, record
from raftlog.metadata.snapshot import load
from raftlog.metadata.versions import CAUSES
from raftlog.wire.records.v1 import records_pb2 as pb

BY_REGISTRATION, BY_HAND = HostnameCause.BY_REGISTRATION, HostnameCause.BY_HAND


@pytest.fixture
def _reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cause in the words that another one had before."""
    texts = [*OLD_HOSTNAME_TEXTS]
    words = dict(zip(OLD_HOSTNAME_TEXTS.values(), [*texts[1:], texts[0]], strict=True))
    monkeypatch.setattr(mappings, "_WORDS", words)


def in_json(image: Image) -> Any:
    return json.loads(json.dumps(decided(image)))


def told_by(story: Story) -> dict[str, Any]:
    return {
        str(image.offset): in_json(image)
        for image in (story.kept_at, story.taken_at, story.missing_at)
    }


def folded(*messages: pb.HostnameRecord) -> ImageBuilder:
    draft = ImageBuilder(Image())
    for message in messages:
        draft.apply_batch([record(message)], base_offset=draft.offset + 1, epoch=1, timestamp_ms=0)
    return draft


def test_the_enum_is_that_of_the_records() -> None:
    named = {
        name.removeprefix("HOSTNAME_CAUSE_"): number for name, number in pb.HostnameCause.items()
    }
    assert named == {cause.name: cause.value for cause in HostnameCause}


def test_the_table_has_each_text_that_an_earlier_build_wrote() -> None:
    bodies = [one.message for data in old_batches() for one in old_mappings.decoded(data)]
    written = {message.reason for message in bodies if isinstance(message, pb.HostnameRecord)}
    assert set(OLD_HOSTNAME_TEXTS) == written
    assert set(OLD_HOSTNAME_TEXT_OF) == set(HostnameCause) - {HostnameCause.UNSPECIFIED}
    assert (
        hostname_cause_of(0, "Registered") == hostname_cause_of(0, "") == HostnameCause.UNSPECIFIED
    )
    assert hostname_cause_of(BY_HAND, "registered") == BY_HAND


def test_the_words_are_still_those_of_before() -> None:
    """Rewording them is allowed: the test is to be changed then, and the table is not."""
    assert mappings._WORDS == OLD_HOSTNAME_TEXT_OF


def test_a_log_of_before_is_the_same_state_and_decides_the_same() -> None:
    found = images(old_batches())
    assert [format_hash(image.state_hash) for image in found] == old()["state_hashes"]
    assert {type(one) for image in found for one in image.hostnames.values()} == {Hostname}
    ends = {str(image.offset): image for image in found}
    assert {offset: in_json(ends[offset]) for offset in old()["decided"]} == old()["decided"]


def test_a_snapshot_of_before_is_loaded_and_written_as_it_was() -> None:
    data = unpacked(old()["snapshot"])
    _, image = load([data])
    assert in_json(image) == old()["decided"][str(image.offset)]
    assert snapshot_of(image) == data


@pytest.mark.usefixtures("_reworded")
def test_below_the_level_this_build_writes_the_bytes_of_the_one_before_however_it_would_word_them() -> (
    None
):
    assert Story(OLD_LEVEL).batches == old_batches()


@pytest.mark.usefixtures("_reworded")
def test_at_the_level_other_words_change_no_decision() -> None:
    story = Story(CAUSES)
    records = [
        one
        for data in story.batches
        for one in old_mappings.decoded(data)
        if one.type == RecordType.HOSTNAME
    ]
    said = {(one.message.cause, one.message.reason) for one in records}
    assert said == {(int(cause), words) for cause, words in mappings._WORDS.items()}
    assert told_by(story) == old()["decided"]


@pytest.mark.usefixtures("_reworded")
def test_a_snapshot_keeps_the_cause() -> None:
    for image in (Story(CAUSES).kept_at, Story(CAUSES).missing_at):
        _, loaded = load([snapshot_of(image)])
        assert loaded.state_hash == image.state_hash
        assert dict(loaded.hostnames.items()) == dict(image.hostnames.items())
        assert {said_cause(one) for one in loaded.hostnames.values()} == {BY_REGISTRATION, BY_HAND}
        assert in_json(loaded) == old()["decided"][str(image.offset)]


@pytest.mark.usefixtures("_reworded")
@pytest.mark.parametrize("at", ["kept_at", "missing_at"])
def test_a_lowered_level_takes_the_causes_back_and_leaves_each_mapping_at_its_offset(
    at: str,
) -> None:
    """[a mapping by hand that is older than a registration would be newer than it]"""
    image, plain = getattr(Story(CAUSES), at), getattr(Story(OLD_LEVEL), at)
    lowered = Controller(image=image, epoch=2, bootstrap=False)
    decision = lowered.propose(
        lowered.decide(update(("metadata.version", OLD_LEVEL), kind=SAFE_DOWNGRADE))
    )
    assert decision.error is None, decision.error
    assert sum(one.type == RecordType.HOSTNAME for one in decision.records) == len(plain.hostnames)
    after = lowered.pending.snapshot()
    assert dict(after.hostnames.items()) == dict(plain.hostnames.items())
    assert {type(one) for one in after.hostnames.values()} == {Hostname}
    assert in_json(after) == old()["decided"][str(image.offset)]


def test_what_is_mapped_again_without_a_cause_is_another_mapping_unless_that_takes_a_cause_back() -> (
    None
):
    caused = pb.HostnameRecord(hostname="h", broker_id=4, reason="a", cause=pb.BY_HAND)
    plain = pb.HostnameRecord(hostname="h", broker_id=4, reason="set by hand")
    assert folded(caused, plain).hostnames["h"] == Hostname("h", 0, 4, 0, "set by hand")
    other = pb.HostnameRecord(hostname="h", broker_id=5, reason="set by hand")
    assert folded(caused, other).hostnames["h"] == Hostname("h", 0, 5, 1, "set by hand")
    assert folded(caused, caused).hostnames["h"] == CausedHostname("h", 0, 4, 1, "a", BY_HAND)
    assert (
        folded(plain, plain).hostnames["h"].offset
        == folded(plain, caused).hostnames["h"].offset
        == 1
    )
    assert folded(caused, plain, plain).hostnames["h"].offset == 2
    gone = pb.HostnameRecord(hostname="h")
    assert folded(caused, gone, plain).hostnames["h"].offset == 2


def test_words_that_no_build_wrote_are_kept_and_count_as_by_hand() -> None:
    odd = Hostname("h", 0, 4, 7, "a test")
    assert odd.cause == HostnameCause.UNSPECIFIED
    assert mapping_without_cause(odd).message.reason == "a test"
    cell = Controller(settings=ControllerSettings(bootstrap_metadata_version=KNOWN_LEVEL))
    cell.on(1, "h1")
    cell.create_on((1,))
    cell._fold([record(pb.HostnameRecord(hostname="elsewhere", broker_id=1, reason="a test"))])
    cell.commit()
    cell.lose(1)
    assert cell.chosen("elsewhere")[:2] == ["elsewhere", 1]


def test_the_same_by_hand_is_written_once_whatever_its_words_are() -> None:
    cell = Controller()
    cell._fold(
        [
            record(
                pb.HostnameRecord(hostname="h", broker_id=1, reason="registered", cause=pb.BY_HAND)
            )
        ]
    )
    cell.commit()
    assert not cell.decide(alter("h", 1)).records


@pytest.mark.parametrize("broker_id", [4, None], ids=["mapped", "deleted"])
def test_a_cause_that_this_build_does_not_know_stops_it(broker_id: int | None) -> None:
    change = pb.HostnameRecord(hostname="h", broker_id=broker_id)
    change.ParseFromString(change.SerializeToString() + b"\x28\x63")
    assert change.cause == 99
    with pytest.raises(UnknownRecordError, match="the cause 99 at offset 1"):
        folded(pb.HostnameRecord(hostname="h", broker_id=4), change)


@pytest.mark.parametrize("said", [0, 99])
def test_a_snapshot_with_a_cause_that_is_none_is_corrupt(said: int) -> None:
    """A cause of 0 is not the canonical form of none."""
    draft = folded(pb.HostnameRecord(hostname="h", broker_id=4))
    mapping = draft.hostnames["h"]
    draft.hostnames["h"] = CausedHostname(mapping.name, 0, 4, mapping.offset, "", said)
    draft.replace("hostname", (), mapping, draft.hostnames["h"])
    with pytest.raises(CorruptLogError):
        load([snapshot_of(draft.snapshot())])


def test_a_mapping_without_a_cause_has_the_bytes_of_before() -> None:
    mapping = folded(pb.HostnameRecord(hostname="h", broker_id=4, reason="registered")).hostnames[
        "h"
    ]
    caused = mapping_with_cause(mapping, BY_HAND)
    assert (type(caused), caused.cause) == (CausedHostname, BY_HAND)
    assert mapping_with_cause(caused, 0) == mapping
    assert (type(mapping), mapping.cause) == (Hostname, BY_REGISTRATION)
