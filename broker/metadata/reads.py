"""Answers from one image. Pure: for the same image, request and listener every broker returns the
same bytes.

A client gets the endpoints of the listener that it is connected to (KIP-103), and does not see
brokers without a listener of that name. ListKeyValues is bounded: an answer that would be too large
is truncated and says so; the client continues after its last key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice

from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import ResourceType, config_keys, inherited
from raftlog.metadata.entities import NO_LEADER, Broker, Listener, Partition
from raftlog.metadata.image import Image
from raftlog.node.security.authorization import NONE_REFUSED, Refused
from raftlog.wire.broker.v1 import broker_pb2

# Values of Kafka's ConfigSource.
DYNAMIC_TOPIC = 1
DYNAMIC_BROKER = 2
DYNAMIC_DEFAULT_BROKER = 3
DEFAULT = 5
CLIENT_METRICS = 7
GROUP = 8

_Endpoints = Mapping[int, Listener | None]
"""Live brokers, and the endpoint of each for this client; None if unreachable."""
_SOURCES = {
    ResourceType.CLIENT_METRICS: CLIENT_METRICS,
    ResourceType.GROUP: GROUP,
}


def metadata(
    image: Image,
    request: broker_pb2.MetadataRequest,
    cluster_id: str,
    listener: str = "",
    may_describe: Callable[[str], bool] | None = None,
) -> broker_pb2.MetadataResponse:
    """Return the unfenced brokers, and the requested topics in the order of the request, or all
    topics by name.

    Includes no ISR (KIP-24). A fenced broker is absent; one in controlled shutdown still serves and
    is listed. ``listener``: the client's; "" for each broker's first. ``may_describe``: whether a
    topic may be shown; None if all may. An answer does not reveal that a hidden topic exists.
    """
    names: Iterable[str]
    hidden: frozenset[str] = frozenset()
    next_cursor = ""
    if not request.topics:
        names, next_cursor = _page(image, request, may_describe)
    else:
        names = dict.fromkeys(request.topics)
        if may_describe is not None:
            hidden = frozenset(name for name in names if not may_describe(name))
    live = {broker.id: broker for broker in _brokers(image) if not broker.fenced}
    endpoints = {id_: broker.listener_for_clients(listener) for id_, broker in live.items()}
    return broker_pb2.MetadataResponse(
        brokers=[
            _metadata_broker(live[id_], where)
            for id_, where in endpoints.items()
            if where is not None
        ],
        topics=[
            _metadata_topic(image, name, endpoints)
            if name not in hidden
            else broker_pb2.MetadataTopic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name
            )
            for name in names
        ],
        cluster_id=cluster_id,
        next_cursor=next_cursor,
    )


def check_page(request: broker_pb2.MetadataRequest) -> None:
    """Raise ApiError for an invalid page."""
    limit = request.response_partition_limit
    if limit < 0:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "response_partition_limit must be 0 (all topics) or more",
            field="response_partition_limit",
        )
    if limit and request.topics:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "a paged request covers all topics: leave topics empty when response_partition_limit"
            " is set",
            field="topics",
        )
    if request.cursor and not limit:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "cursor requires response_partition_limit",
            field="cursor",
        )


def _page(
    image: Image,
    request: broker_pb2.MetadataRequest,
    may_describe: Callable[[str], bool] | None,
) -> tuple[list[str], str]:
    """Return (names, next cursor): all topics that may be shown, or a page of them.

    The cursor is "" if there is no further page.
    """
    limit, cursor = request.response_partition_limit, request.cursor
    shown = (
        name
        for name in image.topic_ids
        if name >= cursor and (may_describe is None or may_describe(name))
    )
    if not limit:
        return sorted(shown), ""
    # A topic has at least one partition.
    names = nsmallest(limit + 1, shown)
    partitions = 0
    for count, name in enumerate(names):
        partitions += image.topics[image.topic_ids[name]].partition_count
        if count and partitions > limit:
            return names[:count], name
    return names, ""


def describe_cluster(
    image: Image, request: broker_pb2.DescribeClusterRequest, cluster_id: str, listener: str = ""
) -> broker_pb2.DescribeClusterResponse:
    """Return the brokers, sorted by id, fenced ones only on request, and the controller according
    to this image.

    ``listener``: as in ``metadata``.
    """
    return broker_pb2.DescribeClusterResponse(
        cluster_id=cluster_id,
        controller_id=image.leader.leader_id if image.leader is not None else -1,
        brokers=[
            _cluster_broker(broker, where)
            for broker in _brokers(image)
            if (request.include_fenced_brokers or not broker.fenced)
            and (where := broker.listener_for_clients(listener)) is not None
        ],
    )


def describe_configs(
    image: Image, request: broker_pb2.DescribeConfigsRequest, refused: Refused = NONE_REFUSED
) -> broker_pb2.DescribeConfigsResponse:
    """Return the keys of each resource by name: the keys that are set, and defaults for the rest.

    A resource that fails does not affect the others.
    """
    return broker_pb2.DescribeConfigsResponse(
        results=[
            _config_result(image, index, resource, refused)
            for index, resource in enumerate(request.resources)
        ]
    )


def _brokers(image: Image) -> list[Broker]:
    return [image.brokers[broker_id] for broker_id in sorted(image.brokers)]


def _metadata_broker(broker: Broker, where: Listener) -> broker_pb2.MetadataBroker:
    return broker_pb2.MetadataBroker(
        node_id=broker.id, host=where.bare_host, port=where.port, rack=broker.rack
    )


def _cluster_broker(broker: Broker, where: Listener) -> broker_pb2.DescribeClusterBroker:
    return broker_pb2.DescribeClusterBroker(
        broker_id=broker.id,
        host=where.bare_host,
        port=where.port,
        rack=broker.rack,
        is_fenced=broker.fenced,
        broker_epoch=broker.epoch,
    )


def _metadata_topic(image: Image, name: str, endpoints: _Endpoints) -> broker_pb2.MetadataTopic:
    topic_id = image.topic_ids.get(name)
    if topic_id is None:
        return broker_pb2.MetadataTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
    count = image.topics[topic_id].partition_count
    return broker_pb2.MetadataTopic(
        name=name,
        topic_id=topic_id,
        partitions=[
            _metadata_partition(image.partitions[topic_id, index], endpoints)
            for index in range(count)
        ],
    )


def _metadata_partition(
    partition: Partition, endpoints: _Endpoints
) -> broker_pb2.MetadataPartition:
    error = _leader_error(partition.leader, endpoints)
    return broker_pb2.MetadataPartition(
        error_code=error,
        partition_index=partition.index,
        leader_id=NO_LEADER if error else partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        offline_replicas=[
            broker_id for broker_id in partition.replicas if endpoints.get(broker_id) is None
        ],
        eligible_leader_replicas=partition.elr,
        last_known_elr=partition.last_known_elr,
    )


def _leader_error(leader_id: int, endpoints: _Endpoints) -> ErrorCode:
    if endpoints.get(leader_id) is not None:
        return ErrorCode.NONE
    return (
        ErrorCode.LISTENER_NOT_FOUND if leader_id in endpoints else ErrorCode.LEADER_NOT_AVAILABLE
    )


def _config_result(
    image: Image, index: int, resource: broker_pb2.DescribeConfigsResource, refused: Refused
) -> broker_pb2.DescribeConfigsResult:
    result = broker_pb2.DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        if (refusal := refused.get(index)) is not None:
            raise refusal
        configs = _configs(image, f"resources[{index}]", resource)
    except ApiError as error:
        result.error_code, result.error_message = error.code, error.message
        result.field = error.field
    else:
        result.configs.extend(configs)
    return result


def _configs(
    image: Image, field: str, resource: broker_pb2.DescribeConfigsResource
) -> list[broker_pb2.DescribedConfig]:
    kind, name = resource.resource_type, resource.resource_name
    keys = config_keys(kind)
    if keys is None:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"resource type {kind} has no configs",
            field=f"{field}.resource_type",
        )
    if kind == ResourceType.TOPIC and name not in image.topic_ids:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"there is no topic {name!r}",
            field=f"{field}.resource_name",
        )
    if kind == ResourceType.BROKER and name and not (name.isascii() and name.isdigit()):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{name!r} must be a broker id, or empty for all brokers",
            field=f"{field}.resource_name",
        )
    layers = _layers(image, kind, name)
    found = {key: (layer[key], source) for layer, source in reversed(layers) for key in layer}
    wanted = set(resource.configuration_keys) or found.keys() | keys.keys()
    described: list[broker_pb2.DescribedConfig] = []
    for key in sorted(wanted):
        if key in found:
            value, source = found[key]
            described.append(
                broker_pb2.DescribedConfig(name=key, value=value, config_source=source)
            )
        elif key in keys:
            default = keys[key].default
            described.append(
                broker_pb2.DescribedConfig(
                    name=key, value=default, config_source=DEFAULT, is_default=True
                )
            )
    return described


def _layers(image: Image, kind: int, name: str) -> list[tuple[dict[str, str], int]]:
    """Return the configs that apply to a resource, strongest first: a broker's or topic's own
    configs, then the cluster-wide ones.
    """
    own = image.configs.get((kind, name)) or {}
    if kind == ResourceType.TOPIC:
        return [(own, DYNAMIC_TOPIC), (inherited(image), DYNAMIC_DEFAULT_BROKER)]
    if kind != ResourceType.BROKER:
        return [(own, _SOURCES[ResourceType(kind)])]
    if not name:
        return [(own, DYNAMIC_DEFAULT_BROKER)]
    shared = image.configs.get((kind, "")) or {}
    return [(own, DYNAMIC_BROKER), (shared, DYNAMIC_DEFAULT_BROKER)]


MAX_KEYS = 1_000
"""Maximum number of keys in one answer."""
MAX_BYTES = 1 << 20
"""Maximum number of bytes of keys and values in one answer, unless a single one is larger."""
MAX_HIDDEN = 20_000
"""Maximum number of hidden keys that one answer skips."""


def check_list_key_values(request: broker_pb2.ListKeyValuesRequest) -> None:
    """Raise INVALID_REQUEST for a request that no image can answer."""
    if request.limit < 0:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"limit {request.limit} is negative; it must be 0 or more",
            field="limit",
        )
    if request.keys and (request.prefix or request.after):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "give either keys, or prefix and after", field="keys"
        )


def list_key_values(
    image: Image,
    request: broker_pb2.ListKeyValuesRequest,
    may_describe: Callable[[str], bool] | None = None,
) -> broker_pb2.ListKeyValuesResponse:
    """Return the requested keys, sorted by name.

    ``may_describe``: whether a key may be shown; None if all may. An answer does not reveal that a
    hidden key exists. The request must have been checked. Raises POLICY_VIOLATION if too many keys
    are hidden, as this runs in one turn of the event loop.
    """
    most = min(request.limit or MAX_KEYS, MAX_KEYS)
    names = _names(image, request)
    if may_describe is not None:
        names = _shown(names, may_describe)
    response = broker_pb2.ListKeyValuesResponse()
    size = 0
    # One more than fits, to detect that there are more.
    for key in islice(names, most + 1):
        one = image.key_values[key]
        size += len(key) + (0 if request.keys_only else len(one.value))
        count = len(response.key_values)
        if count == most or (count and size > MAX_BYTES):
            response.more = True
            break
        response.key_values.add(
            key=key,
            value=b"" if request.keys_only else one.value,
            offset=one.offset,
            create_offset=one.create_offset,
            lease_id=one.lease_id,
        )
    return response


def _shown(names: Iterable[str], may_describe: Callable[[str], bool]) -> Iterator[str]:
    hidden = 0
    for key in names:
        if may_describe(key):
            yield key
        elif (hidden := hidden + 1) > MAX_HIDDEN:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"more than {MAX_HIDDEN} keys are hidden from you: list a longer prefix",
                field="prefix",
            )


def _names(image: Image, request: broker_pb2.ListKeyValuesRequest) -> Iterable[str]:
    if request.keys:
        return sorted(key for key in set(request.keys) if key in image.key_values)
    return image.key_names.below(request.prefix, request.after)
