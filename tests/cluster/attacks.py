"""Attacks of a stranger on a cluster: on voters and on what is committed, on brokers and what they
have acknowledged, and by what clients may ask; how each is sent, and the damage that it did in
words.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cluster_kit import setting, until_true
from siege import TOPIC, Operator, Siege, State
from stranger import Answer, Stranger, quorum_message

from raftlog.errors import ErrorCode
from raftlog.local.cluster import HOST, Node
from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.transport.api import Conversation
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.common.v1 import common_pb2 as common
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum
from raftlog.wire.records.v1 import records_pb2 as records


@dataclass(frozen=True)
class Stage:
    """One attack under way. ``before``: how all was when it began."""

    siege: Siege
    operator: Operator
    stranger: Stranger
    before: State

    @property
    def leader(self) -> Node:
        return self.siege.node(self.before.leader.node_id)

    @property
    def followers(self) -> list[Node]:
        return followers_of(self.siege, self.before)

    @property
    def victim(self) -> Node:
        """The voter in whose name is spoken."""
        return self.followers[0]

    @property
    def partition_leader(self) -> Node:
        return self.siege.node(replicas_of(self.before)[0])

    @property
    def partition_follower(self) -> Node:
        return self.siege.node(replicas_of(self.before)[1])


def followers_of(siege: Siege, state: State) -> list[Node]:
    return [one for one in siege.cluster.controllers if one.node_id != state.leader.node_id]


def replicas_of(state: State) -> tuple[int, int]:
    """Of the topic's partition: its leader, and the other one."""
    assert state.partition is not None
    leader = state.partition.leader
    (follower,) = {*state.partition.replicas} - {leader}
    return leader, follower


Scene = Callable[[Siege, Operator], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def calm(siege: Siege, operator: Operator) -> AsyncIterator[None]:
    """Nothing else goes on."""
    yield


@dataclass(frozen=True)
class Attack:
    """``damage``: what the second state says that it has done, None: nothing.

    ``anyway``: why it is refused where everybody is believed, too. ``of_nodes``: why a node may do
    it, whichever it is. ``refusal``: what one gets who may not. ``forged``: how many of its requests
    are refused for the name that they bear or for reading the log, which is counted; None: all.
    ``scene``: what goes on meanwhile.
    """

    name: str
    send: Callable[[Stage], Awaitable[Sequence[Answer]]]
    damage: Callable[[State, State], str | None]
    anyway: str = ""
    of_nodes: str = ""
    refusal: ErrorCode = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    forged: int | None = None
    scene: Scene = calm

    def __str__(self) -> str:
        return self.name


ADMINISTRATOR = "User:admin"
"""Whose name is claimed: one who may do everything."""


def _own(client_id: int) -> str:
    """What the owner of a session writes."""
    return f"by the owner of {client_id}"


async def hijack(stage: Stage) -> Sequence[Answer]:
    """Write under the number that the session's owner is about to use."""
    opened = await stage.operator.controllers.call(controller.OpenClientRequest(name="owner"))
    client_id = opened.open_client.client_id
    client = common.ClientIdentity(
        client_id=client_id, sequence=1, all_below_done=1, generation=opened.write.token.generation
    )
    answer = await stage.stranger.ask(
        stage.leader.endpoint,
        client=client,
        incremental_alter_configs=setting("by the stranger", "x"),
    )
    await stage.operator.write(_own(client_id), client)
    return [answer]


async def close_session(stage: Stage) -> Sequence[Answer]:
    opened = await stage.operator.controllers.call(controller.OpenClientRequest(name="closed"))
    closing = controller.CloseClientRequest(
        client_id=opened.open_client.client_id, generation=opened.write.token.generation
    )
    return [await stage.stranger.ask(stage.leader.endpoint, close_client=closing)]


async def claim(stage: Stage) -> Sequence[Answer]:
    return [
        await stage.stranger.ask(
            stage.leader.endpoint,
            client=common.ClientIdentity(principal=ADMINISTRATOR),
            incremental_alter_configs=setting("claimed", "x"),
        )
    ]


async def claim_through_broker(stage: Stage) -> Sequence[Answer]:
    return [
        await stage.stranger.forward(
            stage.partition_leader.endpoint,
            client=common.ClientIdentity(principal=ADMINISTRATOR, node_id=stage.leader.node_id),
            incremental_alter_configs=setting("claimed through a broker", "x"),
        )
    ]


async def delete_topic(stage: Stage) -> Sequence[Answer]:
    request = controller.DeleteTopicsRequest(names=[TOPIC])
    return [await stage.stranger.ask(stage.leader.endpoint, delete_topics=request)]


async def allow_itself(stage: Stage) -> Sequence[Answer]:
    entry = controller.AccessControlEntry(
        resource_type=AclResourceType.CLUSTER,
        resource_name="kafka-cluster",
        pattern_type=PatternType.LITERAL,
        principal="User:*",
        host="*",
        operation=AclOperation.ALL,
        permission_type=AclPermission.ALLOW,
    )
    request = controller.CreateAclsRequest(creations=[entry])
    return [await stage.stranger.ask(stage.leader.endpoint, create_acls=request)]


async def read_log(stage: Stage) -> Sequence[Answer]:
    request = controller.MetadataFetchRequest(
        cluster_id=stage.siege.cluster.cluster_id,
        replica_id=-1,
        applied_offset=-1,
        told_lowest_acknowledged_offset=-1,
        high_watermark=-1,
        max_bytes=1 << 20,
        generation=0,
    )
    answer = await stage.stranger.say(stage.leader.endpoint, Conversation.OBSERVER, request)
    if answer.message is not None and answer.message.records:
        stage.stranger.loot.append("the stranger has the log")
    return [answer]


async def describe_quorum(stage: Stage) -> Sequence[Answer]:
    found = quorum.DescribeQuorumResponse
    method = "quorum.v1.Quorum/DescribeQuorum"
    request = quorum.DescribeQuorumRequest()
    answer = await stage.stranger.call(stage.leader.endpoint, method, request, found)
    if answer.message is not None and answer.message.voters:
        stage.stranger.loot.append("the stranger knows the voters")
    return [answer]


def _topic_id(stage: Stage) -> bytes:
    return stage.before.image.topic_ids[TOPIC]


async def _at_broker(stage: Stage, **body: Any) -> Answer:
    request = broker.BrokerRequest(correlation_id=1, **body)
    return await stage.stranger.say(stage.partition_leader.endpoint, Conversation.BROKER, request)


async def read_topic(stage: Stage) -> Sequence[Answer]:
    wanted = data.FetchPartition(
        topic_id=_topic_id(stage), current_leader_epoch=-1, partition_max_bytes=1 << 20
    )
    request = data.FetchRequest(max_wait_ms=0, max_bytes=1 << 20, partitions=[wanted])
    answer = await _at_broker(stage, fetch=request)
    if answer.message is not None and any(one.records for one in answer.message.fetch.partitions):
        stage.stranger.loot.append("the stranger has records")
    return [answer]


async def write_topic(stage: Stage) -> Sequence[Answer]:
    record = data.DataRecord(value=b"forged").SerializeToString()
    wanted = data.ProducePartition(
        topic_id=_topic_id(stage), current_leader_epoch=-1, records=[record]
    )
    request = data.ProduceRequest(acks=-1, timeout_ms=5_000, partitions=[wanted])
    return [await _at_broker(stage, produce=request)]


# --- damage -------------------------------------------------------------------------------------


def owner_robbed(before: State, after: State) -> str | None:
    numbered = {_own(client_id) for client_id, _ in after.image.client_results}
    if numbered <= after.configs:
        return None
    return "its owner's write is acknowledged, and is not in the log"


def session_closed(before: State, after: State) -> str | None:
    opened = len(after.image.clients) > len(before.image.clients)
    return None if opened else "its owner's session is closed"


def written(name: str) -> Callable[[State, State], str | None]:
    def damage(before: State, after: State) -> str | None:
        if name not in after.configs - before.configs or ADMINISTRATOR not in after.principals:
            return None
        return f"the log says that {ADMINISTRATOR} wrote it"

    return damage


def topic_gone(before: State, after: State) -> str | None:
    return "the topic is gone" if after.partition is None else None


def allowed(before: State, after: State) -> str | None:
    return (
        "everybody may do everything, once it is asked"
        if len(after.image.acls) > len(before.image.acls)
        else None
    )


def robbed(before: State, after: State) -> str | None:
    return "; ".join(after.loot) or None


def record_forged(before: State, after: State) -> str | None:
    if before.led is None or after.led is None:
        return None
    grown = after.led.log_end_offset > before.led.log_end_offset
    return "the topic has a record of the stranger's" if grown else None


_NODES_READ = "nodes read the log"
_TOPIC_REFUSED, _NOT_OPEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_PRODUCER_ID
ATTACKS_OF_CLIENTS = (
    Attack("reading the log", read_log, robbed, of_nodes=_NODES_READ),
    Attack("describing the quorum", describe_quorum, robbed, of_nodes=_NODES_READ),
    Attack("producing", write_topic, record_forged, refusal=_TOPIC_REFUSED, forged=0),
    Attack("reading records", read_topic, robbed, refusal=_TOPIC_REFUSED, forged=0),
    Attack(
        "writing as the administrator",
        claim,
        written("claimed"),
        of_nodes="nodes forward what clients write",
        forged=0,
    ),
    Attack(
        "the same, through a broker",
        claim_through_broker,
        written("claimed through a broker"),
        forged=0,
    ),
    Attack("a client's session", hijack, owner_robbed, refusal=_NOT_OPEN, forged=0),
    Attack("CloseClient", close_session, session_closed, refusal=_NOT_OPEN, forged=0),
    Attack("CreateAcls", allow_itself, allowed, forged=0),
    Attack("DeleteTopics", delete_topic, topic_gone, refusal=_TOPIC_REFUSED, forged=0),
)


_STOP = "controller.v1.Controller/BrokerHeartbeat"


def _stop(stage: Stage) -> controller.BrokerHeartbeatRequest:
    broker = stage.before.image.brokers[stage.partition_follower.node_id]
    return controller.BrokerHeartbeatRequest(
        broker_id=broker.id, broker_epoch=broker.epoch, want_shut_down=True
    )


async def stop(stage: Stage) -> Sequence[Answer]:
    return [await stage.stranger.ask(stage.leader.endpoint, broker_heartbeat=_stop(stage))]


async def stop_by_unary_call(stage: Stage) -> Sequence[Answer]:
    response = controller.BrokerHeartbeatResponse
    return [await stage.stranger.call(stage.leader.endpoint, _STOP, _stop(stage), response)]


async def stop_through_itself(stage: Stage) -> Sequence[Answer]:
    """The broker would hand it on with its own certificate."""
    there = stage.partition_follower.endpoint
    return [await stage.stranger.forward(there, broker_heartbeat=_stop(stage))]


async def unregister(stage: Stage) -> Sequence[Answer]:
    gone = controller.UnregisterBrokerRequest(broker_id=stage.partition_follower.node_id)
    return [await stage.stranger.ask(stage.leader.endpoint, unregister_broker=gone)]


async def register(stage: Stage) -> Sequence[Answer]:
    """As the process that the log names, but at another address."""
    broker = stage.before.image.brokers[stage.partition_follower.node_id]
    request = controller.RegisterBrokerRequest(
        broker_id=broker.id,
        cluster_id=stage.siege.cluster.cluster_id,
        incarnation_id=broker.incarnation_id,
        listeners=[records.Listener(name=broker.listeners[0].name, host=HOST, port=1)],
        features=[
            records.FeatureRange(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features
        ],
        log_dirs=broker.log_dirs,
        registration_version=broker.registration_version,
    )
    return [await stage.stranger.ask(stage.leader.endpoint, register_broker=request)]


async def shrink_isr(stage: Stage) -> Sequence[Answer]:
    leader, partition = stage.partition_leader.node_id, stage.before.partition
    assert partition is not None
    epoch = stage.before.image.brokers[leader].epoch
    change = controller.AlterPartitionData(
        partition_index=partition.index,
        leader_epoch=partition.leader_epoch,
        new_isr_with_epochs=[records.BrokerState(broker_id=leader, broker_epoch=epoch)],
        partition_epoch=partition.partition_epoch,
    )
    topic = controller.AlterPartitionTopic(topic_id=partition.topic_id, partitions=[change])
    request = controller.AlterPartitionRequest(broker_id=leader, broker_epoch=epoch, topics=[topic])
    return [await stage.stranger.ask(stage.leader.endpoint, alter_partition=request)]


# --- acknowledgements ---------------------------------------------------------------------------


@asynccontextmanager
async def follower_stands_still(siege: Siege, operator: Operator) -> AsyncIterator[None]:
    """A record is produced, and a value written, that one broker does not hear of."""
    before = await operator.look()
    leader, follower = replicas_of(before)
    topic_id = before.partition.topic_id if before.partition is not None else b""
    with siege.pausing(follower):
        producing = asyncio.create_task(operator.produce(leader, topic_id, b"on one broker"))
        await operator.write("unseen")

        async def waits() -> bool:
            now = await operator.look()
            return now.led is not None and now.led.log_end_offset > now.led.high_watermark

        await until_true(waits, "a record waits for the follower")
        yield
    await producing


async def acknowledge_records(stage: Stage) -> Sequence[Answer]:
    follower, led = stage.partition_follower.node_id, stage.before.led
    assert led is not None
    request = data.ReplicaFetchRequest(
        correlation_id=1,
        cluster_id=stage.siege.cluster.cluster_id,
        replica_state=data.ReplicaState(
            replica_id=follower, replica_epoch=stage.before.image.brokers[follower].epoch
        ),
        leader_id=stage.partition_leader.node_id,
        max_wait_ms=1,
        max_bytes=1 << 20,
        partitions=[
            data.ReplicaFetchPartition(
                topic_id=led.topic_id,
                current_leader_epoch=led.leader_epoch,
                fetch_offset=led.log_end_offset,
                last_fetched_epoch=led.leader_epoch,
            )
        ],
    )
    there = stage.partition_leader.endpoint
    return [await stage.stranger.say(there, Conversation.REPLICA_FETCH, request)]


async def report(stage: Stage) -> Sequence[Answer]:
    follower, leader = stage.partition_follower.node_id, stage.before.leader
    request = controller.MetadataFetchRequest(
        cluster_id=stage.siege.cluster.cluster_id,
        replica_id=follower,
        broker_epoch=stage.before.image.brokers[follower].epoch,
        controller_epoch=leader.leader_epoch,
        fetch_offset=leader.high_watermark,
        applied_offset=leader.high_watermark - 1,
        told_lowest_acknowledged_offset=-1,
        high_watermark=-1,
        max_bytes=1 << 20,
        generation=0,
    )
    return [await stage.stranger.say(stage.leader.endpoint, Conversation.OBSERVER, request)]


# --- damage -------------------------------------------------------------------------------------


def broker_gone(before: State, after: State) -> str | None:
    _, victim = replicas_of(before)
    now = after.broker(victim)
    if now is None:
        return f"broker {victim} is not registered any more"
    return None if now.active else f"broker {victim} stops"


def broker_moved(before: State, after: State) -> str | None:
    _, victim = replicas_of(before)
    was, now = before.image.brokers[victim], after.image.brokers[victim]
    return f"broker {victim} is said to be elsewhere" if was.endpoint != now.endpoint else None


def isr_changed(before: State, after: State) -> str | None:
    was, now = before.partition, after.partition
    assert was is not None
    if now is None or now.partition_epoch == was.partition_epoch:
        return None
    return f"the ISR was {sorted(was.isr)} and is {sorted(now.isr)}"


def record_committed(before: State, after: State) -> str | None:
    was, now = before.led, after.led
    if was is None or now is None or now.high_watermark <= was.high_watermark:
        return None
    return "a record that one broker has is acknowledged for both"


def lao_moved(before: State, after: State) -> str | None:
    was, now = (one.leader.lowest_acknowledged_offset for one in (before, after))
    return f"LAO counts what a broker has not applied: {was} -> {now}" if now > was else None


ATTACKS_ON_BROKERS = (
    Attack("AlterPartition", shrink_isr, isr_changed),
    Attack("ReplicaFetch", acknowledge_records, record_committed, scene=follower_stands_still),
    Attack("report of applied offset", report, lao_moved, scene=follower_stands_still),
    Attack("RegisterBroker", register, broker_moved),
    Attack("heartbeat that stops", stop, broker_gone),
    Attack("the same, unary", stop_by_unary_call, broker_gone),
    Attack("the same, through the broker", stop_through_itself, broker_gone),
    Attack("UnregisterBroker", unregister, broker_gone, forged=0),
)


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


async def acknowledge_log(stage: Stage) -> Sequence[Answer]:
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


ATTACKS_ON_QUORUM = (
    Attack("vote, epochs ahead", vote, deposed),
    Attack("vote in the last epoch", vote_of_last_epoch, deposed, anyway="no epoch is that high"),
    Attack("vote for no voter", vote_for_stranger, deposed, anyway="it is no voter"),
    Attack("BeginQuorumEpoch", begin, deposed),
    Attack(
        "BeginQuorumEpoch, epoch as it is",
        begin_present_epoch,
        deposed,
        anyway="the epoch has a leader",
    ),
    Attack("EndQuorumEpoch", end, deposed),
    Attack("fetch as a voter", acknowledge_log, committed, scene=both_followers_stand_still),
    Attack("AddRaftVoter", add_voter, voters_changed, forged=1),
    Attack("RemoveRaftVoter", remove_voter, voters_changed, forged=0),
    Attack("UpdateRaftVoter", move_voter, voters_changed),
    Attack("TransferLeadership", transfer, deposed, forged=0),
    Attack("leader that nobody elected", pose_as_leader, followed),
)
