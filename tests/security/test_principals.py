"""Which principal a certificate makes of a client (Kafka's ssl.principal.mapping.rules)."""

from __future__ import annotations

import pytest

from raftlog.identity import PeerIdentity, PrincipalMapping

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
def test_the_first_rule_that_matches_the_whole_subject_counts(rules: str, expected: str) -> None:
    assert principal(rules) == expected


def test_a_pattern_that_matches_a_part_is_no_match() -> None:
    assert principal("RULE:CN=Alice/admin/") == NOBODY
    assert principal("RULE:.*Alice/admin/,DEFAULT") == f"User:{SUBJECT}"


def test_who_has_no_subject_or_matches_nothing_is_anonymous() -> None:
    assert principal("DEFAULT", "") == NOBODY
    assert principal("RULE:^CN=Bob$/bob/") == NOBODY
    assert principal("RULE:.*//") == NOBODY


@pytest.mark.parametrize(
    "rules", ["", "RULE:a", "RULE:a/b", "RULE:(/x/", "default", "DEFAULT;DEFAULT", "RULE:a/b/X"]
)
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"rule|regular expression"):
        PrincipalMapping.parse(rules)
