"""Declared state: differences become a file, a plan, and a request without a rest."""

import random

import pytest
from deciding import Cell

from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.metadata.image import Image
from raftlog.ops.declared import (
    Change,
    ConfigOf,
    Key,
    Topic,
    change_in_words,
    declared,
    differences,
    named_error,
    plan_id,
    plan_of,
    read_file,
    request_of,
    write_file,
)
from raftlog.wire.controller.v1 import controller_pb2 as rpc

VALUES = [
    b"blue",
    b"no",
    b"010",
    b"a: b # c",
    b"",
    b"\xff\x00",
    "é\n\ttail ".encode(),
    b"~",
    b"'\"",
]
HOSTS = ["*", "10.0.0.1"]


def random_state(seed: int, cell: Cell | None = None) -> Cell:
    """Return a controller with a random declared state."""
    rng, made = random.Random(seed), cell or Cell()
    for name in rng.sample(["a", "b", "no", "0x1", "1.5", "f"], rng.randrange(6)):
        made.create(name, num_partitions=rng.randrange(1, 4), replication_factor=1)
        for key in rng.sample(["retention.ms", "max.message.bytes"], rng.randrange(3)):
            made.configure(name, key, str(rng.randrange(1_000, 9_000)), kind=2)
    if rng.random() < 0.5:
        made.configure("", "min.insync.replicas", str(rng.randrange(1, 3)), kind=4)
    if rng.random() < 0.5:
        made.configure("on", "consumer.session.timeout.ms", "45000", kind=32)
    for host in rng.sample(HOSTS, rng.randrange(3)):
        made.send(rpc.CreateAclsRequest(creations=[entry(host, rng.choice([3, 4]))]))
    for key in rng.sample(["x", "y/z", "1e3"], rng.randrange(4)):
        alteration = rpc.KeyValueAlteration(key=key, value=rng.choice(VALUES))
        made.send(rpc.AlterKeyValuesRequest(alterations=[alteration]))
    return made


def entry(host: str, operation: int) -> rpc.AccessControlEntry:
    return rpc.AccessControlEntry(
        resource_type=2, resource_name="a", pattern_type=4, principal="User:alice", host=host,
        operation=operation, permission_type=2,
    )  # fmt: skip


def image_of(cell: Cell) -> Image:
    return cell.log.committed


@pytest.mark.parametrize("seed", range(60))
def test_applying_the_file_of_differences_leaves_none(seed: int) -> None:
    before, after = random_state(seed), random_state(seed + 1_000)
    wanted = declared(image_of(after))
    changes = differences(declared(image_of(before)), wanted)
    text, left_out = write_file(changes, with_values=True)
    assert not left_out
    plan = plan_of(image_of(before), read_file(text, "f.yaml"))
    if plan.changes:
        decision = before.propose(before.decide(request_of(plan, 0, validate_only=False)))
        assert decision.error is None, decision.error
    left = differences(declared(image_of(before)), wanted)
    fewer = sum("cannot be removed" in one for one in plan.problems)
    assert len(plan.problems) == fewer
    for one in left:
        assert isinstance(one.before, Topic)
        assert isinstance(one.after, Topic)
        shrunk = one.before.partitions > one.after.partitions
        assert shrunk or one.before.id != one.after.id, "another topic, as it was made anew"
        fewer -= shrunk
    assert not fewer
    assert not plan_of(image_of(before), read_file(text, "f.yaml")).changes


def test_file_of_the_whole_state_changes_nothing_and_what_a_file_does_not_name_is_kept() -> None:
    cell = random_state(7)
    text, _ = write_file(differences({}, declared(image_of(cell))), with_values=True)
    plan = plan_of(image_of(cell), read_file(text, "f.yaml"))
    assert (plan.changes, plan.problems) == ([], [])
    for text in ("{}", "topics: {}", "acls: []", "keys:\n", "topics:\n  new: {}\n"):
        plan = plan_of(image_of(cell), read_file(text, "f.yaml"))
        assert all(one.action == "create" for one in plan.changes)


def test_fewer_partitions_are_a_problem_that_other_changes_do_not_hide() -> None:
    cell = Cell(brokers=1)
    cell.create("t", num_partitions=3, replication_factor=1)
    wanted = read_file("topics: {t: {partitions: 2, configs: {retention.ms: 5}}}", "f")
    plan = plan_of(image_of(cell), wanted)
    assert [getattr(one.name, "name", "") for one in plan.changes] == ["retention.ms"]
    assert plan.problems == [
        "topic t has 3 partitions, and partitions cannot be removed: 2 partitions need a new topic"
    ]


def test_config_values_are_read_as_text() -> None:
    text = """
topics:
  no: {configs: {a: no, b: 010, c: 1_000, d: 2001-01-01, e: 1e3, f: 0x1F, g: "", h: null, i: 12:30}}
"""
    wanted = read_file(text, "f.yaml")
    assert {of.name: value for (_, of), value in wanted.items() if isinstance(of, ConfigOf)} == {
        "a": "no", "b": "010", "c": "1_000", "d": "2001-01-01", "e": "1e3", "f": "0x1F", "g": "",
        "h": "null", "i": "12:30",
    }  # fmt: skip
    assert wanted["topic", "no"] == Topic(-1, -1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("topics: {a: {}, a: {}}", "duplicate key 'a' at line 1"),
        ("topics:\n  a: {}\n  b: {}\n  a: {}", "duplicate key 'a' at line 4"),
        ("", " is empty"),
        ("topics:\n  a:\n    configs: {k: 1}\n    configs: {k: 2}", "duplicate key 'configs'"),
        ("topics: {a: {configs: {k: 1}, reset: [k]}}", "topic:a:k is defined twice"),
        ("topics: {a: {partitons: 3}}", "topics.a: Object contains unknown field `partitons`"),
        ("topics: {a: {partitions: many}}", "topics.a: Expected `int`"),
        ("topics: {a: {absent: true, partitions: 3}}", "topic a has absent: true"),
        ("topics: [a]", "Expected `object`"),
        ("- a", "Expected `object`"),
        ("configs: {topic: {a: {}}}", "configs.topic: must be broker, client-metrics or group"),
        ("acls: [{principal: User:a}]", r"acls\[0\]: Object missing required field `operation`"),
        (
            "acls: [{principal: User:a, operation: any, resource: topic}]",
            "must be one of all, read",
        ),
        ("keys: {a: {}}", "give exactly one of value, base64 and absent"),
        ("keys: {a: {value: x, absent: true}}", "give exactly one of value, base64 and absent"),
        ("keys: {a: {base64: '*'}}", "base64: "),
        ("a: [", "is not valid YAML at line 1: expected the node content"),
        ("? {a: b}\n: c", "is not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "is a YAML tag"),
        # ["plan: (3 bytes) → (0 bytes)"; "(4 bytes)" for "hi"]
        ("keys:\n  a:\n    value: !hi\n", "!hi at line 3 is a YAML tag: quote"),
        ("keys: {a: {value: !!binary aGk=}}", "2002:binary at line 1 is a YAML tag"),
        ("[" * 100_000, "nested too deeply|is not valid YAML"),
    ],
)
def test_mistake_in_a_file_is_reported_with_its_place(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_file(text, "f.yaml")


def test_key_values_are_shown_on_demand_only() -> None:
    change = Change("key", "k", Key(b"hunter2", 5), Key(b"hunter3", -1))
    assert "hunter" not in change_in_words(change, with_values=False)
    assert "different value" in change_in_words(change, with_values=False)
    assert change_in_words(change, with_values=True) == "hunter2 → hunter3"
    assert write_file([change], with_values=False) == ("", 1)
    assert "hunter3" in write_file([change], with_values=True)[0]
    assert "hunter2" not in write_file([change], with_values=True)[0]


def test_plan_name_changes_with_any_difference() -> None:
    def name(text: str, cell: Cell, cluster: str = "c", generation: int = 1) -> str:
        return plan_id(plan_of(image_of(cell), read_file(text, "f")), cluster, generation)

    def key_put(value: bytes) -> Cell:
        made = Cell()
        alteration = rpc.KeyValueAlteration(key="k", value=value)
        made.send(rpc.AlterKeyValuesRequest(alterations=[alteration]))
        return made

    text = "keys: {k: {value: b}}\ntopics: {t: {}}"
    there = key_put(b"a")
    names = [
        name(text, there),
        name(text, there, cluster="d"),
        name(text, there, generation=2),
        name("keys: {k: {value: c}}\ntopics: {t: {}}", there),
        name("keys: {k: {value: b}}\ntopics: {u: {}}", there),
        name("keys: {k: {value: b}}\ntopics: {t: {partitions: 2}}", there),
        name(text, Cell()),
        name(text, key_put(b"z")),
    ]
    assert len(set(names)) == len(names)
    assert name(text, there) == names[0]
    there.send(rpc.AlterKeyValuesRequest(alterations=[rpc.KeyValueAlteration(key="k", value=b"a")]))
    assert name(text, there) != names[0], "put anew with the same value: it has moved"


def test_key_bound_to_a_lease_is_not_declared() -> None:
    cell = Cell()
    lease = cell.send(rpc.GrantLeaseRequest(name="l", ttl_ms=5_000)).lease_id
    held = rpc.KeyValueAlteration(key="lock", value=b"me", lease_id=lease)
    cell.send(rpc.AlterKeyValuesRequest(alterations=[held]))
    assert declared(image_of(cell)) == {}
    plan = plan_of(image_of(cell), read_file("keys: {lock: {value: mine}}", "f"))
    assert plan.changes == []
    assert plan.problems == [
        f"key lock belongs to lease {lease}, so only the lease's holder may change it"
    ]


def test_replication_factor_is_that_after_a_reassignment() -> None:
    cell = Cell()
    topic_id = cell.create_on([1, 2])
    cell.reassign({0: [3]})
    assert len(cell.partition(topic_id).replicas) == 3
    found = declared(image_of(cell))["topic", "t"]
    assert isinstance(found, Topic)
    assert found.replication_factor == 1


def test_config_plan_does_not_apply_to_another_topic_of_the_same_name() -> None:
    """[The topic is deleted and recreated between plan and apply.]"""
    cell = Cell(brokers=1)
    cell.create("t", replication_factor=1)
    wanted = read_file("topics: {t: {configs: {retention.ms: 5}}}", "f")
    plan = plan_of(image_of(cell), wanted)
    request = request_of(plan, 0, validate_only=True)
    assert [one.name for one in request.expected_topics] == ["t"]
    assert cell.send(request).record_count
    cell.send(rpc.DeleteTopicsRequest(names=["t"]))
    cell.create("t", replication_factor=1)
    error = cell.decide(request).error
    assert error is not None
    assert (error.code, error.field) == (ErrorCode.INVALID_UPDATE_VERSION, "expected_topics[0]")
    again = plan_of(image_of(cell), wanted)
    assert plan_id(again, "c", 1) != plan_id(plan, "c", 1)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("expected_topics[0]", "t: moved"),
        ("expected_topics[7]", "moved"),
        ("expected_topics[99999999999]", "moved"),
        ("generation[0]", "moved"),
        ("SerializeToString[0]", "moved"),
        ("no such field", "moved"),
        ("", "moved"),
    ],
)
def test_field_of_a_server_error_is_not_trusted(field: str, said: str) -> None:
    request = rpc.ApplyPlanRequest(expected_topics=[rpc.ExpectedTopic(name="t")])
    error = ApiError(ErrorCode.INVALID_UPDATE_VERSION, "moved", field=field)
    assert named_error(error, request).message == said
