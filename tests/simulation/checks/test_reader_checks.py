"""The checkers of brokers, LAO, states and clients."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from checks_harness import (
    Trace,
    config,
    fencing,
    play,
    refused,
    registered,
    stories,
    voter,
    voters_record,
)

from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.node.replica.listener import ReplicaBacklog
from raftlog.node.storage.api import SnapshotId
from raftlog.quorum import events as ev
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import Operation
from simulation.checks.brokers import Brokers
from simulation.checks.exactly_once import ExactlyOnce
from simulation.checks.lao import Lao
from simulation.checks.limits import Queues
from simulation.checks.linearizability import Linearizability
from simulation.checks.states import States
from simulation.checks.strict import StrictReads
from simulation.checks.visibility import Visibility

ACKNOWLEDGED, VISIBLE = common_pb2.ACKS_ACKNOWLEDGED, common_pb2.ACKS_VISIBLE
REPEATABLE, LATEST, STRICT = broker_pb2.REPEATABLE, broker_pb2.LATEST, broker_pb2.STRICT


WORDS = {
    "fenced": fencing(1, 1, True),
    "unfenced": fencing(1, 1, False),
    "unregistered": pb.UnregisterBrokerRecord(broker_id=1, broker_epoch=1),
    "acknowledged": ACKNOWLEDGED,
    "visible": VISIBLE,
    "repeatable": REPEATABLE,
    "latest": LATEST,
    "strict": STRICT,
}


class ReaderTrace(Trace):
    """A trace with reports to brokers, and with clients' writes and reads."""

    def word(self, text: str) -> Any:
        return WORDS[text] if text in WORDS else super().word(text)

    def lives_as(self, name: str, broker_epoch: int) -> None:
        self.host(name).service.lifecycle.epoch = broker_epoch

    def follows(self, name: str, generation: int) -> None:
        self.host(name).service.view.generation = generation

    def announces(self, name: str, epoch: int, lao: int) -> None:
        host = self.host(name)
        host.core.epoch = epoch
        host.core.high_watermark = self.ledger.golden.end
        self.tell("lao_announced", host, epoch, lao)

    def progress(self, lao: int, high_watermark: int) -> None:
        record = pb.ProgressRecord(lowest_acknowledged_offset=lao, high_watermark=high_watermark)
        self.committed(1, record)

    def writes(self, value: str, level: int = 0, *, announced: bool = True) -> int:
        """Write the key k; return the offset, which LAO covers if ``announced``."""
        write = self.invoke("write_config", value=value)
        offset = self.committed(1, config("k", value))
        if announced:
            self.tell("lao_announced", self.host("c1"), 1, offset)
        self.give(write, offset=offset, reached=level)
        return offset

    def reads(self, offset: int, found: str | None = None, **fields: Any) -> None:
        """Read the key k at b1, from the image at this offset."""
        self.shows(self.invoke("read_config", **fields), offset, found)

    def shows(self, read: Operation, offset: int, found: str | None = None) -> None:
        response = broker_pb2.BrokerResponse()
        response.token.offset = offset
        self.send("b1", "client", response)
        self.give(read, offset=offset, found=found, response=response)


def _led(*makers: Any, brokers: int = 0) -> ReaderTrace:
    """c1 leads epoch 1 and has committed its first record, at offset 0."""
    trace = ReaderTrace(*makers, brokers=brokers)
    trace.begin()
    return trace


def _serving(*makers: Any) -> ReaderTrace:
    """Extend the trace: b1 is registered at 1, unfenced at 2, and has applied that."""
    trace = _led(*makers, brokers=1)
    trace.committed(1, registered(1, 1))
    trace.committed(1, fencing(1, 1, False))
    trace.host("b1").service.lifecycle.epoch = 1
    trace.move("b1", 2)
    return trace


# --- states: I9, I10, I11 -----------------------------------------------------------------------


def test_broker_with_another_state_is_refused() -> None:
    trace = _serving(States)
    trace.host("b1").service.image.state_hash ^= 1
    with refused("I10: the state of b1 at 2"):
        trace.tell("broker_moved", trace.host("b1"))


def test_broker_inside_a_batch_or_beyond_the_committed_end_is_refused() -> None:
    trace = _led(States, brokers=1)
    trace.committed(1, config("k", "a"), config("l", "b"))
    trace.move("b1", 2)
    with refused("I10: b1 shows offset 1"):
        trace.move("b1", 1)
    with refused("I10: b1 shows offset 3"):
        trace.move("b1", 3)


def test_controller_with_another_state_is_refused() -> None:
    trace = _led(States)
    host = trace.host("c2")
    host.core.high_watermark = 1
    epoch, state_hash = trace.ledger.golden.hashes[0]
    host.says(applied_offset=0, applied_epoch=epoch, state_hash=state_hash)
    trace.tell("sample")
    host.says(applied_epoch=2)
    with refused("I10: the state of c2"):
        trace.tell("sample")


def test_controller_that_applies_above_its_high_watermark_is_refused() -> None:
    trace = _led(States)
    host = trace.host("c2")
    host.core.high_watermark = 0
    host.says(applied_offset=0)
    with refused("I9: c2 has applied 0"):
        trace.tell("sample")


@pytest.mark.parametrize(
    ("start", "high_watermark", "flushed", "end"),
    [(0, 5, 4, 4), (3, 2, 4, 4), (0, 1, 5, 4), (5, -1, 4, 4)],
)
def test_offsets_must_be_in_order(start: int, high_watermark: int, flushed: int, end: int) -> None:
    trace = _led(States)
    core = trace.host("c2").core
    trace.step("c2")
    core.log_start_offset, core.flushed_end_offset, core.log_end_offset = start, flushed, end
    core.high_watermark = high_watermark
    with refused("I9: c2 has its log start"):
        trace.step("c2")


def test_dropping_the_log_above_the_high_watermark_is_refused() -> None:
    trace = _led(States)
    core = trace.host("c1").core
    core.log_end_offset, core.high_watermark = 3, 1
    trace.step("c1", event=ev.LogStartAdvanced(SnapshotId(1, 1)))
    with refused("I9: c1 drops all up to"):
        trace.step("c1", event=ev.LogStartAdvanced(SnapshotId(2, 1)))


def _snapshot(trace: Trace, image: Image) -> None:
    log_hash = trace.ledger.golden.log_hashes.at(image.offset + 1)
    data = b"".join(pieces(image, header_of(image, cluster_id="cluster", generations=()), log_hash))
    snapshots = trace.host("c1").service.replica.snapshots
    snapshots.read = lambda _id, position, max_bytes: data[position : position + max_bytes]


def test_snapshot_that_equals_the_fold_passes_and_another_is_refused() -> None:
    trace = _led(States)
    trace.committed(1, config("k", "a"))
    image = trace.ledger.golden.image()
    _snapshot(trace, image)
    trace.step("c1", event=ev.SnapshotFrozen(SnapshotId(2, 1)))
    assert trace.last.snapshots == 1
    with refused("I11"):
        trace.step("c1", event=ev.SnapshotFrozen(SnapshotId(1, 1)))
    builder = ImageBuilder(image)
    builder.apply_batch([record(config("k", "b"))], base_offset=2, epoch=1, timestamp_ms=1)
    other = builder.snapshot()
    _snapshot(
        trace, Image(**{**{f: getattr(other, f) for f in Image.__struct_fields__}, "offset": 1})
    )
    with refused("I11"):
        trace.step("c1", event=ev.SnapshotStored(SnapshotId(2, 1)))


def test_snapshot_with_another_voter_set_is_refused() -> None:
    trace = _led(States)
    trace.committed(1, voters_record(voter(1), voter(2)))
    image = trace.ledger.golden.image()
    _snapshot(trace, image)
    trace.step("c1", event=ev.SnapshotFrozen(SnapshotId(2, 1)))
    header = replace(header_of(image, cluster_id="cluster", generations=()), voters=(voter(1),))
    data = b"".join(pieces(image, header, trace.ledger.golden.log_hashes.at(image.offset + 1)))
    trace.host("c1").service.replica.snapshots.read = lambda _id, position, max_bytes: data[
        position : position + max_bytes
    ]
    with refused("I11.*names voters"):
        trace.step("c1", event=ev.SnapshotFrozen(SnapshotId(2, 1)))


def test_truncated_snapshot_is_refused() -> None:
    trace = _led(States)
    _snapshot(trace, trace.ledger.golden.image())
    whole = trace.host("c1").service.replica.snapshots.read
    trace.host("c1").service.replica.snapshots.read = lambda i, p, n: (
        whole(i, 0, 1 << 20)[p : p + n][:-1] if not p else b""
    )
    with refused("I11.*not sound"):
        trace.step("c1", event=ev.SnapshotFrozen(SnapshotId(1, 1)))


# --- brokers: I15, I16 --------------------------------------------------------------------------


def test_serving_broker_passes() -> None:
    trace = _serving(Brokers)
    trace.move("b1", 2, told=1, repeatable=1)
    assert trace.last.repeatable == 1
    # Unfenced said twice: since the first of them.
    trace.committed(2, fencing(1, 1, False))
    trace.move("b1", 3, told=1, told_epoch=1, repeatable=1)


@stories(
    r"""
    a view that goes back: move b1 2 told=2; move b1 1 told=1 -> I15: b1 goes back
    a LAO that goes back: move b1 2 told=2; move b1 2 told=1 -> I15: b1 goes back
    a new process begins anew: move b1 2 told=2; stop b1; start b1; move b1 1
    another generation begins anew, and never an older one: move b1 2 told=2; follows b1 1;
        move b1 0; follows b1 0; move b1 2 -> goes back to generation 0
    LAO above what is applied: move b1 2 told=3 -> was told LAO 3
    repeatable above LAO: move b1 2 told=1 repeatable=2 -> shows 2 as repeatable
    a fenced broker that has not heard of it: committed 1 fenced; move b1 2 told=2 repeatable=2
    a fenced broker that serves: committed 1 fenced;
        move b1 3 told=2 repeatable=2 -> I16: b1 serves
    a broker that is not registered any more: committed 1 unregistered;
        move b1 3 told=2 repeatable=2 -> I16: b1 serves
    LAO told before the unfencing: committed 1 fenced; committed 2 unfenced;
        move b1 4 told=2 told_epoch=1 repeatable=2 -> I16.*by LAO of epoch 1
    LAO told after the unfencing: committed 1 fenced; committed 2 unfenced;
        move b1 4 told=2 told_epoch=2 repeatable=2
    """
)
def test_view_of_a_broker_is_compared_with_what_it_received(steps: list[str], rule: str) -> None:
    play(_serving(Brokers), steps, rule)


def test_fenced_broker_that_leads_a_partition_is_refused() -> None:
    trace = _serving(Brokers)
    topic = pb.TopicRecord(name="t", topic_id=b"t" * 16)
    partition = pb.PartitionRecord(topic_id=b"t" * 16, replicas=[1], isr=[1], leader=1)
    trace.committed(1, topic, partition)
    trace.committed(1, fencing(1, 1, True))
    with refused("I16.*lets fenced broker 1 lead"):
        trace.committed(1, pb.PartitionChangeRecord(topic_id=b"t" * 16, leader=1))


# --- LAO ----------------------------------------------------------------------------------------


@stories(
    """
    what all have applied: announces c1 1 1; announces c1 1 2; announces c1 1 1; announces c2 2 2
    above the applied offset of an unfenced broker: committed 1 a;
        announces c1 1 3 -> b1 is unfenced since 2 and has applied 2
    another incarnation is not that broker: committed 1 a; lives_as b1 9; announces c1 1 3
    a fenced broker holds nothing back: committed 1 fenced; announces c1 1 3
    LAO goes back across epochs: announces c1 1 2;
        announces c2 2 1 -> 1 had 2 to 2
    a deposed controller announces more: announces c2 2 1;
        announces c1 1 2 -> 2 had 1 to 1
    LAO is not committed: announces c1 1 3 -> not below its high watermark
    LAO is inside a batch: committed 1 a b; move b1 4;
        announces c1 1 3 -> not the end of a committed batch
    progress goes back: progress 2 3; progress -1 3; progress 1 4 -> has LAO 1
    progress covers itself: progress 3 3 -> has LAO 3
    """
)
def test_lao_is_what_all_unfenced_brokers_have_applied(steps: list[str], rule: str) -> None:
    play(_serving(Lao), steps, rule)


def test_tracker_with_a_decreasing_lao_is_refused() -> None:
    trace = _serving(Lao)
    service = trace.host("c1").service
    service.node = node = SimpleNamespace(
        leadership=SimpleNamespace(epoch=1), lowest_acknowledged_offset=2
    )
    trace.tell("sample")
    node.lowest_acknowledged_offset = -1
    trace.tell("sample")
    node.lowest_acknowledged_offset = 1
    with refused("falls from 2 to 1"):
        trace.tell("sample")


# --- visibility ---------------------------------------------------------------------------------


def test_reads_that_match_the_log_pass() -> None:
    trace = _serving(Visibility)
    one, two = trace.writes("a", ACKNOWLEDGED), trace.writes("b", VISIBLE)
    trace.reads(two, "b", mode=LATEST)
    trace.reads(two, "b", mode=REPEATABLE)
    trace.give(trace.invoke("read_topics"), offset=two, found=())
    assert (trace.last.reads, trace.last.held_to) == (3, 2)
    # Of another broker, before it was acknowledged: nothing was promised.
    trace = _serving(Visibility)
    one = trace.writes("a")
    trace.reads(one - 1, mode=LATEST)


@stories(
    """
    repeatable at LAO, above it by a token only: writes value=a; writes value=b announced=;
        reads 3 found=a mode=repeatable; reads 4 found=b mode=repeatable at_least=4
    repeatable above every LAO: writes value=a announced=;
        reads 3 found=a mode=repeatable -> LAO was -1
    another value: writes value=a;
        reads 3 found=b -> finds 'b'; the log has 'a'
    no value: writes value=a; reads 3 -> finds None
    the value of a later offset: writes value=a; reads 2 found=a -> finds 'a'
    an offset that is not committed: writes value=a;
        reads 4 found=a -> not the end of a committed batch
    less than asked for: writes value=a; reads 3 found=a at_least=3;
        reads 2 at_least=3 client=another -> wanted 3 at least, got 2
    less than its client has seen: writes value=a; reads 2 at_least=0 -> less than its client has seen
    a client that has forgotten it: writes value=a; reads 2; reads 2 at_least=0
    an acknowledged write and a latest read: writes value=a level=acknowledged;
        reads 2 mode=repeatable; reads 2 mode=latest -> was answered as acknowledged
    a visible write and a repeatable read: writes value=a level=visible;
        reads 2 mode=repeatable -> was answered as visible
    a fenced broker may lag: committed 1 fenced; writes value=a level=visible;
        reads 3 mode=latest
    an older incarnation may lag: lives_as b1 0; writes value=a level=visible; reads 2 mode=latest
    """
)
def test_reads_show_what_was_promised(steps: list[str], rule: str) -> None:
    play(_serving(Visibility), steps, rule)


def test_listing_of_missing_topics_is_refused() -> None:
    trace = _serving(Visibility)
    offset = trace.writes("a")
    read = trace.invoke("read_topics")
    with refused(r"finds \('t',\)"):
        trace.give(read, offset=offset, found=("t",))


def test_read_begun_before_a_write_was_answered_need_not_show_it() -> None:
    trace = _serving(Visibility)
    read = trace.invoke("read_config", mode=LATEST)
    trace.shows(read, trace.writes("a", VISIBLE) - 1)


def test_missing_answered_write_is_refused() -> None:
    trace = _serving(Visibility)
    write = trace.invoke("write_config", value="a")
    with refused("I12.*is at 3, above 3"):
        trace.give(write, offset=3)
    trace.committed(1, config("k", "b"))
    with refused("I12.*the log has 'b'"):
        trace.give(write, offset=3)


# --- strict reads: I22 --------------------------------------------------------------------------


def test_correct_strict_reads_pass() -> None:
    trace = _serving(StrictReads)
    early = trace.invoke("read_config", mode=STRICT)
    one = trace.writes("a", ACKNOWLEDGED)
    trace.reads(one, "a", mode=STRICT)
    two = trace.writes("b")
    # Only committed: it may take effect later.
    trace.reads(one, "a", mode=STRICT)
    trace.reads(two, "b", mode=STRICT, client="another")
    trace.give(early, offset=one - 1, found=None)
    trace.reads(one, "a", mode=REPEATABLE)
    trace.tell("end")
    assert (trace.last.reads, trace.last.held_to) == (4, 3)


@stories(
    r"""
    an acknowledged write: committed 1 fenced; writes value=a level=acknowledged;
        reads 3 mode=strict -> I22.*; 4 was acknowledged
    a visible write: committed 1 fenced; writes value=a level=visible;
        reads 3 mode=strict -> I22.*; 4 was acknowledged
    less than another strict read: writes value=a; reads 3 found=a mode=strict;
        reads 2 mode=strict client=another -> I22.*shows 2; 3 was
    above every LAO, with a token too: writes value=a announced=;
        reads 3 found=a mode=strict at_least=3 -> I22.*LAO was announced up to
    values that no order explains: writes value=a level=acknowledged;
        writes value=b level=acknowledged; reads 4 found=b mode=strict;
        reads 4 found=a mode=strict;
        tell end -> I22.*no order of its writes explains strict reads
    """
)
def test_strict_read_that_misses_a_write_is_refused(steps: list[str], rule: str) -> None:
    play(_serving(StrictReads), steps, rule)


# --- exactly once: I14 --------------------------------------------------------------------------


def test_writes_executed_once_pass() -> None:
    trace = _led(ExactlyOnce)
    trace.writes("a")
    trace.give(trace.invoke("write_config", value="b"), "unknown")
    trace.give(trace.invoke("write_config", value="c"), "failed")
    trace.committed(1, config("k", "b"))
    trace.tell("end")


def test_workload_that_writes_a_value_twice_is_refused() -> None:
    trace = _led(ExactlyOnce)
    trace.invoke("write_config", value="a")
    trace.invoke("write_config", "l", "a")
    with refused("nothing can be said"):
        trace.invoke("write_config", value="a")


def test_sequence_executed_twice_is_refused() -> None:
    trace = _led(ExactlyOnce)
    opened = trace.committed(
        1, pb.FeatureLevelRecord(name="metadata.version", feature_level=2), pb.OpenClientRecord()
    )
    for value in ("a", "b"):
        trace.invoke("write_config", value=value)
    trace.committed(1, config("k", "a"), client=(opened, 1))
    # The fold refuses it too.
    with refused(r"cannot be folded.*write 1 of client 2"):
        trace.committed(1, config("k", "b"), client=(opened, 1))
    with refused(r"I14: write 1 of client 2 is in the log twice"):
        header = SimpleNamespace(client_id=opened, sequence=1, base_offset=4)
        trace.last._batch_committed(SimpleNamespace(header=header), [])


def test_failed_write_in_the_log_is_refused_whichever_comes_first() -> None:
    trace = _led(ExactlyOnce)
    trace.give(trace.invoke("write_config", value="a"), "failed")
    with refused("I14.*has failed"):
        trace.committed(1, config("k", "a"))
    trace = _led(ExactlyOnce)
    write = trace.invoke("write_config", value="a")
    trace.committed(1, config("k", "a"))
    with refused("I14.*has failed"):
        trace.give(write, "failed")


def test_answered_write_that_is_missing_from_the_log_is_refused() -> None:
    trace = _led(ExactlyOnce)
    with refused("I14.*not in the committed log"):
        trace.give(trace.invoke("write_config", value="a"), offset=1)


def test_record_without_a_request_is_refused() -> None:
    trace = _led(ExactlyOnce)
    with refused("I14: k=a is in the log at 1, and nobody has written it"):
        trace.committed(1, config("k", "a"))
    trace = _led(ExactlyOnce)
    trace.writes("a")
    with refused("I14.*twice, at 1 and 2"):
        trace.committed(1, config("k", "a"))
    trace = _led(ExactlyOnce)
    with refused("I14: create_topic t"):
        trace.committed(1, pb.TopicRecord(name="t", topic_id=b"t" * 16))


def test_write_ordered_before_one_that_was_answered_first_is_refused() -> None:
    trace = _led(ExactlyOnce)
    first, second = trace.invoke("write_config", value="a"), trace.invoke("write_config", value="b")
    trace.committed(1, config("k", "a"))
    trace.committed(1, config("k", "b"))
    # Answered in the other order, overlapping: that is fine.
    trace.give(second, offset=2)
    trace.give(first, offset=1)
    with refused("is at 1, after 2 returned"):
        trace.last._written("k", trace.invoke("write_config", value="c").value, 1)


def test_topic_creations_are_compared_with_the_calls() -> None:
    trace = _led(ExactlyOnce)
    create = trace.invoke("create_topic", "t")
    trace.committed(1, pb.TopicRecord(name="t", topic_id=b"t" * 16))
    trace.give(create, offset=1)
    trace.tell("end")
    trace.give(trace.invoke("delete_topic", "t"), "unknown")
    trace.committed(1, pb.RemoveTopicRecord(topic_id=b"t" * 16))
    trace.tell("end")
    with refused("I14.*2 times, of 1"):
        trace.committed(1, pb.TopicRecord(name="t", topic_id=b"u" * 16))
    trace = _led(ExactlyOnce)
    trace.give(trace.invoke("create_topic", "t"), offset=1)
    with refused("1 to 1 expected, 0 found"):
        trace.tell("end")


# --- the whole history --------------------------------------------------------------------------


def test_final_value_must_come_from_a_write_that_can_be_ordered_last() -> None:
    trace = _led(Linearizability)
    trace.writes("a")
    trace.writes("b")
    trace.tell("end")
    trace.committed(1, config("k", "a"))
    with refused("config k: no order of writes explains 'a'"):
        trace.tell("end")


def test_topic_that_was_created_twice_is_refused() -> None:
    trace = _led(Linearizability)
    trace.give(trace.invoke("create_topic", "t"))
    trace.committed(1, pb.TopicRecord(name="t", topic_id=b"t" * 16))
    trace.give(trace.invoke("create_topic", "t"), "failed", error="TOPIC_ALREADY_EXISTS")
    trace.tell("end")
    trace.give(trace.invoke("create_topic", "t"))
    with refused("topic t"):
        trace.tell("end")


# --- queues: I20 --------------------------------------------------------------------------------


def test_queues_above_their_bounds_are_refused() -> None:
    trace = Trace(lambda _: Queues())
    first = trace.host("c1")
    for host in trace.controllers:
        host.service.replica.backlog = lambda: ReplicaBacklog(0, 0, 0)
    trace.tell("sample")
    assert trace.last.longest["intake"] == 0
    first.says(waiting_requests=65_537)
    with refused("I20: intake of c1: 65537"):
        trace.tell("sample")
    first.says(waiting_requests=0)
    first.service.replica.backlog = lambda: ReplicaBacklog(0, 10_001, 0)
    with refused("I20: held effects"):
        trace.tell("sample")
