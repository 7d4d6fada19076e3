"""Unary calls are guarded, counted and audited like the requests of a conversation."""

import pytest
from test_audit import ALICE, NODE, AuditedLink, Memory

from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import NodeRule
from raftlog.metadata.image import Image
from raftlog.node.security.audit import Auditor
from raftlog.node.security.authorization import Authorization
from raftlog.node.security.authorizer import Authorizer
from raftlog.node.security.guard import Authentication, Duties, LogReaders
from raftlog.node.security.quotas import Quotas
from raftlog.node.security.single_calls import check_call, report_change
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

RULE = Authentication(NodeRule.parse("CN=node-{id}"))


def check(link: AuditedLink, duties: Duties) -> None:
    check_call("DescribeQuorum", quorum.DescribeQuorumRequest(), link, RULE, duties)


def test_forbidden_call_is_refused_counted_and_audited() -> None:
    memory, link = Memory(), AuditedLink(ALICE)
    readers = LogReaders(Authorization(Authorizer()), Image)
    with pytest.raises(ApiError, match=r"User:CN=alice from 10\.0\.0\.1 may not DESCRIBE") as found:
        check(link, Duties(readers, Auditor(3, "c", memory, lambda: 1)))
    assert found.value.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert link.complaints == [found.value.message]
    (event,) = memory.events
    assert event.source.service == "Quorum"
    assert event.source.method == "DescribeQuorum"
    assert event.refused


def test_node_is_authorized_on_node_listeners_and_a_client_elsewhere() -> None:
    readers = LogReaders(Authorization(Authorizer()), Image)
    check(AuditedLink(NODE), Duties(readers))
    with pytest.raises(ApiError):
        check(AuditedLink(NODE), Duties(readers, accepts_nodes=False))


def test_quota_throttles_clients_and_not_nodes() -> None:
    duties = Duties(quotas=Quotas(per_principal=1, per_address=0, clock=lambda: 0.0))
    check(AuditedLink(ALICE), duties)
    with pytest.raises(ApiError) as found:
        check(AuditedLink(ALICE), duties)
    assert found.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    for _ in range(3):
        check(AuditedLink(NODE), duties)


def test_change_is_audited_with_its_outcome() -> None:
    memory = Memory()
    duties = Duties(None, Auditor(3, "c", memory, lambda: 1))
    wrong = ApiError(ErrorCode.INVALID_REQUEST, "no such level")
    for error in (None, wrong):
        report_change("AlterLogLevel", AuditedLink(ALICE), RULE, duties, error, "Node")
    done, refused = memory.events
    assert done.source.service == "Node"
    assert done.source.method == "AlterLogLevel"
    assert not done.failed
    assert done.source.caller.principal == "User:CN=alice"
    assert (refused.error_code, refused.message) == (ErrorCode.INVALID_REQUEST, "no such level")
