"""Chunks of decisions: each decision is atomic, and the image is that of the chunk's end."""

from controller.state.epoch_log import MAX_SHARED_RECORDS, EpochLog
from raftlog import batch
from raftlog.config_writes.records import Change
from raftlog.config_writes.writes import ConfigWrites
from raftlog.metadata import flat_map
from raftlog.metadata.control_records import voters_in
from raftlog.metadata.flat_map import FlatMap
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import EMPTY, extended
from raftlog.metadata.records import Record, record
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.common.v1.common_pb2 import ClientIdentity
from raftlog.wire.records.v1 import records_pb2 as pb


def config(name: str) -> Record:
    return record(pb.ConfigRecord(resource_type=16, resource_name=name, name="match", value="v"))


def topic(name: str) -> Record:
    return record(pb.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"0")))


def build(
    *decisions: tuple[list[Record], ClientIdentity | None],
) -> tuple[list[batch.BatchHeader], bytes, Image]:
    log = EpochLog(3, 0, Image(), EMPTY)
    for records, client in decisions:
        log.add(records, client, 50)
    cut = log.end_chunk()
    assert cut is not None
    chunk, base_offset, voters = cut
    assert base_offset == 0
    assert log.end_offset == sum(len(records) for records, _ in decisions)
    assert voters == voters_in(chunk, batch.scan(chunk, expect_offset=0).control_at)
    assert log.end_chunk() is None
    return list(batch.headers(chunk, expect_offset=0)), chunk, log.pending.snapshot()


def test_chunk_folds_to_its_own_image() -> None:
    alice, bob = ClientIdentity(principal="alice"), ClientIdentity(principal="bob")
    headers, chunk, image = build(
        ([config("a")], alice),
        ([config("b")], alice),
        ([topic("t"), config("c")], bob),
        ([config("d")], None),
    )
    assert headers[-1].last_offset == image.offset == 4
    again = ImageBuilder(Image())
    again.apply_chunk(chunk, verify=True)
    assert again.snapshot().state_hash == image.state_hash
    assert {header.epoch for header in headers} == {3}


def test_log_hash_covers_committed_records_whoever_proposed_them() -> None:
    found, _, _ = build(([config("a")], None), ([topic("t")], None))
    tail = build(([config("a")], None), ([topic("t")], None))[1]
    log = EpochLog(4, found[-1].end_offset, Image(), EMPTY)
    log.inherit(tail)
    log.claimed()
    log.add([config("b")], None, 60)
    first = log.end_chunk()
    log.add([topic("u")], None, 60)
    second = log.end_chunk()
    assert first is not None
    assert second is not None
    assert log.log_hash == EMPTY, "nothing is committed"
    assert log.commit(found[-1].end_offset) == len(tail)
    assert log.log_hash == extended(EMPTY, tail)
    log.commit(found[-1].end_offset + 2)
    assert log.log_hash == extended(EMPTY, tail + first.data + second.data)
    assert log.log_hash.end_offset == log.committed.offset + 1


def test_adjacent_config_writes_of_one_principal_share_a_bounded_batch() -> None:
    headers, _, _ = build(*(([config(str(i))], None) for i in range(MAX_SHARED_RECORDS + 1)))
    assert [h.record_count for h in headers] == [MAX_SHARED_RECORDS, 1]
    alice, bob = ClientIdentity(principal="alice"), ClientIdentity(principal="bob")
    headers, _, _ = build(
        ([config("a")], alice),
        ([config("b")], alice),
        ([config("c")], bob),
        ([topic("t")], bob),
        ([config("d")], bob),
        ([config("e"), config("f")], bob),
    )
    assert [(h.principal, h.record_count) for h in headers] == [
        ("alice", 2), ("bob", 1), ("bob", 1), ("bob", 1), ("bob", 2),
    ]  # fmt: skip


def test_numbered_write_has_its_own_batch() -> None:
    first = ClientIdentity(client_id=7, sequence=1, all_below_done=1)
    second = ClientIdentity(client_id=7, sequence=2, all_below_done=1)
    headers, _, _ = build(([config("a")], first), ([config("b")], second))
    assert [(h.client_id, h.sequence, h.all_below_done, h.record_count) for h in headers] == [
        (7, 1, 1, 1),
        (7, 2, 1, 1),
    ]


def test_voter_set_is_alone_in_a_control_batch_and_announced_to_the_quorum() -> None:
    voters = record(
        pb.VotersRecord(voters=[pb.VoterEntry(voter_id=1, voter_directory_id="d1", endpoint="a:1")])
    )
    headers, chunk, _ = build(([config("a")], None), ([voters], None), ([config("b")], None))
    assert [(h.base_offset, h.record_count, h.control) for h in headers] == [
        (0, 1, False), (1, 1, True), (2, 1, False),
    ]  # fmt: skip
    (found,) = voters_in(chunk, batch.scan(chunk, expect_offset=0).control_at)
    assert found.offset == 1
    assert [(v.node_id, v.directory_id, v.endpoint) for v in found.voters] == [(1, "d1", "a:1")]


def test_uncommitted_records_are_dropped_when_the_epoch_ends() -> None:
    """The node continues from the committed image, which costs no copy."""
    committed = ImageBuilder(Image(configs=flat_map.empty()))
    committed.apply_batch([config("a")], base_offset=0, epoch=1, timestamp_ms=1)
    image = committed.snapshot()
    log = EpochLog(3, 1, image, EMPTY)
    for name in ("b", "c"):
        log.add([config(name)], None, 50)
        log.end_chunk()
    assert set(log.pending.snapshot().configs) == {(16, "a"), (16, "b"), (16, "c")}
    log.close()
    again = ImageBuilder(image)
    again.apply_batch([config("d")], base_offset=1, epoch=4, timestamp_ms=60)
    after = again.snapshot().configs
    assert set(after) == {(16, "a"), (16, "d")}
    assert set(image.configs) == {(16, "a")}
    assert isinstance(after, FlatMap)
    assert isinstance(image.configs, FlatMap)
    assert after._table is image.configs._table


def test_config_writes_are_folded_after_their_proposal_and_before_any_read() -> None:
    def writes(name: str) -> ConfigWrites:
        changes: list[Change] = [(16, name, "match", "v")]
        return ConfigWrites([1], changes, [1], 0, common_pb2.ACKS_COMMITTED, "", "", "", 9)

    log = EpochLog(3, 0, Image(configs=flat_map.empty()), EMPTY)
    assert log.add(writes("a"), None, 50) == 0
    assert log.add(writes("b"), None, 50) == 1
    first = log.end_chunk()
    assert log.unfolded
    assert (log.uncommitted_chunks, log.end_offset) == (1, 2)
    assert not len(log.pending_but_configs.configs)
    # What comes next is behind it, and its image ends where the chunk does.
    assert log.add(writes("c"), None, 51) == 2
    assert len(log.pending_but_configs.configs) == 2
    assert set(log.pending.snapshot().configs) == {(16, "a"), (16, "b"), (16, "c")}
    log.add([config("d")], None, 51)
    second = log.end_chunk()
    assert first is not None
    assert second is not None
    assert log.commit(2) == len(first.data)
    assert set(log.committed.configs) == {(16, "a"), (16, "b")}
    assert log.committed.offset == 1
    log.add(writes("e"), None, 52)
    third = log.end_chunk()
    assert third is not None
    assert log.commit(5) == len(second.data) + len(third.data), (
        "folded for the commit at the latest"
    )
    again = ImageBuilder(Image())
    again.apply_chunk(first.data + second.data + third.data)
    assert log.committed.state_hash == again.snapshot().state_hash
    assert log.log_hash == extended(EMPTY, first.data + second.data + third.data)
