"""Reads at a broker: content, order and paging."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from broker_log import LogMaker, topic_id

from broker.metadata import reads
from broker.metadata.reads import check_list_key_values, list_key_values
from broker.partition.describe import PAGE_PARTITIONS, led_page
from raftlog.client.cluster import _broker
from raftlog.endpoint import address_of
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import config_keys
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.data.v1 import data_pb2 as data_pb
from raftlog.wire.records.v1 import records_pb2 as rec

CLUSTER = "c-1"

TOPIC_KEYS = config_keys(2) or {}


def cluster() -> LogMaker:
    """Brokers 1 and 2 live, 3 fenced, 4 in controlled shutdown; two topics."""
    log = LogMaker()
    log.leader(leader_id=2)
    for broker_id in (3, 1, 4, 2):
        epoch = log.register(broker_id, fenced=broker_id == 3)
        if broker_id == 4:
            log.change(4, epoch, in_controlled_shutdown=True)
    log.topic("zebra", ([1, 2, 3], 1), ([3, 4, 1], -1))
    log.topic("ant", ([3], 3))
    return log


def test_metadata_lists_all_topics() -> None:
    log = cluster()
    answer = reads.metadata(log.image(log.last), pb.MetadataRequest(), CLUSTER)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [
        (n, f"b{n}", 9092) for n in (1, 2, 4)
    ]
    assert [topic.name for topic in answer.topics] == ["ant", "zebra"]
    assert answer.cluster_id == CLUSTER
    ant, zebra = answer.topics
    assert [(p.leader_id, p.error_code) for p in ant.partitions] == [
        (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    ], "its leader is fenced"
    assert zebra.topic_id == topic_id("zebra")
    assert [(p.leader_id, p.error_code) for p in zebra.partitions] == [
        (1, 0),
        (-1, ErrorCode.LEADER_NOT_AVAILABLE),
    ]
    assert [list(p.replica_nodes) for p in zebra.partitions] == [[1, 2, 3], [3, 4, 1]]
    assert [list(p.offline_replicas) for p in zebra.partitions] == [[3], [3]]


def test_metadata_carries_eligible_leader_replicas() -> None:
    log = cluster()
    log.append(
        rec.PartitionChangeRecord(
            topic_id=topic_id("zebra"),
            partition_id=1,
            isr=rec.IdList(),
            eligible_leader_replicas=rec.IdList(ids=[3, 4]),
            last_known_elr=rec.IdList(ids=[3]),
        )
    )
    answer = reads.metadata(log.image(log.last), pb.MetadataRequest(topics=["zebra"]), CLUSTER)
    told = answer.topics[0].partitions[1]
    assert (list(told.eligible_leader_replicas), list(told.last_known_elr)) == ([3, 4], [3])


def test_metadata_does_not_depend_on_the_isr() -> None:
    log = cluster()
    request = pb.MetadataRequest()
    before = reads.metadata(log.image(log.last), request, CLUSTER)
    for isr in ([1], [1, 3], [2, 1]):
        log.append(
            rec.PartitionChangeRecord(
                topic_id=topic_id("zebra"), partition_id=0, isr=rec.IdList(ids=isr)
            )
        )
        image = log.image(log.last)
        assert image.partitions[topic_id("zebra"), 0].isr == tuple(isr)
        assert reads.metadata(image, request, CLUSTER) == before


def test_unknown_topics_fail_one_by_one_in_request_order() -> None:
    log = cluster()
    request = pb.MetadataRequest(topics=["zebra", "nope", "ant", "zebra"])
    answer = reads.metadata(log.image(log.last), request, CLUSTER)
    assert [(t.name, t.error_code) for t in answer.topics] == [
        ("zebra", 0),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("ant", 0),
    ]


def test_metadata_pages_hold_whole_topics() -> None:
    log = LogMaker()
    log.leader(leader_id=2)
    log.register(1, fenced=False)
    counts = {"a": 1, "b": 3, "c": 1, "d": 1, "e": 2}
    for name, count in counts.items():
        log.topic(name, *(([1], 1) for _ in range(count)))
    image = log.image(log.last)

    def page(limit: int, cursor: str = "", **more: Any) -> tuple[str, str]:
        request = pb.MetadataRequest(response_partition_limit=limit, cursor=cursor)
        reads.check_page(request)
        answer = reads.metadata(image, request, CLUSTER, **more)
        assert answer.brokers
        for topic in answer.topics:
            assert len(topic.partitions) == counts[topic.name]
        return "".join(topic.name for topic in answer.topics), answer.next_cursor

    assert page(2) == ("a", "b")
    assert page(2, "b") == ("b", "c")  # one at least
    assert page(2, "c") == ("cd", "e")
    assert page(2, "e") == ("e", "")
    assert page(4) == ("ab", "c")
    assert page(100) == ("abcde", "")
    assert page(1, "bb") == ("c", "d")  # the topic of the cursor is gone
    assert page(1, "f") == ("", "")
    assert page(3, may_describe=lambda name: name in "ace") == ("ac", "e")
    assert page(2**31 - 1) == ("abcde", "")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.MetadataRequest(response_partition_limit=-1), "response_partition_limit"),
        (pb.MetadataRequest(response_partition_limit=1, topics=["a"]), "topics"),
        (pb.MetadataRequest(cursor="a"), "cursor"),
        (pb.ListKeyValuesRequest(limit=-1), "limit"),
        (pb.ListKeyValuesRequest(keys=["a"], prefix="b"), "keys"),
        (pb.ListKeyValuesRequest(keys=["a"], after="b"), "keys"),
    ],
)
def test_invalid_page_request_is_refused(request_: Any, field: str) -> None:
    metadata = isinstance(request_, pb.MetadataRequest)
    with pytest.raises(ApiError) as refused:
        (reads.check_page if metadata else check_list_key_values)(request_)
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_REQUEST, field)


def test_describe_cluster_lists_fenced_brokers_only_when_asked() -> None:
    log = cluster()
    image = log.image(log.last)
    live = reads.describe_cluster(image, pb.DescribeClusterRequest(), CLUSTER)
    assert [b.broker_id for b in live.brokers] == [1, 2, 4]
    assert (live.controller_id, live.cluster_id) == (2, CLUSTER)
    everyone = reads.describe_cluster(
        image, pb.DescribeClusterRequest(include_fenced_brokers=True), CLUSTER
    )
    assert [(b.broker_id, b.is_fenced, b.broker_epoch) for b in everyone.brokers] == [
        (1, False, image.brokers[1].epoch),
        (2, False, image.brokers[2].epoch),
        (3, True, image.brokers[3].epoch),
        (4, False, image.brokers[4].epoch),
    ]


def describe(log: LogMaker, kind: int, name: str, *keys: str) -> pb.DescribeConfigsResult:
    resource = pb.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    (result,) = reads.describe_configs(
        log.image(log.last), pb.DescribeConfigsRequest(resources=[resource])
    ).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def test_topic_configs_are_set_values_and_defaults() -> None:
    log = cluster()
    log.config("5", name="retention.ms", kind=2, resource="ant")
    result = describe(log, 2, "ant")
    values = {c.name: (c.value, c.config_source, c.is_default) for c in result.configs}
    assert values["retention.ms"] == ("5", reads.DYNAMIC_TOPIC, False)
    assert values["segment.bytes"] == (TOPIC_KEYS["segment.bytes"].default, reads.DEFAULT, True)
    assert list(values) == sorted(TOPIC_KEYS)
    assert [c.name for c in describe(log, 2, "ant", "segment.bytes", "no.such").configs] == [
        "segment.bytes"
    ]


def test_topic_config_inherits_the_cluster_wide_broker_config_of_the_corresponding_key() -> None:
    log = cluster()
    log.config("6", name="log.retention.ms", kind=4, resource="")
    log.config("7", name="log.retention.ms", kind=4, resource="1")
    log.config("8", name="min.insync.replicas", kind=4, resource="")
    log.config("9", name="min.insync.replicas", kind=2, resource="ant")
    values = {
        c.name: (c.value, c.config_source, c.is_default) for c in describe(log, 2, "ant").configs
    }
    assert values["retention.ms"] == ("6", reads.DYNAMIC_DEFAULT_BROKER, False)
    assert values["min.insync.replicas"] == ("9", reads.DYNAMIC_TOPIC, False)
    assert list(values) == sorted(TOPIC_KEYS), "nothing under a broker's name"


def test_broker_config_overrides_the_cluster_wide_one() -> None:
    log = cluster()
    log.config("11", name="num.io.threads", kind=4, resource="")
    log.config("12", name="num.network.threads", kind=4, resource="")
    log.config("21", name="num.io.threads", kind=4, resource="1")
    values = {c.name: (c.value, c.config_source) for c in describe(log, 4, "1").configs}
    assert values["num.io.threads"] == ("21", reads.DYNAMIC_BROKER)
    assert values["num.network.threads"] == ("12", reads.DYNAMIC_DEFAULT_BROKER)
    shared = {c.name: (c.value, c.config_source) for c in describe(log, 4, "").configs}
    assert shared["num.io.threads"] == ("11", reads.DYNAMIC_DEFAULT_BROKER)


def test_invalid_resources_fail_one_by_one_and_name_the_field() -> None:
    log = cluster()
    request = pb.DescribeConfigsRequest(
        resources=[
            pb.DescribeConfigsResource(resource_type=2, resource_name="nope"),
            pb.DescribeConfigsResource(resource_type=99),
            pb.DescribeConfigsResource(resource_type=4, resource_name="one"),
            pb.DescribeConfigsResource(resource_type=32, resource_name="g"),
        ]
    )
    results = reads.describe_configs(log.image(log.last), request).results
    assert [r.error_code for r in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NONE,
    ]
    assert "resources[1].resource_type" in results[1].field
    assert "resources[2].resource_name" in results[2].field
    assert not results[0].configs


# --- several listeners ----------------------------------------------------------------------------


def at(*names: str, host: str) -> list[rec.Listener]:
    """Return listeners with these names, each on its own port."""
    return [rec.Listener(name=name, host=host, port=9000 + len(name)) for name in names]


def with_listeners() -> LogMaker:
    """Brokers 1 and 2 have both listeners, 3 lacks the client's, 4 has one (older build)."""
    log = LogMaker()
    log.leader()
    for broker_id, names in enumerate(
        (("INTERNAL", "CLIENTS"), ("CLIENTS", "INTERNAL"), ("INTERNAL", "OTHER"), ("PLAINTEXT",)), 1
    ):
        listeners = at(*names, host=f"b{broker_id}")
        log.register(broker_id, fenced=False, listeners=listeners)
    log.topic("t", *(([broker_id, 1], broker_id) for broker_id in (1, 2, 3, 4)))
    return log


@pytest.mark.parametrize(
    ("listener", "told"),
    [
        ("CLIENTS", {1: 9007, 2: 9007, 4: 9009}),
        ("INTERNAL", {1: 9008, 2: 9008, 3: 9008, 4: 9009}),
        ("", {1: 9008, 2: 9007, 3: 9008, 4: 9009}),
    ],
)
def test_client_receives_endpoints_of_its_listener(listener: str, told: dict[int, int]) -> None:
    log = with_listeners()
    image = log.image(log.last)
    answer = reads.metadata(image, pb.MetadataRequest(), CLUSTER, listener)
    assert {one.node_id: one.port for one in answer.brokers} == told
    cluster = reads.describe_cluster(image, pb.DescribeClusterRequest(), CLUSTER, listener)
    assert {one.broker_id: one.port for one in cluster.brokers} == told
    partitions = answer.topics[0].partitions
    lost = ErrorCode.LISTENER_NOT_FOUND
    assert [(one.leader_id, one.error_code) for one in partitions] == [
        (broker_id, 0) if broker_id in told else (-1, lost) for broker_id in (1, 2, 3, 4)
    ]
    assert [list(one.offline_replicas) for one in partitions] == [
        [] if broker_id in told else [broker_id] for broker_id in (1, 2, 3, 4)
    ]


def test_ipv6_address_has_brackets_in_host_and_port_only() -> None:
    log = LogMaker()
    log.leader()
    log.register(1, fenced=False, listeners=at("CLIENTS", host="[::1]"))
    image = log.image(log.last)
    (told,) = reads.metadata(image, pb.MetadataRequest(), CLUSTER).brokers
    (described,) = reads.describe_cluster(image, pb.DescribeClusterRequest(), CLUSTER).brokers
    assert (told.host, described.host) == ("::1", "::1")
    shown = _broker(described)
    assert (shown.host, shown.port, shown.address) == ("::1", 9007, "[::1]:9007")
    assert address_of(told.host, told.port) == "[::1]:9007"


# --- ListKeyValues -------------------------------------------------------------------------------


KEYS = ("b/2", "a", "b/10", "c", "b")


def image(size: int = 3) -> Image:
    builder = ImageBuilder(Image())
    records = [record(rec.KeyValueRecord(key=key, value=b"x" * size, lease_id=7)) for key in KEYS]
    builder.apply_batch(records, base_offset=0, epoch=1, timestamp_ms=1)
    return builder.snapshot()


def keys(answer: pb.ListKeyValuesResponse) -> list[str]:
    return [one.key for one in answer.key_values]


def ask(**fields: Any) -> pb.ListKeyValuesResponse:
    return list_key_values(image(), pb.ListKeyValuesRequest(**fields))


def test_key_value_list_is_sorted_by_name() -> None:
    answer = ask()
    assert keys(answer) == ["a", "b", "b/10", "b/2", "c"]
    assert not answer.more
    assert answer.key_values[3] == pb.KeyValue(
        key="b/2", value=b"xxx", offset=0, create_offset=0, lease_id=7
    )


def test_key_value_list_is_filtered_by_prefix_and_name() -> None:
    assert keys(ask(prefix="b/")) == ["b/10", "b/2"]
    assert keys(ask(prefix="d")) == []
    assert keys(ask(keys=["c", "a", "nothing", "a"])) == ["a", "c"]


def test_key_value_list_is_paged() -> None:
    first = ask(limit=2, prefix="b")
    assert (keys(first), first.more) == (["b", "b/10"], True)
    rest = ask(limit=2, prefix="b", after="b/10")
    assert (keys(rest), rest.more) == (["b/2"], False)
    assert ask(limit=3, prefix="b").more is False


def test_key_value_page_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_BYTES", 12)
    large = list_key_values(image(9), pb.ListKeyValuesRequest())
    assert (keys(large), large.more) == (["a"], True)
    # The first comes, however large it is.
    larger = list_key_values(image(20), pb.ListKeyValuesRequest(after="a"))
    assert (keys(larger), larger.more) == (["b"], True)


def test_key_value_list_can_omit_values() -> None:
    assert {one.value for one in ask(keys_only=True).key_values} == {b""}


def test_key_value_list_omits_keys_without_permission() -> None:
    answer = list_key_values(
        image(), pb.ListKeyValuesRequest(limit=2), lambda key: key.startswith("b/")
    )
    assert (keys(answer), answer.more) == (["b/10", "b/2"], False)


def test_list_is_refused_when_it_hides_too_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "MAX_HIDDEN", 2)
    everything = pb.ListKeyValuesRequest()
    assert keys(list_key_values(image(), everything, {"b", "b/2", "c"}.__contains__)) == [
        "b", "b/2", "c",
    ]  # fmt: skip
    with pytest.raises(ApiError, match="are hidden from you") as refused:
        list_key_values(image(), everything, {"b", "c"}.__contains__)
    assert (refused.value.code, refused.value.field) == (ErrorCode.POLICY_VIOLATION, "prefix")


def test_list_reads_only_the_keys_that_it_shows() -> None:
    looked: list[str] = []

    def may_describe(key: str) -> bool:
        looked.append(key)
        return True

    list_key_values(image(), pb.ListKeyValuesRequest(prefix="b/", limit=1), may_describe)
    assert looked == ["b/10", "b/2"]


# --- Pages of the ISRs that a broker is asked for ------------------------------------------------


Key = tuple[bytes, int]


def key(number: int) -> Key:
    return b"t%015d" % (number // 7), number % 7


class Replicas:
    """A fake that leads every third of its replicas, and records the requests."""

    def __init__(self, count: int) -> None:
        self.all = [key(number) for number in reversed(range(count))]
        self.led = {key(number) for number in range(0, count, 3)}
        self.asked: list[int] = []

    def keys(self) -> Iterable[Key]:
        return iter(self.all)

    def describe(self, keys: Sequence[Key]) -> data_pb.BrokerMetadataResponse:
        self.asked.append(len(keys))
        return data_pb.BrokerMetadataResponse(
            broker_id=4, broker_epoch=70, partitions=[self._describe(key_) for key_ in keys]
        )

    def _describe(self, key_: Key) -> data_pb.LedPartition:
        error = ErrorCode.NONE if key_ in self.led else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return data_pb.LedPartition(topic_id=key_[0], partition_index=key_[1], error_code=error)


def _led_page(
    replicas: Replicas, request: data_pb.BrokerMetadataRequest
) -> data_pb.BrokerMetadataResponse:
    return led_page(replicas.keys(), replicas.describe, request)


def all_pages(replicas: Replicas, limit: int = 0) -> list[data_pb.BrokerMetadataResponse]:
    request = data_pb.BrokerMetadataRequest(response_partition_limit=limit)
    pages = [_led_page(replicas, request)]
    while pages[-1].HasField("next_cursor"):
        request = data_pb.BrokerMetadataRequest(
            response_partition_limit=limit, cursor=pages[-1].next_cursor
        )
        pages.append(_led_page(replicas, request))
        assert len(pages) < 10_000
    return pages


def keys_of(pages: Sequence[data_pb.BrokerMetadataResponse]) -> list[Key]:
    return [(one.topic_id, one.partition_index) for page in pages for one in page.partitions]


@pytest.mark.parametrize(
    ("count", "limit"), [(0, 0), (1, 1), (50, 1), (50, 7), (50, 50), (50, 49), (2500, 0)]
)
def test_pages_list_each_led_partition_once_in_order(count: int, limit: int) -> None:
    replicas = Replicas(count)
    pages = all_pages(replicas, limit)
    assert keys_of(pages) == sorted(replicas.led)
    assert all((page.broker_id, page.broker_epoch) == (4, 70) for page in pages)
    assert max(replicas.asked) <= (limit or PAGE_PARTITIONS)
    assert len(pages) == max(1, -(-count // (limit or PAGE_PARTITIONS)))


def test_replica_removed_between_two_pages_hides_no_later_partition() -> None:
    replicas = Replicas(60)
    first = _led_page(replicas, data_pb.BrokerMetadataRequest(response_partition_limit=10))
    gone = (first.next_cursor.topic_id, first.next_cursor.partition_index)
    replicas.all.remove(gone)
    rest = _led_page(replicas, data_pb.BrokerMetadataRequest(cursor=first.next_cursor))
    assert keys_of([first, rest]) == sorted(replicas.led)


def test_led_partitions_requested_by_key_are_answered_one_by_one() -> None:
    replicas = Replicas(9)
    asked = [
        data_pb.PartitionKey(topic_id=key(number)[0], partition_index=key(number)[1])
        for number in (3, 4)
    ]
    answer = _led_page(replicas, data_pb.BrokerMetadataRequest(partitions=asked))
    assert [one.error_code for one in answer.partitions] == [
        ErrorCode.NONE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]
    assert not answer.HasField("next_cursor")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (
            data_pb.BrokerMetadataRequest(
                partitions=[data_pb.PartitionKey()] * (PAGE_PARTITIONS + 1)
            ),
            "partitions",
        ),
        (data_pb.BrokerMetadataRequest(response_partition_limit=-1), "response_partition_limit"),
        (
            data_pb.BrokerMetadataRequest(response_partition_limit=PAGE_PARTITIONS + 1),
            "response_partition_limit",
        ),
    ],
)
def test_invalid_request_for_led_partitions_names_the_field(
    request_: data_pb.BrokerMetadataRequest, field: str
) -> None:
    replicas = Replicas(9)
    with pytest.raises(ApiError) as caught:
        _led_page(replicas, request_)
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_REQUEST, field)
    assert replicas.asked == []
