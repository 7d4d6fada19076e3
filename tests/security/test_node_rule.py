"""Which node a certificate makes of a peer."""

from __future__ import annotations

import pytest

from raftlog.identity import ANONYMOUS, NodeRule, PeerIdentity

CN = NodeRule.parse("CN=node-{id}")


def identity(*names: str) -> PeerIdentity:
    return PeerIdentity("CN=whatever", frozenset(names))


@pytest.mark.parametrize(
    "text", ["CN=node-{id}", "DNS:c{id}.example.org", "URI:spiffe://example.org/raftlog/{id}"]
)
def test_a_rule_names_one_name_of_the_certificate(text: str) -> None:
    rule = NodeRule.parse(text)
    assert rule.admits(identity("CN=x", rule.name_of(12)), 12)
    assert not rule.admits(identity(rule.name_of(12)), 1)
    assert not rule.admits(identity(rule.name_of(12)), 2)
    assert not rule.admits(ANONYMOUS, 12)


@pytest.mark.parametrize(
    "text", ["node-{id}", "CN=node", "CN={id}{id}", "O=node-{id}", "CN=node {id}", "cn=node-{id}"]
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no rule"):
        NodeRule.parse(text)


def test_a_kind_of_name_is_not_another() -> None:
    """A host that is called like a node in its alternative names is not that node."""
    assert not CN.admits(identity("DNS:node-1", "URI:node-1"), 1)


def test_what_is_no_node_id_is_nobody() -> None:
    assert not CN.admits(identity("CN=node--1"), -1)


def test_it_is_said_who_a_peer_is() -> None:
    assert str(PeerIdentity("CN=a,O=b", frozenset({"CN=a"}))) == "CN=a,O=b"
    assert str(identity()) == "CN=whatever"
    assert str(PeerIdentity("", frozenset({"DNS:b", "DNS:a"}))) == "DNS:a, DNS:b"
    assert str(ANONYMOUS) == "no certificate"
