"""Authorization of every request to the active controller."""

from typing import Any

import pytest
from deciding import Cell, Decided
from request_fields import valid

from controller.decision import Reply, Write
from controller.settings import ControllerSettings
from raftlog.config_writes.writes import ConfigWrites
from raftlog.errors import ErrorCode
from raftlog.metadata.acls import (
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from raftlog.metadata.records import record
from raftlog.node.security.authorizer import Authorizer
from raftlog.node.security.permissions import (
    CONTROLLER,
    All,
    Each,
    Listed,
    OfAnybody,
    OfNode,
    Whole,
)
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

Op, Kind = AclOperation, AclResourceType
SETTINGS = ControllerSettings(
    authorizer_class_name="StandardAuthorizer",
    node_principal_rule="CN=node-{id}",
    super_users="User:root",
)
RIGHTS = [kind for kind, row in CONTROLLER.items() if isinstance(row, Whole | Each | All)]
ITEMS = [kind for kind, row in CONTROLLER.items() if isinstance(row, Each)]
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}  # fmt: skip


class Stage(Cell):
    """A controller with an authorizer; the administrator's requests are those of ``deciding``."""

    def __init__(self) -> None:
        super().__init__(settings=SETTINGS)
        self.topic_id = self.as_("User:root", rpc.CreateTopicsRequest(
            topics=[rpc.CreatableTopic(name="t", num_partitions=1, replication_factor=3)]
        )).body.topics[0].topic_id  # fmt: skip

    def decide(self, message: Any) -> Decided:
        return self.as_("User:root", message, propose=False)

    def as_(self, principal: str, message: Any, *, propose: bool = True, **client: Any) -> Decided:
        from deciding import envelope

        request = envelope(message)
        request.client.principal, request.client.host = principal, "10.0.0.1"
        for name, value in client.items():
            setattr(request.client, name, value)
        decided = self.decide_request(request)
        return self.propose(decided) if propose else decided

    def allow(
        self, operation: int, type_: int, name: str, permission: int = AclPermission.ALLOW,
        pattern: int = PatternType.LITERAL, principal: str = "User:alice",
    ) -> None:  # fmt: skip
        entry = pb.AccessControlEntryRecord(
            id=bytes([len(self.pending.acls)]) * 16, resource_type=type_, resource_name=name,
            pattern_type=pattern, principal=principal, host="*", operation=operation,
            permission_type=permission,
        )  # fmt: skip
        self.fold([record(entry)])
        self.commit()

    def body(self, kind: str) -> Any:
        return valid(self, self.topic_id)[kind]


def refused(decided: Decided) -> bool:
    """Return whether everything was refused for lack of permission."""
    if decided.error is not None:
        return decided.error.code in REFUSALS
    fields = [] if decided.body is None else decided.body.ListFields()
    results = [
        one
        for field, value in fields
        if field.is_repeated and field.message_type is not None
        for one in value
        if "error" in one.DESCRIPTOR.fields_by_name
    ]
    codes = {one.error.error_code for one in results}
    assert not codes & REFUSALS or codes <= REFUSALS
    return bool(codes & REFUSALS) and not decided.records


def needed(kind: str, body: Any) -> tuple[AclOperation, AclResourceType, str]:
    row = CONTROLLER[kind]
    if isinstance(row, Whole):
        resource = row.resource(body)
    else:
        assert isinstance(row, Each | All)
        wanted = row.resource(getattr(body, row.items)[0])
        assert wanted is not None
        resource = wanted
    return row.operation, resource.type, resource.name


def test_every_request_kind_has_a_row() -> None:
    kinds = {field.name for field in rpc.ControllerRequest.DESCRIPTOR.oneofs_by_name["body"].fields}
    assert set(CONTROLLER) == kinds
    others = {kind: row for kind, row in CONTROLLER.items() if kind not in RIGHTS}
    assert {kind for kind, row in others.items() if isinstance(row, OfNode)} == {
        "register_broker", "broker_heartbeat", "alter_partition", "update_raft_voter",
    }  # fmt: skip
    assert {kind for kind, row in others.items() if isinstance(row, OfAnybody)} == {
        "close_client", "keep_lease_alive", "revoke_lease",
    }  # fmt: skip
    assert {kind for kind, row in others.items() if isinstance(row, Listed)} == {
        "list_hostnames", "list_export_cursors",
    }  # fmt: skip


@pytest.mark.parametrize("kind", RIGHTS)
def test_request_without_an_entry_is_refused_and_changes_nothing(kind: str) -> None:
    stage = Stage()
    for principal in ("User:alice", "User:ANONYMOUS", "", "User:Root", "root"):
        decided = stage.as_(principal, stage.body(kind), propose=False)
        assert refused(decided), (principal, decided)
        assert not decided.records
        assert not decided.effects


@pytest.mark.parametrize("kind", RIGHTS)
def test_allow_entry_permits_its_principal(kind: str) -> None:
    stage = Stage()
    operation, type_, name = needed(kind, stage.body(kind))
    stage.allow(operation, type_, name)
    assert not refused(stage.as_("User:alice", stage.body(kind), propose=False))
    assert refused(stage.as_("User:bob", stage.body(kind), propose=False))


@pytest.mark.parametrize("kind", RIGHTS)
def test_deny_entry_overrides_the_allow_entry(kind: str) -> None:
    stage = Stage()
    operation, type_, name = needed(kind, stage.body(kind))
    stage.allow(operation, type_, name)
    stage.allow(operation, type_, name, AclPermission.DENY)
    assert refused(stage.as_("User:alice", stage.body(kind), propose=False))
    assert not refused(stage.as_("User:root", stage.body(kind), propose=False))


@pytest.mark.parametrize("kind", RIGHTS)
@pytest.mark.parametrize("operation", [one for one in Op if one > Op.ALL])
def test_entry_for_another_operation_does_not_permit(kind: str, operation: AclOperation) -> None:
    stage = Stage()
    wanted, type_, name = needed(kind, stage.body(kind))
    stage.allow(operation, type_, name)
    implied = wanted is Op.DESCRIBE and operation in {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER}
    expected = operation is not wanted and not implied
    assert refused(stage.as_("User:alice", stage.body(kind), propose=False)) == expected


@pytest.mark.parametrize(
    "kind", [kind for kind in RIGHTS if kind not in ("create_acls", "delete_acls")]
)
def test_entry_for_another_resource_does_not_permit(kind: str) -> None:
    stage = Stage()
    operation, type_, name = needed(kind, stage.body(kind))
    for other in Kind:
        if other not in (Kind.ANY, type_) and not (
            kind == "create_topics" and other is Kind.CLUSTER
        ):
            stage.allow(operation, other, CLUSTER_NAME if other is Kind.CLUSTER else "*")
    stage.allow(operation, type_, name + "x")
    stage.allow(operation, type_, name + "x", pattern=PatternType.PREFIXED)
    assert refused(stage.as_("User:alice", stage.body(kind), propose=False))


@pytest.mark.parametrize("kind", ITEMS)
def test_each_item_is_authorized_separately(kind: str) -> None:
    stage, row = Stage(), CONTROLLER[kind]
    assert isinstance(row, Each)
    body = stage.body(kind)
    operation, type_, name = needed(kind, body)
    items = getattr(body, row.items)
    if isinstance(items[0], str):
        items.append("forbidden")
    else:
        other = items.add()
        other.CopyFrom(items[0])
        field = next(
            f for f in ("resource_name", "hostname", "name") if f in other.DESCRIPTOR.fields_by_name
        )
        setattr(other, field, "forbidden")
        if kind == "incremental_alter_configs":
            other.resource_type = 32
    stage.allow(operation, type_, name)
    decided = stage.as_("User:alice", body)
    assert decided.records
    assert decided.error is None
    results = next(value for field, value in decided.body.ListFields() if field.is_repeated)
    assert results[0].error.error_code not in REFUSALS
    assert results[1].error.error_code in REFUSALS
    assert results[1].error.field == f"{row.items}[1]"
    assert "forbidden" not in str(decided.records)


def test_alteration_with_an_unauthorized_key_is_refused_as_a_whole() -> None:
    stage = Stage()
    stage.allow(Op.ALTER, Kind.KEY_VALUE, "mine/", pattern=PatternType.PREFIXED)
    put = rpc.AlterKeyValuesRequest(alterations=[rpc.KeyValueAlteration(key="mine/a")])
    assert stage.as_("User:alice", put).records
    put.alterations.add(key="theirs", operation=rpc.KEY_VALUE_COMPARE)
    error = stage.as_("User:alice", put).error
    assert error is not None
    assert (error.code, error.field) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "alterations[1]")


@pytest.mark.parametrize("kind", [*ITEMS, "alter_key_values"])
def test_excess_items_are_not_authorized(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a verdict: two million of them would hold up the controller."""
    stage, row = Stage(), CONTROLLER[kind]
    assert isinstance(row, Each | All)
    body = stage.body(kind)
    items = getattr(body, row.items)
    items.extend([items[0]] * stage.settings.max_records_per_request)
    looked: list[object] = []
    monkeypatch.setattr(Authorizer, "allows", lambda *args: looked.append(args))
    error = stage.as_("User:alice", body, propose=False).error
    assert error is not None
    assert (error.code, looked) == (ErrorCode.POLICY_VIOLATION, [])


def test_create_on_the_cluster_permits_creating_every_topic() -> None:
    stage = Stage()
    stage.allow(Op.CREATE, Kind.CLUSTER, CLUSTER_NAME)
    assert not refused(stage.as_("User:alice", stage.body("create_topics"), propose=False))


def test_missing_topic_is_refused_like_an_existing_one() -> None:
    stage = Stage()
    errors = [
        stage.as_("User:alice", rpc.DeleteTopicsRequest(names=[name])).body.topics[0].error
        for name in ("t", "u")
    ]
    assert {one.error_code for one in errors} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert errors[0].error_message == errors[1].error_message.replace("'u'", "'t'")


def test_acl_change_takes_effect_at_the_next_decision_committed_or_not() -> None:
    stage = Stage()
    stage.allow(Op.DELETE, Kind.TOPIC, "t")
    stage.hold_commits = True
    wanted = rpc.AccessControlEntryFilter(
        resource_type=1, pattern_type=1, operation=1, permission_type=1
    )
    stage.as_("User:root", rpc.DeleteAclsRequest(filters=[wanted]))
    assert refused(stage.as_("User:alice", rpc.DeleteTopicsRequest(names=["t"])))


def test_listing_shows_only_what_may_be_described() -> None:
    stage = Stage()
    end = stage.pending.offset + 1
    stage.as_("User:root", rpc.AlterExportCursorsRequest(
        alterations=[rpc.ExportCursorAlteration(name=name, end_offset=end) for name in "ab"]
    ))  # fmt: skip
    stage.as_("User:root", rpc.AlterHostnamesRequest(
        alterations=[rpc.HostnameAlteration(hostname=name, broker_id=1) for name in ("h", "i")]
    ))  # fmt: skip

    def listed(principal: str) -> tuple[list[str], list[str], int]:
        cursors = stage.as_(principal, rpc.ListExportCursorsRequest()).body
        hosts = stage.as_(principal, rpc.ListHostnamesRequest()).body
        mapped = [one.hostname for one in hosts.hostnames if one.hostname in ("h", "i")]
        return [one.name for one in cursors.cursors], mapped, len(hosts.absent_ids)

    assert listed("User:alice") == ([], [], 0)
    stage.allow(Op.DESCRIBE, Kind.EXPORT_CURSOR, "b")
    stage.allow(Op.ALTER, Kind.HOSTNAME, "i")
    assert listed("User:alice") == (["b"], ["i"], 0)
    assert listed("User:root")[:2] == (["a", "b"], ["h", "i"])
    # Who is absent is about the cluster.
    stage.silence(3)
    assert listed("User:root")[2] == 1
    assert listed("User:alice")[2] == 0
    stage.allow(Op.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME)
    assert listed("User:alice")[2] == 1


def test_client_of_another_principal_is_refused() -> None:
    stage = Stage()
    for principal in ("User:alice", "User:bob"):
        stage.allow(Op.ALL, Kind.TOPIC, "*", principal=principal)
        stage.allow(Op.CREATE, Kind.CLIENT_SESSION, "mine", principal=principal)
    id_ = stage.as_("User:alice", rpc.OpenClientRequest(name="mine")).body.client_id
    write = rpc.CreateTopicsRequest(
        topics=[rpc.CreatableTopic(name="new", num_partitions=1, replication_factor=1)]
    )
    session = {"client_id": id_, "sequence": 1, "all_below_done": 1}
    for principal in ("User:bob", "User:root"):
        for message in (write, rpc.CloseClientRequest(client_id=id_)):
            assert stage.as_(principal, message, **session).code == ErrorCode.UNKNOWN_PRODUCER_ID
    close = rpc.CloseClientRequest(client_id=id_)
    assert stage.as_("User:bob", close).code == ErrorCode.UNKNOWN_PRODUCER_ID
    # Whoever may alter the cluster may clear up.
    assert stage.as_("User:root", close, propose=False).records
    assert stage.as_("User:alice", write, **session).records
    assert stage.as_("User:alice", close).records


def test_alter_on_the_cluster_permits_revoking_but_not_using_leases_of_others() -> None:
    """A lease of another principal can be revoked, but no key can be bound to it."""
    stage = Stage()
    stage.allow(Op.CREATE, Kind.CLIENT_SESSION, "mine")
    for operation, kind, name in (
        (Op.ALTER, Kind.CLUSTER, CLUSTER_NAME),
        (Op.ALTER, Kind.KEY_VALUE, "k"),
        (Op.CREATE, Kind.CLIENT_SESSION, "theirs"),
    ):
        stage.allow(operation, kind, name, principal="User:bob")
    granted = rpc.GrantLeaseRequest(name="mine", ttl_ms=5_000)
    lease_id = stage.as_("User:alice", granted).body.lease_id
    put = rpc.KeyValueAlteration(key="k", value=b"v", lease_id=lease_id)
    for message in (
        rpc.AlterKeyValuesRequest(alterations=[put]),
        rpc.KeepLeaseAliveRequest(lease_id=lease_id),
    ):
        assert stage.as_("User:bob", message).code == ErrorCode.RESOURCE_NOT_FOUND
    opened = stage.as_("User:bob", rpc.OpenClientRequest(name="theirs")).body.client_id
    assert stage.pending.clients[opened].principal == "User:bob"
    assert stage.as_("User:bob", rpc.RevokeLeaseRequest(lease_id=lease_id)).records


def test_node_acts_in_its_own_name_on_its_own_resources() -> None:
    stage = Stage()
    for kind in ("add_raft_voter", "remove_raft_voter"):
        body = stage.body(kind)
        own = stage.as_("User:CN=node", body, node_id=body.voter_id, propose=False)
        assert not refused(own)
        assert refused(stage.as_("User:CN=node", body, node_id=body.voter_id + 1, propose=False))
    for kind in RIGHTS:
        row = CONTROLLER[kind]
        assert isinstance(row, Whole | Each | All)
        if kind in ("add_raft_voter", "remove_raft_voter"):
            continue
        decided = stage.as_("User:CN=node", stage.body(kind), node_id=7, propose=False)
        assert refused(decided) == (row.operation is not Op.DESCRIBE), kind


def group_of(*names: str, principal: str = "User:alice") -> ConfigWrites:
    changes: Any = [(2, name, "retention.ms", "1000") for name in names]
    counts, numbers = [1] * len(names), list(range(1, len(names) + 1))
    acks, host = common_pb2.ACKS_COMMITTED, "10.0.0.1"
    return ConfigWrites(numbers, changes, counts, 0, acks, "", principal, host, 9)


def test_group_is_accepted_up_to_the_first_write_without_permission() -> None:
    stage = Stage()
    stage.allow(Op.ALTER_CONFIGS, Kind.TOPIC, "t")
    stage.as_("User:root", rpc.CreateTopicsRequest(
        topics=[rpc.CreatableTopic(name="u", num_partitions=1, replication_factor=3)]
    ))  # fmt: skip
    group = group_of("t", "t", "u", "t")
    first = stage.decider.decide(group, stage.now)
    assert isinstance(first, Write)
    assert first.group is not None
    assert first.group.correlation_ids == [1, 2]
    alone = stage.decider.decide(group, stage.now, first=2)
    assert isinstance(alone, Reply)
    (result,) = alone.body.results
    assert result.error.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rest = stage.decider.decide(group, stage.now, first=3)
    assert isinstance(rest, Write)
    assert rest.group is not None
    assert rest.group.correlation_ids == [4]


def test_group_is_authorized_by_the_newest_entries_for_its_own_principal() -> None:
    stage = Stage()

    def accepted(principal: str) -> bool:
        decision = stage.decider.decide(group_of("t", "t", principal=principal), stage.now)
        return isinstance(decision, Write) and decision.group is not None

    assert accepted("User:root")
    assert not accepted("User:alice")
    stage.allow(Op.ALTER_CONFIGS, Kind.TOPIC, "t")
    assert accepted("User:alice")
    assert not accepted("User:bob")
    stage.allow(Op.ALTER_CONFIGS, Kind.TOPIC, "t", AclPermission.DENY)
    assert not accepted("User:alice")


def test_lease_granted_with_keys_requires_both_permissions() -> None:
    stage = Stage()
    request = rpc.AlterKeyValuesRequest(
        alterations=[rpc.KeyValueAlteration(key="q/a", lease_id=-1)],
        lease=rpc.GrantLeaseRequest(name="lock q", ttl_ms=5_000),
    )
    stage.allow(Op.ALTER, Kind.KEY_VALUE, "q/", pattern=PatternType.PREFIXED)
    error = stage.as_("User:alice", request, propose=False).error
    assert error is not None
    assert error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "CLIENT_SESSION" in error.message
    stage.allow(Op.CREATE, Kind.CLIENT_SESSION, "lock q")
    decided = stage.as_("User:alice", request)
    # Nobody else may use it.
    lease = stage.pending.leases[decided.body.lease.lease_id]
    assert lease.principal == "User:alice"
    stage.allow(AclOperation.ALTER, Kind.KEY_VALUE, "q/b", AclPermission.DENY)
    request.alterations[0].key = "q/b"
    assert refused(stage.as_("User:alice", request, propose=False))
