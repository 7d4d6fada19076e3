"""``raftlog partitions isr`` with scripted responses."""

import time
from collections.abc import Callable

import pytest
from command_lines import Raftlog

from raftlog.client import leaders, log_reader
from raftlog.client.leaders import LeaderAnswer
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.wire.data.v1 import data_pb2 as pb
from raftlog.wire.records.v1 import records_pb2 as rec

T = b"t" * 16
AT = ("--bootstrap-controller", "127.0.0.1:1")
MOMENT_S = 0.8
Script = Callable[..., dict[str, int]]


def image(partition_epoch: int, *, isr: tuple[int, ...] = (1, 2)) -> Image:
    """Broker 1 leads partition 0 of topic t, after this number of ISR changes."""
    changes = [rec.PartitionChangeRecord(topic_id=T, isr=rec.IdList(ids=isr))] * partition_epoch
    messages = [
        *(
            rec.RegisterBrokerRecord(broker_id=n, incarnation_id=f"i{n}", broker_epoch=n - 1)
            for n in (1, 2)
        ),
        rec.TopicRecord(name="t", topic_id=T),
        rec.PartitionRecord(topic_id=T, replicas=[1, 2], isr=[1, 2], leader=1),
        *changes,
    ]
    builder = ImageBuilder(Image())
    builder.apply_batch([record(one) for one in messages], base_offset=0, epoch=1, timestamp_ms=1)
    return builder.snapshot()


def leader(
    partition_epoch: int, *, isr: tuple[int, ...] = (1, 2), proposed: tuple[int, ...] = ()
) -> LeaderAnswer:
    def states(ids: tuple[int, ...]) -> list[rec.BrokerState]:
        return [rec.BrokerState(broker_id=n, broker_epoch=n - 1) for n in ids]

    led = pb.LedPartition(
        topic_id=T, topic_name="t", partition_epoch=partition_epoch, isr=states(isr), proposed_isr=states(proposed),
        high_watermark=5, log_end_offset=7,
    )  # fmt: skip
    return LeaderAnswer(1, 0, (led,))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Script the leaders' responses, poll by poll (the last one repeats), and one committed image."""

    def script(*answers: LeaderAnswer, committed: Image) -> dict[str, int]:
        looks = {"count": 0}

        async def ask(*_: object, **__: object) -> dict[int, LeaderAnswer]:
            looks["count"] += 1
            return {1: answers[min(looks["count"], len(answers)) - 1], 2: LeaderAnswer(2, 1)}

        monkeypatch.setattr(
            "raftlog.client.admission.require_listener", lambda addresses, **_: None
        )

        async def read(self: object) -> Image:
            return committed

        monkeypatch.setattr(leaders, "ask_leaders", ask)
        monkeypatch.setattr(log_reader.CommittedImage, "read", read)
        return looks

    return script


def test_agreement_is_reported_at_once(raftlog: Raftlog, scripted: Script) -> None:
    looks = scripted(leader(1), committed=image(1))
    ran = raftlog.succeed("partitions isr --compare --json", *AT)
    assert looks["count"] == 1
    (row,) = ran.json["partitions"]
    assert (row["topic"], row["partition"], row["leader_id"], row["differences"]) == ("t", 0, 1, [])
    assert row["committed"] == {"leader_epoch": 0, "partition_epoch": 1, "isr": [1, 2]}
    assert row["leader"]["isr"] == [
        {"broker_id": 1, "broker_epoch": 0},
        {"broker_id": 2, "broker_epoch": 1},
    ]
    assert (row["leader"]["high_watermark"], row["leader"]["log_end_offset"]) == (5, 7)
    assert ran.json["lasting"] == 0


def test_brief_isr_difference_passes(raftlog: Raftlog, scripted: Script) -> None:
    looks = scripted(leader(0), leader(1, proposed=(1,)), committed=image(1))
    ran = raftlog.succeed("partitions isr t --compare", *AT)
    assert looks["count"] == 2, "what differed first is settled; what differs now is young"
    assert "proposed and unanswered: broker 1 has proposed -2" in ran.out
    assert "1 partition compared at offset 4, 1 differ" in ran.out


@pytest.mark.parametrize("as_json", [False, True])
def test_lasting_difference_is_reported(raftlog: Raftlog, scripted: Script, as_json: bool) -> None:
    scripted(leader(0), committed=image(1, isr=(1,)))
    began = time.monotonic()
    ran = raftlog(
        "partitions isr --compare --moment", MOMENT_S, *AT, *(["--json"] if as_json else [])
    )
    assert time.monotonic() - began >= MOMENT_S
    assert ran.code == 3, ran
    assert (
        f"1 difference between the leaders and the controller lasted at least {MOMENT_S:g} s"
        in ran.err
    )
    if as_json:
        (row,) = ran.json["partitions"]
        assert [(one["why"], one["lasting"]) for one in row["differences"]] == [
            ("leader's image behind", True)
        ]
    else:
        assert "1@0, 2@1" in ran.out, "the ISR by the leader"
        assert "1 (0/1)" in ran.out, "the ISR committed, with its epochs"
        assert "(lasting)" in ran.out


def test_missing_topic_is_reported(raftlog: Raftlog, scripted: Script) -> None:
    scripted(leader(0), committed=image(0))
    raftlog("partitions isr nope --compare", *AT).refused(
        1, "UNKNOWN_TOPIC_OR_PARTITION: there is no topic nope"
    )
