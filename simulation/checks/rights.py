"""Permissions of committed records (I27), judged by the entries just before each batch with a naive
authorizer (``acl_history``).

* The principal had the permission from one of its addresses, or from the known one.
* The principal is the certificate's, whatever was claimed or forwarded.
* A numbered write, and the end of a client, are by the principal that opened the client; no
  principal learns of another's writes.
"""

from collections.abc import Callable
from typing import Any

from raftlog.metadata.records import Record, RecordType
from raftlog.wire.controller.v1.controller_pb2 import ControllerResponse
from simulation.checks.acl_history import (
    ALTER,
    ALTER_CONFIGS,
    CLIENT_SESSION,
    CLUSTER,
    CREATE,
    DELETE,
    EXPORT_CURSOR,
    GROUP,
    HOSTNAME,
    KEY_VALUE,
    OF_CLUSTER,
    TOPIC,
    AclHistory,
    Right,
)
from simulation.checks.api import Checker, Operation, World, fail
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged
from simulation.swarm.identities import CALLERS, OPERATOR, ROOT, principal_of

CONFIGS_OF_GROUPS = 32
ALTER_CLUSTER: Right = (ALTER, CLUSTER, OF_CLUSTER)
NODE = "User:node-"
CONTROLLER = "controller-"
"""Prefix of the principal in records that a controller writes on its own."""
OF_NODES = frozenset(
    {
        RecordType.REGISTER_BROKER,
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.PARTITION_CHANGE,
        RecordType.HOSTNAME,
        RecordType.VOTERS,
    }
)
"""Types of records that nodes may write under their own principals."""


def right_of_config(message: Any, alone: int) -> Right:
    """Return the right to change a config. ``alone``: the operation that the right is for."""
    if message.resource_type == TOPIC:
        return (alone, TOPIC, message.resource_name)
    if message.resource_type == CONFIGS_OF_GROUPS:
        return (alone, GROUP, message.resource_name)
    return (alone, CLUSTER, OF_CLUSTER)


class Rights(Checker):
    """Checker of I27, for writes."""

    def __init__(self, ledger: Ledger, history: AclHistory) -> None:
        self._golden, self._history = ledger.golden, history
        self._topics: dict[bytes, str] = {}
        self._owners: dict[int, str] = {}
        self._addresses: dict[str, list[str]] = {}
        for site in CALLERS.values():
            self._addresses.setdefault(site.principal, []).append(site.address)
        self._written: dict[int, tuple[str, int, list[Right]]] = {}
        """Offset -> (principal, base offset of the batch, rights each of which permits the
        record).
        """
        self._leases: dict[int, str] = {}
        self._values: dict[str, Operation] = {}
        self.batches = 0
        self.from_one_place = 0
        """Number of checked records whose client's address is known."""
        self.kept_out = 0
        """Number of refused attempts to use the client id of another principal."""
        self._rights_of: dict[int, Callable[[Any, int], list[Right]]] = {
            RecordType.TOPIC: self._of_topic,
            RecordType.REMOVE_TOPIC: lambda one, _: [(DELETE, TOPIC, self._topics[one.topic_id])],
            RecordType.PARTITION: lambda one, _: [(ALTER, TOPIC, self._topics[one.topic_id])],
            RecordType.CONFIG: lambda one, _: [right_of_config(one, ALTER_CONFIGS)],
            RecordType.OPEN_CLIENT: lambda one, _: [(CREATE, CLIENT_SESSION, one.name)],
            RecordType.HOSTNAME: lambda one, _: [(ALTER, HOSTNAME, one.hostname)],
            RecordType.EXPORT_CURSOR: lambda one, _: [(ALTER, EXPORT_CURSOR, one.name)],
            RecordType.LEASE: lambda one, _: [(CREATE, CLIENT_SESSION, one.name)],
            RecordType.KEY_VALUE: lambda one, _: [(ALTER, KEY_VALUE, one.key)],
        }

    def begin(self, world: World) -> None:
        super().begin(world)
        if world.config.authorizer:
            self._history.super_users = frozenset({OPERATOR})
            self._history.allow_everyone = world.config.allow_everyone
            self._golden.listeners.append(self._committed)

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        header = logged.header
        created = {one.message.topic_id for one in records if one.type == RecordType.TOPIC}
        # Configs come and go with their topic.
        with_configs = {one.message.name for one in records if one.type == RecordType.TOPIC} | {
            self._topics[one.message.topic_id]
            for one in records
            if one.type == RecordType.REMOVE_TOPIC
        }
        if header.sequence:
            self._check_owner(
                header.client_id, header.principal, f"a write at {header.base_offset}"
            )
        self.batches += header.principal in self._addresses
        ends_lease = any(one.type == RecordType.REMOVE_LEASE for one in records)
        for offset, record in enumerate(records, header.base_offset):
            message = record.message
            self._note(record, offset, header.principal)
            if ends_lease and record.type == RecordType.KEY_VALUE and not message.HasField("value"):
                continue  # It goes with its lease.
            if record.type == RecordType.LEASE:
                self._leases[offset] = message.principal
            if record.type == RecordType.REMOVE_LEASE:
                owner = self._leases.pop(message.lease_id, "")
                if header.principal == owner:
                    continue
            if record.type == RecordType.CLOSE_CLIENT:
                if header.principal and not self._may_clear_up(
                    header.principal, header.base_offset
                ):
                    self._check_owner(message.client_id, header.principal, f"its end at {offset}")
                self._owners.pop(message.client_id, None)
                continue
            if not header.principal:
                continue
            if record.type == RecordType.PARTITION and message.topic_id in created:
                continue
            if record.type == RecordType.CONFIG and message.resource_name in with_configs:
                continue
            self._check_record(logged, record, offset)
        # Each batch is judged by what was before it.
        self._history.committed(logged, records)

    def _note(self, record: Record, offset: int, principal: str) -> None:
        message = record.message
        if record.type == RecordType.TOPIC:
            self._topics[message.topic_id] = message.name
        elif record.type == RecordType.OPEN_CLIENT:
            self._owners[offset] = principal

    def _check_record(self, logged: Logged, record: Record, offset: int) -> None:
        principal, before = logged.header.principal, logged.header.base_offset - 1
        if principal.startswith((NODE, CONTROLLER)):
            if record.type not in OF_NODES:
                fail(f"I27: {principal} has written {RecordType(record.type).name} at {offset}")
            return
        if principal not in self._addresses and principal not in (OPERATOR, ROOT):
            fail(f"I27: at {offset} is a write of {principal}, who is nobody")
        self._check_value(record, principal, offset)
        of_record = self._rights_of.get(record.type)
        rights = [ALTER_CLUSTER] if of_record is None else of_record(record.message, offset)
        self._written[offset] = principal, before + 1, rights
        hosts = self._addresses.get(principal, ["?"])
        if not any(self._history.allows(principal, hosts, right, before) for right in rights):
            fail(
                f"I27: {principal} has written {RecordType(record.type).name} at {offset}, and had"
                f" none of {rights} (operation, type, name) before it"
            )

    def _check_value(self, record: Record, principal: str, offset: int) -> None:
        if record.type != RecordType.CONFIG or record.message.resource_type != CONFIGS_OF_GROUPS:
            return
        operation = self._values.get(record.message.value)
        if operation is not None:
            self._check_principal(operation, principal, offset)

    def _of_topic(self, message: Any, offset: int) -> list[Right]:
        return [(CREATE, TOPIC, message.name), (CREATE, CLUSTER, OF_CLUSTER)]

    def _may_clear_up(self, principal: str, offset: int) -> bool:
        """Return whether a principal may close any client: it may if it may alter the cluster."""
        hosts = self._addresses.get(principal, ["?"])
        return self._history.allows(principal, hosts, ALTER_CLUSTER, offset - 1)

    def _check_owner(self, client_id: int, principal: str, what: str) -> None:
        owner = self._owners.get(client_id)
        if owner is not None and owner != principal:
            fail(f"I27: client {client_id} is of {owner}, and {principal} has used it: {what}")

    def client_invoked(self, operation: Operation) -> None:
        if operation.kind == "access" and operation.value:
            self._values[operation.value] = operation

    def client_returned(self, operation: Operation) -> None:
        if not self.world.config.authorizer:
            return
        site = CALLERS.get(operation.client)
        if site is not None and operation.client_id >= 0:
            if operation.outcome == "ok":
                what = f"number {operation.number} was answered"
                self._check_owner(operation.client_id, site.principal, what)
            self.kept_out += operation.outcome == "failed"
        found = self._written.get(operation.offset)
        if operation.outcome != "ok" or found is None or operation.mode or _is_read(operation):
            return
        if _is_duplicate(operation):
            # Of a write from another host of the principal's, or by anybody, if the client was
            # opened at a level at which clients have no owners.
            return
        principal, base, rights = found
        self._check_principal(operation, principal, operation.offset)
        if site is None:
            return
        self.from_one_place += 1
        if not any(
            self._history.allows(principal, (site.address,), right, base - 1) for right in rights
        ):
            fail(
                f"I27: {principal} has written at {operation.offset} from {site.address}, and had"
                f" none of {rights} (operation, type, name) there"
            )

    def _check_principal(self, operation: Operation, principal: str, offset: int) -> None:
        proved = principal_of(operation.client.partition(".")[0], self.world.config)
        if principal != proved:
            fail(f"I27: {operation.client}, who is {proved}, is at {offset} as {principal}")


def _is_duplicate(operation: Operation) -> bool:
    response = operation.response
    return isinstance(response, ControllerResponse) and response.write.duplicate


def _is_read(operation: Operation) -> bool:
    return operation.kind in ("read_config", "read_topics") or operation.key.startswith("read")
