"""Attacks on the voters, and through them on what is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from attack_kit import Attack, Stage, followers_of
from cluster_kit import until_true
from siege import Operator, Siege, State
from stranger import Answer, quorum_message

from raftlog.local.cluster import HOST
from raftlog.transport.api import Conversation
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

AHEAD = 5
"""Epochs that a forgery is ahead."""
STRANGER_ID, STRANGER_DIRECTORY = 99, "c" * 22
NOWHERE = f"{HOST}:1"


async def _vote(stage: Stage, candidate: int, epoch: int) -> list[Answer]:
    """Of the leader and of the voter that is not the victim."""
    return [
        await stage.stranger.say(
            node.endpoint,
            Conversation.QUORUM,
            quorum_message(
                vote_request=quorum.VoteRequest(
                    cluster_id=stage.siege.cluster.cluster_id,
                    voter_id=node.node_id,
                    replica_id=candidate,
                    replica_epoch=epoch,
                    last_offset_epoch=epoch - 1,
                    last_offset=1 << 40,
                )
            ),
        )
        for node in (stage.leader, stage.followers[1])
    ]


async def vote(stage: Stage) -> Sequence[Answer]:
    return await _vote(stage, stage.victim.node_id, stage.before.epoch + AHEAD)


async def vote_of_last_epoch(stage: Stage) -> Sequence[Answer]:
    return await _vote(stage, stage.victim.node_id, 2**31 - 1)


async def vote_for_stranger(stage: Stage) -> Sequence[Answer]:
    return await _vote(stage, STRANGER_ID, stage.before.epoch + AHEAD)


async def vote_for_broker(stage: Stage, broker_id: int) -> Sequence[Answer]:
    """Of the followers, for a node that claims to be a voter of a newer set than theirs: it names
    their directories, and a longer log.
    """
    epoch = stage.before.epoch + AHEAD
    return [
        await stage.stranger.say(
            stage.siege.node(one.replica_id).endpoint,
            Conversation.QUORUM,
            quorum_message(
                vote_request=quorum.VoteRequest(
                    cluster_id=stage.siege.cluster.cluster_id,
                    voter_id=one.replica_id,
                    voter_directory_id=one.replica_directory_id,
                    replica_id=broker_id,
                    replica_epoch=epoch,
                    replica_directory_id=STRANGER_DIRECTORY,
                    last_offset_epoch=epoch - 1,
                    last_offset=1 << 40,
                )
            ),
        )
        for one in stage.before.leader.voters
        if one.replica_id != stage.leader.node_id
    ]


async def _begin(stage: Stage, epoch: int, endpoint: str) -> list[Answer]:
    """In the victim's name, at the others."""
    request = quorum.BeginQuorumEpochRequest(
        cluster_id=stage.siege.cluster.cluster_id,
        leader_id=stage.victim.node_id,
        leader_epoch=epoch,
        leader_endpoint=endpoint,
    )
    answers = []
    for node in (stage.leader, stage.followers[1]):
        request.voter_id = node.node_id
        message = quorum_message(begin_quorum_epoch_request=request)
        answers.append(await stage.stranger.say(node.endpoint, Conversation.QUORUM, message))
    return answers


async def begin(stage: Stage) -> Sequence[Answer]:
    return await _begin(stage, stage.before.epoch + AHEAD, stage.victim.endpoint)


async def begin_present_epoch(stage: Stage) -> Sequence[Answer]:
    return await _begin(stage, stage.before.epoch, stage.victim.endpoint)


async def pose_as_leader(stage: Stage) -> Sequence[Answer]:
    epoch = stage.before.epoch + AHEAD
    endpoint = await stage.stranger.pose(stage.victim.node_id, epoch)
    return await _begin(stage, epoch, endpoint)


async def end(stage: Stage) -> Sequence[Answer]:
    request = quorum.EndQuorumEpochRequest(
        cluster_id=stage.siege.cluster.cluster_id,
        leader_id=stage.leader.node_id,
        leader_epoch=stage.before.epoch,
        preferred_candidates=[quorum.PreferredCandidate(candidate_id=stage.victim.node_id)],
    )
    message = quorum_message(end_quorum_epoch_request=request)
    return [
        await stage.stranger.say(node.endpoint, Conversation.QUORUM, message)
        for node in stage.followers
    ]


@asynccontextmanager
async def both_followers_stand_still(siege: Siege, operator: Operator) -> AsyncIterator[None]:
    """Something is written that the leader alone has."""
    before = await operator.look()
    with siege.pausing(*(one.node_id for one in followers_of(siege, before))):
        writing = asyncio.create_task(operator.write("uncommitted"))

        async def appended() -> bool:
            leader = (await operator.look()).leader
            return leader.log_end_offset > leader.high_watermark

        await until_true(appended, "the leader has what is not committed")
        yield
    await writing


async def acknowledge(stage: Stage) -> Sequence[Answer]:
    victim = _victim(stage)
    return [await _fetch(stage, victim["voter_id"], victim["voter_directory_id"])]


async def _fetch(stage: Stage, replica_id: int, directory: str) -> Answer:
    """As one that has all the leader has."""
    leader = stage.before.leader
    request = quorum.FetchRequest(
        cluster_id=stage.siege.cluster.cluster_id,
        replica_id=replica_id,
        replica_directory_id=directory,
        current_leader_epoch=leader.leader_epoch,
        fetch_offset=leader.log_end_offset,
        last_fetched_epoch=leader.leader_epoch,
        high_watermark=-1,
        max_bytes=1 << 20,
        max_metadata_version=99,
    )
    return await stage.stranger.say(stage.leader.endpoint, Conversation.REPLICATION, request)


async def add_voter(stage: Stage) -> Sequence[Answer]:
    """Itself, once it has fetched as an observer."""
    fetched = await _fetch(stage, STRANGER_ID, STRANGER_DIRECTORY)
    added = controller.AddRaftVoterRequest(
        voter_id=STRANGER_ID, voter_directory_id=STRANGER_DIRECTORY, endpoint=NOWHERE
    )
    return [fetched, await stage.stranger.ask(stage.leader.endpoint, add_raft_voter=added)]


def _victim(stage: Stage) -> dict[str, Any]:
    (directory,) = (
        one.replica_directory_id
        for one in stage.before.leader.voters
        if one.replica_id == stage.victim.node_id
    )
    return {"voter_id": stage.victim.node_id, "voter_directory_id": directory}


async def remove_voter(stage: Stage) -> Sequence[Answer]:
    removed = controller.RemoveRaftVoterRequest(**_victim(stage))
    return [await stage.stranger.ask(stage.leader.endpoint, remove_raft_voter=removed)]


async def move_voter(stage: Stage) -> Sequence[Answer]:
    moved = controller.UpdateRaftVoterRequest(**_victim(stage), endpoint=NOWHERE)
    return [await stage.stranger.ask(stage.leader.endpoint, update_raft_voter=moved)]


async def transfer(stage: Stage) -> Sequence[Answer]:
    request = controller.TransferLeadershipRequest(target_id=stage.victim.node_id)
    return [await stage.stranger.ask(stage.leader.endpoint, transfer_leadership=request)]


# --- damage -------------------------------------------------------------------------------------


def deposed(before: State, after: State) -> str | None:
    if after.epoch == before.epoch:
        return None
    return f"the leader of epoch {before.epoch} is gone, node {after.leader.node_id} leads {after.epoch}"


def followed(before: State, after: State) -> str | None:
    return "; ".join(after.loot) or None


def committed(before: State, after: State) -> str | None:
    if after.leader.high_watermark <= before.leader.high_watermark:
        return None
    return "a write that one of three voters has is committed"


def voters_changed(before: State, after: State) -> str | None:
    if after.voters == before.voters:
        return None
    return f"the voters are {sorted(after.voters)}" + (
        "" if after.voters.keys() != before.voters.keys() else ", one of them nowhere"
    )


ATTACKS = (
    Attack("vote, epochs ahead", vote, deposed),
    Attack(
        "vote in the last epoch",
        vote_of_last_epoch,
        deposed,
        anyway="no epoch is that high",
    ),
    Attack("vote for no voter", vote_for_stranger, deposed, anyway="it is no voter"),
    Attack("BeginQuorumEpoch", begin, deposed),
    Attack(
        "BeginQuorumEpoch, epoch as it is",
        begin_present_epoch,
        deposed,
        anyway="the epoch has a leader",
    ),
    Attack("EndQuorumEpoch", end, deposed),
    Attack(
        "fetch as a voter",
        acknowledge,
        committed,
        scene=both_followers_stand_still,
    ),
    Attack("AddRaftVoter", add_voter, voters_changed, forged=1),
    Attack("RemoveRaftVoter", remove_voter, voters_changed, forged=0),
    Attack("UpdateRaftVoter", move_voter, voters_changed),
    Attack("TransferLeadership", transfer, deposed, forged=0),
    Attack("leader that nobody elected", pose_as_leader, followed),
)
