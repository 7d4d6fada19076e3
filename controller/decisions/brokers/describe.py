"""DescribeBrokers: facts that only the active controller has.

Registrations are shown as committed, never as pending.
"""

from __future__ import annotations

from typing import Any, cast

from controller.decision import Reply
from controller.state.state import ControllerState
from raftlog.metadata.config_keys import (
    MIN_INSYNC_REPLICAS,
    THROTTLES,
    ResourceType,
    is_cordoned,
    needed_in_sync,
    topic_value,
)
from raftlog.metadata.entities import NO_LEADER, Broker
from raftlog.metadata.image import Image
from raftlog.wire.controller.v1 import controller_pb2 as rpc


def describe_brokers(state: ControllerState, now: float) -> Reply:
    """Return all registered brokers, sorted by id; LAO; and the brokers that hold it back.

    O(brokers + topics with replicas out of sync + configs).
    """
    image, lao = state.log.committed, state.log.lao
    low = state.lag_watch.low_on_space(now)
    partitions = _count(image)
    partitions.elections_from_elr, partitions.unclean_elections = state.log.elections
    body = rpc.DescribeBrokersResponse(
        brokers=[
            rpc.DescribedBroker(
                broker_id=broker.id,
                broker_epoch=broker.epoch,
                state=lifecycle_state(broker),
                endpoint=broker.endpoint,
                rack=broker.rack,
                applied_offset=lao.applied_of(broker.id),
                told_lowest_acknowledged_offset=lao.known_lao_of(broker.id),
                last_contact_age_ms=_contact_age_ms(state, broker.id, now),
                reason=broker.reason,
                leader_count=image.leader_counts.get(broker.id, 0),
                replica_count=len(image.replicas_of.get(broker.id) or ()),
                state_age_ms=max(
                    0, round((now - state.changed_at.get(broker.id, state.began_at)) * 1000)
                ),
                state_age_is_at_least=broker.id not in state.changed_at,
                registration_version=broker.registration_version,
                cause=cast("Any", int(broker.cause)),
                cordoned=is_cordoned(image, broker.id),
                low_on_space=broker.id in low,
            )
            for broker in (image.brokers[broker_id] for broker_id in sorted(image.brokers))
        ],
        lowest_acknowledged_offset=lao.lao,
        lao_unknown_reason=lao.unknown_reason,
        high_watermark=image.offset + 1,
        held_back_by=lao.held_back_by(),
        held_back_ms=state.lao_stall.held_ms(now),
        partitions=partitions,
        broker_session_timeout_ms=state.settings.broker_session_timeout_ms,
        unregistered_replica_ids=sorted(
            broker_id
            for broker_id, held in image.replicas_of.items()
            if held and broker_id not in image.brokers
        ),
        throttled_brokers=sorted(
            name
            for (kind, name), values in image.configs.items()
            if kind == ResourceType.BROKER and any(map(values.__contains__, THROTTLES))
        ),
    )
    return Reply(body)


def _count(image: Image) -> rpc.PartitionCounts:
    """Count the partitions that need attention."""
    counts = rpc.PartitionCounts(
        total=len(image.partitions), offline=image.leader_counts.get(NO_LEADER, 0)
    )
    for one, count in image.standings.items():
        counts.not_led_by_preferred += count * one.away
        counts.reassigning += count * one.reassigning
        counts.recovering += count * one.recovering
        counts.with_elr += count * one.has_elr
        counts.awaiting_recovery += count * one.awaits_recovery
        if one.topic_id:
            counts.under_replicated += count
            wanted = int(topic_value(image, one.topic_id, MIN_INSYNC_REPLICAS))
            counts.under_min_isr += count * (one.isr < needed_in_sync(wanted, one.replicas))
    return counts


def lifecycle_state(broker: Broker) -> rpc.BrokerLifecycleState:
    """Return a registration's state in KIP-343's terms."""
    if broker.fenced:
        return rpc.INACTIVE
    return rpc.STOPPING if broker.in_controlled_shutdown else rpc.ACTIVE


def _contact_age_ms(state: ControllerState, broker_id: int, now: float) -> int:
    contact = state.sessions.last_contact(broker_id)
    return -1 if contact is None else max(0, round((now - contact) * 1000))
