"""The checkers of brokers, LAO, states and clients pass sound traces, and refuse each kind of
unsound one.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from checks_harness import Trace, config, fencing, registered, voter, voters_record

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
from simulation.checks.api import CheckFailedError
from simulation.checks.brokers import Brokers
from simulation.checks.exactly_once import ExactlyOnce
from simulation.checks.lao import Lao
from simulation.checks.limits import Queues
from simulation.checks.linearizability import Linearizability
from simulation.checks.states import States
from simulation.checks.strict import StrictReads
from simulation.checks.visibility import Visibility

ACKNOWLEDGED, VISIBLE = common_pb2.ACKS_ACKNOWLEDGED, common_pb2.ACKS_VISIBLE
REPEATABLE, LATEST = broker_pb2.REPEATABLE, broker_pb2.LATEST


def refused(rule: str) -> pytest.RaisesExc[CheckFailedError]:
    return pytest.raises(CheckFailedError, match=rule)


def _led(*makers: Any, brokers: int = 0) -> Trace:
    """c1 leads epoch 1 and has committed its first record, at offset 0."""
    trace = Trace(*makers, brokers=brokers)
    trace.begin()
    return trace


def _serving(*makers: Any) -> Trace:
    """As above; b1 is registered at 1 and unfenced at 2, and has applied that."""
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


def test_broker_in_the_middle_of_a_batch_or_beyond_the_committed_is_refused() -> None:
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
def test_offsets_out_of_order_are_refused(
    start: int, high_watermark: int, flushed: int, end: int
) -> None:
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
    with refused("I9: c1 drops its log"):
        trace.step("c1", event=ev.LogStartAdvanced(SnapshotId(2, 1)))


def _snapshot(trace: Trace, image: Image) -> None:
    log_hash = trace.ledger.golden.log_hashes.at(image.offset + 1)
    data = b"".join(pieces(image, header_of(image, cluster_id="cluster", generations=()), log_hash))
    snapshots = trace.host("c1").service.replica.snapshots
    snapshots.read = lambda _id, position, max_bytes: data[position : position + max_bytes]


def test_snapshot_that_is_the_fold_passes_and_another_is_refused() -> None:
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
    log_hash = trace.ledger.golden.log_hashes.at(image.offset + 1)
    data = b"".join(pieces(image, header, log_hash))
    trace.host("c1").service.replica.snapshots.read = lambda _id, position, max_bytes: data[
        position : position + max_bytes
    ]
    with refused("I11.*names the voters"):
        trace.step("c1", event=ev.SnapshotFrozen(SnapshotId(2, 1)))


def test_snapshot_that_is_cut_is_refused() -> None:
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


def test_view_that_goes_back_is_refused() -> None:
    trace = _serving(Brokers)
    trace.move("b1", 2, told=2)
    with refused("I15: b1 goes back"):
        trace.move("b1", 1, told=1)
    with refused("I15: b1 goes back"):
        trace.move("b1", 2, told=1)
    trace.stop("b1")
    trace.start("b1")
    trace.move("b1", 1)


def test_another_generation_of_the_log_begins_anew_and_never_an_older_one() -> None:
    trace = _serving(Brokers)
    trace.move("b1", 2, told=2)
    view = trace.host("b1").service.view
    view.generation = 1
    trace.move("b1", 0)
    view.generation = 0
    with refused("goes back to generation 0"):
        trace.move("b1", 2)


def test_told_above_applied_is_refused() -> None:
    trace = _serving(Brokers)
    with refused("was told LAO 3"):
        trace.move("b1", 2, told=3)


def test_showing_more_than_told_as_repeatable_is_refused() -> None:
    trace = _serving(Brokers)
    with refused("shows 2 as repeatable"):
        trace.move("b1", 2, told=1, repeatable=2)


def test_broker_that_is_fenced_and_serves_is_refused() -> None:
    trace = _serving(Brokers)
    trace.committed(1, fencing(1, 1, True))
    # It has not heard of it.
    trace.move("b1", 2, told=2, repeatable=2)
    with refused("I16: b1 serves"):
        trace.move("b1", 3, told=2, repeatable=2)


def test_broker_that_is_not_registered_any_more_and_serves_is_refused() -> None:
    trace = _serving(Brokers)
    trace.committed(1, pb.UnregisterBrokerRecord(broker_id=1, broker_epoch=1))
    with refused("I16: b1 serves"):
        trace.move("b1", 3, told=2, repeatable=2)


def test_lao_told_before_the_unfencing_is_not_to_be_read_at() -> None:
    trace = _serving(Brokers)
    trace.committed(1, fencing(1, 1, True))
    trace.committed(2, fencing(1, 1, False))
    with refused("I16.*by LAO of epoch 1"):
        trace.move("b1", 4, told=2, told_epoch=1, repeatable=2)
    trace.move("b1", 4, told=2, told_epoch=2, repeatable=2)


def test_fenced_broker_that_leads_a_partition_is_refused() -> None:
    trace = _serving(Brokers)
    topic = pb.TopicRecord(name="t", topic_id=b"t" * 16)
    partition = pb.PartitionRecord(topic_id=b"t" * 16, replicas=[1], isr=[1], leader=1)
    trace.committed(1, topic, partition)
    trace.committed(1, fencing(1, 1, True))
    with refused("I16.*makes broker 1 lead"):
        trace.committed(1, pb.PartitionChangeRecord(topic_id=b"t" * 16, leader=1))


# --- LAO ----------------------------------------------------------------------------------------


def _announce(trace: Trace, name: str, epoch: int, lao: int) -> None:
    host = trace.host(name)
    host.core.epoch = epoch
    host.core.high_watermark = trace.ledger.golden.end
    trace.tell("lao_announced", host, epoch, lao)


def test_lao_that_all_have_applied_passes() -> None:
    trace = _serving(Lao)
    _announce(trace, "c1", 1, 1)
    _announce(trace, "c1", 1, 2)
    # A heartbeat's reply that has waited.
    _announce(trace, "c1", 1, 1)
    _announce(trace, "c2", 2, 2)


def test_lao_above_the_applied_offset_of_an_unfenced_broker_is_refused() -> None:
    trace = _serving(Lao)
    trace.committed(1, config("k", "a"))
    with refused("b1 is unfenced since 2 and has applied 2"):
        _announce(trace, "c1", 1, 3)
    # Another incarnation is not it; neither is a dead process.
    trace.host("b1").service.lifecycle.epoch = 9
    _announce(trace, "c1", 1, 3)


def test_fenced_broker_holds_nothing_back() -> None:
    trace = _serving(Lao)
    trace.committed(1, fencing(1, 1, True))
    _announce(trace, "c1", 1, 3)


def test_lao_that_goes_back_across_epochs_is_refused() -> None:
    trace = _serving(Lao)
    _announce(trace, "c1", 1, 2)
    with refused("epoch 1 has announced 2 to 2"):
        _announce(trace, "c2", 2, 1)


def test_deposed_controller_that_announces_more_is_refused() -> None:
    trace = _serving(Lao)
    _announce(trace, "c2", 2, 1)
    with refused("epoch 2 has announced 1 to 1"):
        _announce(trace, "c1", 1, 2)


def test_lao_that_is_not_committed_is_refused() -> None:
    trace = _serving(Lao)
    with refused("not below its high watermark"):
        _announce(trace, "c1", 1, 3)
    trace = _serving(Lao)
    trace.committed(1, config("k", "a"), config("l", "a"))
    trace.move("b1", 4)
    with refused("not the end of a committed batch"):
        _announce(trace, "c1", 1, 3)


def test_tracker_that_goes_back_is_refused() -> None:
    trace = _serving(Lao)
    service = trace.host("c1").service
    service.node = node = SimpleNamespace(
        leadership=SimpleNamespace(epoch=1), lowest_acknowledged_offset=2
    )
    trace.tell("sample")
    node.lowest_acknowledged_offset = -1
    trace.tell("sample")
    node.lowest_acknowledged_offset = 1
    with refused("goes back from 2 to 1"):
        trace.tell("sample")


def test_progress_records_must_grow_and_lie_below_themselves() -> None:
    trace = _serving(Lao)
    trace.committed(1, pb.ProgressRecord(lowest_acknowledged_offset=2, high_watermark=3))
    trace.committed(1, pb.ProgressRecord(lowest_acknowledged_offset=-1, high_watermark=3))
    with refused("says LAO 1"):
        trace.committed(1, pb.ProgressRecord(lowest_acknowledged_offset=1, high_watermark=4))
    trace = _serving(Lao)
    with refused("says LAO 3"):
        trace.committed(1, pb.ProgressRecord(lowest_acknowledged_offset=3, high_watermark=3))


# --- visibility ---------------------------------------------------------------------------------


def _write(
    trace: Trace, value: str, level: int = 0, *, announced: bool = True, **fields: Any
) -> int:
    write = trace.invoke("write_config", value=value)
    offset = trace.committed(1, config("k", value))
    if announced:
        trace.tell("lao_announced", trace.host("c1"), 1, offset)
    trace.give(write, offset=offset, reached=level, **fields)
    return offset


def _read(
    trace: Trace, found: str | None, offset: int, *, broker: str = "b1", **fields: Any
) -> None:
    read = trace.invoke("read_config", **fields)
    response = broker_pb2.BrokerResponse()
    response.token.offset = offset
    trace.send(broker, "client", response)
    trace.give(read, offset=offset, found=found, response=response)


def test_reads_that_match_the_log_pass() -> None:
    trace = _serving(Visibility)
    one, two = _write(trace, "a", ACKNOWLEDGED), _write(trace, "b", VISIBLE)
    _read(trace, "b", two, mode=LATEST)
    _read(trace, "b", two, mode=REPEATABLE)
    read = trace.invoke("read_topics")
    trace.give(read, offset=two, found=())
    assert (trace.last.reads, trace.last.held_to) == (3, 2)
    # Of another broker, before it was acknowledged: nothing was promised.
    trace = _serving(Visibility)
    one = _write(trace, "a")
    _read(trace, None, one - 1, mode=LATEST)


def test_repeatable_read_above_every_lao_is_refused() -> None:
    trace = _serving(Visibility)
    one, two = _write(trace, "a"), _write(trace, "b", announced=False)
    _read(trace, "a", one, mode=REPEATABLE)
    _read(trace, "b", two, mode=REPEATABLE, at_least=two)
    with refused("LAO was announced up to"):
        _read(trace, "b", two, mode=REPEATABLE)


def test_another_answer_for_an_offset_is_refused() -> None:
    trace = _serving(Visibility)
    offset = _write(trace, "a")
    with refused("finds 'b' in the image at 3; the log says 'a'"):
        _read(trace, "b", offset)
    with refused("finds None"):
        _read(trace, None, offset)
    with refused("finds 'a' in the image at 2"):
        _read(trace, "a", offset - 1)
    with refused("no end of a committed batch"):
        _read(trace, "a", offset + 1)
    read = trace.invoke("read_topics")
    with refused(r"finds \('t',\)"):
        trace.give(read, offset=offset, found=("t",))


def test_less_than_asked_for_is_refused() -> None:
    trace = _serving(Visibility)
    offset = _write(trace, "a")
    _read(trace, "a", offset, at_least=offset)
    with refused("asked for 3 at least, got 2"):
        _read(trace, None, offset - 1, at_least=offset, client="another")


def test_client_that_sees_less_than_before_is_refused_if_it_said_what_it_has_seen() -> None:
    trace = _serving(Visibility)
    offset = _write(trace, "a")
    with refused("its client has seen 3"):
        _read(trace, None, offset - 1, at_least=0)
    # It has forgotten: no more is promised than what it says from now on.
    _read(trace, None, offset - 1)
    _read(trace, None, offset - 1, at_least=0)


def test_acknowledged_write_that_a_latest_read_misses_is_refused() -> None:
    trace = _serving(Visibility)
    offset = _write(trace, "a", ACKNOWLEDGED)
    _read(trace, None, offset - 1, mode=REPEATABLE)
    with refused("was answered as acknowledged"):
        _read(trace, None, offset - 1, mode=LATEST)


def test_visible_write_that_a_repeatable_read_misses_is_refused() -> None:
    trace = _serving(Visibility)
    offset = _write(trace, "a", VISIBLE)
    with refused("was answered as visible"):
        _read(trace, None, offset - 1, mode=REPEATABLE)


def test_read_begun_before_a_write_was_answered_need_not_show_it() -> None:
    trace = _serving(Visibility)
    read = trace.invoke("read_config", mode=LATEST)
    offset = _write(trace, "a", VISIBLE)
    response = broker_pb2.BrokerResponse()
    response.token.offset = offset - 1
    trace.send("b1", "client", response)
    trace.give(read, offset=offset - 1, found=None, response=response)


def test_fenced_broker_or_an_older_incarnation_may_lag() -> None:
    trace = _serving(Visibility)
    trace.committed(1, fencing(1, 1, True))
    offset = _write(trace, "a", VISIBLE)
    _read(trace, None, offset - 1, mode=LATEST)
    trace = _serving(Visibility)
    trace.host("b1").service.lifecycle.epoch = 0
    offset = _write(trace, "a", VISIBLE)
    _read(trace, None, offset - 1, mode=LATEST)


def test_answered_write_that_is_not_there_is_refused() -> None:
    trace = _serving(Visibility)
    write = trace.invoke("write_config", value="a")
    with refused("I12.*committed is only up to 3"):
        trace.give(write, offset=3)
    trace.committed(1, config("k", "b"))
    with refused("I12.*the log says 'b'"):
        trace.give(write, offset=3)


# --- strict reads: I22 --------------------------------------------------------------------------


def _strict(trace: Trace, found: str | None, offset: int, **fields: Any) -> None:
    _read(trace, found, offset, mode=broker_pb2.STRICT, **fields)


def test_strict_reads_that_show_what_they_must_pass() -> None:
    trace = _serving(StrictReads)
    early = trace.invoke("read_config", mode=broker_pb2.STRICT)
    one = _write(trace, "a", ACKNOWLEDGED)
    _strict(trace, "a", one)
    two = _write(trace, "b")
    # Only committed: it may take effect later.
    _strict(trace, "a", one)
    _strict(trace, "b", two, client="another")
    trace.give(early, offset=one - 1, found=None)
    _read(trace, "a", one, mode=REPEATABLE)
    trace.tell("end")
    assert (trace.last.reads, trace.last.held_to) == (4, 3)


def test_acknowledged_write_that_a_strict_read_misses_is_refused_fenced_or_not() -> None:
    for level in (ACKNOWLEDGED, VISIBLE):
        trace = _serving(StrictReads)
        trace.committed(1, fencing(1, 1, True))
        offset = _write(trace, "a", level)
        with refused("I22.*before it began 4 was acknowledged"):
            _strict(trace, None, offset - 1)


def test_strict_read_that_shows_less_than_another_one_did_is_refused() -> None:
    trace = _serving(StrictReads)
    offset = _write(trace, "a")
    _strict(trace, "a", offset)
    with refused("I22.*shows 2; before it began 3"):
        _strict(trace, None, offset - 1, client="another")


def test_strict_read_above_every_lao_is_refused_with_a_token_too() -> None:
    trace = _serving(StrictReads)
    offset = _write(trace, "a", announced=False)
    with refused("I22.*LAO was announced up to"):
        _strict(trace, "a", offset, at_least=offset)


def test_values_that_no_order_explains_are_refused_in_the_end() -> None:
    trace = _serving(StrictReads)
    one, two = _write(trace, "a", ACKNOWLEDGED), _write(trace, "b", ACKNOWLEDGED)
    assert one < two
    _strict(trace, "b", two)
    _strict(trace, "a", two)
    with refused("I22.*no order of its writes explains its strict reads"):
        trace.tell("end")


# --- exactly once: I14 --------------------------------------------------------------------------


def test_writes_executed_once_pass() -> None:
    trace = _led(ExactlyOnce)
    _write(trace, "a")
    unknown = trace.invoke("write_config", value="b")
    trace.give(unknown, "unknown")
    trace.give(trace.invoke("write_config", value="c"), "failed")
    trace.committed(1, config("k", "b"))
    trace.tell("end")


def test_write_executed_twice_is_refused() -> None:
    trace = _led(ExactlyOnce)
    _write(trace, "a")
    with refused("I14.*twice, at 1 and 2"):
        trace.committed(1, config("k", "a"))


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


def test_failed_write_that_is_in_the_log_is_refused_whichever_comes_first() -> None:
    trace = _led(ExactlyOnce)
    trace.give(trace.invoke("write_config", value="a"), "failed")
    with refused("I14.*has failed"):
        trace.committed(1, config("k", "a"))
    trace = _led(ExactlyOnce)
    write = trace.invoke("write_config", value="a")
    trace.committed(1, config("k", "a"))
    with refused("I14.*has failed"):
        trace.give(write, "failed")


def test_answered_write_that_is_not_in_the_log_is_refused() -> None:
    trace = _led(ExactlyOnce)
    with refused("I14.*not in the committed log"):
        trace.give(trace.invoke("write_config", value="a"), offset=1)


def test_record_without_a_request_is_refused() -> None:
    trace = _led(ExactlyOnce)
    with refused("I14: k=a is in the log at 1, and nobody has written it"):
        trace.committed(1, config("k", "a"))
    trace = _led(ExactlyOnce)
    with refused("I14: create_topic t"):
        trace.committed(1, pb.TopicRecord(name="t", topic_id=b"t" * 16))


def test_write_before_one_that_was_answered_first_is_refused() -> None:
    trace = _led(ExactlyOnce)
    first, second = trace.invoke("write_config", value="a"), trace.invoke("write_config", value="b")
    trace.committed(1, config("k", "a"))
    trace.committed(1, config("k", "b"))
    # Answered in the other order, overlapping: that is fine.
    trace.give(second, offset=2)
    trace.give(first, offset=1)
    with refused("was answered before it was invoked"):
        late = trace.invoke("write_config", value="c")
        trace.last._written("k", late.value, 1)


def test_topics_are_counted() -> None:
    trace = _led(ExactlyOnce)
    create = trace.invoke("create_topic", "t")
    trace.committed(1, pb.TopicRecord(name="t", topic_id=b"t" * 16))
    trace.give(create, offset=1)
    trace.tell("end")
    trace.give(trace.invoke("delete_topic", "t"), "unknown")
    trace.committed(1, pb.RemoveTopicRecord(topic_id=b"t" * 16))
    trace.tell("end")
    with refused("I14.*2 times, 1 calls"):
        trace.committed(1, pb.TopicRecord(name="t", topic_id=b"u" * 16))
    trace = _led(ExactlyOnce)
    trace.give(trace.invoke("create_topic", "t"), offset=1)
    with refused("0 times; 1 calls have done it"):
        trace.tell("end")


# --- the whole history --------------------------------------------------------------------------


def test_last_value_must_be_of_a_write_that_may_be_last() -> None:
    trace = _led(Linearizability)
    _write(trace, "a")
    _write(trace, "b")
    trace.tell("end")
    trace.committed(1, config("k", "a"))
    with refused("config k: ends as 'a'"):
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
