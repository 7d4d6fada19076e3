"""Principals by certificate, and request quotas of principals and addresses."""

from typing import Any

import pytest
from test_guard import CLIENT, FakeLink, Recorder, of

from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import ANONYMOUS, NodeRule, PeerIdentity, PrincipalMapping
from raftlog.node.security import quotas
from raftlog.node.security.authorizer import Caller
from raftlog.node.security.guard import Authentication, Duties, guarded
from raftlog.node.security.quotas import Quotas, Rates
from raftlog.transport.api import Conversation
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller

RULE = Authentication(NodeRule.parse("CN=node-{id}"))
C = Conversation


def test_quota_admits_its_number_per_second_and_refusals_cost_nothing() -> None:
    rates = Rates(10)
    assert [rates.wait_s("a", 1, 0.0) for _ in range(11)] == [0.0] * 10 + [0.1]
    assert rates.wait_s("b", 1, 0.0) == 0.0
    assert rates.wait_s("a", 1, 0.05) == pytest.approx(0.05)
    assert rates.wait_s("a", 1, 0.1) == 0.0
    # A long rest saves up for one second, not for more.
    assert [rates.wait_s("a", 1, 99.0) for _ in range(11)] == [0.0] * 10 + [0.1]


def test_number_of_quota_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "REMEMBERED", 2)
    rates = Rates(1)
    for name in ("a", "b", "a", "c"):
        rates.wait_s(name, 1, 0.0)
    assert list(rates._buckets) == ["a", "c"]


def test_refusal_has_a_throttle_time() -> None:
    now = [0.0]
    made = Quotas(per_principal=0, per_address=2, clock=lambda: now[0])
    caller = Caller("User:a", "10.0.0.1")
    made.check(caller)
    made.check(caller)
    with pytest.raises(ApiError, match=r"10\.0\.0\.1 makes more than 2 requests a second") as found:
        made.check(caller)
    assert found.value.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert found.value.throttle_time_ms == 500
    made.check(Caller("User:a", "10.0.0.2"))
    now[0] = 0.5
    made.check(caller)


class World:
    def __init__(self, conversation: Conversation, **limits: int) -> None:
        self.now = 0.0
        self.recorder = Recorder()
        made = Quotas(**{"per_principal": 0, "per_address": 0, **limits}, clock=lambda: self.now)
        acceptors = guarded({conversation: lambda _: self.recorder}, RULE, Duties(quotas=made))
        self.accept = acceptors[conversation]

    def ask(self, who: PeerIdentity, *messages: Any) -> list[int]:
        """Send requests on a new connection; return the error codes of the responses."""
        link = FakeLink(who)
        self.accept(link).received(link, list(messages))
        assert all(one.correlation_id == 7 for one in link.sent)
        refused = [one for one in link.sent if one.error.error_code]
        assert len(link.complaints) == len(refused), "whoever is told to wait is read later"
        return [one.error.error_code for one in link.sent]


READ = broker.BrokerRequest(correlation_id=7, metadata=broker.MetadataRequest())
WRITE = controller.ControllerRequest(
    correlation_id=7, create_topics=controller.CreateTopicsRequest()
)
THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_principal_has_one_rate_over_all_its_connections() -> None:
    world = World(C.BROKER, per_principal=3)
    assert world.ask(CLIENT, READ, READ) == []
    assert world.ask(CLIENT, READ, READ, READ) == [THROTTLED, THROTTLED]
    assert len(world.recorder.got) == 3
    other = PeerIdentity("CN=other", frozenset({"CN=other"}))
    assert world.ask(other, READ) == []
    # At a broker a node is a client like any other.
    assert world.ask(of(4), READ, READ, READ, READ) == [THROTTLED]
    world.now = 1.0
    assert world.ask(CLIENT, READ) == []


def test_nodes_have_no_quota_on_node_listeners() -> None:
    world = World(C.CONTROLLER, per_principal=1, per_address=1)
    forwarded = controller.ControllerRequest()
    forwarded.CopyFrom(WRITE)
    forwarded.client.principal = "User:x"
    beat = controller.ControllerRequest(
        broker_heartbeat=controller.BrokerHeartbeatRequest(broker_id=4)
    )
    assert world.ask(of(4), *[forwarded] * 5, *[beat] * 5) == []
    assert world.ask(CLIENT, WRITE, WRITE) == [THROTTLED]
    assert len(world.recorder.got) == 11


# --- Identities that a certificate proves --------------------------------------------------------


NOBODY = "User:ANONYMOUS"
SUBJECT = "CN=Alice,OU=Ops,O=Example"


def principal(rules: str, subject: str = SUBJECT) -> str:
    return PrincipalMapping.parse(rules).principal_of(PeerIdentity(subject))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("DEFAULT", "User:CN=Alice,OU=Ops,O=Example"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/", "User:Alice@Ops"),
        ("RULE:^CN=(.*?),.*$/$1/L", "User:alice"),
        ("RULE:^CN=(.*?),.*$/$1/U", "User:ALICE"),
        ("RULE:^CN=Bob.*$/bob/, RULE:CN=([^,]*).*/$1/L, DEFAULT", "User:alice"),
        ("RULE:^CN=Bob.*$/bob/,DEFAULT", "User:CN=Alice,OU=Ops,O=Example"),
        (r"RULE:^CN=(\w+),.*$/x\/$1/", r"User:x\/Alice"),
        ("RULE:CN=(.*?),.*/$1$7/", "User:Alice"),
    ],
)
def test_first_rule_that_matches_the_whole_subject_applies(rules: str, expected: str) -> None:
    assert principal(rules) == expected


def test_partial_match_of_a_pattern_does_not_count() -> None:
    assert principal("RULE:CN=Alice/admin/") == NOBODY
    assert principal("RULE:.*Alice/admin/,DEFAULT") == f"User:{SUBJECT}"


def test_principal_is_anonymous_without_a_subject_or_a_matching_rule() -> None:
    assert principal("DEFAULT", "") == NOBODY
    assert principal("RULE:^CN=Bob$/bob/") == NOBODY
    assert principal("RULE:.*//") == NOBODY


@pytest.mark.parametrize(
    "rules", ["", "RULE:a", "RULE:a/b", "RULE:(/x/", "default", "DEFAULT;DEFAULT", "RULE:a/b/X"]
)
def test_principal_mapping_rejects_malformed_rule(rules: str) -> None:
    with pytest.raises(ValueError, match=r"rule|regular expression"):
        PrincipalMapping.parse(rules)


CN = NodeRule.parse("CN=node-{id}")


def identity(*names: str) -> PeerIdentity:
    return PeerIdentity("CN=whatever", frozenset(names))


@pytest.mark.parametrize(
    "text", ["CN=node-{id}", "DNS:c{id}.example.org", "URI:spiffe://example.org/raftlog/{id}"]
)
def test_rule_selects_one_name_of_the_certificate(text: str) -> None:
    rule = NodeRule.parse(text)
    assert rule.admits(identity("CN=x", rule.name_of(12)), 12)
    assert not rule.admits(identity(rule.name_of(12)), 1)
    assert not rule.admits(identity(rule.name_of(12)), 2)
    assert not rule.admits(ANONYMOUS, 12)


@pytest.mark.parametrize(
    "text", ["node-{id}", "CN=node", "CN={id}{id}", "O=node-{id}", "CN=node {id}", "cn=node-{id}"]
)
def test_node_rule_rejects_malformed_rule(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rule"):
        NodeRule.parse(text)


def test_name_kinds_are_not_mixed_up() -> None:
    """A host whose alternative name looks like a node's name is not that node."""
    assert not CN.admits(identity("DNS:node-1", "URI:node-1"), 1)


def test_node_rule_admits_no_negative_id() -> None:
    assert not CN.admits(identity("CN=node--1"), -1)


def test_peer_identity_names_its_subject() -> None:
    assert str(PeerIdentity("CN=a,O=b", frozenset({"CN=a"}))) == "CN=a,O=b"
    assert str(identity()) == "CN=whatever"
    assert str(PeerIdentity("", frozenset({"DNS:b", "DNS:a"}))) == "DNS:a, DNS:b"
    assert str(ANONYMOUS) == "no certificate"
