"""``raftlog acls``: entries are added, listed, tested and removed."""

import pytest
from command_lines import Raftlog

from raftlog.local.cluster import LocalCluster


def listed(at: Raftlog, *options: object) -> list[tuple[str, ...]]:
    document = at("acls list --json", *options).json
    keys = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation",
            "permission")  # fmt: skip
    return [tuple(one[key] for key in keys) for one in document["items"]]


def test_acls_are_added_listed_and_removed(
    raftlog: Raftlog, at: Raftlog, cluster: LocalCluster
) -> None:
    add = ("acls", "add", "--allow-principal", "User:alice", "--operation", "read", "--topic", "t")
    ran = at(*add, "--validate-only")
    said = "allow User:alice from any host: read on topic t"
    assert (ran.code, ran.out) == (0, f"{said}: would be added\n")
    assert listed(at) == []
    # A broker forwards it.
    ran = raftlog(*add, "--bootstrap-server", cluster.brokers[0].endpoint)
    assert ran.out.startswith(f"{said}: added\nacknowledged at offset ")
    assert at(*add).out == f"{said}: already existed\n"
    more = at.succeed(
        "acls add --allow-principal User:bob --deny-principal User:* --deny-host 10.0.0.9 --topic t --cluster --json"
    )
    assert len(more.json["items"]) == 4
    assert more.json["reached"] == "acknowledged"
    bob = ("User:bob", "*", "all", "allow")
    nine = ("User:*", "10.0.0.9", "all", "deny")
    assert listed(at) == [
        ("topic", "t", "literal", *nine),
        ("topic", "t", "literal", "User:alice", "*", "read", "allow"),
        ("topic", "t", "literal", *bob),
        ("cluster", "kafka-cluster", "literal", *nine),
        ("cluster", "kafka-cluster", "literal", *bob),
    ]
    assert listed(at, "--topic", "t", "--permission", "deny") == [("topic", "t", "literal", *nine)]
    assert len(listed(at, "--principal", "User:bob")) == 2
    shown = at("acls list").out
    assert "User:alice" in shown
    assert "entries are not enforced" in shown

    test = "acls test --operation {} --topic t --principal User:{}".format
    allowed = at(test("describe", "alice"))
    assert (allowed.code, allowed.out.splitlines()[0]) == (0, f"topic t: allowed: {said}")
    for mistaken in ("acls test --operation write --topic t --principal", "acls list --principal"):
        assert at(mistaken, "alice").refused(2, "write 'User:alice'").out == ""
    denied = at(test("write", "alice")).refused(1)
    assert denied.out.startswith("topic t: denied: no entry allows it\n")
    by_host = at("acls test --json --host 10.0.0.9", *test("write", "bob").split()[2:]).refused(1)
    (verdict,) = by_host.json["verdicts"]
    assert (verdict["why"], verdict["entry"]["principal"]) == ("entry", "User:*")
    gone = at("acls remove --principal User:alice")
    assert gone.out.startswith(f"{said}: removed\nacknowledged at offset ")
    assert at("acls remove --principal User:alice").out == "no entry matches\n"
    assert len(at("acls remove --all --json").json["items"]) == 4
    assert listed(at) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("add --topic t", "name a principal"),
        ("add --allow-principal User:a", "name a resource"),
        (
            "add --allow-principal User:a --deny-host 10.0.0.1 --topic t",
            "a host needs a principal: --deny-principal",
        ),
        ("remove", "name the entries to remove"),
        ("remove --all --topic t", "name the entries to remove"),
    ],
)
def test_incomplete_entry_is_not_sent(at: Raftlog, arguments: str, said: str) -> None:
    at("acls", *arguments.split()).refused(2, said)


def test_invalid_entry_names_the_field(at: Raftlog) -> None:
    at("acls add --allow-principal alice --topic t").refused(
        1, "principal must be User: and a name", "creations[0].principal"
    )
