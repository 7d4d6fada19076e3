"""What the doctor says about brokers and partitions."""

from __future__ import annotations

import pytest
from clusters import broker, brokers, codes, only, quorum
from msgspec.structs import replace

from raftlog.metadata.causes import Cause
from raftlog.ops.doctor import diagnose
from raftlog.ops.evidence import BrokerState
from raftlog.ops.quorum_findings import Severity


def test_brokers_that_serve_are_no_finding() -> None:
    seen = quorum(3, brokers=brokers(broker(1), broker(2, state=BrokerState.STOPPING)))
    assert diagnose(seen) == []


def counts(**fields: int) -> dict[str, int]:
    return {"total": 9, **fields}


def test_partitions_that_refuse_producers_are_an_outage() -> None:
    """[two of three brokers were down: the alert woke somebody, and the doctor said DEGRADED]"""
    seen = quorum(3, brokers=brokers(broker(4), partitions=counts(under_min_isr=2)))
    found = only(seen)
    assert (found.code, found.severity) == ("PARTITIONS_NOT_WRITABLE", Severity.DOWN)
    assert found.cause == (
        "2 partitions of 9 have fewer replicas in sync than min.insync.replicas."
    )


def test_partitions_that_are_short_of_replicas_are_told_unless_a_fenced_broker_explains_it() -> (
    None
):
    short = counts(under_replicated=1)
    found = only(quorum(3, brokers=brokers(broker(4), partitions=short)))
    assert (found.code, found.severity) == ("PARTITIONS_UNDER_REPLICATED", Severity.DEGRADED)
    assert found.cause.startswith("1 partition of 9 has fewer replicas in sync")
    away = broker(5, state=BrokerState.INACTIVE)
    assert codes(quorum(3, brokers=brokers(broker(4), away, partitions=short))) == ["BROKER_FENCED"]


def test_unregistered_broker_with_replicas_explains_partitions_that_are_short_of_them() -> None:
    """[a broker was unregistered with its replicas: "wait: it catches up\"]"""
    told = brokers(
        broker(4), partitions=counts(under_replicated=1), unregistered_replica_ids=[6, 7]
    )
    found = only(quorum(3, brokers=told))
    assert (found.code, found.severity) == ("BROKER_UNREGISTERED", Severity.DEGRADED)
    assert found.cause == "Brokers 6 and 7 are not registered, and replicas are assigned there."


def test_no_broker_is_a_notice() -> None:
    assert only(quorum(3, brokers=brokers())).code == "NO_BROKERS"


def test_a_fenced_broker() -> None:
    away = broker(
        4,
        state=BrokerState.INACTIVE,
        reason="its session has ended",
        state_age_ms=125_000,
        last_contact_age_ms=130_000,
    )
    found = only(quorum(3, brokers=brokers(broker(1), away)))
    assert (found.code, found.severity) == ("BROKER_FENCED", Severity.DEGRADED)
    assert found.cause == (
        "Broker 4 (127.0.0.1:9194) is fenced for 2 min: its session has ended;"
        " last heard 2 min ago."
    )
    assert found.command == "raftlog broker run -c FILE"


@pytest.mark.parametrize("cause", list(Cause))
def test_what_is_to_be_done_about_a_fenced_broker_takes_nothing_away(cause: Cause) -> None:
    """[who was paged copies the command that is shown: a registration is gone for good]"""
    away = broker(4, state=BrokerState.INACTIVE, cause=cause.value, state_age_ms=3_000)
    found = only(quorum(3, brokers=brokers(broker(1), away)))
    assert found.command in ("raftlog broker run -c FILE", "raftlog brokers list")
    assert found.remedy.endswith("docs/operations.md, A broker is fenced.")
    assert ("hangs" in found.remedy) is (cause is Cause.SESSION_TIMED_OUT)


def test_of_a_broker_whose_session_ended_under_this_leader_it_does_not_say_unheard() -> None:
    away = broker(4, state=BrokerState.INACTIVE, state_age_ms=3_000, last_contact_age_ms=-1)
    assert only(quorum(3, brokers=brokers(away))).cause.endswith("is fenced for 3 s.")


def test_a_fenced_broker_of_an_earlier_leader() -> None:
    away = broker(4, state=BrokerState.INACTIVE, state_age_is_at_least=True, last_contact_age_ms=-1)
    cause = only(quorum(3, brokers=brokers(away))).cause
    assert "for more than 0 ms; this leader has not heard of it" in cause


def test_a_broker_that_has_missed_heartbeats_is_named_before_it_is_fenced() -> None:
    """[paused for 8 s, and the doctor said HEALTHY]"""
    hangs = broker(5, last_contact_age_ms=6_200)
    found = only(quorum(3, brokers=brokers(broker(4), hangs)))
    assert (found.code, found.severity) == ("BROKER_SILENT", Severity.NOTICE)
    assert found.cause == "Broker 5 (127.0.0.1:9195) was last heard 6 s ago."
    assert diagnose(quorum(3, brokers=brokers(broker(5, last_contact_age_ms=4_400)))) == []


def test_how_long_a_broker_may_be_silent_is_what_its_controller_says() -> None:
    silent = broker(5, last_contact_age_ms=6_200)
    told = {"broker_session_timeout_ms": 30_000}
    assert diagnose(quorum(3, brokers=brokers(silent, **told))) == []
    longer = broker(5, last_contact_age_ms=15_100)
    found = only(quorum(3, brokers=brokers(longer, **told)))
    assert "it is fenced 30 s after it was last heard." in found.consequence
    by_default = only(quorum(3, brokers=brokers(silent)))
    assert "it is fenced 9 s after it was last heard." in by_default.consequence


def test_who_holds_lao_back() -> None:
    held = brokers(
        broker(1), broker(2), held_back_by=[2], held_back_ms=4_000, lowest_acknowledged_offset=90
    )
    found = only(quorum(3, brokers=held))
    assert found.code == "LAO_HELD_BACK"
    assert found.cause == (
        "Broker 2 holds the lowest acknowledged offset at 90, 9 behind, for 4 s."
    )
    assert diagnose(quorum(3, brokers=replace(held, held_back_ms=900))) == []


def test_lao_unknown() -> None:
    unknown = brokers(
        broker(1),
        held_back_ms=4_000,
        lowest_acknowledged_offset=-1,
        lao_unknown_reason="broker 1 has not reported",
    )
    found = only(quorum(3, brokers=unknown))
    assert found.code == "LAO_UNKNOWN"
    assert "broker 1 has not reported" in found.cause


def test_partitions_without_a_leader_and_recovering() -> None:
    seen = quorum(
        3, brokers=brokers(broker(1), partitions={"total": 9, "offline": 2, "recovering": 1})
    )
    assert codes(seen) == ["PARTITIONS_OFFLINE", "PARTITIONS_RECOVERING"]
    assert diagnose(seen)[0].cause.startswith("2 partitions of 9 have no leader")


def test_a_leader_that_does_not_describe_its_brokers() -> None:
    found = only(quorum(3, brokers_failure="UNAVAILABLE: claiming"))
    assert found.code == "BROKERS_UNKNOWN"
    assert "UNAVAILABLE: claiming" in found.cause
