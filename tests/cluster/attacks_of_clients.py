"""Attacks by what clients may ask: other people's sessions, names, topics and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attack_kit import Attack, Stage
from cluster_kit import setting
from siege import TOPIC, State
from stranger import Answer

from raftlog.errors import ErrorCode
from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.transport.api import Conversation
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.common.v1 import common_pb2 as common
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

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
        client_id=client_id,
        sequence=1,
        all_below_done=1,
        generation=opened.write.token.generation,
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
ATTACKS = (
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
