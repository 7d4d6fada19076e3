import random
from collections import Counter
from typing import Any

import pytest
from deciding import Cell

from controller.rules.placement import place
from controller.settings import ControllerSettings
from raftlog.bounds import CONTROLLER_BATCH_MAX_BYTES
from raftlog.errors import ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

ASSIGNMENT, CONFIG = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_CONFIG


def _topic(name: str = "t", **fields: Any) -> rpc.CreatableTopic:
    return rpc.CreatableTopic(
        **{"name": name, "num_partitions": 1, "replication_factor": 1, **fields}
    )


def _create(*topics: rpc.CreatableTopic, validate_only: bool = False) -> rpc.CreateTopicsRequest:
    return rpc.CreateTopicsRequest(topics=topics, validate_only=validate_only)


def _assign(*replica_sets: tuple[int, list[int]]) -> list[rpc.CreatableReplicaAssignment]:
    return [
        rpc.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
        for index, ids in replica_sets
    ]


def _config(name: str, value: str) -> rpc.ConfigEntry:
    return rpc.ConfigEntry(name=name, value=value)


def test_topic_its_configs_and_partitions_are_one_batch() -> None:
    cell = Cell(brokers=3)
    name = "a.b_c-D9".ljust(249, "a")  # the longest that is allowed
    configs = [_config("retention.ms", "5")]
    topic = _topic(name, num_partitions=4, replication_factor=2, configs=configs)
    validated = cell.decide(_create(topic, validate_only=True))
    assert (validated.records, validated.body.topics[0].num_partitions) == ([], 4)
    decision = cell.propose(cell.decide(_create(topic)))
    assert decision.types == ["TOPIC", "CONFIG"] + ["PARTITION"] * 4
    result = decision.body.topics[0]
    assert (result.name, result.num_partitions, result.replication_factor) == (name, 4, 2)
    assert len(result.topic_id) == 16
    assert cell.pending.topic_ids[name] == result.topic_id
    assert cell.pending.configs[2, name] == {"retention.ms": "5"}
    for index in range(4):
        partition = cell.partition(result.topic_id, index)
        assert len(partition.replicas) == 2
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    cell.check_invariants()


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION, "name"),
        ({"name": "."}, ErrorCode.INVALID_TOPIC_EXCEPTION, "name"),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION, "name"),
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "name"),
        ({"name": "a\n"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "name"),
        ({"name": "ä"}, ErrorCode.INVALID_TOPIC_EXCEPTION, "name"),
        ({"name": "a" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION, "name"),
        ({"name": "taken"}, ErrorCode.TOPIC_ALREADY_EXISTS, "name"),
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS, "num_partitions"),
        ({"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS, "num_partitions"),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR, "replication_factor"),
        ({"replication_factor": -2}, ErrorCode.INVALID_REPLICATION_FACTOR, "replication_factor"),
        ({"replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR, "replication_factor"),
        ({"configs": [_config("no.such", "1")]}, CONFIG, "configs[0].name"),
        ({"configs": [_config("retention.ms", "-2")]}, CONFIG, "configs[0].value"),
        (
            {"configs": [_config("retention.ms", value) for value in "12"]},
            CONFIG,
            "configs[1].name",
        ),
        ({"assignments": _assign((1, [1]))}, ASSIGNMENT, "assignments"),
        ({"assignments": _assign((0, [1]), (0, [2]))}, ASSIGNMENT, "assignments"),
        ({"assignments": _assign((0, []))}, ASSIGNMENT, "assignments[0].broker_ids"),
        ({"assignments": _assign((0, [1, 1]))}, ASSIGNMENT, "assignments[0].broker_ids"),
        ({"assignments": _assign((0, [9]))}, ASSIGNMENT, "assignments[0].broker_ids"),
        ({"assignments": _assign((0, [3]))}, ASSIGNMENT, "assignments[0].broker_ids"),
        ({"assignments": _assign((1, [1]), (0, [1, 2]))}, ASSIGNMENT, "assignments[0].broker_ids"),
        *(
            ({"assignments": _assign((0, [1])), field: 2}, ErrorCode.INVALID_REQUEST, field)
            for field in ("num_partitions", "replication_factor")
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_invalid_topic_is_refused(
    fields: dict[str, Any], code: ErrorCode, field: str, *, validate_only: bool
) -> None:
    cell = Cell(brokers=3)
    cell.create("taken")
    cell.silence(3)
    counts = {"num_partitions": -1, "replication_factor": -1} if "assignments" in fields else {}
    request = _create(_topic(**counts | fields), validate_only=validate_only)
    cell.refused_part(request, code, f"topics[0].{field}")


def test_default_replication_is_reduced_to_the_live_brokers() -> None:
    cell = Cell(brokers=2, settings=ControllerSettings(num_partitions=5))
    result = cell.send(_create(_topic(num_partitions=-1, replication_factor=-1))).topics[0]
    assert (result.num_partitions, result.replication_factor) == (5, 2)
    more = Cell(brokers=4)
    result = more.send(_create(_topic(num_partitions=-1, replication_factor=-1))).topics[0]
    assert (result.num_partitions, result.replication_factor) == (1, 3)
    code, field = ErrorCode.INVALID_REPLICATION_FACTOR, "topics[0].replication_factor"
    Cell(brokers=0).refused_part(_create(_topic(replication_factor=-1)), code, field)


def test_manual_assignments_are_kept_and_only_live_replicas_are_in_sync() -> None:
    cell = Cell(brokers=3)
    cell.silence(3)
    assignments = _assign((1, [2, 1]), (0, [3, 1]))
    topic_id = cell.create("m", num_partitions=0, replication_factor=0, assignments=assignments)
    cell.send(_request(_add("m", 4, [3, 1], [2, 1])))
    for index in range(4):
        one = cell.partition(topic_id, index)
        expected = ((2, 1), (2, 1), 2) if index % 2 else ((3, 1), (1,), 1)
        assert (one.replicas, one.isr, one.leader) == expected
    cell.check_invariants()


def test_stopping_brokers_get_no_replicas() -> None:
    cell = Cell(brokers=3)
    cell.create_on((1, 2, 3))
    cell.hold_commits = True
    assert not cell.beat(1, want_shut_down=True).is_fenced
    topic_id = cell.create("u", num_partitions=6, replication_factor=2)
    assert {
        member for index in range(6) for member in cell.partition(topic_id, index).replicas
    } == {2, 3}


def test_valid_topics_are_created_despite_invalid_ones_and_duplicates_are_refused() -> None:
    cell = Cell(brokers=1)
    cell.hold_commits = True
    request = _create(_topic("a"), _topic("twice"), _topic("b/"), _topic("twice"), _topic("c"))
    results = cell.send(request).topics
    assert [result.name for result in results] == ["a", "twice", "b/", "twice", "c"]
    codes = [result.error.error_code for result in results]
    twice = ErrorCode.INVALID_REQUEST
    assert codes == [0, twice, ErrorCode.INVALID_TOPIC_EXCEPTION, twice, 0]
    assert sorted(cell.pending.snapshot().topic_ids) == ["a", "c"]
    cell.refused_part(_create(_topic("a")), ErrorCode.TOPIC_ALREADY_EXISTS, "topics[0].name")


@pytest.mark.parametrize("count", [10_000, 2_147_483_647])
def test_request_larger_than_a_batch_is_refused_whole_and_at_once(count: int) -> None:
    cell = Cell(brokers=1)
    request = _create(_topic("a"), _topic("b", num_partitions=count))
    cell.refused(request, ErrorCode.POLICY_VIOLATION, "topics[1].num_partitions")


def test_limit_applies_to_the_whole_request() -> None:
    cell = Cell(brokers=1, settings=ControllerSettings(max_records_per_request=10))
    ten = [_topic(name, num_partitions=4) for name in ("a", "b")]
    field = "topics[2].num_partitions"
    cell.refused(_create(*ten, _topic("c")), ErrorCode.POLICY_VIOLATION, field)
    assert len(cell.decide(_create(*ten)).records) == 10
    manual = _topic("m", num_partitions=-1, assignments=_assign(*((n, [1]) for n in range(10))))
    cell.refused(_create(manual), ErrorCode.POLICY_VIOLATION, "topics[0].assignments")


@pytest.mark.parametrize(("brokers", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3), (7, 2), (30, 3)])
def test_placement_spreads_leaders_and_followers(brokers: int, factor: int) -> None:
    ids = list(range(10, 10 + brokers))
    count = brokers * max(brokers - 1, 1) * 2
    placed = place(ids, count, factor, random.Random(1))
    assert len(placed) == count
    assert all(len(set(replicas)) == factor and set(replicas) <= set(ids) for replicas in placed)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {count // brokers}
    assert set(Counter(member for replicas in placed for member in replicas).values()) == {
        count * factor // brokers
    }
    for leader in ids:
        followers = Counter(
            member for replicas in placed if replicas[0] == leader for member in replicas[1:]
        )
        assert factor == 1 or set(followers) == set(ids) - {leader}, (
            "a failed leader's load goes to all others"
        )


def test_placement_starts_at_a_random_broker() -> None:
    rng = random.Random(3)
    firsts = {place([1, 2, 3, 4], 1, 2, rng)[0] for _ in range(200)}
    assert len(firsts) == 12


@pytest.mark.parametrize(
    ("sizes", "factor"),
    [((2, 2, 2), 3), ((3, 3, 3), 2), ((4, 2), 2), ((5, 1, 1), 3), ((3, 3), 5), ((2, 2, 2, 2), 6)],
)
def test_placement_spreads_over_racks(sizes: tuple[int, ...], factor: int) -> None:
    ids = list(range(sum(sizes)))
    names = [f"r{rack}" for rack, size in enumerate(sizes) for _ in range(size)]
    racks = dict(zip(ids, names, strict=True))
    random.Random(5).shuffle(names)
    count = len(ids) * 60
    for seed in range(5):
        placed = place(ids, count, factor, random.Random(seed), racks)
        assert len(placed) == count
        for replicas in placed:
            assert len(set(replicas)) == factor
            used = Counter(racks[member] for member in replicas)
            assert len(used) == min(factor, len(sizes)), "no rack twice while another has none"
        assert set(Counter(replicas[0] for replicas in placed).values()) == {60}, (
            "all lead equally often"
        )
        held = Counter(member for replicas in placed for member in replicas)
        for rack in set(names):
            load = [number for member, number in held.items() if racks[member] == rack]
            assert max(load) - min(load) <= max(2, max(load) // 20), (rack, load)
        followers = {leader: {m for r in placed if r[0] == leader for m in r[1:]} for leader in ids}
        for leader in ids:
            others = {member for member in ids if racks[member] != racks[leader]}
            assert others <= followers[leader], "a failed leader's load goes to all racks"


def test_brokers_without_a_rack_form_a_rack_of_their_own() -> None:
    placed = place([1, 2, 3, 4], 50, 2, random.Random(1), {1: "a", 2: "a", 3: "", 4: ""})
    assert all({member <= 2 for member in replicas} == {True, False} for replicas in placed)


def test_created_topics_and_added_partitions_are_spread_over_the_racks_of_live_brokers() -> None:
    cell = Cell(brokers=0)
    for broker_id, rack in enumerate("aabbcc", 1):
        cell.join(broker_id, rack=rack)
    cell.silence(6)
    topic_id = cell.create("r", num_partitions=12, replication_factor=3)
    added = rpc.CreatePartitionsTopic(name="r", count=24)
    assert not cell.send(rpc.CreatePartitionsRequest(topics=[added])).results[0].HasField("error")
    for index in range(24):
        replicas = cell.partition(topic_id, index).replicas
        assert {cell.broker(member).rack for member in replicas} == {"a", "b", "c"}
        assert 6 not in replicas


def test_deleting_a_topic_deletes_its_configs() -> None:
    cell = Cell(brokers=2)
    kept = cell.create("kept", replication_factor=2)
    configs = [_config("retention.ms", "1"), _config("cleanup.policy", "compact")]
    topic_id = cell.create("t", replication_factor=2, configs=configs)
    decision = cell.decide(rpc.DeleteTopicsRequest(names=["t"]))
    assert decision.types == ["CONFIG"] * 2 + ["REMOVE_TOPIC"]
    names = [record.message.name for record in decision.records[:2]]
    assert names == ["cleanup.policy", "retention.ms"]
    cell.propose(decision)
    assert decision.body.topics[0].topic_id == topic_id
    assert "t" not in cell.pending.topic_ids
    assert (2, "t") not in cell.pending.configs
    assert (kept, 0) in cell.pending.partitions
    cell.check_invariants()
    assert cell.create("t", replication_factor=1) != topic_id


def test_invalid_deletions_are_refused() -> None:
    cell = Cell(brokers=1)
    cell.create("a", replication_factor=1)
    cell.refused_part(
        rpc.DeleteTopicsRequest(names=["b"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "names[0]"
    )
    names = ["a", "x", "x", "b"]
    validated = cell.decide(rpc.DeleteTopicsRequest(names=names, validate_only=True))
    assert not validated.records
    results = cell.send(rpc.DeleteTopicsRequest(names=names)).topics
    assert list(results) == list(validated.body.topics)
    codes = [result.error.error_code for result in results]
    assert codes == [0, *[ErrorCode.INVALID_REQUEST] * 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [result.name for result in results] == names


def test_deletions_of_more_than_a_batch_holds_are_refused() -> None:
    cell = Cell(brokers=1, settings=ControllerSettings(max_records_per_request=4))
    configs = [_config("retention.ms", "1"), _config("segment.ms", "1")]
    for name in ("a", "b"):
        cell.create(name, replication_factor=1, configs=configs)
    cell.refused(rpc.DeleteTopicsRequest(names=["a", "b"]), ErrorCode.POLICY_VIOLATION, "")


def _add(name: str, count: int, *assignments: list[int]) -> rpc.CreatePartitionsTopic:
    return rpc.CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=[rpc.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
    )


def _request(
    *topics: rpc.CreatePartitionsTopic, validate_only: bool = False
) -> rpc.CreatePartitionsRequest:
    return rpc.CreatePartitionsRequest(topics=topics, validate_only=validate_only)


def test_added_partitions_follow_the_existing_ones() -> None:
    cell = Cell(brokers=4)
    topic = cell.create(num_partitions=2, replication_factor=3)
    decision = cell.decide(_request(_add("t", 7)))
    assert decision.types == ["PARTITION"] * 5
    cell.propose(decision)
    assert cell.pending.topics[topic].partition_count == 7
    for index in range(2, 7):
        partition = cell.partition(topic, index)
        assert len(set(partition.replicas)) == 3
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    cell.check_invariants()


def test_new_partitions_have_the_target_replication_factor() -> None:
    cell = Cell(brokers=4)
    topic = cell.create_on((1, 2, 3))
    cell.reassign({0: [4, 1]})
    assert len(cell.partition(topic).replicas) == 4, "target and removing"
    cell.send(_request(_add("t", 2)))
    assert len(cell.partition(topic, 1).replicas) == 2


@pytest.mark.parametrize(
    ("topic", "code", "field"),
    [
        (_add("none", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ".name"),
        (_add("t", 2), ErrorCode.INVALID_PARTITIONS, ".count"),
        (_add("t", 1), ErrorCode.INVALID_PARTITIONS, ".count"),
        (_add("t", -1), ErrorCode.INVALID_PARTITIONS, ".count"),
        (_add("t", 4, [1, 2]), ASSIGNMENT, ".assignments"),
        (_add("t", 3, [1]), ASSIGNMENT, ".assignments[0].broker_ids"),
        (_add("t", 4, [1, 2], [1, 1]), ASSIGNMENT, ".assignments[1].broker_ids"),
        (_add("t", 3, [1, 9]), ASSIGNMENT, ".assignments[0].broker_ids"),
        (_add("wide", 2), ErrorCode.INVALID_REPLICATION_FACTOR, ""),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_invalid_additions_are_refused(
    topic: rpc.CreatePartitionsTopic, code: ErrorCode, field: str, *, validate_only: bool
) -> None:
    cell = Cell(brokers=3)
    cell.create_on((1, 2), (1, 2))
    cell.create_on((1, 2, 3), name="wide")
    cell.silence(3)
    cell.refused_part(_request(topic, validate_only=validate_only), code, f"topics[0]{field}")


def test_valid_additions_are_made_despite_invalid_ones_and_validate_only_writes_nothing() -> None:
    cell = Cell(brokers=2)
    for name in ("a", "b"):
        cell.create(name, replication_factor=1)
    request = [_add("a", 2), _add("none", 2), _add("b", 2), _add("b", 3)]
    decision = cell.decide(_request(*request, validate_only=True))
    assert not decision.records
    codes = [result.error.error_code for result in cell.send(_request(*request)).results]
    twice = ErrorCode.INVALID_REQUEST
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, twice, twice]
    assert [result.error.error_code for result in decision.body.results] == codes
    counts = {
        topic.name: topic.partition_count for topic in cell.pending.snapshot().topics.values()
    }
    assert counts == {"a": 2, "b": 1}


@pytest.mark.parametrize("count", [12, 2_147_483_647])
def test_additions_larger_than_a_batch_are_refused_whole_and_at_once(count: int) -> None:
    cell = Cell(brokers=1, settings=ControllerSettings(max_records_per_request=10))
    for name in ("a", "b"):
        cell.create(name, replication_factor=1)
    request, field = _request(_add("a", 2), _add("b", count)), "topics[1].count"
    cell.refused(request, ErrorCode.POLICY_VIOLATION, field)
    assert len(cell.decide(_request(_add("a", 2), _add("b", 10))).records) == 10


def _many(partitions: int, factor: int) -> Any:
    topic = rpc.CreatableTopic(name="wide", num_partitions=partitions, replication_factor=factor)
    return rpc.CreateTopicsRequest(topics=[topic])


def test_request_that_writes_too_many_bytes_is_refused() -> None:
    cell = Cell(brokers=0)
    for broker_id in range(2_000_000_000, 2_000_000_160):
        cell.join(broker_id, listeners=[pb.Listener(name="PLAIN", host="h", port=1)])
    # 160 ids of five bytes, twice each.
    assert len(cell.decide(_many(4_000, 160)).records) == 4_001
    assert CONTROLLER_BATCH_MAX_BYTES < 6_000 * 160 * 10
    cell.refused(_many(6_000, 160), ErrorCode.MESSAGE_TOO_LARGE, "create_topics")


def test_request_that_places_too_many_replicas_is_refused_early() -> None:
    cell = Cell(brokers=0)
    for broker_id in range(1, 120):
        cell.join(broker_id, listeners=[pb.Listener(name="PLAIN", host="h", port=1)])
    cell.refused(_many(9_000, 119), ErrorCode.POLICY_VIOLATION, "")
