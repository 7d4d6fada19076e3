"""The audit log: a line for each request that changes something, and for each refusal."""

import errno
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from test_guard import FakeLink

from raftlog.config_writes.writes import ConfigReplies, ConfigWrites
from raftlog.errors import ConfigError, ErrorCode
from raftlog.identity import NodeRule, PeerIdentity
from raftlog.metadata.acls import (
    AccessControlEntry,
    AclIndex,
    AclOperation,
    AclResourceType,
    Resource,
)
from raftlog.metadata.image import Image
from raftlog.node.security import audit_log
from raftlog.node.security.audit import Auditor
from raftlog.node.security.audit_event import Event, Source, Touched
from raftlog.node.security.audit_log import AuditLog
from raftlog.node.security.authorization import Authorization
from raftlog.node.security.authorizer import Authorizer, Caller, Why
from raftlog.node.security.guard import Authentication, Duties, guarded, guarded_handler
from raftlog.transport.api import Conversation, Link
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

RULE = Authentication(NodeRule.parse("CN=node-{id}"))
C = Conversation
ALICE = PeerIdentity("CN=alice", frozenset({"CN=alice"}), "ab12")
NODE = PeerIdentity("CN=node-4", frozenset({"CN=node-4"}), "cd34")
DENY = AccessControlEntry(
    b"", AclResourceType.TOPIC, "t", 3, "User:CN=alice", "*", AclOperation.ALL, 2
)


class Memory:
    dropped = 0

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.events.append(event)


class AuditedLink(FakeLink):
    peer = "10.0.0.1:5000"


class Handler:
    """Keeps what it receives, by link."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.got: list[Any] = []
        self.closed_links: list[Link] = []

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        self.links.append(link)
        self.got += messages

    def closed(self, link: Link, reason: str) -> None:
        self.closed_links.append(link)


class World:
    def __init__(
        self,
        conversation: Conversation,
        who: PeerIdentity = ALICE,
        *,
        reads: bool = False,
        entries: Sequence[AccessControlEntry] = (DENY,),
    ) -> None:
        self.memory, self.handler, self.link = Memory(), Handler(), AuditedLink(who)
        index = AclIndex()
        for entry in entries:
            index = index.with_entry(entry)
        image = replace(Image(), acl_index=index)
        self.auditor = Auditor(
            3,
            "c",
            self.memory,
            lambda: 1234,
            Authorization(Authorizer()),
            lambda: image,
            reads=reads,
        )
        accepted: list[Link] = []

        def accept(link: Link) -> Handler:
            accepted.append(link)
            return self.handler

        guards = guarded({conversation: accept}, RULE, Duties(auditor=self.auditor))
        self.guard = guards[conversation](self.link)
        self.accepted = accepted

    def ask(self, message: Any) -> None:
        self.guard.received(self.link, [message])

    def answer(self, message: Any) -> None:
        self.handler.links[-1].send(message)

    @property
    def one(self) -> Event:
        (event,) = self.memory.events
        return event


def create(number: int = 7, *names: str) -> controller.ControllerRequest:
    topics = [controller.CreatableTopic(name=name) for name in names or ("t",)]
    return controller.ControllerRequest(
        correlation_id=number, create_topics=controller.CreateTopicsRequest(topics=topics)
    )


def created(number: int = 7, *codes: int) -> controller.ControllerResponse:
    response = controller.ControllerResponse(correlation_id=number)
    for code in codes or (0,):
        response.create_topics.topics.add().error.error_code = code
    response.write.token.offset, response.write.token.epoch = 41, 2
    return response


def test_write_is_audited_with_its_outcome() -> None:
    world = World(C.CONTROLLER)
    world.ask(create())
    assert world.memory.events == []
    world.answer(created())
    event = world.one
    assert event.source.service == "Controller"
    assert event.source.method == "CreateTopics"
    assert event.time_ms == 1234
    assert event.source.caller == Caller("User:CN=alice", "10.0.0.1")
    assert event.source.peer == "10.0.0.1:5000"
    assert (event.offset, event.epoch, event.refused) == (41, 2, False)
    assert [one.resource for one in event.touched] == [Resource(AclResourceType.TOPIC, "t")]


def test_unwritable_audit_event_delays_no_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response may be one of many that a commit releases."""
    world = World(C.CONTROLLER)
    for number in (7, 8):
        world.ask(create(number))

    def fail(event: Event) -> None:
        raise LookupError("a bug")

    with monkeypatch.context() as broken, capture_logs() as logs:
        broken.setattr(world.memory, "add", fail)
        world.answer(created(7))
    world.answer(created(8))
    assert [one.correlation_id for one in world.link.sent] == [7, 8]
    assert len(world.memory.events) == 1
    assert [entry["log_level"] for entry in logs] == ["error"]


def test_refused_item_is_audited_with_the_deciding_entry() -> None:
    world = World(C.CONTROLLER)
    world.ask(create(7, "t", "u"))
    world.answer(created(7, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0))
    first, second = world.one.touched
    assert world.one.refused
    assert (first.error_code, first.verdict and first.verdict.entry) == (29, DENY)
    assert second.verdict is not None
    assert (second.error_code, second.verdict.why) == (0, Why.NO_ENTRY)


def test_lease_granted_with_keys_is_decided_by_its_own_operation() -> None:
    """[The line of an acquired lock reported that no entry allows its lease: ALTER was checked.]"""
    granting = [
        AccessControlEntry(b"1", kind, "q", 3, "User:CN=alice", "*", operation, 3)
        for kind, operation in (
            (AclResourceType.KEY_VALUE, AclOperation.ALTER),
            (AclResourceType.CLIENT_SESSION, AclOperation.CREATE),
        )
    ]
    world = World(C.CONTROLLER, entries=granting)
    put = controller.KeyValueAlteration(key="q", lease_id=-1)
    lease = controller.GrantLeaseRequest(name="q", ttl_ms=5_000)
    request = controller.ControllerRequest(correlation_id=7)
    request.alter_key_values.MergeFrom(
        controller.AlterKeyValuesRequest(alterations=[put], lease=lease)
    )
    world.ask(request)
    answer = controller.ControllerResponse(correlation_id=7)
    answer.alter_key_values.offsets.append(42)
    world.answer(answer)
    decided = [one.verdict and one.verdict.entry for one in world.one.touched]
    assert decided == granting


def test_audit_log_names_added_and_removed_entries() -> None:
    world = World(C.CONTROLLER)
    entries = [
        controller.AccessControlEntry(
            resource_type=AclResourceType.TOPIC, resource_name=name, pattern_type=3,
            principal="User:bob", host="*", operation=AclOperation.READ, permission_type=3,
        ) for name in "tuv"
    ]  # fmt: skip
    added, existed, invalid = (controller.CreateAclsResult() for _ in range(3))
    existed.existed, invalid.error.error_code = True, ErrorCode.INVALID_REQUEST
    create_acls = controller.CreateAclsRequest(creations=entries)
    world.ask(controller.ControllerRequest(correlation_id=7, create_acls=create_acls))
    created = controller.CreateAclsResponse(results=[added, existed, invalid])
    world.answer(controller.ControllerResponse(correlation_id=7, create_acls=created))
    said = ("ALLOW User:bob from any host: READ on TOPIC LITERAL t",)
    assert world.one.acls == said
    assert world.one.document()["unmapped"]["acl_entries"] == said
    for validate_only, told in ((True, ()), (False, said)):
        world.memory.events.clear()
        delete_acls = controller.DeleteAclsRequest(validate_only=validate_only)
        world.ask(controller.ControllerRequest(correlation_id=8, delete_acls=delete_acls))
        deleted = controller.DeleteAclsResponse()
        deleted.results.add(matching_acls=entries[:1])
        world.answer(controller.ControllerResponse(correlation_id=8, delete_acls=deleted))
        assert world.one.acls == told


def test_audit_event_names_the_client_and_the_forwarding_broker() -> None:
    world = World(C.CONTROLLER, NODE)
    forwarded = create()
    forwarded.client.principal, forwarded.client.host = "User:bob", "10.9.9.9"
    world.ask(forwarded)
    world.answer(created())
    event = world.one
    assert event.source.caller == Caller("User:bob", "10.9.9.9")
    assert event.source.identity.fingerprint == "cd34"
    assert event.claimed == "", "a node may state it"


@pytest.mark.parametrize("conversation", [C.CONTROLLER, C.BROKER])
def test_audit_event_has_the_claimed_and_the_proved_principal(conversation: Conversation) -> None:
    world = World(conversation)
    for number, stated in ((7, "User:admin"), (8, "User:CN=alice"), (9, "")):
        write = create(number)
        write.client.principal = stated
        if conversation is C.BROKER:
            world.ask(broker.BrokerRequest(correlation_id=number, write=write))
            answer: Any = broker.BrokerResponse(correlation_id=number, write=created(number))
        else:
            world.ask(write)
            answer = created(number)
        world.answer(answer)
    assert [one.source.caller.principal for one in world.memory.events] == ["User:CN=alice"] * 3
    claims = [one.document()["unmapped"]["claimed_principal"] for one in world.memory.events]
    assert claims == ["User:admin", "", ""]


def test_broker_audits_its_clients_writes_and_reads() -> None:
    world = World(C.BROKER)
    world.ask(broker.BrokerRequest(correlation_id=7, write=create()))
    world.answer(broker.BrokerResponse(correlation_id=7, write=created()))
    assert (world.one.source.method, world.one.offset) == ("CreateTopics", 41)
    assert world.one.source.caller == Caller("User:CN=alice", "10.0.0.1")
    world.memory.events.clear()
    world.ask(broker.BrokerRequest(correlation_id=8, metadata=broker.MetadataRequest()))
    world.answer(broker.BrokerResponse(correlation_id=8, metadata=broker.MetadataResponse()))
    assert world.memory.events == []
    asked = broker.BrokerRequest(correlation_id=9, describe_cluster=broker.DescribeClusterRequest())
    world.ask(asked)
    refused = broker.BrokerResponse(correlation_id=9)
    refused.error.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    world.answer(refused)
    assert (world.one.source.method, world.one.refused) == ("DescribeCluster", True)


def test_reads_are_audited_on_request() -> None:
    world = World(C.BROKER, reads=True)
    world.ask(broker.BrokerRequest(correlation_id=8, metadata=broker.MetadataRequest()))
    world.answer(broker.BrokerResponse(correlation_id=8, metadata=broker.MetadataResponse()))
    assert (world.one.source.method, world.one.refused) == ("Metadata", False)


@pytest.mark.parametrize(
    ("conversation", "message", "method"),
    [
        (
            C.QUORUM,
            quorum.QuorumMessage(vote_request=quorum.VoteRequest(replica_id=1)),
            "VoteRequest",
        ),
        (C.REPLICATION, quorum.FetchRequest(replica_id=1), "Fetch"),
        (
            C.CONTROLLER,
            controller.ControllerRequest(
                broker_heartbeat=controller.BrokerHeartbeatRequest(broker_id=1)
            ),
            "BrokerHeartbeat",
        ),
    ],
)
def test_guard_refusal_is_audited(conversation: Conversation, message: Any, method: str) -> None:
    world = World(conversation)
    world.ask(message)
    assert world.handler.got == []
    event = world.one
    assert (event.source.method, event.error_code, event.refused) == (method, 31, True)
    assert event.source.caller.principal == "User:CN=alice"
    assert "a request of node 1 requires a certificate" in event.message


def test_routine_requests_of_nodes_are_not_audited() -> None:
    world = World(C.CONTROLLER, NODE)
    beat = controller.BrokerHeartbeatRequest(broker_id=4)
    world.ask(controller.ControllerRequest(correlation_id=7, broker_heartbeat=beat))
    response = controller.ControllerResponse(correlation_id=7)
    response.broker_heartbeat.SetInParent()
    world.answer(response)
    assert (len(world.handler.got), world.memory.events) == (1, [])


def test_reused_number_hides_no_write() -> None:
    world = World(C.BROKER)
    world.ask(broker.BrokerRequest(correlation_id=7, write=create()))
    world.ask(broker.BrokerRequest(correlation_id=7, metadata=broker.MetadataRequest()))
    assert (world.one.source.method, world.one.unknown) == ("CreateTopics", True)


def test_refusal_does_not_end_the_audit_of_a_pending_request() -> None:
    """A refusal under the same number must not replace the write."""
    world = World(C.CONTROLLER)
    world.ask(create(7))
    beat = controller.BrokerHeartbeatRequest(broker_id=1)
    world.ask(controller.ControllerRequest(correlation_id=7, broker_heartbeat=beat))
    assert [event.source.method for event in world.memory.events] == ["BrokerHeartbeat"]
    assert len(world.link.sent) == 1
    world.answer(created(7))
    assert [(event.source.method, event.offset) for event in world.memory.events[1:]] == [
        ("CreateTopics", 41)
    ]


def test_item_is_audited_among_many_others() -> None:
    world = World(C.CONTROLLER)
    names = [f"decoy-{number}" for number in range(150)] + ["secret"]
    world.ask(create(7, *names))
    world.answer(created(7, *[0] * 150, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    event = world.one
    assert event.refused
    assert event.document()["status"] == "Failure"
    assert event.document()["status_code"] == "TOPIC_AUTHORIZATION_FAILED"
    assert event.touched[0].resource.name == "secret"
    assert (len(event.touched), event.more_resources) == (100, 51)


def test_refused_read_is_audited_with_its_names() -> None:
    world = World(C.BROKER)
    metadata = broker.MetadataRequest(topics=["t", "x" * 900])
    world.ask(broker.BrokerRequest(correlation_id=8, metadata=metadata))
    answer = broker.BrokerResponse(correlation_id=8)
    for _ in metadata.topics:
        answer.metadata.topics.add().error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    world.answer(answer)
    assert world.one.refused
    assert [len(one.resource.name) for one in world.one.touched] == [1, 249]
    world.memory.events.clear()
    fetch = data.FetchRequest(partitions=[data.FetchPartition(topic_id=b"i" * 16)])
    world.ask(broker.BrokerRequest(correlation_id=9, fetch=fetch))
    refused = broker.BrokerResponse(correlation_id=9)
    refused.fetch.partitions.add().error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    world.answer(refused)
    told = world.one.document()
    assert (world.one.refused, told["status"]) == (True, "Failure")
    assert told["status_code"] == "TOPIC_AUTHORIZATION_FAILED"


def test_unsolicited_response_is_ignored() -> None:
    world = World(C.BROKER)
    world.ask(broker.BrokerRequest(correlation_id=0, write=create(0)))
    world.answer(broker.BrokerResponse(api_versions=broker.ApiVersionsResponse()))
    assert world.memory.events == []
    world.answer(broker.BrokerResponse(write=created(0)))
    assert world.one.offset == 41


def test_closed_connection_leaves_an_unknown_result() -> None:
    world = World(C.CONTROLLER)
    world.ask(create())
    world.guard.closed(world.link, "gone")
    assert (world.one.unknown, world.one.offset) == (True, -1)
    # The handler knows one link, from its acceptance to its end.
    assert world.handler.closed_links == world.accepted == world.handler.links


def test_unary_call_is_audited_too() -> None:
    memory, handler = Memory(), Handler()
    auditor = Auditor(3, "c", memory, lambda: 0)
    guard = guarded_handler(handler, C.CONTROLLER, RULE, Duties(auditor=auditor))
    one, two = AuditedLink(ALICE), AuditedLink(ALICE)
    for link in (one, two):
        guard.received(link, [create(0)])
    for known in list(handler.links):
        known.send(created(0))
    for link in (one, two):
        guard.closed(link, "over")
    assert [event.offset for event in memory.events] == [41, 41]
    assert handler.closed_links == handler.links


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- the file --------------------------------------------------------------------------------------


SOURCE = Source(
    3, "c", "Controller", "CreateTopics", Caller("User:a", "10.0.0.1"), ALICE, "10.0.0.2:9",
    AclOperation.CREATE,
)  # fmt: skip


def event(*, refused: bool = False, message: str = "") -> Event:
    code = 31 if refused else 0
    touched = (Touched(Resource(AclResourceType.TOPIC, "t"), code),)
    return Event(SOURCE, 5, touched, code, message)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_audit_line_is_an_ocsf_api_activity(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=1 << 20, max_backups=1)
    log.add(event(refused=True, message="no\x1b[2J"))
    log.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "\x1b" not in path.read_text()
    (line,) = lines(path)
    assert (line["class_uid"], line["activity_name"], line["type_uid"]) == (6003, "Create", 600301)
    assert line["api"] == {"operation": "CreateTopics", "service": {"name": "Controller"}}
    assert line["actor"] == {"user": {"name": "User:a"}}
    assert line["src_endpoint"] == {"ip": "10.0.0.1"}
    assert line["tls"]["certificate"]["fingerprints"][0]["value"] == "ab12"
    assert line["resources"] == [
        {"type": "TOPIC", "name": "t", "status_code": "CLUSTER_AUTHORIZATION_FAILED"}
    ]
    assert (line["status"], line["status_code"]) == ("Failure", "CLUSTER_AUTHORIZATION_FAILED")
    assert line["unmapped"]["peer"] == {"ip": "10.0.0.2", "port": 9}


def test_lines_with_shared_parts_equal_their_events(tmp_path: Path) -> None:
    """Names of callers and resources look like the parts, and no part is taken for another."""
    odd = 'a"resources":[],"offset":1\x1b\u202e'
    other = replace(SOURCE, caller=Caller(f"User:{odd}", "10.0.0.1"))
    named = [
        tuple(Touched(Resource(AclResourceType.TOPIC, name)) for name in names)
        for names in ((), ("t",), ("t",), (odd, "u"), (), ("t",))
    ]
    events = [
        Event(source, time_ms, touched, offset=time_ms * 7, epoch=2)
        for time_ms, (source, touched) in enumerate(
            [(source, touched) for source in (SOURCE, other, SOURCE) for touched in named]
        )
    ]
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=1 << 20, max_backups=1)
    for one in events:
        assert one.is_plain
        log.add(one)
    log.close()
    assert path.read_text().isascii()
    assert lines(path) == [json.loads(json.dumps(one.document())) for one in events]


def test_files_rotate_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=1500, max_backups=2)
    for number in range(9):
        log.add(event(message=str(number)))
    log.close()
    found = sorted(path.parent.iterdir())
    assert [one.name for one in found] == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(one.stat().st_size <= 1500 for one in found)
    kept = [line["status_detail"] for one in reversed(found) for line in lines(one)]
    assert kept == [str(number) for number in range(9)][-len(kept) :]


def test_audit_log_that_cannot_be_rotated_is_appended_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=1500, max_backups=1)

    def read_only(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", read_only)
    with capture_logs() as logs:
        for number in range(9):
            log.add(event(message=str(number)))
        log.close()
    assert [line["status_detail"] for line in lines(path)] == [str(number) for number in range(9)]
    assert (log.dropped, log.failed) == (0, "")
    assert [one["error"] for one in logs] == ["Read-only file system"]


def test_flood_of_refusals_is_counted_while_writes_keep_their_lines(tmp_path: Path) -> None:
    path, now = tmp_path / "audit.log", [0.0]
    log = AuditLog(path, max_bytes=1 << 30, max_backups=0, clock=lambda: now[0])
    burst = audit_log.REFUSALS_BURST
    for _ in range(burst + 5):
        log.add(event(refused=True))
    log.add(event())
    now[0] = 1.0
    for _ in range(audit_log.REFUSALS_PER_S + 3):
        log.add(event(refused=True))
    log.close()
    found = lines(path)
    assert len(found) == burst + 1 + audit_log.REFUSALS_PER_S
    assert [line["unmapped"]["left_out"] for line in found if line["unmapped"]["left_out"]] == [5]
    assert log.dropped == 8


def test_full_disk_is_reported_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=1 << 20, max_backups=0)
    write = os.write

    def half(fd: int, data: bytes) -> int:
        return write(fd, data[: len(data) // 2])

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        log.add(event(message="lost"))
        wait_for(lambda: bool(log.failed))
    log.add(event(message="kept"))
    log.close()
    # What was written of the line that did not fit is taken back.
    assert [line["status_detail"] for line in lines(path)] == ["kept"]
    assert (log.dropped, log.failed) == (1, "")


def test_audit_log_that_is_a_link_fails_at_startup(tmp_path: Path) -> None:
    (tmp_path / "audit.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"audit\.log\.file: .*symbolic links"):
        AuditLog(tmp_path / "audit.log", max_bytes=1, max_backups=0)


def test_unwritable_file_fails_at_startup(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit\.log\.file: Is a directory"):
        AuditLog(tmp_path, max_bytes=1, max_backups=0)


def test_number_reused_by_another_request_hides_no_write_of_a_group() -> None:
    world = World(C.CONTROLLER)
    changes: Any = [(2, "t", "a", "1"), (2, "u", "a", "1")]
    world.ask(ConfigWrites([7, 8], changes, [1, 1], 0, 0, "", "User:root", "", 9))  # type: ignore[arg-type]
    world.ask(create(7))
    world.answer(ConfigReplies([7, 8], [1, 1], 40, 3, 2, 5))
    world.answer(created(7))
    assert [(one.source.method, one.unknown) for one in world.memory.events] == [
        ("IncrementalAlterConfigs", True), ("IncrementalAlterConfigs", False),
        ("CreateTopics", False),
    ]  # fmt: skip


def test_each_write_of_a_group_has_its_event() -> None:
    world = World(C.CONTROLLER)
    changes: Any = [(2, "t", "a", "1"), (2, "u", "a", "1"), (16, "m", "match", "x")]
    world.ask(ConfigWrites([7, 8, 9], changes, [2, 1, 0], 0, 0, "", "User:root", "", 9))  # type: ignore[arg-type]
    world.answer(ConfigReplies([7, 8], [2, 1], 40, 3, 2, 5))
    first, second = world.memory.events
    assert first.source.method == second.source.method == "IncrementalAlterConfigs"
    assert first.source.caller == second.source.caller == Caller("User:CN=alice", "10.0.0.1")
    assert first.claimed == second.claimed == "User:root"
    assert [(one.offset, one.epoch, one.error_code) for one in (first, second)] == [
        (41, 2, 0), (42, 2, 0),
    ]  # fmt: skip
    assert [str(one.resource) for one in first.touched] == ["TOPIC t", "TOPIC u"]
    assert [str(one.resource) for one in second.touched] == ["CLUSTER kafka-cluster"]
    refused = controller.ControllerResponse(correlation_id=9)
    refused.error.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    world.answer(refused)
    assert world.memory.events[2].refused
    assert len(world.memory.events) == 3
