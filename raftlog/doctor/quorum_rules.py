"""Findings about the controllers together: one cluster, one state, one level; and their disks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from raftlog.doctor.absence import voters_left
from raftlog.doctor.evidence import Evidence
from raftlog.doctor.finding import Finding, Severity
from raftlog.doctor.node_rules import room
from raftlog.words import named, nodes


def several_clusters(seen: Evidence) -> Iterator[Finding]:
    """Nodes of two clusters were asked at once, or a voter runs as a node of another cluster."""
    of: dict[str, list[str]] = defaultdict(list)
    best, strays = seen.best, seen.strays
    left, total = voters_left(seen)
    for node in seen.nodes:
        one = node.description
        if one is None or best is None:
            continue
        if node.endpoint not in strays:
            of[one.cluster_id].append(node.endpoint)
            continue
        yield Finding(
            "NODE_OF_OTHER_CLUSTER",
            Severity.DEGRADED,
            f"Node {strays[node.endpoint]} ({node.endpoint}) runs with cluster id"
            f" {one.cluster_id}; the others are of {best.cluster_id}.",
            f"The others refuse it, and it refuses them: {left} of {total} voters are left.",
            "Correct cluster.id in its configuration. Its directory was formatted with the wrong"
            " id: keep it, and format an empty one"
            " (docs/operations.md, Replacing a controller's disk).",
            "raftlog storage format -c FILE",
        )
    if len(of) > 1:
        yield Finding(
            "CLUSTER_ID_DIFFERS",
            Severity.DOWN,
            "Nodes of several clusters answer: "
            + "; ".join(f"{', '.join(where)} of {cluster}" for cluster, where in of.items())
            + ".",
            "They refuse each other; the rest of this page mixes them.",
            "Correct the addresses, or the configuration of the node that was formatted with"
            " another cluster id.",
        )


def contradicted(seen: Evidence) -> Iterator[Finding]:
    """A node says that the log contradicts what it has of it."""
    for one in seen.told:
        if one.node.log_contradiction:
            yield Finding(
                "LOG_CONTRADICTED",
                Severity.DOWN,
                f"{one.name[:1].upper()}{one.name[1:]} says: {one.node.log_contradiction}.",
                "What was committed is not the same everywhere: an acknowledged write may be lost.",
                "Find the controller whose directory was put back, copied or formatted anew, and"
                " stop it; keep all directories (docs/operations.md, A log that contradicts"
                " another).",
                "raftlog quorum describe --replication",
            )


def diverged(seen: Evidence) -> Iterator[Finding]:
    """Two nodes have folded the same records to different states, or have different records."""
    states: dict[tuple[int, int], dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
    logs: dict[int, dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in seen.answers:
        if one.state_hash and one.image_offset >= 0:
            states[one.image_offset, one.image_epoch][one.state_hash].append(one.node_id)
            if one.log_hash:
                logs[one.image_offset][one.log_hash].append(one.node_id)
    for (offset, _), by_hash in states.items():
        if len(by_hash) > 1:
            sides = " against ".join(nodes(ids) for ids in by_hash.values())
            yield Finding(
                "STATE_DIVERGED",
                Severity.DOWN,
                f"At offset {offset} {sides} have different states of the same records.",
                "One of them answers wrongly.",
                "Stop the minority, keep its directory, and let it join again with an empty one."
                " Report it.",
                "raftlog log image --at " + str(offset),
            )
    for offset, by_hash in logs.items():
        if len(by_hash) > 1:
            sides = " against ".join(nodes(ids) for ids in by_hash.values())
            yield Finding(
                "LOG_DIVERGED",
                Severity.DOWN,
                f"Up to offset {offset} {sides} have different bytes in their logs.",
                "What was committed is not the same everywhere.",
                "Stop the minority, keep its directory, and let it join again with an empty one."
                " Report it.",
                f"raftlog log dump --directory DIR --until {offset}",
            )


def low_space(seen: Evidence) -> Iterator[Finding]:
    """A disk is below its reserve."""
    if low := seen.low_on_space:
        yield Finding(
            "LOW_ON_SPACE",
            Severity.DEGRADED,
            f"The disk of {named([_with_room(seen, one) for one in low])} is below its free-space"
            " reserve.",
            "Such a node does not lead if another can; if none can, writes are refused.",
            "Free space on it; a cursor of an export that nobody runs any more keeps the log."
            " docs/operations.md, A disk fills up.",
            "raftlog cluster cursors list",
        )


def _with_room(seen: Evidence, node_id: int) -> str:
    name = f"node {node_id}"
    about = next((one for one in seen.told if one.name == name), None)
    known = about is not None and about.node.disk_total_bytes > 0
    return f"{name} ({room(about)})" if about is not None and known else name


def refusals(seen: Evidence) -> Iterator[Finding]:
    """Something answers that is no controller, or that does not let us in."""
    if not seen.answers:
        return
    known = {voter.replica_id for voter, _ in seen.voters()}
    for node in seen.nodes:
        if node.description is None and node.node_id not in known and not node.fails_for_tls:
            yield Finding(
                "ADDRESS_WRONG",
                Severity.NOTICE,
                f"{node.endpoint} {node.reach}: {node.failure or 'no reason'}.",
                "None for the cluster: no voter is known under this address.",
                "Take it from --bootstrap-controller, or correct it.",
            )


def feature_levels(seen: Evidence) -> Iterator[Finding]:
    """Every node knows a higher level of a feature than the cluster uses."""
    leader = seen.leader
    voters = {voter.replica_id for voter, _ in seen.voters()}
    if leader is None or {one.node_id for one in seen.answers} & voters != voters:
        return
    for feature in leader.features:
        highest = min(
            (
                other.max_supported_version
                for one in seen.answers
                for other in one.features
                if other.name == feature.name
            ),
            default=0,
        )
        if 0 < feature.finalized_level < highest:
            yield Finding(
                "FEATURE_LEVEL_LOW",
                Severity.NOTICE,
                f"{feature.name} is {feature.finalized_level}; all controllers that answer know"
                f" {highest}.",
                "What the higher level brings is not used. Before it is raised, every node can"
                " still go back to the older build.",
                "Raise it when the upgrade is to stay.",
                f"raftlog cluster features upgrade {feature.name}={highest}",
            )


RULES = (several_clusters, contradicted, diverged, low_space, refusals, feature_levels)
