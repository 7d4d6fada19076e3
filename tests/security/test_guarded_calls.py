"""A unary call that belongs to no conversation is asked what a message is asked."""

from __future__ import annotations

from typing import Any

import pytest
from test_audit import Memory
from test_guard import CLIENT, OTHER, RULE, FakeLink, of

from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import PeerIdentity
from raftlog.metadata.image import Image
from raftlog.security.audit import Auditor
from raftlog.security.authorization import Authorization
from raftlog.security.authorizer import Authorizer
from raftlog.security.calls import check_call
from raftlog.security.guard import Duties, LogReaders
from raftlog.security.quotas import Quotas
from raftlog.transport.api import Conversation
from raftlog.transport.complaints import Complaint
from raftlog.transport.unary_link import UnaryLink
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

READERS = LogReaders(Authorization(Authorizer()), Image)


def refusal(who: PeerIdentity | Any, duties: Duties) -> ErrorCode | None:
    link = FakeLink(who) if isinstance(who, PeerIdentity) else who
    request = quorum.DescribeQuorumRequest()
    try:
        check_call(Conversation.QUORUM, "DescribeQuorum", request, link, RULE, duties)
    except ApiError as error:
        return error.code
    return None


def test_a_refused_call_is_counted_and_audited() -> None:
    memory, link = Memory(), FakeLink(CLIENT)
    duties = Duties(READERS, Auditor(3, "c", memory, lambda: 0))
    assert refusal(link, duties) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert len(link.complaints) == 1
    (event,) = memory.events
    assert (event.service, event.method, event.refused) == ("Quorum", "DescribeQuorum", True)
    assert event.caller.principal == "User:CN=client"
    assert refusal(of(OTHER), duties) is None


def test_calls_have_the_limit_of_their_principal() -> None:
    duties = Duties(quotas=Quotas(per_principal=1, per_address=0, clock=lambda: 0.0))
    assert refusal(CLIENT, duties) is None
    assert refusal(CLIENT, duties) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert [refusal(of(OTHER), duties) for _ in range(3)] == [None] * 3


class _Counted:
    def __init__(self) -> None:
        self.got: list[tuple[Complaint, str, str]] = []

    def add(self, complaint: Complaint, peer: str, detail: str) -> None:
        self.got.append((complaint, peer, detail))


@pytest.mark.parametrize("counts", [True, False])
async def test_what_a_unary_call_may_not_do_is_counted_as_on_a_stream(*, counts: bool) -> None:
    counted: Any = _Counted()
    link = UnaryLink("somebody:1", CLIENT, "", counted if counts else None)
    assert refusal(link, Duties(READERS)) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    kinds = [(kind, peer) for kind, peer, _ in counted.got]
    assert kinds == ([(Complaint.FORBIDDEN, "somebody:1")] if counts else [])
