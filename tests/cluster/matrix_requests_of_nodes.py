"""Requests between nodes and to the log, for the matrix of permissions: see matrix_requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matrix_facts import FAR, THEIR_TOPIC, Ask

from raftlog.wire.controller.v1 import controller_pb2 as rpc_pb
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.node.v1 import node_pb2 as node
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

EPOCHS_ON = 5
"""How far a forged vote is ahead."""


def _vote(ask: Ask) -> Any:
    epoch = ask.facts.epoch + EPOCHS_ON
    return quorum.VoteRequest(
        cluster_id=ask.cluster_id, replica_id=ask.node_id, voter_id=ask.facts.leader_id,
        replica_epoch=epoch, last_offset_epoch=epoch - 1, last_offset=FAR,
        replica_directory_id=ask.directory,
        voter_directory_id=ask.facts.directories[ask.facts.leader_id],
    )  # fmt: skip


def _begin(ask: Ask) -> Any:
    return quorum.BeginQuorumEpochRequest(
        cluster_id=ask.cluster_id, leader_id=ask.node_id, leader_epoch=ask.facts.epoch + EPOCHS_ON,
        voter_id=ask.facts.leader_id, leader_endpoint="127.0.0.1:1",
        voter_directory_id=ask.facts.directories[ask.facts.leader_id],
    )  # fmt: skip


def _end(ask: Ask) -> Any:
    return quorum.EndQuorumEpochRequest(
        cluster_id=ask.cluster_id, leader_id=ask.node_id, leader_epoch=ask.facts.epoch + EPOCHS_ON
    )


def _fetch(ask: Ask) -> Any:
    # One that reads on behalf of nobody is not served here: its answer is an error.
    return quorum.FetchRequest(
        cluster_id=ask.cluster_id, replica_id=ask.node_id, current_leader_epoch=ask.facts.epoch,
        replica_directory_id=ask.directory,
        fetch_offset=1 << 20, last_fetched_epoch=ask.facts.epoch, high_watermark=-1, max_bytes=1 << 20,
    )  # fmt: skip


def _fetch_snapshot(ask: Ask) -> Any:
    return quorum.FetchSnapshotRequest(
        cluster_id=ask.cluster_id, replica_id=ask.node_id, current_leader_epoch=-1,
        snapshot_id=quorum.SnapshotId(end_offset=1, epoch=1), max_bytes=1 << 20,
    )  # fmt: skip


def _metadata_fetch(ask: Ask) -> Any:
    return rpc_pb.MetadataFetchRequest(
        cluster_id=ask.cluster_id, replica_id=ask.node_id, controller_epoch=ask.facts.epoch,
        broker_epoch=ask.broker_epoch, applied_offset=FAR,
        told_lowest_acknowledged_offset=FAR, high_watermark=-1, max_bytes=1 << 20, generation=0,
    )  # fmt: skip


def _replica_fetch(ask: Ask) -> Any:
    partition = data.ReplicaFetchPartition(
        topic_id=ask.facts.id_of(THEIR_TOPIC), partition_index=0, fetch_offset=FAR
    )
    state = data.ReplicaState(replica_id=ask.node_id, replica_epoch=ask.broker_epoch)
    return data.ReplicaFetchRequest(
        cluster_id=ask.cluster_id, replica_state=state, leader_id=ask.facts.nodes.broker,
        max_bytes=1 << 20, partitions=[partition],
    )  # fmt: skip


QUORUM_REQUESTS: Mapping[str, Callable[[Ask], Any]] = {
    "vote_request": _vote,
    "begin_quorum_epoch_request": _begin,
    "end_quorum_epoch_request": _end,
}
LOG_REQUESTS: Mapping[str, Callable[[Ask], Any]] = {
    "Fetch": _fetch,
    "FetchSnapshot": _fetch_snapshot,
    "MetadataFetch": _metadata_fetch,
    "ReplicaFetch": _replica_fetch,
    "DescribeQuorum": lambda ask: quorum.DescribeQuorumRequest(),
    "DescribeNode": lambda ask: node.DescribeNodeRequest(),
    "DescribeNodeEvents": lambda ask: node.DescribeNodeEventsRequest(),
    "DiagnoseNode": lambda ask: node.DiagnoseNodeRequest(),
    "AlterLogLevel": lambda ask: node.AlterLogLevelRequest(),
}
