"""What the commands that show leaders add: whether those that the metadata names do lead."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from raftlog.cli.session import Session
from raftlog.client.log_reader import CommittedImage
from raftlog.endpoint import address_of
from raftlog.ops.serving import Named, not_served
from raftlog.wire.broker.v1 import broker_pb2

ASK_TIMEOUT_S = 2.0
"""A broker that is silent must not keep a command from showing the rest."""


async def of_metadata(
    session: Session, metadata: broker_pb2.MetadataResponse
) -> dict[tuple[str, int], str]:
    """Why partitions of a broker's answer cannot be used, by topic and partition."""
    named = [
        Named(topic.name, (topic.topic_id, one.partition_index), one.leader_id)
        for topic in metadata.topics
        for one in topic.partitions
    ]
    endpoints = {one.node_id: address_of(one.host, one.port) for one in metadata.brokers}
    return await _ask(session, endpoints, named, metadata.cluster_id)


async def of_partitions(
    session: Session,
    wanted: Collection[tuple[str, int]],
    bootstrap_server: str,
    bootstrap_controller: str,
) -> dict[tuple[str, int], str]:
    """Why some of these partitions cannot be used; read through a broker, or from the committed log
    where only controllers are named.
    """
    names = sorted({topic for topic, _ in wanted})
    if not names:
        return {}
    if not bootstrap_controller:
        client = session.brokers(bootstrap_server)
        body = broker_pb2.MetadataRequest(topics=names)
        response = await client.read(body, mode=broker_pb2.LATEST, timeout_s=session.timeout_s)
        found = await of_metadata(session, response.metadata)
    else:
        image = await CommittedImage(session.log(bootstrap_controller)).read()
        ids = {name: image.topic_ids[name] for name in names if name in image.topic_ids}
        named = [
            Named(name, (ids[name], index), image.partitions[ids[name], index].leader)
            for name, index in sorted(wanted)
            if name in ids and (ids[name], index) in image.partitions
        ]
        endpoints = {
            id_: broker.endpoint for id_, broker in image.brokers.items() if not broker.fenced
        }
        found = await _ask(session, endpoints, named, "")
    return {which: why for which, why in found.items() if which in wanted}


async def _ask(
    session: Session, endpoints: dict[int, str], named: Sequence[Named], cluster_id: str
) -> dict[tuple[str, int], str]:
    timeout_s = min(session.timeout_s, ASK_TIMEOUT_S)
    found = await not_served(
        session.transport, endpoints, named, timeout_s=timeout_s, cluster_id=cluster_id
    )
    return {(one.topic, one.key[1]): found[one.key] for one in named if one.key in found}
