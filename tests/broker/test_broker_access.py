from collections.abc import Callable
from typing import Any

import pytest
from broker_log import LogMaker, topic_id
from fake_link import FakeLink
from structlog.testing import capture_logs

from broker.metadata import reads
from broker.metadata.read_gate import ReadGate, ReadLease
from broker.metadata.view import View
from broker.service.api_versions import FETCH_KEY, ApiVersions
from broker.service.requests import Pending, RequestServer, _send
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import NodeRule, PeerIdentity
from raftlog.metadata.acls import CLUSTER_NAME, AclOperation, AclPermission, AclResourceType
from raftlog.node.security.authorization import Authorization
from raftlog.node.security.authorizer import Authorizer
from raftlog.node.security.client_rules import ClientRules
from raftlog.node.security.guard import Authentication
from raftlog.node.security.permissions import BROKER, EachPartition
from raftlog.transport.api import LinkClosedError
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.records.v1 import records_pb2 as rec

ME = 7
Op, Kind = AclOperation, AclResourceType
RULES = ClientRules(
    Authentication(NodeRule.parse("CN=node-{id}")),
    Authorization(Authorizer(frozenset({"User:CN=root"}))),
)
FORBIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Client(FakeLink):
    def __init__(self, name: str, host: str = "10.0.0.1") -> None:
        super().__init__()
        self.identity = PeerIdentity(f"CN={name}", frozenset({f"CN={name}"}))
        self.peer = f"{host}:5000"


class Partitions:
    """A fake data plane that keeps requests until the test answers them."""

    def __init__(self) -> None:
        self.asked: list[tuple[pb.BrokerRequest, Callable[..., None]]] = []

    def request(self, request: pb.BrokerRequest, answer: Callable[..., None], _: Any) -> None:
        self.asked.append((request, answer))

    def describe_led(self, _: Any) -> data.BrokerMetadataResponse:
        return data.BrokerMetadataResponse(broker_id=ME)


class Broker:
    """A broker's view with two topics, and the request handler of its clients."""

    def __init__(self) -> None:
        self.view, self.log, self.data = View(ME, max_bytes=1 << 30), LogMaker(), Partitions()
        self.view.reset(0)
        self.log.leader()
        self.log.unfence(ME, self.log.register(ME))
        for name in ("orders", "secret"):
            self.log.topic(name, ([ME], ME))
        self.entries, self.why_fenced = 0, ""
        self.lease = ReadLease(lambda: 3, lambda: None)
        gate: ReadGate[Pending] = ReadGate(
            self.view, self.lease, max_parked=10, default_timeout_ms=1_000_000
        )
        unused: Any = None
        data_plane: Any = self.data
        self.server = RequestServer(
            self.view,
            gate,
            unused,
            cluster_id="c",
            request_timeout_ms=1000,
            why_fenced=lambda: self.why_fenced,
            describe=pb.DescribeBrokerResponse,
            versions=ApiVersions(self.view, ()),
            data=data_plane,
            stopwatch=lambda: 0.0,  # However slow the machine is: all that waits, at once.
            client_rules=RULES,
        )
        self.apply()

    def apply(self, told: bool = True) -> None:
        self.view.apply(self.log.since(self.view.applied + 1), high_watermark=self.log.end)
        if told:
            self.view.hear(1, self.log.last, self.log.end)
        self.server.released()

    def allow(
        self, operation: int, type_: int, name: str, *, principal: str = "User:CN=alice",
        deny: bool = False, host: str = "*",
    ) -> bytes:  # fmt: skip
        """Append an ACL entry, and return its id; it is not applied yet."""
        self.entries += 1
        id_ = self.entries.to_bytes(16, "big")
        permission = AclPermission.DENY if deny else AclPermission.ALLOW
        self.log.append(rec.AccessControlEntryRecord(
            id=id_, resource_type=type_, resource_name=name, pattern_type=3, principal=principal,
            host=host, operation=operation, permission_type=permission,
        ))  # fmt: skip
        return id_

    def remove(self, id_: bytes) -> None:
        self.log.append(rec.RemoveAccessControlEntryRecord(id=id_))

    def ask(self, client: Client, **body: Any) -> pb.BrokerResponse | None:
        """Return the response; None while the request waits."""
        self.server.received(client, [pb.BrokerRequest(correlation_id=3, **body)])
        return client.sent.pop() if client.sent else None

    def answer(self, client: Client, **body: Any) -> pb.BrokerResponse:
        """Return the response to a request that must not wait."""
        response = self.ask(client, **body)
        assert response is not None
        return response


@pytest.fixture
async def broker() -> Broker:
    return Broker()


def ahead(broker: Broker) -> pb.ReadOptions:
    """Return options for a read at the token of the next record."""
    token = common_pb2.MetadataToken(offset=broker.log.last + 1, epoch=1)
    return pb.ReadOptions(mode=pb.LATEST, at_least=token)


def topics(response: pb.BrokerResponse | None) -> dict[str, tuple[int, int]]:
    """Return the error and the number of partitions shown, by topic name."""
    assert response is not None
    return {one.name: (one.error_code, len(one.partitions)) for one in response.metadata.topics}


ALL = pb.MetadataRequest()


def named(*names: str) -> pb.MetadataRequest:
    return pb.MetadataRequest(topics=names)


async def test_metadata_shows_only_topics_that_may_be_described(broker: Broker) -> None:
    alice, root = Client("alice"), Client("root")
    assert topics(broker.ask(alice, metadata=ALL)) == {}
    assert topics(broker.ask(root, metadata=ALL)) == {"orders": (0, 1), "secret": (0, 1)}
    broker.allow(Op.READ, Kind.TOPIC, "orders")
    broker.apply()
    assert topics(broker.ask(alice, metadata=ALL)) == {"orders": (0, 1)}
    asked = topics(broker.ask(alice, metadata=named("secret", "orders", "nothing")))
    assert asked == {"secret": (FORBIDDEN, 0), "orders": (0, 1), "nothing": (FORBIDDEN, 0)}
    assert topics(broker.ask(root, metadata=named("nothing"))) == {
        "nothing": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)
    }


async def test_client_has_the_host_of_its_connection(broker: Broker) -> None:
    broker.allow(Op.DESCRIBE, Kind.TOPIC, "orders", host="10.0.0.1")
    broker.apply()
    assert set(topics(broker.ask(Client("alice"), metadata=ALL))) == {"orders"}
    assert topics(broker.ask(Client("alice", "10.0.0.2"), metadata=ALL)) == {}


async def test_every_read_is_authorized_against_the_newest_image(broker: Broker) -> None:
    alice = Client("alice")
    entry = broker.allow(Op.DESCRIBE, Kind.TOPIC, "orders")
    broker.apply()
    assert set(topics(broker.ask(alice, metadata=ALL))) == {"orders"}
    broker.remove(entry)
    broker.apply(told=False)
    # Plain reads still show the image of before, in which the entry is.
    assert broker.view.repeatable is not None
    assert entry in broker.view.repeatable.acls
    answer = broker.answer(alice, metadata=ALL)
    assert (topics(answer), answer.token.offset) == ({}, broker.view.known_lao)
    broker.allow(Op.DESCRIBE, Kind.TOPIC, "secret")
    broker.apply(told=False)
    assert set(topics(broker.ask(alice, metadata=ALL))) == {"secret"}


async def test_permissions_of_a_waiting_read_are_checked_at_its_answer(broker: Broker) -> None:
    alice = Client("alice")
    described = broker.allow(Op.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME)
    shown = broker.allow(Op.DESCRIBE, Kind.TOPIC, "orders")
    configs = broker.allow(Op.DESCRIBE_CONFIGS, Kind.TOPIC, "orders")
    broker.apply()
    later = pb.ReadOptions(mode=pb.LATEST)
    later.at_least.offset, later.at_least.epoch = broker.log.last + 3, 1
    wanted = pb.DescribeConfigsRequest(
        resources=[pb.DescribeConfigsResource(resource_type=2, resource_name="orders")]
    )
    assert broker.ask(alice, metadata=named("orders"), read=later) is None
    assert broker.ask(alice, describe_cluster=pb.DescribeClusterRequest(), read=later) is None
    assert broker.ask(alice, describe_configs=wanted, read=later) is None
    for one in (shown, configs, described):
        broker.remove(one)
    broker.apply()
    answers = {response.WhichOneof("body"): response for response in alice.sent}
    assert topics(answers["metadata"]) == {"orders": (FORBIDDEN, 0)}
    assert [one.error_code for one in answers["describe_configs"].describe_configs.results] == [
        FORBIDDEN
    ]
    assert answers[None].error.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_invalid_read_is_refused_on_arrival(broker: Broker) -> None:
    broker.allow(Op.DESCRIBE, Kind.KEY_VALUE, "a")
    broker.apply()
    response = broker.answer(
        Client("alice"), list_key_values=pb.ListKeyValuesRequest(limit=-1), read=ahead(broker)
    )
    assert response.error.error_code == ErrorCode.INVALID_REQUEST


async def test_failed_waiting_read_is_reported_to_its_own_client_only(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.allow(Op.DESCRIBE, Kind.KEY_VALUE, "a")
    broker.allow(Op.DESCRIBE, Kind.TOPIC, "orders")
    broker.apply()
    alice = Client("alice")
    keys = pb.ListKeyValuesRequest(keys=["a"])
    for body in ({"list_key_values": keys}, {"metadata": named("orders")}):
        assert broker.ask(alice, read=ahead(broker), **body) is None

    def fails(*_: Any) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(reads, "list_key_values", fails)
    broker.log.append(rec.KeyValueRecord(key="c", value=b"v"))
    with capture_logs() as logs:
        broker.apply()
    codes = [one.error.error_code for one in alice.sent]
    assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]
    assert topics(alice.sent[1]) == {"orders": (0, 1)}
    assert [one["event"] for one in logs] == ["answering a read failed"]


async def test_failing_data_plane_response_does_not_end_its_step(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.allow(Op.READ, Kind.TOPIC, "orders")
    broker.apply()
    alice = Client("alice")
    topic_id = broker.view.tip.topic_ids["orders"]
    wanted = data.FetchRequest(partitions=[data.FetchPartition(topic_id=topic_id)])
    assert broker.ask(alice, fetch=wanted) is None
    ((_, answer),) = broker.data.asked

    def fails(*_: Any) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(broker.server.figures, "failed_parts", fails)
    answer(fetch=data.FetchResponse())
    (told,) = alice.sent
    assert (told.correlation_id, told.error.error_code) == (3, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert told.error.outcome_unknown


async def test_closed_link_does_not_keep_new_levels_from_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = first, gone, last = Client("alice"), Client("bob"), Client("carol")
    for client in clients:
        broker.server.accept(client)

    def closed(message: Any) -> None:
        raise LinkClosedError("closed")

    monkeypatch.setattr(gone, "send", closed)
    monkeypatch.setattr(broker.server._versions, "moved", lambda: True)
    broker.server.released()
    assert [one.HasField("api_versions") for one in (*first.sent, *last.sent)] == [True, True]


async def test_keys_without_describe_permission_are_omitted(broker: Broker) -> None:
    alice = Client("alice")
    for key in ("mine/a", "theirs/b"):
        broker.log.append(rec.KeyValueRecord(key=key, value=b"v"))
    broker.allow(Op.DESCRIBE, Kind.KEY_VALUE, "mine/a")
    broker.apply()
    for wanted in (pb.ListKeyValuesRequest(), pb.ListKeyValuesRequest(keys=["mine/a", "theirs/b"])):
        response = broker.answer(alice, list_key_values=wanted)
        assert [one.key for one in response.list_key_values.key_values] == ["mine/a"]


async def test_config_permissions_are_checked_per_resource(broker: Broker) -> None:
    alice = Client("alice")
    broker.allow(Op.DESCRIBE_CONFIGS, Kind.TOPIC, "orders")
    broker.apply()
    resources = [(2, "secret"), (2, "orders"), (4, "7"), (16, "m"), (32, "g")]
    wanted = pb.DescribeConfigsRequest(
        resources=[
            pb.DescribeConfigsResource(resource_type=type_, resource_name=name)
            for type_, name in resources
        ]
    )
    response = broker.answer(alice, describe_configs=wanted)
    assert [one.error_code for one in response.describe_configs.results] == [
        FORBIDDEN, 0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ]  # fmt: skip
    assert not response.describe_configs.results[0].configs


async def test_cluster_request_needs_cluster_permission(broker: Broker) -> None:
    alice, root = Client("alice"), Client("root")
    bodies: list[dict[str, Any]] = [
        {"describe_cluster": pb.DescribeClusterRequest()},
        {"describe_broker": pb.DescribeBrokerRequest()},
        {"broker_metadata": data.BrokerMetadataRequest()},
    ]

    def codes(client: Client) -> list[int]:
        return [broker.answer(client, **body).error.error_code for body in bodies]

    assert codes(alice) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 3
    assert codes(root) == [0] * 3
    broker.allow(Op.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME)
    broker.apply()
    assert codes(alice) == [0] * 3
    assert broker.answer(alice, api_versions=pb.ApiVersionsRequest()).HasField("api_versions")


async def test_fenced_broker_does_not_describe_the_partitions_that_it_leads(broker: Broker) -> None:
    """It may have been replaced without knowing."""
    root, wanted = Client("root"), data.BrokerMetadataRequest()
    assert broker.answer(root, broker_metadata=wanted).broker_metadata.broker_id == ME
    broker.why_fenced = "no controller"
    refused = broker.answer(root, broker_metadata=wanted)
    assert refused.error.error_code == ErrorCode.BROKER_FENCED


def partition(kind: Any, name: str, index: int = 0) -> Any:
    return kind(topic_id=topic_id(name), partition_index=index)


REQUESTS: dict[str, tuple[Any, Any, Any, Any]] = {
    "produce": (
        data.ProduceRequest, data.ProducePartition, data.ProduceResponse,
        data.ProducePartitionResult,
    ),
    "fetch": (
        data.FetchRequest, data.FetchPartition, data.FetchResponse, data.FetchPartitionResult,
    ),
    "list_offsets": (
        data.ListOffsetsRequest, data.ListOffsetsPartition, data.ListOffsetsResponse,
        data.ListOffsetsPartitionResult,
    ),
}  # fmt: skip


async def test_partitions_are_authorized_one_by_one_in_request_order(broker: Broker) -> None:
    alice = Client("alice")
    rows = {body: row for body, row in BROKER.items() if isinstance(row, EachPartition)}
    assert set(rows) == set(REQUESTS)
    for body, (request, item, response, result) in REQUESTS.items():
        entry = broker.allow(rows[body].operation, Kind.TOPIC, "orders")
        broker.apply()
        names = ["secret", "orders", "unknown", "secret"]
        asked = request(partitions=[partition(item, name) for name in names])
        assert broker.ask(alice, **{body: asked}) is None
        left, answer = broker.data.asked.pop()
        passed = getattr(left, body).partitions
        # One that is not known here is the data plane's to refuse.
        assert [one.topic_id for one in passed] == [topic_id("orders"), topic_id("unknown")]
        answer(**{body: response(partitions=[partition(result, n) for n in names[1:3]])})
        results = getattr(alice.sent.pop(), body).partitions
        assert [one.topic_id for one in results] == [topic_id(name) for name in names]
        assert [one.error_code for one in results] == [FORBIDDEN, 0, 0, FORBIDDEN]
        broker.remove(entry)
        broker.apply()
        refused = broker.answer(alice, **{body: request(partitions=[partition(item, "orders")])})
        assert [one.error_code for one in getattr(refused, body).partitions] == [FORBIDDEN]
        assert broker.data.asked == []


async def test_waiting_fetch_returns_no_records_after_a_revocation(broker: Broker) -> None:
    alice = Client("alice")
    entry = broker.allow(Op.READ, Kind.TOPIC, "orders")
    broker.apply()
    asked = data.FetchRequest(partitions=[partition(data.FetchPartition, "orders")])
    assert broker.ask(alice, fetch=asked) is None
    broker.remove(entry)
    broker.apply()
    found = partition(data.FetchPartitionResult, "orders")
    found.records = b"secret"
    broker.data.asked.pop()[1](fetch=data.FetchResponse(partitions=[found]))
    (result,) = alice.sent.pop().fetch.partitions
    assert (result.error_code, result.records) == (FORBIDDEN, b"")


async def test_node_principal_has_no_special_rights_at_the_broker(broker: Broker) -> None:
    response = broker.answer(Client("node-7"), describe_cluster=pb.DescribeClusterRequest())
    assert response.error.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


# --- What a broker offers ------------------------------------------------------------------------


class VersionedBroker:
    def __init__(self, highest: int = 2) -> None:
        self.view, self.log = View(ME, max_bytes=1 << 30), LogMaker()
        self.view.reset(0)
        self.versions = ApiVersions(
            self.view, (("metadata.version", 1, highest), ("lao.version", 0, 1))
        )
        self.log.leader()
        for name in ("lao.version", "broker.heartbeat.version"):
            self.log.append(rec.FeatureLevelRecord(name=name, feature_level=1))
        self.level(1)
        self.log.unfence(ME, self.log.register(ME))
        self.apply()

    def level(self, level: int) -> int:
        self.log.append(rec.FeatureLevelRecord(name="metadata.version", feature_level=level))
        return self.log.last

    def apply(self) -> None:
        self.view.apply(self.log.since(self.view.applied + 1), high_watermark=self.log.end)

    def tell(self, lao: int) -> bool:
        self.view.hear(1, lao, self.log.end)
        return self.versions.moved()

    def offered(self) -> tuple[int, int]:
        """The highest version of Fetch, and the finalized level."""
        response = self.versions.response()
        highest = next(api.max_version for api in response.api_keys if api.api_key == FETCH_KEY)
        return highest, next(
            (one.level for one in response.finalized_features if one.name == "metadata.version"), 0
        )


def test_feature_level_is_offered_once_lao_passes_its_record_not_when_applied() -> None:
    broker = VersionedBroker()
    assert not broker.tell(broker.log.last), "nobody was told anything else"
    assert broker.offered() == (0, 1)
    at = broker.level(2)
    broker.apply()
    assert not broker.versions.moved()
    assert broker.offered() == (0, 1)
    assert not broker.tell(at - 1)
    assert broker.tell(at)
    assert broker.offered() == (1, 2)
    assert not broker.versions.moved(), "once"


def test_unchanged_feature_level_notifies_nobody() -> None:
    broker = VersionedBroker()
    broker.tell(broker.log.last)
    broker.log.config("a")
    broker.apply()
    assert not broker.tell(broker.log.last)
    broker.level(1)
    broker.apply()
    assert not broker.tell(broker.log.last)


def test_only_features_without_a_level_are_offered_before_lao_is_known() -> None:
    broker = VersionedBroker()
    response = broker.versions.response()
    assert (response.finalized_features_epoch, broker.offered()) == (-1, (0, 0))
    assert broker.tell(broker.log.last)
    assert broker.versions.response().finalized_features_epoch == broker.log.last


def test_offered_versions_do_not_exceed_those_of_the_build() -> None:
    broker = VersionedBroker(highest=1)
    at = broker.level(2)
    broker.apply()
    broker.tell(at)
    assert broker.offered() == (0, 2)


def test_clients_are_notified_of_a_lowered_feature_level() -> None:
    broker = VersionedBroker()
    at = broker.level(2)
    broker.apply()
    broker.tell(at)
    at = broker.level(1)
    broker.apply()
    assert broker.tell(at)
    assert broker.offered() == (0, 1)


# --- Answers on links that cannot take them ------------------------------------------------------


class Narrow(FakeLink):
    """A link that refuses fetches, and is full after a given number of messages."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def send(self, message: Any) -> None:
        if message.HasField("fetch"):
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, "too large")
        if not self.room:
            raise LinkClosedError("full")
        self.room -= 1
        super().send(message)


def test_oversized_response_becomes_an_error_of_its_request() -> None:
    link = Narrow(1)
    _send(link, 7, fetch=data_pb2.FetchResponse())
    (said,) = link.sent
    assert (said.correlation_id, said.error.error_code) == (7, ErrorCode.MESSAGE_TOO_LARGE)


def test_link_that_rejects_even_the_error_does_not_harm_the_broker() -> None:
    link = Narrow(0)
    _send(link, 7, fetch=data_pb2.FetchResponse())
    assert not link.sent
