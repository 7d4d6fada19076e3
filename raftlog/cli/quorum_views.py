"""The voter set and the observers, as one node sees them: the leader, if there is one."""

from __future__ import annotations

from typing import Any

from raftlog.cli.output import known, print_table, print_text
from raftlog.words import nodes

COLUMNS = (
    "NODE",
    "DIRECTORY",
    "STATUS",
    "ENDPOINT",
    "LOG END",
    "LAG",
    "FETCH MS",
    "CAUGHT UP MS",
    "METADATA VERSION",
    "LOW SPACE",
)
_LEAST = ("METADATA VERSION", "CAUGHT UP MS", "FETCH MS", "LOG END", "LOW SPACE")
_RIGHT = ("LOG END", "LAG", "FETCH MS", "CAUGHT UP MS", "METADATA VERSION")


def members_document(one: Any) -> dict[str, Any]:
    """For JSON: who votes since when, who observes, how far, and the snapshots of the node that
    says so.
    """
    return {
        "voters_offset": known(one.voters_offset),
        "voters": [_member(one, replica) for replica in one.voters],
        "observers": [_member(one, replica) for replica in one.observers],
        "snapshots": [
            {"end_offset": snapshot.end_offset, "epoch": snapshot.epoch}
            for snapshot in one.snapshots
        ],
        "log_start_offset": one.log_start_offset,
    }


def _member(one: Any, replica: Any) -> dict[str, Any]:
    end = known(replica.log_end_offset)
    return {
        "node_id": replica.replica_id,
        "directory_id": replica.replica_directory_id or None,
        "endpoint": replica.endpoint or None,
        "connected_from": replica.connected_from or None,
        "endpoints": replica.endpoints.split(",") if replica.endpoints else [],
        "log_end_offset": end,
        "lag": None if end is None else max(0, one.log_end_offset - end),
        "last_fetch_age_ms": known(replica.last_fetch_age_ms),
        "last_caught_up_age_ms": known(replica.last_caught_up_age_ms),
        "max_metadata_version": replica.max_metadata_version or None,
        "low_on_space": replica.low_on_space,
    }


def show_quorum(one: Any, *, leader_id: int | None, replication: bool) -> None:
    """For people: the quorum as a whole, or each replica.

    ``leader_id``: of the node that says so itself; None: nobody does, whatever the others remember.
    """
    if replication:
        _show_replicas(one, leader_id)
        return
    document = members_document(one)
    others = [voter for voter in document["voters"] if voter["node_id"] != leader_id]
    lags = [voter["lag"] for voter in others if voter["lag"] is not None]
    ages = [
        voter["last_caught_up_age_ms"]
        for voter in others
        if voter["last_caught_up_age_ms"] is not None
    ]
    low = [voter["node_id"] for voter in document["voters"] if voter["low_on_space"]]
    rows = [
        ("cluster id", one.cluster_id),
        ("leader id", leader_id),
        ("leader epoch", one.leader_epoch),
        ("high watermark", known(one.high_watermark)),
        ("max follower lag", max(lags, default=None)),
        ("max follower lag time ms", max(ages, default=None)),
        ("current voters", [voter["node_id"] for voter in document["voters"]]),
        ("current observers", [observer["node_id"] for observer in document["observers"]]),
        ("voters offset", "the configured set" if one.voters_offset < 0 else one.voters_offset),
        ("log start offset", one.log_start_offset),
        ("snapshots", [snapshot["end_offset"] for snapshot in document["snapshots"]]),
        ("low on space", low),
    ]
    print_table(("", ""), rows)


def _show_replicas(one: Any, leader_id: int | None) -> None:
    rows = []
    for status, replicas in (("voter", one.voters), ("observer", one.observers)):
        for replica in replicas:
            member = _member(one, replica)
            # Who follows nobody remembers the one that led: it may be gone.
            is_leader = status == "voter" and replica.replica_id == leader_id
            rows.append(
                (
                    member["node_id"],
                    member["directory_id"],
                    "leader" if is_leader else status,
                    _where(member),
                    member["log_end_offset"],
                    member["lag"],
                    member["last_fetch_age_ms"],
                    member["last_caught_up_age_ms"],
                    member["max_metadata_version"],
                    "yes" if member["low_on_space"] else None,
                )
            )
    print_table(COLUMNS, rows, right=_RIGHT, least=_LEAST)
    low = [voter.replica_id for voter in one.voters if voter.low_on_space]
    if low:
        print_text(f"low on space: {nodes(low)}")


def _where(member: dict[str, Any]) -> str | None:
    """An observer has no address that others know: where it comes from is all there is."""
    if member["endpoints"]:
        return ", ".join(member["endpoints"])
    if member["endpoint"] or not member["connected_from"]:
        return str(member["endpoint"]) if member["endpoint"] else None
    return f"from {member['connected_from']}"
