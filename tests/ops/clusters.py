"""Hand-made surveys of clusters."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from raftlog.ops.doctor import diagnose
from raftlog.ops.evidence import (
    AskedNode,
    Broker,
    BrokersAnswer,
    BrokerState,
    Feature,
    Partitions,
    QuorumAnswer,
    Reach,
    Replica,
    Survey,
)
from raftlog.ops.quorum_findings import Finding, Severity

AT_MS = 1_700_000_000_000
"""22:13:20 UTC."""
NOTICE, DEGRADED, DOWN = Severity.NOTICE, Severity.DEGRADED, Severity.DOWN
CLUSTER = "2c3f2edf-0000-4000-8000-000000000000"


def endpoint(node_id: int) -> str:
    return f"127.0.0.1:{9090 + node_id}"


def voter(node_id: int, **fields: Any) -> Replica:
    given: dict[str, Any] = {
        "endpoint": endpoint(node_id),
        "log_end_offset": 100,
        "last_fetch_age_ms": 20,
        "last_caught_up_age_ms": 20,
        **fields,
    }
    return Replica(replica_id=node_id, **given)


def described(
    node_id: int, role: str, voters: Collection[Replica], leader_id: int = -1, **fields: Any
) -> QuorumAnswer:
    given: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "leader_epoch": 7,
        "log_end_offset": 100,
        "high_watermark": 100,
        **fields,
    }
    given["features"] = msgspec.convert(given.get("features", []), list[Feature])
    return QuorumAnswer(
        node_id=node_id, role=role, leader_id=leader_id, voters=list(voters), **given
    )


def quorum(
    size: int,
    leader: int = 1,
    gone: Mapping[int, Reach] | None = None,
    *,
    voters: Mapping[int, Mapping[str, Any]] | None = None,
    says: Mapping[int, Mapping[str, Any]] | None = None,
    brokers: BrokersAnswer | None = None,
    brokers_failure: str = "",
) -> Survey:
    """Nodes 1 to ``size``; ``leader`` 0: nobody leads. ``gone``: nodes that do not answer;
    ``voters``: fields of their state as every node reports it; ``says``: fields of a node's answer.
    """
    gone = gone or {}
    states = [voter(one, **(voters or {}).get(one, {})) for one in range(1, size + 1)]
    found = []
    for node_id in range(1, size + 1):
        if node_id in gone:
            found.append(
                AskedNode(endpoint(node_id), gone[node_id], None, "the reason", 150, node_id)
            )
            continue
        role = "leader" if node_id == leader else "follower" if leader else "prospective"
        fields = {"role": role, "leader_id": leader or -1, **(says or {}).get(node_id, {})}
        one = described(node_id, voters=states, **fields)
        found.append(AskedNode(endpoint(node_id), Reach.ANSWERS, one, node_id=node_id))
    return Survey(tuple(found), brokers, brokers_failure, AT_MS)


def broker(broker_id: int, **fields: Any) -> Broker:
    given: dict[str, Any] = {
        "state": BrokerState.ACTIVE,
        "endpoint": f"127.0.0.1:{9190 + broker_id}",
        "applied_offset": 99,
        "last_contact_age_ms": 50,
    }
    return Broker(broker_id=broker_id, **{**given, **fields})


def brokers(*described: Broker, **fields: Any) -> BrokersAnswer:
    given: dict[str, Any] = {"lowest_acknowledged_offset": 99, "high_watermark": 100, **fields}
    given["partitions"] = msgspec.convert(given.get("partitions", {}), Partitions)
    return BrokersAnswer(brokers=list(described), **given)


def only(seen: Survey, code: str = "", severity: Severity | None = None) -> Finding:
    """Return the only finding, which has this code and severity if they are given."""
    (found,) = diagnose(seen)
    assert (found.code, found.severity) == (code or found.code, severity or found.severity)
    return found


def codes(seen: Survey) -> list[str]:
    return [one.code for one in diagnose(seen)]
