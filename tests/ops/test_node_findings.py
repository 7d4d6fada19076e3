"""Findings about machines, connections, brokers and partitions."""

from collections.abc import Mapping
from typing import Any

import pytest
from clusters import (
    AT_MS,
    CLUSTER,
    DEGRADED,
    DOWN,
    NOTICE,
    broker,
    brokers,
    codes,
    described,
    endpoint,
    only,
    quorum,
)
from msgspec.structs import replace

from raftlog.metadata.entities import Cause
from raftlog.ops.doctor import Verdict, diagnose, verdict
from raftlog.ops.evidence import AskedNode, BrokerState, NodeAnswer, NodeReport, Reach, Survey
from raftlog.ops.quorum_findings import Finding
from raftlog.transport.probe import TlsSeen, TlsTrouble

GIB = 1 << 30
T = TlsTrouble


def told(seen: Survey, says: Mapping[int, Mapping[str, Any]]) -> Survey:
    """The same with the nodes' own descriptions; ids above the quorum's are of brokers."""

    def about(kind: str, node_id: int) -> NodeReport:
        fields: dict[str, Any] = {"cluster_id": CLUSTER, "now_ms": 1, **says[node_id]}
        ahead_ms = fields.pop("ahead_ms", 0)
        return NodeReport(f"{kind} {node_id}", NodeAnswer(**fields), ahead_ms)

    ids = {one.node_id for one in seen.nodes}
    nodes = tuple(
        replace(one, report=about("node", one.node_id)) if one.node_id in says else one
        for one in seen.nodes
    )
    brokers = tuple(about("broker", one) for one in says if one not in ids)
    return replace(seen, nodes=nodes, broker_reports=brokers)


def behind_tls(gone: Mapping[int, TlsSeen], leader: int, **fields: Any) -> Survey:
    """Three nodes behind TLS; those that are gone cannot be connected to."""
    seen = quorum(3, leader, dict.fromkeys(gone, Reach.OTHER), **fields)
    return replace(
        seen, nodes=tuple(replace(one, tls=gone.get(one.node_id, one.tls)) for one in seen.nodes)
    )


def by_code(seen: Survey) -> dict[str, Finding]:
    return {one.code: one for one in diagnose(seen)}


def clocks(*ahead_ms: int) -> Survey:
    return told(quorum(3), {one: {"ahead_ms": ms} for one, ms in enumerate(ahead_ms, start=1)})


def test_deviating_clock_is_reported_with_its_deviation() -> None:
    found = only(clocks(3, -90_000, 8), "CLOCKS_DIFFER", NOTICE)
    assert found.cause == "The clock of node 2 is 90 s behind the others."
    assert found.command == "timedatectl"
    assert only(clocks(0, 0, 0, 2_500)).cause == "The clock of broker 4 is 2 s ahead of the others."


def test_clocks_that_deviate_only_from_the_local_clock_are_not_reported() -> None:
    assert diagnose(clocks(99_000, 99_200, 98_900)) == []
    assert diagnose(clocks(700, 0, -200)) == []
    assert diagnose(clocks(50_000)) == [], "one clock differs from none"


def test_certificate_that_expires_soon_is_reported() -> None:
    def ends(in_ms: int) -> Survey:
        return told(quorum(3), {2: {"certificate_ends_at_ms": AT_MS + in_ms}})

    found = only(ends(3 * 86_400_000), "CERTIFICATE_ENDS_SOON", NOTICE)
    assert found.cause == "The certificate of node 2 expires in 3 days."
    assert only(ends(-7_200_000)).cause == "The certificate of node 2 expired 2 h ago."
    assert diagnose(ends(15 * 86_400_000)) == []
    assert diagnose(told(quorum(3), {2: {}})) == [], "without TLS"


def disk(free: int, total: int) -> Survey:
    says = {"disk_free_bytes": free, "disk_total_bytes": total}
    return told(quorum(3), {2: says, 5: says})


def test_nearly_full_disk_is_reported_with_its_free_space() -> None:
    found = only(disk(4 * GIB, 50 * GIB), "DISK_NEARLY_FULL", NOTICE)
    assert found.cause == (
        "The disk of node 2 (4096 MiB, 8 % are free) and of broker 5 (4096 MiB, 8 % are free)"
        " is nearly full."
    )


def test_broker_below_its_reserve_refuses_producers() -> None:
    """[The doctor called the cluster healthy, with a notice.]"""
    seen = disk(12 << 20, 200 << 20)
    full = [about_low(one) if one.name == "broker 5" else one for one in seen.broker_reports]
    found = by_code(replace(seen, broker_reports=tuple(full)))
    low = found["BROKER_LOW_ON_SPACE"]
    assert low.severity is DEGRADED
    assert low.cause == (
        "The disk of broker 5 (12 of 200 MiB are free) is below its free-space reserve."
    )
    assert all("broker 5" not in one.cause for one in found.values() if one is not low)
    alone = replace(seen, broker_reports=tuple(full), brokers=brokers(broker(5)))
    down = by_code(alone)["BROKER_LOW_ON_SPACE"]
    assert down.severity is DOWN, "every producer is refused"


def about_low(one: NodeReport) -> NodeReport:
    return replace(one, node=replace(one.node, low_on_space=True, role="broker"))


def test_disk_below_its_reserve_is_reported_once() -> None:
    """[The doctor reported one disk both as below its reserve and as nearly full.]"""
    low = quorum(3, voters={2: {"low_on_space": True}})
    says = {"disk_free_bytes": GIB, "disk_total_bytes": 50 * GIB}
    assert codes(told(low, {2: says})) == ["LOW_ON_SPACE"]
    assert codes(told(low, {2: says, 3: says})) == ["LOW_ON_SPACE", "DISK_NEARLY_FULL"]
    (_, other) = diagnose(told(low, {2: says, 3: says}))
    assert other.cause == "The disk of node 3 (1024 MiB, 2 % are free) is nearly full."


def test_finding_about_many_nodes_counts_the_omitted_ones() -> None:
    """[A list that just ends makes eight certificates look like all of them.]"""
    many = range(11, 21)

    def found(**fields: int) -> str:
        return only(told(quorum(3), {1: {}, 2: {}, 3: {}} | dict.fromkeys(many, fields))).cause

    ends = found(certificate_ends_at_ms=AT_MS + 2 * 86_400_000)
    assert ends.endswith("broker 17 (expires in 2 days) and 3 more.")
    full = found(disk_free_bytes=GIB, disk_total_bytes=50 * GIB)
    assert full.endswith("of broker 17 (1024 MiB, 2 % are free) and 3 more is nearly full.")
    expired = TlsSeen(T.EXPIRED, "has expired")
    strange = [AskedNode(f"h{one}:1", Reach.OTHER, None, "", tls=expired) for one in range(10, 21)]
    seen = quorum(3)
    (one,) = diagnose(replace(seen, nodes=(*seen.nodes, *strange)))
    assert one.cause.endswith("h17:1 and 3 more).")


def test_finding_about_many_clocks_counts_the_omitted_ones() -> None:
    found = only(told(quorum(3), {one: {"ahead_ms": one // 30 * 5_000} for one in range(1, 40)}))
    assert found.cause.endswith("broker 36 (5 s ahead) and 3 more.")


@pytest.mark.parametrize(
    ("free", "total"), [(6 * GIB, 50 * GIB), (30 * GIB, 9000 * GIB), (0, 0)], ids=str
)
def test_disk_with_room_or_of_unknown_size_is_not_reported(free: int, total: int) -> None:
    assert diagnose(disk(free, total)) == []


def test_mixed_builds_and_levels_are_one_finding() -> None:
    def features(most: int) -> dict[str, Any]:
        one = {"name": "metadata.version", "finalized_level": 7, "max_supported_version": most}
        return {"features": [one]}

    seen = quorum(3, says={1: features(8), 2: features(8), 3: features(7)})
    versions = {1: "0.2.0", 2: "0.2.0", 3: "0.1.0", 4: "0.1.0"}
    found = only(told(seen, {one: {"version": text} for one, text in versions.items()}))
    assert found.code == "MIXED_BUILDS"
    assert found.cause == (
        "Nodes run different builds: 0.1.0 on node 3 and broker 4; 0.2.0 on node 1 and node 2."
        " Controllers support metadata.version up to different levels: node 3 to 7, nodes 1 and 2"
        " to 8."
    )
    assert codes(told(quorum(3), {one: {"version": "0.2.0"} for one in (1, 2, 3, 4)})) == []


def test_answers_of_another_cluster_are_ignored() -> None:
    seen = told(quorum(3), {1: {"version": "1"}, 9: {"version": "2", "cluster_id": "other"}})
    assert diagnose(seen) == []


def with_stranger(seen: Survey) -> Survey:
    """The same, but the last node runs with another cluster id."""
    last = len(seen.nodes)
    wrong = described(last, "prospective", [], cluster_id="other")
    asked = AskedNode(endpoint(last), Reach.ANSWERS, wrong, node_id=last)
    return replace(seen, nodes=(*seen.nodes[:-1], asked))


def test_voter_with_another_cluster_id_counts_as_down() -> None:
    found = only(with_stranger(quorum(3)), "NODE_OF_OTHER_CLUSTER", DEGRADED)
    assert found.cause == (
        f"Node 3 ({endpoint(3)}) runs with cluster id other; the others belong to {CLUSTER}."
    )
    assert "2 of 3 voters are left" in found.consequence
    assert "cluster.id in its configuration" in found.remedy


def test_dead_voter_and_missing_quorum_are_reported_beside_a_node_of_another_cluster() -> None:
    dead = quorum(5, 1, {4: Reach.REFUSES}, voters={4: {"last_fetch_age_ms": 60_000}})
    found = by_code(with_stranger(dead))
    assert set(found) == {"VOTER_DOWN", "NODE_OF_OTHER_CLUSTER"}
    left = "3 of 5 voters are left"
    assert found["VOTER_DOWN"].consequence == f"{left}: one more failure stops all writes."
    assert left in found["NODE_OF_OTHER_CLUSTER"].consequence
    found = by_code(with_stranger(quorum(3, 0, {2: Reach.REFUSES})))
    assert set(found) == {"NO_QUORUM", "NODE_OF_OTHER_CLUSTER"}
    assert "1 of 3 voters answers, but 2 are needed" in found["NO_QUORUM"].cause


EXPIRED = TlsSeen(T.EXPIRED, "presents a certificate that expired 2026-01-02T03:04:05Z")
OWN = TlsSeen(T.OWN_EXPIRED, "rejects me.pem, which expired 2026-01-02T03:04:05Z")


def test_expired_certificate_of_a_node_that_the_leader_still_hears_is_reported() -> None:
    found = only(behind_tls({3: EXPIRED}, 1), "CERTIFICATE_EXPIRED", DEGRADED)
    assert found.cause == f"Node 3 ({endpoint(3)}) {EXPIRED.text}."
    assert "until they break" in found.consequence
    assert "Renewal" in found.remedy


def test_expired_certificate_of_an_isolated_node_is_reported() -> None:
    away = {"last_fetch_age_ms": 60_000, "last_caught_up_age_ms": 60_000}
    found = by_code(behind_tls({3: EXPIRED}, 1, voters={3: away}))
    assert set(found) == {"CERTIFICATE_EXPIRED", "VOTER_DOWN"}
    assert f"Node 3 gives an unexpected answer ({EXPIRED.text})" in found["VOTER_DOWN"].cause


def test_expiry_of_all_certificates_is_reported() -> None:
    found = only(behind_tls(dict.fromkeys((1, 2, 3), EXPIRED), 0))
    assert (found.code, found.severity) == ("CERTIFICATE_EXPIRED", DOWN)
    assert found.cause.endswith(f"(also: {endpoint(2)} and {endpoint(3)}).")
    assert verdict([found]) is Verdict.DOWN


def test_expired_client_certificate_is_reported() -> None:
    found = only(behind_tls(dict.fromkeys((1, 2, 3), OWN), 0))
    assert (found.code, found.severity) == ("OWN_CERTIFICATE_EXPIRED", DOWN)
    assert "me.pem, which expired" in found.cause
    assert found.command == "raftlog certs inspect FILE"


def test_refusing_node_is_reported_beside_those_behind_tls() -> None:
    seen = quorum(2, 0, {1: Reach.OTHER, 2: Reach.REFUSES})
    seen = replace(seen, nodes=(replace(seen.nodes[0], tls=EXPIRED), seen.nodes[1]))
    found = by_code(seen)
    assert set(found) == {"CERTIFICATE_EXPIRED", "NOBODY_ANSWERS"}
    assert (
        found["NOBODY_ANSWERS"].cause
        == f"No controller answers: {endpoint(2)} refuses connections."
    )


@pytest.mark.parametrize("trouble", [one for one in T if one is not T.NONE])
def test_each_problem_is_one_finding_with_a_next_step(trouble: TlsTrouble) -> None:
    found: Finding = only(
        behind_tls(dict.fromkeys((1, 2, 3), TlsSeen(trouble, "has a trouble")), 0)
    )
    assert found.severity is DOWN
    assert found.remedy
    assert found.command


def counts(**fields: int) -> dict[str, int]:
    return {"total": 9, **fields}


def test_partitions_that_refuse_producers_are_an_outage() -> None:
    """[Two of three brokers were down: the alert woke somebody, and the doctor reported DEGRADED.]"""
    seen = quorum(3, brokers=brokers(broker(4), partitions=counts(under_min_isr=2)))
    found = only(seen, "PARTITIONS_NOT_WRITABLE", DOWN)
    assert found.cause == (
        "2 partitions of 9 have fewer in-sync replicas than min.insync.replicas."
    )


def test_partitions_short_of_replicas_are_reported_unless_a_fenced_broker_explains_them() -> None:
    short = counts(under_replicated=1)
    found = only(quorum(3, brokers=brokers(broker(4), partitions=short)))
    assert (found.code, found.severity) == ("PARTITIONS_UNDER_REPLICATED", DEGRADED)
    assert found.cause.startswith("1 partition of 9 has replicas that are not in sync")
    away = broker(5, state=BrokerState.INACTIVE)
    assert codes(quorum(3, brokers=brokers(broker(4), away, partitions=short))) == ["BROKER_FENCED"]


def test_unregistered_broker_with_replicas_explains_partitions_short_of_replicas() -> None:
    """[A broker was unregistered with its replicas: "wait: it catches up".]"""
    told = brokers(
        broker(4), partitions=counts(under_replicated=1), unregistered_replica_ids=[6, 7]
    )
    found = only(quorum(3, brokers=told), "BROKER_UNREGISTERED", DEGRADED)
    assert found.cause == "Brokers 6 and 7 are not registered, but have replicas assigned."


def test_leftover_throttle_is_reported_unless_replicas_are_moved() -> None:
    told = brokers(broker(4), throttled_brokers=["", "5"])
    found = only(quorum(3, brokers=told), "THROTTLE_LEFT", NOTICE)
    assert "set for all brokers and broker 5" in found.cause
    assert found.command.startswith("raftlog configs alter broker '' --delete leader.replication.")
    moves = brokers(broker(4), throttled_brokers=[""], partitions=counts(reassigning=1))
    assert codes(quorum(3, brokers=moves)) == []


def test_cluster_without_brokers_is_a_notice() -> None:
    assert only(quorum(3, brokers=brokers())).code == "NO_BROKERS"


@pytest.mark.parametrize(
    ("fields", "since"),
    [
        pytest.param(
            {
                "reason": "its session has ended",
                "state_age_ms": 125_000,
                "last_contact_age_ms": 130_000,
            },
            "for 2 min: its session has ended; last heard from 2 min ago.",
            id="with its reason",
        ),
        pytest.param(
            {"state_age_ms": 3_000, "last_contact_age_ms": -1},
            "for 3 s.",
            id="not called unheard once it has expired",
        ),
        pytest.param(
            {"state_age_is_at_least": True, "last_contact_age_ms": -1},
            "for more than 0 ms; this leader has never heard from it.",
            id="under an earlier leader",
        ),
    ],
)
def test_fenced_broker_is_reported(fields: dict[str, Any], since: str) -> None:
    away = broker(4, state=BrokerState.INACTIVE, **fields)
    stopping = broker(2, state=BrokerState.STOPPING)
    found = only(quorum(3, brokers=brokers(broker(1), stopping, away)), "BROKER_FENCED", DEGRADED)
    assert found.cause == f"Broker 4 (127.0.0.1:9194) has been fenced {since}"
    assert found.command == "raftlog broker run -c FILE"


@pytest.mark.parametrize("cause", list(Cause))
def test_advice_about_a_fenced_broker_never_unregisters_it(cause: Cause) -> None:
    """[Operators copy the command that is shown: an unregistration cannot be undone.]"""
    away = broker(4, state=BrokerState.INACTIVE, cause=cause.value, state_age_ms=3_000)
    found = only(quorum(3, brokers=brokers(broker(1), away)))
    assert found.command in ("raftlog broker run -c FILE", "raftlog brokers list")
    assert found.remedy.endswith("docs/operations.md, A broker is fenced.")
    assert ("hangs" in found.remedy) is (cause is Cause.SESSION_TIMED_OUT)


def test_broker_with_missed_heartbeats_is_reported_before_it_is_fenced() -> None:
    """[Paused for 8 s, and the doctor reported HEALTHY.]"""
    hangs = broker(5, last_contact_age_ms=6_200)
    found = only(quorum(3, brokers=brokers(broker(4), hangs)), "BROKER_SILENT", NOTICE)
    assert found.cause == "Broker 5 (127.0.0.1:9195) was last heard from 6 s ago."
    assert diagnose(quorum(3, brokers=brokers(broker(5, last_contact_age_ms=4_400)))) == []


def test_allowed_silence_of_a_broker_is_its_controllers_setting() -> None:
    silent = broker(5, last_contact_age_ms=6_200)
    told = {"broker_session_timeout_ms": 30_000}
    assert diagnose(quorum(3, brokers=brokers(silent, **told))) == []
    found = only(quorum(3, brokers=brokers(broker(5, last_contact_age_ms=15_100), **told)))
    assert "it will be fenced 30 s after that contact." in found.consequence
    by_default = only(quorum(3, brokers=brokers(silent)))
    assert "it will be fenced 9 s after that contact." in by_default.consequence


def test_broker_that_delays_lao_is_reported() -> None:
    held = brokers(
        broker(1), broker(2), held_back_by=[2], held_back_ms=4_000, lowest_acknowledged_offset=90
    )
    found = only(quorum(3, brokers=held), "LAO_HELD_BACK")
    assert found.cause == (
        "Broker 2 holds the lowest acknowledged offset at 90, 9 behind, for 4 s."
    )
    assert diagnose(quorum(3, brokers=replace(held, held_back_ms=900))) == []


def test_unknown_lao_is_reported_with_its_reason() -> None:
    unknown = brokers(
        broker(1),
        held_back_ms=4_000,
        lowest_acknowledged_offset=-1,
        lao_unknown_reason="broker 1 has not reported",
    )
    assert "broker 1 has not reported" in only(quorum(3, brokers=unknown), "LAO_UNKNOWN").cause


def test_leaderless_and_recovering_partitions_are_reported() -> None:
    seen = quorum(
        3, brokers=brokers(broker(1), partitions={"total": 9, "offline": 2, "recovering": 1})
    )
    assert codes(seen) == ["PARTITIONS_OFFLINE", "PARTITIONS_RECOVERING"]
    assert diagnose(seen)[0].cause.startswith("2 partitions of 9 have no leader")


def test_leader_that_does_not_describe_its_brokers_is_reported() -> None:
    found = only(quorum(3, brokers_failure="UNAVAILABLE: claiming"), "BROKERS_UNKNOWN")
    assert "UNAVAILABLE: claiming" in found.cause
