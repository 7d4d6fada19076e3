"""The checkers of partitions' records pass sound lives, and refuse each kind of unsound one."""

from checks_harness import fencing, play, refused, stories
from data_harness import KEY, DataTrace, chunk

from broker.partition import events as ev
from raftlog.errors import ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.data.v1 import data_pb2

RECOVERING = 1


def test_a_sound_life_passes() -> None:
    trace = DataTrace(min_isr=2)
    sent = [trace.post("a"), trace.post("b"), trace.post("c")]
    trace.everywhere(0, 0, "a", "b")
    trace.produced(1, 0, "a", "b")
    trace.told(sent[0], 0)
    trace.told(sent[1], 1)
    trace.consumed(0, "a")
    trace.consumed(1, "b")
    # Broker 1 dies; broker 2 leads and goes on.
    trace.change(isr=[2, 3], leader=2)
    trace.lead_data(2, 1)
    trace.everywhere(2, 1, "c", on=(2, 3))
    trace.produced(2, 2, "c")
    trace.told(sent[2], 2)
    trace.consumed(2, "c", 1)
    assert (
        trace.data.voided,
        trace.data.acknowledged,
        trace.last.read,
        trace.last.acknowledged,
    ) == (0, 2, 3, 3)


@stories(
    r"""
    two batches of one offset and leader epoch: write 1 0 0 a; write 2 0 0 b -> I23.*two logs
    one batch above different ones: write 1 0 0 a; write 1 1 2 c; write 2 0 1 b;
        write 2 1 2 c -> I23.*two logs
    a gap: write 1 0 1 a; write 1 2 1 b -> I23.*appends at 2
    an older epoch: write 1 0 1 a; write 1 1 0 b -> I23.*epoch 0
    a cut inside a batch: write 1 0 0 a b; cut 1 1 -> I23.*inside a batch
    a commit without a member of the ISR: post a; everywhere 0 0 a on=1,2;
        fetched 1 1 -> I24.*broker 3 is in the ISR.*missing
    a commit of what is not durable: post a; everywhere 0 0 a on=1,2; write 3 0 0 a durable=;
        fetched 1 1 -> I24.*broker 3
    a commit of what is durable now: post a; everywhere 0 0 a on=1,2; write 3 0 0 a durable=;
        flush 3; fetched 1 1
    records of another epoch: post a; everywhere 0 1 a on=1,2; write 3 0 0 x;
        fetched 1 1 -> I24.*of leader epoch 0
    a cut of committed records: post a; everywhere 0 0 a; fetched 1 1; cut 3 0 -> cuts.*at 0
    a deletion of committed records: post a; everywhere 0 0 a; fetched 1 1; delete 2 -> deletes
    a cut of other records: post a; everywhere 0 0 a; fetched 1 1; write 3 1 0 b; cut 3 1
    a leader without election: lead_data 2 0 -> that is broker 1's
    a record of nobody: everywhere 0 0 ghost; fetched 1 1 -> I26.*nobody has sent
    a record sent once, and there twice: post a; everywhere 0 0 a; everywhere 1 0 a;
        fetched 1 2 -> I26.*sent once
    a record that may be sent twice: post a mode=1; everywhere 0 0 a; everywhere 1 0 a;
        fetched 1 2
    consumed before it is committed: post a; everywhere 0 0 a;
        consumed 0 a -> I26.*committed is None
    consumed out of order: post a; post b; post c; everywhere 0 0 a b c; fetched 1 3;
        consumed 0 a; consumed 2 c -> I26.*1 is next
    consumed as something else: post a; post b; everywhere 0 0 a b; fetched 1 2;
        consumed 1 x -> I26.*is given b'x'
    consumed with another epoch: post a; post b; everywhere 0 0 a b; fetched 1 2;
        consumed 1 b 1 -> I26.*leader epoch 1
    """
)
def test_records_are_held_to_the_isr_and_the_clients(steps: list[str], rule: str) -> None:
    play(DataTrace(), steps, rule)


@stories(
    """
    acknowledged before it is on the leader's disk: write 1 0 0 a durable=;
        produced 1 0 a acks=1 -> not on its own disk
    acknowledged when it is there: write 1 0 0 a; produced 1 0 a acks=1
    acknowledged and not there: write 1 0 0 a; produced 1 1 b acks=1 -> not there
    a new member without committed records: post a; write 1 0 0 a; fetched 1 1;
        change isr=1,2 -> broker 2 is a holder
    a position out of range: out_of_range -> I26.*out of range
    a position out of range when something was void: lost 1 disk-1; out_of_range
    """
)
def test_records_are_held_to_a_leader_without_followers(steps: list[str], rule: str) -> None:
    play(DataTrace((1,)), steps, rule)


# --- I24: what is committed ---------------------------------------------------------------------


def test_records_acknowledged_to_all_are_on_as_many_disks_as_asked_for() -> None:
    trace = DataTrace((1,), min_isr=2)
    trace.post("a")
    trace.write(1, 0, 0, "a")
    with refused("it is on 1 disks, min.insync.replicas is 2"):
        trace.produced(1, 0, "a")


def test_answer_for_several_partitions_may_come_when_the_replica_of_one_is_gone() -> None:
    trace = DataTrace((1,))
    trace.post("a")
    trace.write(1, 0, 0, "a")
    trace.fetched(1, 1)
    other = data_pb2.ProducePartition(topic_id=KEY[0], partition_index=1, records=[b"b"])
    asked = data_pb2.ProducePartition(topic_id=KEY[0], records=[b"a"])
    refusal = data_pb2.ProducePartitionResult(
        topic_id=KEY[0], partition_index=1, error_code=1, base_offset=-1
    )
    result = data_pb2.ProducePartitionResult(topic_id=KEY[0], base_offset=0)
    logs = trace.data._logs.logs["b1"]
    logs.pop(KEY)
    for partitions, results in (([asked], [result]), ([asked, other], [result, refusal])):
        reply_to = object()
        event = ev.ProduceReceived(
            data_pb2.ProduceRequest(acks=-1, partitions=partitions), 1, reply_to
        )
        answer = ev.AnswerProduce(reply_to, data_pb2.ProduceResponse(partitions=results))
        if len(partitions) == 1:
            with refused("not there"):
                trace.does(1, event, answer)
        else:
            trace.does(1, event, answer)


def test_committed_record_that_changes_is_refused() -> None:
    trace = DataTrace((1, 2))
    trace.post("a")
    trace.post("b")
    trace.everywhere(0, 0, "a", on=(1, 2))
    trace.fetched(1, 1)
    trace.write(3, 0, 1, "b")
    with refused("was something else"):
        trace.data.claim(trace.broker(3), KEY, 1, 1)


def test_leader_has_all_that_is_committed() -> None:
    trace = DataTrace((1, 2))
    trace.post("a")
    trace.everywhere(0, 0, "a", on=(1, 2))
    trace.fetched(1, 1)
    trace.change(isr=[2], leader=2)
    trace.lead_data(2, 1)
    # Nobody who commits would make broker 3 the leader; who says so all the same must have it.
    trace.data.partitions[KEY].leaders[2] = 3
    with refused("without what is committed up to 1"):
        trace.lead_data(3, 2)


def test_leader_of_an_older_epoch_may_lack_records_of_a_later_one() -> None:
    trace = DataTrace((1, 2))
    trace.post("a")
    trace.post("b")
    trace.everywhere(0, 0, "a", on=(1, 2))
    trace.fetched(1, 1)
    trace.change(isr=[2], leader=2)
    trace.lead_data(2, 1)
    trace.write(2, 1, 1, "b")
    trace.data.claim(trace.broker(2), KEY, 1, 2)
    trace.lead_data(1, 0)
    trace.data.partitions[KEY].leaders[2] = 1
    with refused("without what is committed up to 2"):
        trace.lead_data(1, 2)


def test_acknowledging_fetch_is_of_what_is_on_the_disk() -> None:
    trace = DataTrace()
    trace.write(2, 0, 0, "a", durable=False)
    named = data_pb2.ReplicaFetchPartition(topic_id=KEY[0], fetch_offset=1, last_fetched_epoch=0)
    fetch = ev.SendReplicaFetch(1, data_pb2.ReplicaFetchRequest(partitions=[named]))
    with refused("acknowledges.*not on its disk"):
        trace.does(2, ev.Tick(), fetch)
    trace.flush(2)
    trace.does(2, ev.Tick(), fetch)


def test_disk_damaged_later_proves_no_false_acknowledgement() -> None:
    trace = DataTrace(min_isr=3)
    trace.post("a")
    trace.everywhere(0, 0, "a")
    trace.fetched(1, 1)
    chunks = trace.broker(2).disk.durable[KEY]
    chunks.chunks[0] = b"\x7f" + chunks.chunks[0][1:]
    trace.lost(2, "disk-2")
    named = data_pb2.ReplicaFetchPartition(topic_id=KEY[0], fetch_offset=1, last_fetched_epoch=0)
    trace.does(
        2, ev.Tick(), ev.SendReplicaFetch(1, data_pb2.ReplicaFetchRequest(partitions=[named]))
    )
    trace.produced(1, 0, "a")


def test_incarnation_with_an_empty_disk_in_an_isr_is_refused() -> None:
    trace = DataTrace((1, 2))
    trace.post("a")
    trace.everywhere(0, 0, "a", on=(1, 2))
    trace.fetched(1, 1)
    trace.lost(2, "disk-2")
    trace.broker(2).disk.replace("disk-4")
    with refused("broker 2 is a holder"):
        # The registration leaves it in.
        trace.register(2, "disk-4")


# --- what voids ---------------------------------------------------------------------------------


def test_last_isr_member_that_loses_its_disk_voids_committed_records() -> None:
    trace = DataTrace((1, 2))
    trace.post("a")
    trace.post("b")
    trace.everywhere(0, 0, "a", on=(1, 2))
    trace.fetched(1, 1)
    trace.lost(1, "disk-1")
    assert trace.data.voided == 0, "broker 2 has its disk"
    trace.change(isr=[1])
    assert trace.data.voided == 1
    trace.broker(1).disk.replace("disk-4")
    trace.register(1, "disk-4")
    trace.change(leader=-1)
    trace.change(leader=1)
    trace.process(trace.broker(1))
    trace.lead_data(1, 2)
    trace.write(1, 0, 2, "b")
    trace.produced(1, 0, "b")


def test_single_sound_member_keeps_committed_records() -> None:
    trace = DataTrace((1, 2))
    trace.post("a")
    trace.everywhere(0, 0, "a", on=(1, 2))
    trace.fetched(1, 1)
    trace.lost(1, "disk-1")
    trace.change(isr=[2], leader=2)
    trace.broker(2).disk.durable.clear()
    with refused("broker 2 is a holder"):
        trace.change(isr=[2, 3])


def test_unclean_leader_that_lags_may_first_delete_what_it_was_to_delete() -> None:
    trace = DataTrace((1, 3))
    trace.post("a")
    trace.everywhere(0, 0, "a")
    trace.fetched(1, 1)
    trace.change(isr=[2], leader=2, leader_recovery_state=RECOVERING)
    trace.delete(2)


def test_unclean_leader_voids_what_was_committed_and_what_the_old_one_still_says() -> None:
    trace = DataTrace((1,))
    trace.post("a")
    trace.post("b")
    trace.write(1, 0, 0, "a")
    trace.fetched(1, 1)
    trace.change(isr=[2], leader=2, leader_recovery_state=RECOVERING)
    assert trace.data.voided == 1
    trace.fetched(1, 1)
    trace.lead_data(2, 1)
    trace.write(2, 0, 1, "b")
    trace.fetched(2, 1)


def test_new_leader_from_the_isr_voids_nothing() -> None:
    trace = DataTrace((1, 2))
    trace.change(isr=[2], leader=2)
    assert trace.data.voided == 0


# --- I25: who serves ----------------------------------------------------------------------------


def test_leader_epoch_has_one_serving_process() -> None:
    trace = DataTrace((1,))
    trace.fetched(1, 0)
    with refused("I25.*leader epoch 0"):
        trace.led_epochs[2][KEY] = trace.led_epochs[1][KEY]
        trace.fetched(2, 0)


def produce(trace: DataTrace, broker_id: int) -> None:
    event = ev.ProduceReceived(data_pb2.ProduceRequest(acks=-1), 1, object())
    trace.does(broker_id, event, ev.Append(KEY, chunk(0, 0, "a"), 0, 1))


def test_fenced_broker_takes_nothing_new() -> None:
    trace = DataTrace()
    trace.show(trace.committed(1, fencing(1, trace.epochs[1], True)))
    with refused("I25: b1 serves ProduceReceived"):
        produce(trace, 1)
    reply_to = object()
    event = ev.FetchReceived(data_pb2.FetchRequest(), reply_to)
    read = ev.Read(0, KEY, 0, 1, 100)
    with refused("I25: b1 serves FetchReceived"):
        trace.does(1, event, ev.AnswerFetch(reply_to, data_pb2.FetchResponse(), (read,)))
    # What was parked before is ended with what there is.
    trace.does(1, ev.Tick(), ev.AnswerFetch(object(), data_pb2.FetchResponse(), (read,)))
    with refused("I25: b1 takes a fetch of broker 2"):
        trace.replica_fetch(1, 2, trace.epochs[2])
    trace.replica_fetch(1, 2, trace.epochs[2], code=ErrorCode.BROKER_FENCED)


def test_broker_that_hears_nothing_takes_nothing_new_after_its_timeout() -> None:
    trace = DataTrace()
    trace.time += 9.0
    produce(trace, 1)
    trace.time += 0.001
    with refused("the last heartbeat that was answered was sent 9.001 s before"):
        trace.does(
            1,
            ev.ProduceReceived(data_pb2.ProduceRequest(), 1, object()),
            ev.Append(KEY, chunk(1, 0, "b"), 1, 2),
        )
    trace.beat(1)
    trace.does(
        1,
        ev.ProduceReceived(data_pb2.ProduceRequest(), 1, object()),
        ev.Append(KEY, chunk(2, 0, "c"), 2, 3),
    )


def test_heartbeat_that_was_refused_is_none() -> None:
    trace = DataTrace()
    trace.time += 9.001
    beat = rpc.BrokerHeartbeatRequest(broker_id=1)
    trace.send("b1", "c1", rpc.ControllerRequest(correlation_id=8, broker_heartbeat=beat))
    response = rpc.ControllerResponse(correlation_id=8)
    response.error.error_code = ErrorCode.STALE_BROKER_EPOCH
    trace.send("c1", "b1", response)
    with refused("I25"):
        produce(trace, 1)


def test_fetch_of_a_former_incarnation_is_refused() -> None:
    trace = DataTrace()
    old = trace.epochs[2]
    trace.replica_fetch(1, 2, old)
    trace.register(2)
    # Not in the leader's image yet, and no fetch has told.
    trace.replica_fetch(1, 2, old)
    trace.replica_fetch(1, 2, trace.epochs[2])
    with refused("I25: b1 takes a fetch of broker 2 of epoch"):
        trace.replica_fetch(1, 2, old)
    trace.replica_fetch(1, 2, old, code=ErrorCode.STALE_BROKER_EPOCH)


def test_fetch_of_an_incarnation_that_the_image_has_replaced_is_refused() -> None:
    trace = DataTrace()
    old = trace.epochs[2]
    trace.register(2)
    trace.show(trace.ledger.golden.end - 1)
    with refused("I25: b1 takes a fetch of broker 2 of epoch"):
        trace.replica_fetch(1, 2, old)


def test_member_is_proposed_by_an_epoch_that_it_has_fetched_with() -> None:
    trace = DataTrace((1,))
    old = trace.epochs[2]
    trace.replica_fetch(1, 2, old)
    trace.propose(1, (1, trace.epochs[1]), (2, old))
    trace.register(2)
    with refused("I25: b1 proposes broker 2 by epoch"):
        trace.propose(1, (1, trace.epochs[1]), (2, trace.epochs[2]))
    with refused("I25: b1 proposes broker 3 by epoch"):
        trace.propose(1, (1, trace.epochs[1]), (3, trace.epochs[3]))
    with refused("I25: b1 proposes broker 1 by epoch -1"):
        trace.propose(1, (1, -1))


# --- I26: clients -------------------------------------------------------------------------------


def test_acknowledged_record_is_where_the_answer_says() -> None:
    trace = DataTrace()
    a, b = trace.post("a"), trace.post("b")
    trace.everywhere(0, 0, "a")
    trace.fetched(1, 1)
    trace.told(a, 0)
    with refused("I26.*is at 1"):
        trace.told(b, 1)


def test_refused_record_is_never_committed() -> None:
    trace = DataTrace()
    trace.give(trace.post("a"), "failed", error="NOT_ENOUGH_REPLICAS")
    trace.everywhere(0, 0, "a")
    with refused("I26.*was refused"):
        trace.fetched(1, 1)
    trace = DataTrace()
    a = trace.post("a")
    trace.everywhere(0, 0, "a")
    trace.fetched(1, 1)
    with refused("I26.*was refused"):
        trace.give(a, "failed", error="NOT_ENOUGH_REPLICAS")
