"""A request of each kind, for the matrix of permissions.

Each comes in two forms. One would do damage where it is let in: it is sent where it must be
refused, and the state of the cluster shows whether it was. The other one fails behind the check, or
changes nothing: it is sent where it is let in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from matrix_facts import CONFIGS, MY_TOPIC, THEIR_TOPIC, UNKNOWN, Ask, Facts
from matrix_requests_of_nodes import LOG_REQUESTS, QUORUM_REQUESTS
from matrix_requests_to_controller import TO_CONTROLLER
from matrix_rpcs import BY_NAME, NOBODYS, OWN, Rpc

from raftlog.node.security.node_claims import CONTROLLER_CLAIMS, NOBODY
from raftlog.node.security.permissions import REQUESTS
from raftlog.transport.api import WATCHES, Conversation
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data

UNKNOWN_TOPIC = bytes(range(16))


def request_of(rpc: Rpc, own_id: int | None, facts: Facts, harms: Collection[int] = ()) -> Any:
    """The message of a request: what stands in the envelope's body. ``own_id``: of the node that
    the caller's certificate names. A read that is not
    named below has no fields. Raises KeyError for such a write.
    """
    ask = Ask(facts, _claimed(rpc, own_id, facts), harms, rpc.variant)
    if rpc.conversation is Conversation.QUORUM:
        return QUORUM_REQUESTS[rpc.kind](ask)
    if rpc.carried or (rpc.method.service.endswith(".Controller") and rpc.body):
        if rpc.kind in TO_CONTROLLER or not REQUESTS[rpc.kind].reads:
            return TO_CONTROLLER[rpc.kind](ask)
        return getattr(controller.ControllerRequest(), rpc.kind)
    if rpc.conversation in WATCHES:
        return broker.WatchRequest(selectors=["brokers"])
    if rpc.body:
        return _TO_BROKER[rpc.kind](ask)
    return LOG_REQUESTS[rpc.kind](ask)


def _claimed(rpc: Rpc, own_id: int | None, facts: Facts) -> int:
    if rpc.variant == OWN and own_id is not None:
        return own_id
    if rpc.variant == NOBODYS:
        return NOBODY
    of_brokers = CONTROLLER_CLAIMS.get(rpc.kind) == "broker_id" or rpc.kind in _OF_BROKERS
    return facts.nodes.victim_broker if of_brokers else facts.nodes.victim_controller


_OF_BROKERS = ("MetadataFetch", "ReplicaFetch")


def _partitions(ask: Ask, kind: Any, **more: Any) -> list[Any]:
    """Mine, theirs, and one of a topic that is not there: nobody is refused that."""
    ids = (ask.facts.id_of(MY_TOPIC), ask.facts.id_of(THEIR_TOPIC), UNKNOWN_TOPIC)
    return [
        kind(topic_id=id_, partition_index=0 if index in ask.harms else UNKNOWN,
             current_leader_epoch=-1, **more)
        for index, id_ in enumerate(ids)
    ]  # fmt: skip


def _produce(ask: Ask) -> Any:
    value = data.DataRecord(value=b"not to be there").SerializeToString()
    return data.ProduceRequest(
        acks=1,
        timeout_ms=5_000,
        partitions=_partitions(ask, data.ProducePartition, records=[value]),
    )


def _describe_configs(ask: Ask) -> Any:
    return broker.DescribeConfigsRequest(
        resources=[
            broker.DescribeConfigsResource(resource_type=type_, resource_name=name)
            for type_, name, _ in CONFIGS
        ]
    )


_TO_BROKER: Mapping[str, Callable[[Ask], Any]] = {
    "metadata": lambda ask: broker.MetadataRequest(
        topics=[MY_TOPIC, THEIR_TOPIC] if ask.variant == BY_NAME else []
    ),
    "describe_configs": _describe_configs,
    "list_key_values": lambda ask: broker.ListKeyValuesRequest(),
    "describe_cluster": lambda ask: broker.DescribeClusterRequest(),
    "describe_broker": lambda ask: broker.DescribeBrokerRequest(),
    "broker_metadata": lambda ask: data.BrokerMetadataRequest(),
    "api_versions": lambda ask: broker.ApiVersionsRequest(),
    "produce": _produce,
    "fetch": lambda ask: data.FetchRequest(
        max_bytes=1 << 20, partitions=_partitions(ask, data.FetchPartition)
    ),
    "list_offsets": lambda ask: data.ListOffsetsRequest(
        partitions=_partitions(ask, data.ListOffsetsPartition, timestamp=-1)
    ),
}
