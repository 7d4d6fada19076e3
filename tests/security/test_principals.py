"""Identities that a certificate proves: the principal of a client (Kafka's
ssl.principal.mapping.rules), and the node of a peer.
"""

from __future__ import annotations

import pytest

from raftlog.identity import ANONYMOUS, NodeRule, PeerIdentity, PrincipalMapping

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
def test_first_rule_that_matches_the_whole_subject_counts(rules: str, expected: str) -> None:
    assert principal(rules) == expected


def test_pattern_that_matches_a_part_is_no_match() -> None:
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
def test_rule_names_one_name_of_the_certificate(text: str) -> None:
    rule = NodeRule.parse(text)
    assert rule.admits(identity("CN=x", rule.name_of(12)), 12)
    assert not rule.admits(identity(rule.name_of(12)), 1)
    assert not rule.admits(identity(rule.name_of(12)), 2)
    assert not rule.admits(ANONYMOUS, 12)


@pytest.mark.parametrize(
    "text", ["node-{id}", "CN=node", "CN={id}{id}", "O=node-{id}", "CN=node {id}", "cn=node-{id}"]
)
def test_node_rule_rejects_malformed_rule(text: str) -> None:
    with pytest.raises(ValueError, match="is no rule"):
        NodeRule.parse(text)


def test_kind_of_name_is_not_another() -> None:
    """A host that is called like a node in its alternative names is not that node."""
    assert not CN.admits(identity("DNS:node-1", "URI:node-1"), 1)


def test_node_rule_admits_no_negative_id() -> None:
    assert not CN.admits(identity("CN=node--1"), -1)


def test_peer_identity_names_its_subject() -> None:
    assert str(PeerIdentity("CN=a,O=b", frozenset({"CN=a"}))) == "CN=a,O=b"
    assert str(identity()) == "CN=whatever"
    assert str(PeerIdentity("", frozenset({"DNS:b", "DNS:a"}))) == "DNS:a, DNS:b"
    assert str(ANONYMOUS) == "no certificate"
