"""Fetches, acknowledgements and truncation of a follower, and its sessions at the leader."""

from typing import Any

import msgspec
import pytest
from replica_kit import (
    CLUSTER_ID,
    EPOCHS,
    KEY,
    ME,
    TOPIC_ID,
    Stand,
    chunk,
    first_image,
    of_kind,
    partition,
    positions,
    recovered,
    results,
)

from broker.partition import events as ev
from broker.partition.host import Host, PartitionSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Listener
from raftlog.metadata.image import ImageDraft
from raftlog.node.storage.partition_api import LogRuns, Run
from raftlog.quorum.events import LogSpan
from raftlog.wire.data.v1 import data_pb2 as pb

LEADER = 2
FOLLOWS = partition(leader=LEADER)


class Follower(Stand):
    """Broker 1 follows broker 2, whose link is up."""

    def __init__(self, *found: Any, image: Any = None, **options: Any) -> None:
        super().__init__(*found, image=image or first_image(FOLLOWS), **options)
        self.do(ev.LinkOpened(LEADER))

    @property
    def fetches(self) -> list[pb.ReplicaFetchRequest]:
        return [effect.request for effect in of_kind(self.got, ev.SendReplicaFetch)]

    def positions(self, fetch: int = -1) -> list[tuple[int, int, int]]:
        """(offset, epoch of the previous record, leader epoch) of each fetched partition."""
        named = self.fetches[fetch].partitions
        return [
            (one.fetch_offset, one.last_fetched_epoch, one.current_leader_epoch) for one in named
        ]

    def answer(self, *answered: dict[str, Any], fetch: int = -1, **fields: Any) -> list[ev.Effect]:
        content: dict[str, Any] = {"topic_id": TOPIC_ID, "partition_index": 0, "high_watermark": -1}
        response = pb.ReplicaFetchResponse(
            correlation_id=self.fetches[fetch].correlation_id,
            partitions=[pb.ReplicaFetchPartitionResult(**{**content, **one}) for one in answered],
            **fields,
        )
        return self.do(ev.ReplicaFetchAnswered(LEADER, response))


def diverging(epoch: int, end_offset: int) -> dict[str, Any]:
    return {"diverging_epoch": pb.EpochEndOffset(epoch=epoch, end_offset=end_offset)}


def test_first_fetch_names_its_sender_its_leader_and_its_positions() -> None:
    stand = Follower(recovered(10, (1, 0), (3, 6)))
    (fetch,) = stand.fetches
    assert (fetch.cluster_id, fetch.leader_id) == (CLUSTER_ID, LEADER)
    assert (fetch.replica_state.replica_id, fetch.replica_state.replica_epoch) == (ME, EPOCHS[ME])
    assert stand.positions() == [(10, 3, 5)]
    (link,) = of_kind(stand.got, ev.WantLink)
    assert (link.leader_id, link.endpoint) == (LEADER, "localhost:9002")


def test_follower_stops_storing_on_a_full_disk_and_continues_once_it_has_space() -> None:
    stand = Follower()
    stand.do(ev.SpaceChanged(low=True))
    assert not of_kind(stand.answer({"records": chunk(0, 5, "a")}), ev.Append)
    stand.after(0.05)
    fetch = stand.fetches[-1]
    assert (stand.positions(), fetch.low_on_space, fetch.max_bytes) == ([(0, -1, 5)], True, 1)
    assert not of_kind(stand.answer({"records": chunk(0, 5, "a")}), ev.Append)
    stand.do(ev.SpaceChanged(low=False))
    stand.after(1.1)
    assert not stand.fetches[-1].low_on_space
    assert of_kind(stand.answer({"records": chunk(0, 5, "a")}), ev.Append)
    assert stand.positions() == [(1, 5, 5)]


def test_next_fetch_is_sent_after_the_flush_and_acknowledges_durable_records() -> None:
    stand = Follower(hold_flushes=True)
    effects = stand.answer({"records": chunk(0, 5, "a", "b"), "high_watermark": 1})
    (append,) = of_kind(effects, ev.Append)
    assert (append.base_offset, append.end_offset) == (0, 2)
    assert len(stand.fetches) == 1
    stand.flush()
    assert stand.positions() == [(2, 5, 5)]


def test_caught_up_partition_is_not_named_in_the_next_fetch() -> None:
    stand = Follower()
    stand.answer({"records": chunk(0, 5, "a")})
    stand.answer({"high_watermark": 1})
    assert stand.positions() == []
    assert len(stand.fetches) == 3


@pytest.mark.parametrize(
    "records",
    [
        chunk(1, 5, "gap"),
        chunk(0, 6, "an epoch above the leader's"),
        b"garbage",
        chunk(0, 5, "flipped")[:-1] + b"\0",
        chunk(0, 5, "x") + chunk(1, 4, "epochs go back"),
    ],
)
def test_records_that_do_not_continue_the_log_are_fetched_again(records: bytes) -> None:
    stand = Follower()
    assert not of_kind(stand.answer({"records": records}), ev.Append)
    stand.after(0.3)
    assert stand.positions() == [(0, -1, 5)]
    assert stand.core.counters()["FailedReplicaFetches"] == 1


def test_log_is_truncated_to_an_own_epoch_boundary_when_it_lacks_the_diverging_epoch() -> None:
    """The leader has epoch 2 to 7, this log 1 to 8, 3 to 10: 7 may lie inside a batch."""
    stand = Follower(recovered(10, (1, 0), (3, 8)))
    (cut,) = of_kind(stand.answer(diverging(2, 7)), ev.Truncate)
    assert cut.end_offset == 8
    assert stand.positions() == [(8, 1, 5)]
    (cut,) = of_kind(stand.answer(diverging(1, 5)), ev.Truncate)
    assert cut.end_offset == 5


def test_truncation_that_drops_nothing_is_ignored() -> None:
    stand = Follower(recovered(10))
    assert not of_kind(stand.answer(diverging(1, 12)), ev.Truncate)
    stand.after(0.3)
    assert stand.positions() == [(10, 1, 5)]


def test_truncation_is_durable_before_the_next_fetch() -> None:
    stand = Follower(recovered(10), hold_flushes=True)
    stand.answer(diverging(1, 4))
    assert len(stand.fetches) == 1
    stand.flush()
    assert stand.positions() == [(4, 1, 5)]


def test_flush_before_a_truncation_does_not_cover_records_appended_after_it() -> None:
    host = Host(PartitionSettings(ME, CLUSTER_ID), (recovered(4),), 0.0)
    replica = host.replicas[KEY]
    host.append(replica, LogSpan(4, 6, ((5, 4),), chunk(4, 5, "a", "b"), 0))
    host.request_flush()
    host.truncate(replica, 4)
    host.append(replica, LogSpan(4, 6, ((6, 4),), chunk(4, 6, "c", "d"), 0))
    host.request_flush()
    host.flushed(1)
    assert (replica.log.flushed_end, replica.durable) == (4, False)
    host.flushed(2)
    assert (replica.log.flushed_end, replica.durable) == (6, True)


def test_truncation_truncates_the_runs_of_the_log() -> None:
    host = Host(PartitionSettings(ME, CLUSTER_ID), (recovered(4),), 0.0)
    replica = host.replicas[KEY]
    replica.runs = LogRuns((Run(2, 1_000, 100), Run(4, 2_000, 100)), 3)
    host.truncate(replica, 3)
    assert [run.end_offset for run in replica.runs.runs] == [2, 3]
    host.truncate(replica, replica.log.start)
    assert replica.runs == LogRuns()


def test_response_of_another_broker_than_the_leader_is_ignored() -> None:
    stand = Follower()
    former = stand.fetches[-1].correlation_id
    stand.change(leader=3, leader_epoch=6)
    late = pb.ReplicaFetchPartitionResult(topic_id=TOPIC_ID, records=chunk(0, 5, "a"))
    response = pb.ReplicaFetchResponse(correlation_id=former, partitions=[late])
    assert not of_kind(stand.do(ev.ReplicaFetchAnswered(2, response)), ev.Append)
    assert of_kind(stand.got, ev.DropLink) == [ev.DropLink(2)]


def test_response_to_an_earlier_leader_epoch_is_ignored() -> None:
    other = (TOPIC_ID, 1)
    stand = Follower(image=first_image(FOLLOWS, partition(other, leader=LEADER)))
    stand.change(leader_epoch=6)
    assert stand.positions() == [(0, -1, 6)]
    assert not of_kind(stand.answer({"records": chunk(0, 5, "a")}, fetch=-2), ev.Append)
    assert of_kind(stand.answer({"records": chunk(0, 6, "a")}), ev.Append)


def test_new_link_starts_a_new_session() -> None:
    stand = Follower(recovered(3))
    lost = stand.fetches[-1].correlation_id
    stand.do(ev.LinkLost(LEADER))
    assert len(stand.fetches) == 1
    stand.do(ev.LinkOpened(LEADER))
    assert stand.positions() == [(3, 1, 5)]
    late = pb.ReplicaFetchPartitionResult(topic_id=TOPIC_ID, records=chunk(3, 5, "a"))
    response = pb.ReplicaFetchResponse(correlation_id=lost, partitions=[late])
    assert not of_kind(stand.do(ev.ReplicaFetchAnswered(LEADER, response)), ev.Append)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ],
)
def test_refused_partition_is_retried_with_growing_backoff(code: ErrorCode) -> None:
    stand = Follower(replica_fetch_backoff_ms=100)
    pauses = []
    for _ in range(5):
        stand.answer({"error_code": code})
        began, named = stand.now, sum(len(fetch.partitions) for fetch in stand.fetches)
        while sum(len(fetch.partitions) for fetch in stand.fetches) == named:
            stand.after(0.005)
        pauses.append(round(stand.now - began, 2))
    assert pauses == sorted(pauses)
    assert pauses[0] <= 0.03
    assert 0.09 <= pauses[-1] <= 0.12


def test_refused_fetch_restarts_the_session_after_a_pause() -> None:
    stand = Follower(recovered(3))
    stand.answer(error_code=ErrorCode.BROKER_FENCED)
    assert len(stand.fetches) == 1
    stand.after(0.05)
    assert stand.positions() == [(3, 1, 5)]


def test_repeated_refusal_is_logged_once() -> None:
    stand = Follower(recovered(3))
    codes = [
        ErrorCode.BROKER_FENCED,
        ErrorCode.BROKER_FENCED,
        ErrorCode.STALE_BROKER_EPOCH,
        0,
        ErrorCode.STALE_BROKER_EPOCH,
    ]
    for code in codes:
        stand.answer(error_code=code)
        stand.after(0.6)
    told = [
        note.fields["code"]
        for note in of_kind(stand.got, ev.Note)
        if note.event == "a replica fetch was refused"
    ]
    assert told == [codes[0], codes[2], codes[4]]
    assert stand.core.counters()["FailedReplicaFetches"] == 4


def test_new_partition_does_not_wait_for_a_parked_fetch() -> None:
    other = (TOPIC_ID, 1)
    stand = Follower(image=first_image(FOLLOWS, partition(other, leader=3)))
    stand.change(other, leader=LEADER, leader_epoch=6)
    assert len(stand.fetches[-1].partitions) == 1
    third = len(stand.fetches)
    stand.change(other, leader_epoch=7)
    assert len(stand.fetches) == third, "two are under way"
    stand.answer(fetch=0)
    assert stand.positions() == [(0, -1, 7)]


def test_partition_is_forgotten_when_it_is_not_followed_any_more() -> None:
    other = (TOPIC_ID, 1)
    stand = Follower(image=first_image(FOLLOWS, partition(other, leader=LEADER)))
    stand.change(other, leader=3, leader_epoch=6)
    assert [(key.topic_id, key.partition_index) for key in stand.fetches[-1].forgotten] == [other]


def test_many_partitions_are_named_over_several_fetches() -> None:
    keys = [(TOPIC_ID, index) for index in range(5)]
    stand = Follower(
        image=first_image(*(partition(key, leader=LEADER) for key in keys)),
        max_partitions_per_message=2,
    )
    for _ in range(2):
        assert stand.fetches[-1].max_wait_ms == 0, "the leader is not to wait with more to come"
        stand.answer()
    assert [len(fetch.partitions) for fetch in stand.fetches] == [2, 2, 1]
    assert stand.fetches[-1].max_wait_ms > 0


def test_changed_leader_endpoint_opens_a_new_link() -> None:
    stand = Follower()
    stand.broker(LEADER, port=7777)
    assert [link.endpoint for link in of_kind(stand.got, ev.WantLink)] == [
        "localhost:9002",
        "localhost:7777",
    ]
    stand.do(ev.LinkOpened(LEADER))
    assert stand.positions() == [(0, -1, 5)]


def test_leader_is_reached_on_the_broker_listener() -> None:
    """Or on its first listener, which then is the one for brokers whatever its name."""
    for name, port in (("INTERNAL", 9008), ("CLIENTS", 9007), ("RENAMED", 9007)):
        image = first_image(FOLLOWS)
        listeners = tuple(Listener(one, "h", 9000 + len(one)) for one in ("CLIENTS", "INTERNAL"))
        brokers = ImageDraft(image)
        brokers.brokers[LEADER] = msgspec.structs.replace(
            image.brokers[LEADER], listeners=listeners
        )
        stand = Follower(image=brokers.snapshot(), inter_broker_listener=name)
        (link,) = of_kind(stand.got, ev.WantLink)
        assert link.endpoint == f"{name}://h:{port}"


# --- the leader's side of a session -------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"leader_id": 3}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_fetch_meant_for_another_node_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    (answer,) = of_kind(Stand().fetch(2, 0, **fields), ev.AnswerReplicaFetch)
    assert (answer.response.error_code, len(answer.response.partitions)) == (code, 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"leader_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 6}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"last_epoch": 6}, ErrorCode.INVALID_REQUEST),
        ({"offset": -1}, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_invalid_position_acknowledges_nothing(fields: dict[str, Any], code: ErrorCode) -> None:
    stand = Stand(recovered(10))
    (result,) = results(stand.fetch(2, **{"offset": 10, "last_epoch": 1, **fields}))
    assert result.error_code == code
    assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (ME, 5)
    assert all(follower.log_end_offset == -1 for follower in stand.described().followers)


def test_fetch_of_a_broker_without_a_replica_in_the_image_is_refused() -> None:
    stand = Stand(image=first_image(partition(replicas=(1, 2), isr=(1, 2))))
    (result,) = results(stand.fetch(3, 0))
    assert result.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_diverging_log_is_reported_and_acknowledges_nothing() -> None:
    stand = Stand(recovered(10, (1, 0), (3, 6)))
    (result,) = results(stand.fetch(2, 9, last_epoch=2))
    assert (result.diverging_epoch.epoch, result.diverging_epoch.end_offset) == (1, 6)
    (result,) = results(stand.fetch(2, 8, last_epoch=1))
    assert (result.diverging_epoch.epoch, result.diverging_epoch.end_offset) == (1, 6)
    assert all(follower.log_end_offset == -1 for follower in stand.described().followers)
    stand.fetch(2, 6, last_epoch=1)
    (follower,) = [one for one in stand.described().followers if one.replica_id == 2]
    assert follower.log_end_offset == 6


def test_response_is_bounded_and_the_rest_follows_in_the_next() -> None:
    keys = [(TOPIC_ID, index) for index in range(4)]
    stand = Stand(
        image=first_image(*(partition(key) for key in keys)), replica_fetch_response_max_bytes=300
    )
    stand.fetch_of(2, positions(*keys))
    stand.do(ev.ProduceReceived(
        pb.ProduceRequest(acks=0, partitions=[
            pb.ProducePartition(topic_id=TOPIC_ID, partition_index=i, current_leader_epoch=-1,
                                records=[pb.DataRecord(value=b"x" * 50).SerializeToString()])
            for _, i in keys
        ]), 1, "all"))  # fmt: skip
    (first,) = [answer for answer in of_kind(stand.got, ev.AnswerReplicaFetch) if answer.reads]
    assert 0 < len(first.reads) < 4
    seen = len(first.reads)
    for _ in range(4):
        seen += sum(
            len(answer.reads) for answer in of_kind(stand.fetch_of(2, []), ev.AnswerReplicaFetch)
        )
    assert seen == 4


def test_newer_fetch_releases_the_parked_one() -> None:
    stand = Stand()
    assert not of_kind(stand.fetch(2, 0), ev.AnswerReplicaFetch)
    (answer,) = of_kind(stand.fetch_of(2, []), ev.AnswerReplicaFetch)
    assert len(answer.response.partitions) == 0
    assert len(of_kind(stand.after(0.6), ev.AnswerReplicaFetch)) == 1


def test_resigning_leader_tells_followers_the_new_leader() -> None:
    stand = Stand()
    stand.fetch(2, 0)
    (result,) = results(stand.change(leader=3, leader_epoch=6))
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert result.current_leader.leader_id == 3


def test_closed_session_is_not_answered() -> None:
    stand = Stand()
    stand.fetch(2, 0)
    stand.do(ev.SessionClosed("link of 2"))
    stand.produce("a", acks=0)
    stand.after(1)
    assert not of_kind(stand.got, ev.AnswerReplicaFetch)
    assert not stand.core._host.replicas[KEY].role.positions
