"""The checker of permissions, which has its own authorizer."""

from types import SimpleNamespace
from typing import Any

import pytest
from checks_harness import Trace, registered

from raftlog.errors import ErrorCode
from raftlog.metadata.acls import (
    OPERATIONS_OF,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    Resource,
)
from raftlog.node.security.authorizer import Authorizer, Caller
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.acl_history import CREATE, DESCRIBE, TOPIC, AclHistory
from simulation.checks.api import CheckFailedError
from simulation.checks.rights import Rights
from simulation.checks.shown import Shown
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig
from simulation.swarm.identities import CALLERS, OPERATOR

ALICE, HERE, AWAY = "User:alice", "10.1.0.1", "10.1.0.2"
BOB = "User:bob"
ACKNOWLEDGED = 1


def entry(number: int, **fields: Any) -> pb.AccessControlEntryRecord:
    """Return ALLOW alice CREATE on the topic t, with changes."""
    said = {
        "resource_type": AclResourceType.TOPIC,
        "resource_name": "t",
        "pattern_type": PatternType.LITERAL,
        "principal": ALICE,
        "host": "*",
        "operation": AclOperation.CREATE,
        "permission_type": AclPermission.ALLOW,
        **fields,
    }
    return pb.AccessControlEntryRecord(id=number.to_bytes(16, "big"), **said)


def removed(number: int) -> pb.RemoveAccessControlEntryRecord:
    return pb.RemoveAccessControlEntryRecord(id=number.to_bytes(16, "big"))


def topic(name: str = "t") -> pb.TopicRecord:
    return pb.TopicRecord(name=name, topic_id=name.encode().rjust(16))


def begun(**config: Any) -> Trace:
    acls = AclHistory()
    trace = Trace(
        lambda ledger: Rights(ledger, acls),
        lambda ledger: Shown(ledger, acls),
        brokers=1,
        config=SwarmConfig(authorizer=True, **config),
    )
    trace.begin()
    trace.committed(1, pb.FeatureLevelRecord(name="metadata.version", feature_level=2))
    return trace


# --- what is written ---------------------------------------------------------------------------


def test_authorized_write_passes() -> None:
    trace = begun()
    trace.committed(1, entry(1), principal=OPERATOR)
    trace.committed(1, topic(), principal=ALICE)
    trace.committed(1, topic("of the controller"))
    assert trace.checkers[1].looked_at()["batches"] == 1


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [entry(1, principal=BOB)],
        [entry(1, resource_name="t2")],
        [entry(1, operation=AclOperation.DESCRIBE)],
        [entry(1), entry(2, permission_type=AclPermission.DENY, principal="User:*")],
        [entry(1), removed(1)],
        [entry(1, host="10.9.9.9")],
    ],
)
def test_unauthorized_write_is_detected(entries: list[Any]) -> None:
    trace = begun()
    for one in entries:
        trace.committed(1, one)
    with pytest.raises(CheckFailedError, match="I27: User:alice has written TOPIC"):
        trace.committed(1, topic(), principal=ALICE)


def test_configs_of_a_topic_are_created_and_deleted_with_it() -> None:
    trace = begun()
    trace.committed(1, entry(1))
    trace.committed(1, entry(2, operation=AclOperation.DELETE))
    config = pb.ConfigRecord(resource_type=2, resource_name="t", name="k", value="v")
    trace.committed(1, topic(), config, principal=ALICE)
    gone = pb.ConfigRecord(resource_type=2, resource_name="t", name="k")
    with pytest.raises(CheckFailedError, match="I27: User:alice has written CONFIG"):
        trace.committed(1, gone, principal=ALICE)
    trace = begun()
    trace.committed(1, entry(2, operation=AclOperation.DELETE))
    trace.committed(1, topic(), config)
    trace.committed(1, gone, pb.RemoveTopicRecord(topic_id=topic().topic_id), principal=ALICE)


def test_later_entries_grant_and_revoke_nothing() -> None:
    trace = begun()
    trace.committed(1, entry(1))
    trace.committed(1, topic(), principal=ALICE)
    trace.committed(1, removed(1))
    with pytest.raises(CheckFailedError, match="I27"):
        trace.committed(1, topic("t2"), entry(2, resource_name="t2"), principal=ALICE)


@pytest.mark.parametrize(
    ("granted", "client", "words"),
    [
        (entry(1, host=AWAY), "alice", f"from {HERE}"),
        (entry(1), "mallory", "mallory, who is User:mallory"),
    ],
    ids=["address", "principal"],
)
def test_another_address_or_principal_is_detected_when_the_call_is_known(
    granted: pb.AccessControlEntryRecord, client: str, words: str
) -> None:
    trace = begun()
    trace.committed(1, granted)
    call = trace.invoke("access", client=client)
    offset = trace.committed(1, topic(), principal=ALICE)
    with pytest.raises(CheckFailedError, match=words):
        trace.give(call, offset=offset, response=controller_pb2.ControllerResponse())


def test_value_under_another_principal_is_detected_despite_an_unknown_outcome() -> None:
    trace = begun()
    trace.invoke("access", "groups", value="17", client="mallory")
    group = pb.ConfigRecord(resource_type=32, resource_name="g", name="k", value="17")
    with pytest.raises(CheckFailedError, match="mallory, who is User:mallory"):
        trace.committed(1, group, principal=OPERATOR)


def test_batch_of_an_unknown_principal_is_refused() -> None:
    with pytest.raises(CheckFailedError, match="who is nobody"):
        begun().committed(1, topic(), principal="User:eve")


def test_client_record_written_by_a_node_is_detected() -> None:
    begun().committed(1, registered(1, 1), principal="User:node-1")
    with pytest.raises(CheckFailedError, match="User:node-1 has written TOPIC"):
        begun().committed(1, topic(), principal="User:node-1")


def test_client_of_another_principal_is_detected() -> None:
    def with_client() -> tuple[Trace, int]:
        trace = begun(allow_everyone=True)
        return trace, trace.committed(1, pb.OpenClientRecord(name="a"), principal=ALICE)

    trace, client = with_client()
    trace.committed(1, topic(), client=(client, 1), principal=ALICE)
    with pytest.raises(CheckFailedError, match="is of User:alice, and User:bob"):
        trace.committed(1, topic("t2"), client=(client, 2), principal=BOB)
    # Whoever may alter the cluster may close it: so everybody, while no entry is about that.
    trace, client = with_client()
    trace.committed(1, pb.CloseClientRecord(client_id=client), principal=BOB)
    trace, client = with_client()
    trace.committed(1, pb.AccessControlEntryRecord(
        id=b"c" * 16, resource_type=4, resource_name="kafka-cluster", pattern_type=3,
        principal="User:x", host="*", operation=8, permission_type=3,
    ))  # fmt: skip
    with pytest.raises(CheckFailedError, match="its end"):
        trace.committed(1, pb.CloseClientRecord(client_id=client), principal=BOB)
    trace, client = with_client()
    call = trace.invoke("access", client="bob", client_id=client)
    with pytest.raises(CheckFailedError, match="was answered"):
        trace.give(call, response=controller_pb2.ControllerResponse())


# --- what is shown -----------------------------------------------------------------------------


def shows(*names: str, refused: tuple[str, ...] = ()) -> broker_pb2.BrokerResponse:
    topics = [broker_pb2.MetadataTopic(name=name) for name in names]
    topics += [
        broker_pb2.MetadataTopic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for name in refused
    ]
    return broker_pb2.BrokerResponse(
        correlation_id=1, metadata=broker_pb2.MetadataResponse(topics=topics)
    )


def at(trace: Trace, offset: int) -> None:
    """The broker has applied up to this offset."""
    trace.host("b1").service.view.tip = SimpleNamespace(offset=offset)


def test_broker_shows_what_its_newest_image_allows_and_refuses_the_rest() -> None:
    trace = begun()
    allowed = trace.committed(1, entry(1, operation=AclOperation.READ))
    denied = trace.committed(1, removed(1))
    at(trace, allowed)
    trace.send("b1", "alice", shows("t", refused=("u",)))
    at(trace, denied)
    with pytest.raises(CheckFailedError, match="b1 shows User:alice"):
        trace.send("b1", "alice", shows("t"))
    at(trace, allowed)
    with pytest.raises(CheckFailedError, match="b1 refuses User:alice"):
        trace.send("b1", "alice", shows(refused=("t",)))
    trace.send("b1", "client0", shows("t", "u"))


def taken(reached: int) -> tuple[Trace, int, int]:
    """Grant and revoke a permission; return the offsets."""
    trace = begun()
    trace.committed(1, registered(1, 5, fenced=False))
    trace.host("b1").service.lifecycle.epoch = 5
    given = trace.committed(1, entry(1, operation=AclOperation.DESCRIBE))
    taking = trace.invoke("access", client="operator")
    offset = trace.committed(1, removed(1), principal=OPERATOR)
    trace.give(taking, offset=offset, reached=reached, response=controller_pb2.ControllerResponse())
    return trace, given, offset


def test_read_after_an_acknowledged_revocation_is_refused() -> None:
    trace, given, _ = taken(ACKNOWLEDGED)
    late = trace.invoke("access", "topics", client="alice")
    at(trace, given)
    answer = shows("t")
    trace.send("b1", "alice", answer)
    with pytest.raises(CheckFailedError, match=r"has not been allowed since .* was acknowledged"):
        trace.give(late, response=answer)


def test_read_after_a_committed_revocation_may_show_the_topic() -> None:
    trace, given, _ = taken(0)
    late = trace.invoke("access", "topics", client="alice")
    at(trace, given)
    answer = shows("t")
    trace.send("b1", "alice", answer)
    trace.give(late, response=answer)


def test_fenced_broker_is_checked_against_its_own_image_only() -> None:
    trace, given, _ = taken(ACKNOWLEDGED)
    late = trace.invoke("access", "topics", client="alice")
    trace.host("b1").service.lifecycle.epoch = 4
    at(trace, given)
    answer = shows("t")
    trace.send("b1", "alice", answer)
    trace.give(late, response=answer)


@pytest.mark.parametrize("during", [True, False])
def test_listing_shows_entities_allowed_at_any_moment_of_it(during: bool) -> None:
    trace = begun()
    about = {"resource_type": AclResourceType.HOSTNAME, "operation": AclOperation.DESCRIBE}
    trace.committed(1, entry(1, **about))
    if not during:
        trace.committed(1, removed(1))
    call = trace.invoke("access", "list", client="alice")
    if during:
        trace.committed(1, removed(1))
    listed = controller_pb2.ListHostnamesResponse(
        hostnames=[controller_pb2.MappedHostname(hostname="t")]
    )
    response = controller_pb2.ControllerResponse(list_hostnames=listed)
    if during:
        trace.give(call, response=response)
        return
    with pytest.raises(CheckFailedError, match="not been allowed since it asked"):
        trace.give(call, response=response)


def test_log_served_to_an_unauthorized_client_is_refused() -> None:
    trace = begun()
    trace.send("c1", "bob", controller_pb2.MetadataFetchResponse(error={"error_code": 31}))
    with pytest.raises(CheckFailedError, match="shows the log to"):
        trace.send("c1", "bob", controller_pb2.MetadataFetchResponse())


REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (
            quorum_pb2.QuorumMessage(vote_response={"error_code": REFUSED}),
            quorum_pb2.QuorumMessage(vote_response={"vote_granted": True}),
        ),
        (quorum_pb2.FetchResponse(error_code=REFUSED), quorum_pb2.FetchResponse()),
        (
            controller_pb2.ControllerResponse(error={"error_code": REFUSED}),
            controller_pb2.ControllerResponse(correlation_id=1, error={"error_code": 77}),
        ),
    ],
)
def test_client_that_poses_as_a_node_must_be_refused_for_that(refusal: Any, answer: Any) -> None:
    trace = begun()
    trace.send("c1", "forger", refusal)
    with pytest.raises(CheckFailedError, match="answers a client that poses as a node"):
        trace.send("c1", "forger", answer)


# --- the second authorizer, and the workload -----------------------------------------------------


@pytest.mark.parametrize("operation", [CREATE, DESCRIBE])
def test_rights_checker_agrees_with_the_authorizer(operation: int) -> None:
    acls = AclHistory()
    trace = Trace(lambda ledger: Rights(ledger, acls), config=SwarmConfig(authorizer=True))
    trace.begin()
    number = 0
    for pattern in (PatternType.LITERAL, PatternType.PREFIXED):
        for name in ("t", "to", "*"):
            for permission in (AclPermission.ALLOW, AclPermission.DENY):
                for one in sorted(OPERATIONS_OF[AclResourceType.TOPIC]):
                    for host in ("*", HERE):
                        number += 1
                        if number % 7 == 3 and not (
                            name == "*" and pattern == PatternType.PREFIXED
                        ):
                            trace.committed(
                                1,
                                entry(
                                    number,
                                    pattern_type=pattern,
                                    resource_name=name,
                                    permission_type=permission,
                                    operation=one,
                                    host=host,
                                ),
                            )
    authorizer, golden = Authorizer(), trace.ledger.golden
    asked = 0
    for offset, image in golden.images.items():
        for name in ("t", "to", "top", "x"):
            for host in (HERE, AWAY):
                asked += 1
                assert acls.allows(ALICE, (host,), (operation, TOPIC, name), offset) == (
                    authorizer.allows(
                        image.acl_index,
                        Caller(ALICE, host),
                        AclOperation(operation),
                        Resource(AclResourceType.TOPIC, name),
                    )
                )
    assert asked > 100


def test_rights_checker_covers_every_kind() -> None:
    outcome = run_swarm(
        1,
        SwarmConfig(
            authorizer=True, entries_per_s=8.0, callers_per_s=60.0, exports_per_s=1.0, safety_s=5.0
        ),
    )
    assert outcome.failure is None
    counts = {
        name: count
        for name, count in outcome.looked_at.items()
        if name.startswith(("Rights.", "Shown."))
    }
    assert len(counts) == 9
    assert all(counts.values()), counts
    assert set(CALLERS) == {"alice", "alice-away", "bob", "mallory"}
