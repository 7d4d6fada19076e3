"""Tests that the cause of a host mapping is read from its code, not from its text."""

from typing import Any

import pytest
from msgspec import structs
from test_broker_ids import ADOPT_S, Ids, at

from controller.decisions.brokers import hostnames
from controller.decisions.brokers.hostnames import COLLECT_INTERVAL_S, is_stale
from raftlog.errors import CorruptLogError
from raftlog.metadata.entities import HostnameCause
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, RecordType, UnknownRecordError, record
from raftlog.metadata.snapshot import header_of, load, pieces
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def reword(monkeypatch: pytest.MonkeyPatch) -> dict[HostnameCause, str]:
    """Each cause in the words of another one."""
    texts = [*hostnames._WORDS.values()]
    words = dict(zip(hostnames._WORDS, [*texts[1:], texts[0]], strict=True))
    monkeypatch.setattr(hostnames, "_WORDS", words)
    return words


def alter(hostname: str, broker_id: int | None) -> rpc.AlterHostnamesRequest:
    return rpc.AlterHostnamesRequest(
        alterations=[rpc.HostnameAlteration(hostname=hostname, broker_id=broker_id)]
    )


class Controller(Ids):
    """Keeps the records that it writes."""

    def __init__(self, brokers: int = 0, **fields: Any) -> None:
        self.written: list[Record] = []
        super().__init__(brokers, **fields)

    def fold(self, records: list[Record]) -> None:
        self.written += records
        super().fold(records)

    def chosen(self, host: str, port: int = 9092) -> list[Any]:
        """The id that a broker there would get, and where it is from; or what it is told."""
        decision = self.decide(self.wanted(host, port))
        if decision.error is not None:
            return [host, int(decision.error.code)]
        maps = [one.message.hostname for one in decision.records if one.type == RecordType.HOSTNAME]
        return [host, decision.body.broker_id, int(decision.body.id_source), maps]


class Story(Controller):
    """Mappings by registrations and by hand, before and after a registration; one of either that
    is deleted, and one that is stale.
    """

    def __init__(self) -> None:
        super().__init__()
        for broker_id in (1, 2, 3, 4, 5):
            self.on(broker_id, f"h{broker_id}")
        self.create_on((1, 2, 3, 4, 5))
        self.send(alter("before", 3))
        self.silence(3, 4)
        self.on(3, "h3b", incarnation="3b")
        self.on(4, "h4b", incarnation="4b")
        for host, meant in (
            ("h1", 1),
            ("spare", 2),
            ("unused", 77),
            ("wrong", 78),
            ("wrong", None),
            ("behind", 4),
        ):
            self.send(alter(host, meant))
        self.kept_at = self.pending.snapshot()
        self.wait(COLLECT_INTERVAL_S)
        self.send(alter("late", 3))
        self.lose(2)
        self.taken_at = self.pending.snapshot()
        self.lose(5)
        self.missing_at = self.pending.snapshot()


def decided(image: Image) -> dict[str, Any]:
    """Return the decisions of a controller that takes over at the image: stale mappings,
    alterations, and assigned ids.
    """
    at_ = Controller(image=image, epoch=9, bootstrap=False)
    told: dict[str, Any] = {
        "mapped": [
            [one.name, one.broker_id, one.offset] for _, one in sorted(image.hostnames.items())
        ],
        "stale": [name for name, one in sorted(image.hostnames.items()) if is_stale(image, one)],
        "altered": [
            [name, len(at_.decide(alter(name, one.broker_id)).records)]
            for name, one in sorted(image.hostnames.items())
        ],
        "registered": [
            [broker_id, len(at_.decide(again(broker_id, host)).records)]
            for broker_id, host in ((1, "h1"), (2, "h2"), (2, "spare"), (3, "h3b"), (4, "behind"))
        ],
    }
    at_.wait(ADOPT_S + COLLECT_INTERVAL_S)
    told["kept"] = sorted(at_.pending.snapshot().hostnames)
    told["chosen"] = [
        at_.chosen(host)
        for host in ("h1", "h2", "h3", "h3b", "spare", "unused", "behind", "late", "new")
    ]
    return told


def again(broker_id: int, host: str) -> rpc.RegisterBrokerRequest:
    """A registration of another process that has the id."""
    return rpc.RegisterBrokerRequest(
        broker_id=broker_id,
        cluster_id="test-cluster",
        incarnation_id=f"again-{broker_id}",
        listeners=at(host),
        registration_version=1,
        previous_broker_epoch=-1,
    )


def snapshot_of(image: Image) -> bytes:
    return b"".join(pieces(image, header_of(image, cluster_id="c", generations=())))


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


def decided_in(story: Story) -> list[dict[str, Any]]:
    return [decided(image) for image in (story.kept_at, story.taken_at, story.missing_at)]


def test_other_words_change_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = decided_in(Story())
    words = reword(monkeypatch)
    story = Story()
    messages = [one.message for one in story.written if one.type == RecordType.HOSTNAME]
    assert {(one.cause, one.reason) for one in messages} == {*words.items()}
    assert decided_in(story) == expected


def test_a_snapshot_keeps_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    reword(monkeypatch)
    for image in (Story().kept_at, Story().missing_at):
        _, loaded = load([snapshot_of(image)])
        assert loaded.state_hash == image.state_hash
        assert dict(loaded.hostnames.items()) == dict(image.hostnames.items())
        assert {one.cause for one in loaded.hostnames.values()} == {
            HostnameCause.BY_REGISTRATION,
            HostnameCause.BY_HAND,
        }


def test_same_by_hand_is_written_once_whatever_its_words_are() -> None:
    cell = Controller()
    cell.fold(
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


def test_a_snapshot_with_an_unknown_cause_is_corrupt() -> None:
    draft = folded(pb.HostnameRecord(hostname="h", broker_id=4))
    mapping, unknown = draft.hostnames["h"], 99
    draft.hostnames["h"] = structs.replace(mapping, cause=unknown)
    draft.replace("hostname", (), mapping, draft.hostnames["h"])
    with pytest.raises(CorruptLogError):
        load([snapshot_of(draft.snapshot())])
