"""The availability of partitions, determined by querying the leaders named in the metadata, as only
they know it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from raftlog.client.async_client import AsyncClient
from raftlog.client.leaders import LeaderAnswer, PartitionKey, ask_leaders
from raftlog.client.values import Topic
from raftlog.metadata.entities import NO_LEADER
from raftlog.transport.api import Transport

ASK_TIMEOUT_S = 2.0
"""Timeout of a broker's answer in seconds, as a silent broker must not delay the others."""


class Named(NamedTuple):
    """A partition, with its leader according to the metadata."""

    topic: str
    key: PartitionKey
    leader_id: int


async def not_served(
    transport: Transport,
    endpoints: Mapping[int, str],
    named: Iterable[Named],
    *,
    timeout_s: float,
    cluster_id: str = "",
) -> dict[PartitionKey, str]:
    """Return the partitions that cannot be used now, each with the reason. ``endpoints``: addresses
    of the brokers to query.
    """
    found: dict[PartitionKey, str] = {}
    asked: dict[int, list[PartitionKey]] = defaultdict(list)
    for one in named:
        if one.leader_id == NO_LEADER:
            found[one.key] = "no leader"
        elif one.leader_id not in endpoints:
            found[one.key] = (
                f"broker {one.leader_id} leads, but has no address that clients can use"
            )
        else:
            asked[one.leader_id].append(one.key)

    async def ask(broker_id: int, keys: Sequence[PartitionKey]) -> dict[PartitionKey, str]:
        endpoint = {broker_id: endpoints[broker_id]}
        answers = await ask_leaders(
            transport, endpoint, timeout_s=timeout_s, keys=keys, cluster_id=cluster_id
        )
        return _judged(answers[broker_id], keys)

    for judged in await asyncio.gather(
        *(ask(broker_id, keys) for broker_id, keys in sorted(asked.items()))
    ):
        found |= judged
    return found


def _judged(answer: LeaderAnswer, keys: Sequence[PartitionKey]) -> dict[PartitionKey, str]:
    who = f"broker {answer.broker_id}"
    if answer.failure:
        return dict.fromkeys(keys, f"{who} did not answer: {answer.failure}")
    led = {(one.topic_id, one.partition_index): one for one in answer.led}
    found = {}
    for key in keys:
        if key in answer.refused:
            found[key] = f"{who} does not lead it: {answer.refused[key]}"
        elif key not in led:
            found[key] = f"{who} did not report it"
        elif led[key].high_watermark < 0:
            silent = {one.replica_id for one in led[key].followers if one.log_end_offset < 0}
            waits = any(one.broker_id in silent for one in led[key].isr)
            why = "a member of the ISR has not fetched" if waits else "too few replicas are in sync"
            found[key] = f"{who} does not know the high watermark yet: {why}"
    return found


async def unfenced(client: AsyncClient) -> dict[int, str]:
    """Return the addresses of the brokers that clients know, by id."""
    return {one.id: one.address for one in await client.brokers.list() if not one.fenced}


async def not_served_of(client: AsyncClient, topics: Iterable[Topic]) -> dict[str, str]:
    """Return why partitions of these topics cannot be used, by name such as ``orders:0``."""
    named = [
        Named(
            topic.name,
            (bytes.fromhex(topic.id), one.index),
            NO_LEADER if one.leader is None else one.leader,
        )
        for topic in topics
        for one in topic.partitions
    ]
    return await _by_name(client, await unfenced(client), named)


async def not_served_among(
    client: AsyncClient, wanted: Collection[tuple[str, int]]
) -> dict[str, str]:
    """Return why some of these partitions cannot be used, according to the leaders named by a
    broker, or by the committed log if the client has only controllers.
    """
    names = sorted({topic for topic, _ in wanted})
    if not names:
        return {}
    if client.options.bootstrap:
        topics = await client.topics.describe_all(*names, read="latest")
        found = await not_served_of(client, topics)
    else:
        from raftlog.client.log_reader import CommittedImage

        image = await CommittedImage(client.core.log_reader(client.options.timeout_s)).read()
        ids = {name: image.topic_ids[name] for name in names if name in image.topic_ids}
        named = [
            Named(name, (ids[name], index), image.partitions[ids[name], index].leader)
            for name, index in sorted(wanted)
            if name in ids and (ids[name], index) in image.partitions
        ]
        endpoints = {
            id_: broker.endpoint for id_, broker in image.brokers.items() if not broker.fenced
        }
        found = await _by_name(client, endpoints, named)
    among = {f"{topic}:{index}" for topic, index in wanted}
    return {name: why for name, why in found.items() if name in among}


async def _by_name(
    client: AsyncClient, endpoints: Mapping[int, str], named: Sequence[Named]
) -> dict[str, str]:
    found = await not_served(
        client.core.transport,
        endpoints,
        named,
        timeout_s=min(client.options.timeout_s, ASK_TIMEOUT_S),
        cluster_id=client.options.cluster_id,
    )
    return {f"{one.topic}:{one.key[1]}": found[one.key] for one in named if one.key in found}
