"""Whether partitions can be used: the leaders that the metadata names are asked themselves, as
nobody else knows.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from raftlog.client.leaders import LeaderAnswer, PartitionKey, ask_leaders
from raftlog.transport.api import Transport

NO_LEADER = -1


class Named(NamedTuple):
    """A partition, and who leads it by the metadata."""

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
    """Those of the partitions that cannot be used now, each with the reason.

    ``endpoints``: of the brokers that may be asked.
    """
    found: dict[PartitionKey, str] = {}
    asked: dict[int, list[PartitionKey]] = defaultdict(list)
    for one in named:
        if one.leader_id == NO_LEADER:
            found[one.key] = "no leader"
        elif one.leader_id not in endpoints:
            found[one.key] = f"broker {one.leader_id} leads, and clients are not told of it"
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
        return dict.fromkeys(keys, f"{who} does not say: {answer.failure}")
    led = {(one.topic_id, one.partition_index): one for one in answer.led}
    found = {}
    for key in keys:
        if key in answer.refused:
            found[key] = f"{who} does not lead it: {answer.refused[key]}"
        elif key not in led:
            found[key] = f"{who} says nothing about it"
        elif led[key].high_watermark < 0:
            found[key] = (
                f"{who} does not know the high watermark yet: a member of the ISR has not fetched"
            )
    return found
