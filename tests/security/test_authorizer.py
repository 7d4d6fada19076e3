"""Verdicts of the authorizer, by Kafka's rules."""

from hypothesis import given
from hypothesis import strategies as st

from raftlog.metadata.acls import (
    IMPLIED_BY,
    VERDICTS_MAX,
    AccessControlEntry,
    AclIndex,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    Resource,
)
from raftlog.node.security.authorizer import Authorizer, Caller, Why

Op, Perm, Kind = AclOperation, AclPermission, AclResourceType
ALICE, BOB = Caller("User:alice", "10.0.0.1"), Caller("User:bob", "10.0.0.2")
ORDERS = Resource(Kind.TOPIC, "orders")


def entry(
    principal: str = "User:alice",
    operation: AclOperation = Op.READ,
    permission: AclPermission = Perm.ALLOW,
    name: str = "orders",
    pattern: PatternType = PatternType.LITERAL,
    host: str = "*",
    number: int = 0,
    type_: AclResourceType = Kind.TOPIC,
) -> AccessControlEntry:
    return AccessControlEntry(
        bytes([number]) * 16, type_, name, pattern, principal, host, operation, permission
    )


def index(*entries: AccessControlEntry) -> AclIndex:
    made = AclIndex()
    for one in entries:
        made = made.with_entry(one)
    return made


def allowed(
    at: AclIndex,
    caller: Caller = ALICE,
    operation: AclOperation = Op.READ,
    resource: Resource = ORDERS,
    authorizer: Authorizer = Authorizer(),  # noqa: B008 (it is frozen)
) -> bool:
    verdict = authorizer.verdict(at, caller, operation, resource)
    assert verdict.allowed == authorizer.allows(at, caller, operation, resource)
    return verdict.allowed


def test_authorizer_denies_without_an_entry() -> None:
    assert not allowed(index())
    at = index(entry())
    assert allowed(at)
    assert not allowed(at, BOB)
    assert not allowed(at, operation=Op.WRITE)
    assert not allowed(at, resource=Resource(Kind.TOPIC, "orders2"))
    assert not allowed(at, resource=Resource(Kind.GROUP, "orders"))


def test_prefixed_entry_matches_each_name_with_the_prefix_but_a_literal_does_not() -> None:
    at = index(entry(pattern=PatternType.PREFIXED, name="ord"))
    assert allowed(at)
    assert allowed(at, resource=Resource(Kind.TOPIC, "ord"))
    assert not allowed(at, resource=Resource(Kind.TOPIC, "or"))
    assert not allowed(index(entry(name="ord")))


def test_star_matches_every_resource_name_or_every_principal() -> None:
    assert allowed(index(entry(name="*")))
    assert allowed(index(entry("User:*")), BOB)
    assert not allowed(index(entry("User:*", type_=Kind.GROUP, name="*")), BOB)


def test_entry_with_a_host_matches_that_host_only() -> None:
    at = index(entry(host="10.0.0.1"))
    assert allowed(at)
    assert not allowed(at, Caller("User:alice", "10.0.0.2"))
    assert not allowed(at, Caller("User:alice", ""))


def test_deny_takes_precedence_over_any_allow() -> None:
    everything = [
        entry(), entry("User:*", number=1), entry(name="*", number=2),
        entry(pattern=PatternType.PREFIXED, name="o", number=3), entry(operation=Op.ALL, number=4),
    ]  # fmt: skip
    for deny in (
        entry(permission=Perm.DENY, number=9),
        entry("User:*", permission=Perm.DENY, number=9),
        entry(name="*", permission=Perm.DENY, number=9),
        entry(name="ord", pattern=PatternType.PREFIXED, permission=Perm.DENY, number=9),
        entry(operation=Op.ALL, permission=Perm.DENY, number=9),
        entry(host="10.0.0.1", permission=Perm.DENY, number=9),
    ):
        for at in (index(deny, *everything), index(*everything, deny)):
            assert not allowed(at)
            assert Authorizer().verdict(at, ALICE, Op.READ, ORDERS).entry == deny
    elsewhere = index(entry(), entry(host="10.0.0.9", permission=Perm.DENY, number=9))
    assert allowed(elsewhere)


def test_allow_implies_describe_and_deny_implies_nothing() -> None:
    for operation in (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER):
        assert allowed(index(entry(operation=operation)), operation=Op.DESCRIBE)
        denied = index(entry(operation=Op.DESCRIBE), entry("User:alice", operation, Perm.DENY))
        assert allowed(denied, operation=Op.DESCRIBE)
    assert allowed(index(entry(operation=Op.ALTER_CONFIGS)), operation=Op.DESCRIBE_CONFIGS)
    for operation in (Op.CREATE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.CLUSTER_ACTION):
        assert not allowed(index(entry(operation=operation)), operation=Op.DESCRIBE)
    assert not allowed(index(entry(operation=Op.DESCRIBE)), operation=Op.READ)


def test_super_user_may_do_everything() -> None:
    authorizer = Authorizer(frozenset({"User:alice"}))
    at = index(entry(permission=Perm.DENY, operation=Op.ALL))
    assert allowed(at, authorizer=authorizer)
    assert authorizer.verdict(at, ALICE, Op.READ, ORDERS).why is Why.SUPER_USER
    assert not allowed(at, BOB, authorizer=authorizer)
    assert not allowed(at, Caller("User:ALICE", ""), authorizer=authorizer)


def test_resource_without_entries_is_open_to_everyone_when_configured() -> None:
    authorizer = Authorizer(allow_everyone_if_no_acl_found=True)
    assert allowed(index(), authorizer=authorizer)
    assert allowed(index(entry()), resource=Resource(Kind.TOPIC, "t"), authorizer=authorizer)
    # Any entry counts, whoever it is about.
    assert not allowed(index(entry()), BOB, authorizer=authorizer)
    assert not allowed(index(entry(name="*")), BOB, authorizer=authorizer)


ENTRIES = st.lists(
    st.builds(
        entry,
        st.sampled_from(["User:alice", "User:bob", "User:*"]), st.sampled_from(list(Op)[1:]),
        st.sampled_from([Perm.ALLOW, Perm.DENY]), st.sampled_from(["*", "o", "orders", "orders2"]),
        st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
        st.sampled_from(["*", "10.0.0.1"]), st.integers(0, 255),
    ), max_size=10, unique_by=lambda one: one.id,
)  # fmt: skip


@given(ENTRIES, st.sampled_from(list(Op)[2:]), st.sampled_from([ALICE, BOB]), st.booleans())
def test_verdicts_agree_with_a_scan_of_all_entries(
    entries: list[AccessControlEntry], operation: AclOperation, caller: Caller, everyone: bool
) -> None:
    about = [
        one
        for one in entries
        if one.resource_name in ("*", "orders")
        or (one.pattern_type == PatternType.PREFIXED and "orders".startswith(one.resource_name))
        if not (one.pattern_type == PatternType.PREFIXED and one.resource_name == "*")
    ]
    mine = [
        one
        for one in about
        if one.principal in ("User:*", caller.principal) and one.host in ("*", caller.host)
    ]
    denied = any(
        one.permission_type == Perm.DENY and one.operation in (Op.ALL, operation) for one in mine
    )
    granted = any(
        one.permission_type == Perm.ALLOW
        and one.operation in {Op.ALL, operation, *IMPLIED_BY.get(operation, ())}
        for one in mine
    )
    expected = not denied and (granted or (everyone and not about))
    authorizer = Authorizer(allow_everyone_if_no_acl_found=everyone)
    assert allowed(index(*entries), caller, operation, authorizer=authorizer) == expected


def test_verdict_comes_from_the_queried_index() -> None:
    """[An entry is removed, and an older verdict still authorizes its principal.]"""
    allow, deny = entry(), entry(permission=Perm.DENY, number=1)
    with_allow = index(allow)
    assert allowed(with_allow)
    assert not allowed(with_allow.with_entry(deny))
    assert not allowed(with_allow.without(allow))
    assert allowed(with_allow)


def test_cached_verdicts_are_bounded_and_stay_correct() -> None:
    at = index(entry(name="orders-", pattern=PatternType.PREFIXED))
    for number in range(2 * VERDICTS_MAX):
        name = f"orders-{number}" if number % 2 else f"other-{number}"
        assert allowed(at, resource=Resource(Kind.TOPIC, name)) == bool(number % 2)
        assert len(at.verdicts) <= VERDICTS_MAX


def test_verdict_about_a_name_of_megabytes_is_not_cached() -> None:
    """[A request with it is refused, and the audit log asks for the verdict again.]"""
    at = index(entry(name="x", pattern=PatternType.PREFIXED))
    long = Resource(Kind.TOPIC, "x" * (4 << 20))
    assert allowed(at, resource=long)
    assert Authorizer().verdict(at, ALICE, Op.READ, long).allowed
    assert at.verdicts == {}


def test_authorizers_with_other_settings_share_no_verdict() -> None:
    at, lenient = index(), Authorizer(allow_everyone_if_no_acl_found=True)
    for authorizer, expected in ((Authorizer(), False), (lenient, True)) * 2:
        assert allowed(at, authorizer=authorizer) == expected
