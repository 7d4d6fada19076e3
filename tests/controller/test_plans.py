"""ApplyPlan: all changes or none."""

from typing import Any

import pytest
from deciding import Cell, Decided
from request_fields import ACL

from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as rpc


def stage(**settings: Any) -> tuple[Cell, bytes]:
    """Return a controller with a topic, a config, an entry and a key; and the topic id."""
    made = Cell(settings=ControllerSettings(**settings))
    topic = rpc.CreatableTopic(name="orders", num_partitions=2, replication_factor=2)
    created = made.send(rpc.CreateTopicsRequest(topics=[topic]))
    config = rpc.AlterableConfig(name="retention.ms", value="1000")
    made.send(rpc.IncrementalAlterConfigsRequest(resources=[resource(config)]))
    made.send(rpc.CreateAclsRequest(creations=[rpc.AccessControlEntry(**ACL)]))
    made.send(rpc.AlterKeyValuesRequest(alterations=[put("app/mode", b"blue", -1)]))
    return made, created.topics[0].topic_id


def resource(*configs: rpc.AlterableConfig, name: str = "orders") -> rpc.AlterConfigsResource:
    return rpc.AlterConfigsResource(resource_type=2, resource_name=name, configs=configs)


def put(key: str, value: bytes, expected: int | None) -> rpc.KeyValueAlteration:
    return rpc.KeyValueAlteration(key=key, value=value, expected_offset=expected)


def plan(cell: Cell, topic_id: bytes, **fields: Any) -> rpc.ApplyPlanRequest:
    """Return a plan with a change of each kind that fits the state of ``stage``."""
    content: dict[str, Any] = {
        "expected_topics": [
            rpc.ExpectedTopic(name="orders", topic_id=topic_id, num_partitions=2),
            rpc.ExpectedTopic(name="new"),
        ],
        "create_topics": [
            rpc.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
        ],
        "create_partitions": [rpc.CreatePartitionsTopic(name="orders", count=3)],
        "configs": [
            resource(
                rpc.AlterableConfig(
                    name="retention.ms", value="2000", expected="1000",
                    config_operation=rpc.COMPARE_AND_SET,
                )
            )
        ],
        "create_acls": [rpc.AccessControlEntry(**ACL | {"principal": "User:bob"})],
        "delete_acls": [rpc.AccessControlEntry(**ACL)],
        "keys": [put("app/mode", b"green", cell.pending.key_values["app/mode"].offset)],
    }  # fmt: skip
    return rpc.ApplyPlanRequest(**(content | fields))


def refused(decision: Decided) -> tuple[ErrorCode, str]:
    assert decision.error is not None, decision
    assert not decision.records
    return decision.error.code, decision.error.field


def test_plan_changes_all_kinds_in_one_batch() -> None:
    cell, topic_id = stage()
    validated = cell.decide(plan(cell, topic_id, validate_only=True))
    assert not validated.records
    before = cell.log.end_offset
    assert validated.body.offset == before - 1
    decision = cell.propose(cell.decide(plan(cell, topic_id)))
    assert set(decision.types) == {
        "TOPIC", "PARTITION", "CONFIG",
        "ACCESS_CONTROL_ENTRY", "REMOVE_ACCESS_CONTROL_ENTRY",
        "KEY_VALUE",
    }  # fmt: skip
    assert decision.body.record_count == validated.body.record_count == len(decision.records)
    view = cell.pending
    assert view.topics[topic_id].partition_count == 3
    assert "new" in view.topic_ids
    assert view.configs[2, "orders"] == {"retention.ms": "2000"}
    assert view.key_values["app/mode"].value == b"green"
    assert view.key_values["app/mode"].offset == before + len(decision.records) - 1
    assert [one.principal for one in view.snapshot().acls.values()] == ["User:bob"]


def created(name: str) -> rpc.CreateTopicsRequest:
    topic = rpc.CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    return rpc.CreateTopicsRequest(topics=[topic])


DELETED = rpc.DeleteTopicsRequest(names=["orders"])
GROWN = rpc.CreatePartitionsTopic(name="orders", count=4)
CONFIGURED = resource(rpc.AlterableConfig(name="retention.ms", value="1500"))
RESET = rpc.IncrementalAlterConfigsRequest(resources=[CONFIGURED])
RED = put("app/mode", b"red", None)
BOBS = rpc.AccessControlEntry(**ACL | {"principal": "User:bob"})
ALICES = rpc.AccessControlEntryFilter(
    resource_type=1, pattern_type=1, operation=1, permission_type=1, principal="User:alice"
)


@pytest.mark.parametrize(
    ("field", "conflict"),
    [
        ("expected_topics[0]", [rpc.CreatePartitionsRequest(topics=[GROWN])]),
        ("expected_topics[1]", [created("new")]),
        ("expected_topics[0]", [DELETED]),
        ("expected_topics[0]", [DELETED, created("orders")]),
        ("configs[0].configs[0].expected", [RESET]),
        ("create_acls[0]", [rpc.CreateAclsRequest(creations=[BOBS])]),
        ("delete_acls[0]", [rpc.DeleteAclsRequest(filters=[ALICES])]),
        ("keys[0].expected_offset", [rpc.AlterKeyValuesRequest(alterations=[RED])]),
    ],
)
def test_plan_changes_nothing_after_a_conflict(field: str, conflict: list[Any]) -> None:
    cell, topic_id = stage()
    planned = plan(cell, topic_id)
    for request in conflict:
        cell.send(request)
    assert refused(cell.decide(planned)) == (ErrorCode.INVALID_UPDATE_VERSION, field)


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"generation": 3}, "generation", ErrorCode.INCONSISTENT_GENERATION),
        ({"expected_topics": []}, "create_topics[0]", ErrorCode.INVALID_REQUEST),
        ({"delete_topics": ["orders"]}, "create_partitions[0]", ErrorCode.INVALID_REQUEST),
        ({"delete_topics": ["orders"], "create_partitions": []}, "configs[0]",
         ErrorCode.INVALID_REQUEST),
        ({"configs": [resource(rpc.AlterableConfig(name="retention.ms", value="1"))]},
         "configs[0].configs[0].config_operation", ErrorCode.INVALID_REQUEST),
        ({"configs": [resource(name="other")]}, "configs[0]", ErrorCode.INVALID_REQUEST),
        ({"configs": [resource(name="new")]}, "configs[0]", ErrorCode.INVALID_REQUEST),
        ({"expected_topics": [], "create_topics": [], "create_partitions": []}, "configs[0]",
         ErrorCode.INVALID_REQUEST),
        ({"keys": [put("app/mode", b"", None)]}, "keys[0].expected_offset",
         ErrorCode.INVALID_REQUEST),
        ({"create_topics": [
            rpc.CreatableTopic(name="new", num_partitions=1, replication_factor=9)]},
         "create_topics[0].replication_factor", ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"create_acls": [rpc.AccessControlEntry(**ACL | {"principal": "bob"})]},
         "create_acls[0].principal", ErrorCode.INVALID_REQUEST),
    ],
)  # fmt: skip
def test_impossible_plan_is_refused(fields: dict[str, Any], field: str, code: ErrorCode) -> None:
    cell, topic_id = stage()
    assert refused(cell.decide(plan(cell, topic_id, **fields))) == (code, field)


def test_plan_has_changes_and_is_bounded_to_one_request() -> None:
    cell, topic_id = stage(max_records_per_request=8)
    many = [rpc.CreatableTopic(name="new", num_partitions=7, replication_factor=1)]
    decision = cell.decide(plan(cell, topic_id, create_topics=many))
    assert refused(decision)[0] == ErrorCode.POLICY_VIOLATION
    assert refused(cell.decide(rpc.ApplyPlanRequest()))[0] == ErrorCode.INVALID_REQUEST
    assert not cell.decide(plan(cell, topic_id)).error
