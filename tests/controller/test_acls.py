from typing import Any

import pytest
from deciding import Cell
from request_fields import ACL

from controller.decisions import acls
from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.wire.controller.v1 import controller_pb2 as rpc

ANY: dict[str, Any] = {"resource_type": 1, "pattern_type": 1, "operation": 1, "permission_type": 1}


def create(*entries: dict[str, Any], **fields: Any) -> rpc.CreateAclsRequest:
    made = [rpc.AccessControlEntry(**{**ACL, **one}) for one in entries]
    return rpc.CreateAclsRequest(creations=made, **fields)


def delete(*filters: dict[str, Any], **fields: Any) -> rpc.DeleteAclsRequest:
    made = [rpc.AccessControlEntryFilter(**{**ANY, **one}) for one in filters]
    return rpc.DeleteAclsRequest(filters=made, **fields)


def names(stage: Cell, **fields: Any) -> list[str]:
    wanted = rpc.AccessControlEntryFilter(**{**ANY, **fields})
    found = stage.send(rpc.DescribeAclsRequest(filter=wanted)).entries
    return [f"{one.resource_name}:{one.pattern_type}" for one in found]


def test_acl_entry_is_added_once_listed_and_removed() -> None:
    stage = Cell()
    decision = stage.propose(stage.decide(create({}, {}, {"principal": "User:bob"})))
    assert decision.types == ["ACCESS_CONTROL_ENTRY"] * 2
    assert [one.existed for one in decision.body.results] == [False, True, False]
    assert len({one.message.id for one in decision.records}) == 2
    again = stage.decide(create({}))
    assert not again.records
    assert [one.existed for one in again.body.results] == [True]
    (found,) = stage.send(
        rpc.DescribeAclsRequest(filter=rpc.AccessControlEntryFilter(**ANY, principal="User:alice"))
    ).entries
    assert found == rpc.AccessControlEntry(**ACL)
    gone = stage.propose(stage.decide(delete({"principal": "User:alice"}, {})))
    assert gone.types == ["REMOVE_ACCESS_CONTROL_ENTRY"] * 2
    # Each is in the result of the first filter that chooses it.
    assert [len(one.matching_acls) for one in gone.body.results] == [1, 1]
    assert names(stage) == []
    assert not stage.decide(delete({})).records


def test_validate_only_writes_nothing() -> None:
    stage = Cell()
    assert not stage.decide(create({}, validate_only=True)).records
    stage.send(create({}))
    decision = stage.decide(delete({}, validate_only=True))
    assert not decision.records
    assert len(decision.body.results[0].matching_acls) == 1


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"resource_type": 1}, "resource_type"),
    ({"resource_type": 99}, "resource_type"),
    ({"pattern_type": 2}, "pattern_type"),
    ({"pattern_type": 7}, "pattern_type"),
    ({"resource_name": ""}, "resource_name"),
    ({"resource_name": "*", "pattern_type": 4}, "pattern_type"),
    ({"resource_type": 4, "resource_name": "orders", "operation": 7}, "resource_name"),
    ({"resource_type": 4, "resource_name": "kafka-cluster", "pattern_type": 4, "operation": 7},
     "resource_name"),
    ({"principal": "alice"}, "principal"),
    ({"principal": "User:"}, "principal"),
    ({"host": "example.org"}, "host"),
    ({"host": "010.0.0.1"}, "host"),
    ({"host": "::0001"}, "host"),
    ({"host": ""}, "host"),
    ({"host": "::ffff:a00:1"}, "host"),
    ({"operation": 1}, "operation"),
    ({"operation": 9}, "operation"),
    ({"operation": 99}, "operation"),
    ({"permission_type": 1}, "permission_type"),
    ({"permission_type": 0}, "permission_type"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "field"), WRONG)
def test_invalid_acl_entry_is_refused_alone(fields: dict[str, Any], field: str) -> None:
    stage = Cell()
    decision = stage.decide(create({"principal": "User:bob"}, fields))
    assert len(decision.records) == 1
    good, bad = decision.body.results
    assert good.error.error_code == ErrorCode.NONE
    assert (bad.error.error_code, bad.error.field) == (
        ErrorCode.INVALID_REQUEST, f"creations[1].{field}",
    )  # fmt: skip


def test_valid_acl_entries_are_accepted() -> None:
    valid = (
        {"host": "10.0.0.1"},
        {"host": "::1"},
        {"principal": "User:*"},
        {"resource_name": "*"},
        {"pattern_type": 4},
        {"operation": 2},
        {"resource_type": 4, "resource_name": "kafka-cluster", "operation": 7},
        {"resource_type": 100, "operation": 5},
    )
    results = Cell().decide(create(*valid)).body.results
    assert [one.error.error_code for one in results] == [ErrorCode.NONE] * len(valid)


@pytest.mark.parametrize("field", ["resource_type", "pattern_type", "operation", "permission_type"])
def test_acl_filter_with_an_unknown_number_is_refused_alone(field: str) -> None:
    stage = Cell()
    stage.send(create({}))
    decision = stage.decide(delete({field: 77}, {}))
    assert len(decision.records) == 1
    assert decision.body.results[0].error.field == f"filters[0].{field}"
    refused = stage.decide(
        rpc.DescribeAclsRequest(filter=rpc.AccessControlEntryFilter(**{**ANY, field: 77}))
    )
    assert refused.error is not None
    assert refused.error.field == f"filter.{field}"


def test_acl_filters_match_by_pattern() -> None:
    stage = Cell()
    stage.send(create({}, {"pattern_type": 4, "resource_name": "ord"}, {"resource_name": "*"},
        {"resource_name": "ord"}, {"resource_type": 3, "operation": 10}))  # fmt: skip
    topic = {"resource_type": AclResourceType.TOPIC}
    assert names(stage, **topic) == ["*:3", "ord:3", "ord:4", "orders:3"]
    named = {**topic, "resource_name": "orders"}
    assert names(stage, **named, pattern_type=PatternType.LITERAL) == ["orders:3"]
    assert names(stage, **named, pattern_type=PatternType.PREFIXED) == []
    assert names(stage, **named, pattern_type=PatternType.ANY) == ["orders:3"]
    assert names(stage, **named, pattern_type=PatternType.MATCH) == ["*:3", "ord:4", "orders:3"]
    assert names(stage, operation=AclOperation.DESCRIBE_CONFIGS) == ["orders:3"]
    assert names(stage, permission_type=AclPermission.DENY) == []
    assert names(stage, host="10.0.0.1") == []


def test_number_of_acl_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MAX_ENTRIES", 2)
    stage = Cell()
    decision = stage.propose(stage.decide(create(*({"principal": f"User:{n}"} for n in range(3)))))
    assert len(decision.records) == 2
    assert decision.body.results[2].error.error_code == ErrorCode.POLICY_VIOLATION
    assert (
        stage.decide(create({"principal": "User:9"})).body.results[0].error.field == "creations[0]"
    )


def test_entries_per_principal_and_prefix_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MAX_OF_ONE_PRINCIPAL", 2)
    stage = Cell()
    hosts = [{"host": f"10.0.0.{n}"} for n in range(3)]
    results = stage.send(create(*hosts, {"resource_name": "else"})).results
    assert [one.error.error_code for one in results] == [0, 0, ErrorCode.POLICY_VIOLATION, 0]
    monkeypatch.setattr(acls, "MAX_PREFIX_CHARS", 5)
    prefixes = [{"pattern_type": 4, "resource_name": name} for name in ("abc", "abd", "xy")]
    results = stage.send(create(*prefixes)).results
    assert [one.error.error_code for one in results] == [0, ErrorCode.POLICY_VIOLATION, 0]


def test_cluster_starts_with_its_administrators() -> None:
    stage = Cell(settings=ControllerSettings(bootstrap_super_users=("User:root",)))
    found = stage.send(rpc.DescribeAclsRequest(filter=rpc.AccessControlEntryFilter(**ANY))).entries
    assert {one.resource_type for one in found} == set(AclResourceType) - {AclResourceType.ANY}
    assert {(one.principal, one.operation, one.permission_type) for one in found} == {
        ("User:root", AclOperation.ALL, AclPermission.ALLOW)
    }
