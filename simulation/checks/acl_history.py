"""Access control entries at every committed offset, and what they allow: a second, naive
authorizer, which scans all entries of the records for each query.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from raftlog.metadata.records import Record, RecordType
from simulation.checks.node_log import Logged

TOPIC, GROUP, CLUSTER, CLIENT_SESSION, HOSTNAME, EXPORT_CURSOR = 2, 3, 4, 100, 101, 102
KEY_VALUE = 103
PREFIXED = 4
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 2, 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS = 9, 10, 11
DENY = 2
IMPLYING = {DESCRIBE: (READ, WRITE, DELETE, ALTER), DESCRIBE_CONFIGS: (ALTER_CONFIGS,)}
"""Operation -> other operations whose permission implies it."""
EVERY_HOST = "*"

Right = tuple[int, int, str]
OF_CLUSTER = "kafka-cluster"


@dataclass(slots=True, eq=False)
class _Entry:
    resource_type: int
    name: str
    prefixed: bool
    principal: str
    host: str
    operation: int
    denies: bool
    since: int
    until: float = math.inf

    def is_about(self, resource_type: int, name: str) -> bool:
        if self.resource_type != resource_type:
            return False
        if self.prefixed:
            return name.startswith(self.name)
        return self.name in (name, "*")


class AclHistory:
    """The entries at every offset, from committed records that are added in order."""

    def __init__(self) -> None:
        self.super_users: frozenset[str] = frozenset()
        self.allow_everyone = False
        self._entries: list[_Entry] = []
        self._by_id: dict[bytes, _Entry] = {}
        self.changes: list[int] = []

    def committed(self, logged: Logged, records: list[Record]) -> None:
        for offset, record in enumerate(records, logged.header.base_offset):
            message = record.message
            if record.type == RecordType.ACCESS_CONTROL_ENTRY:
                resource = message.resource_type, message.resource_name
                who = message.principal, message.host, message.operation
                prefixed, denies = message.pattern_type == PREFIXED, message.permission_type == DENY
                entry = _Entry(*resource, prefixed, *who, denies, offset)
                self._entries.append(entry)
                self._by_id[message.id] = entry
            elif record.type == RecordType.REMOVE_ACCESS_CONTROL_ENTRY:
                self._by_id.pop(message.id).until = offset
            else:
                continue
            self.changes.append(offset)

    def allows(self, principal: str, hosts: Iterable[str], right: Right, offset: int) -> bool:
        """Return whether the entries at ``offset`` allow a right from any of these hosts."""
        if principal in self.super_users:
            return True
        operation, resource_type, name = right
        found = [
            entry
            for entry in self._entries
            if entry.since <= offset < entry.until and entry.is_about(resource_type, name)
        ]
        if not found:
            return self.allow_everyone
        mine = [entry for entry in found if entry.principal in (principal, "User:*")]
        return any(self._verdict(mine, host, operation) for host in hosts)

    def ever_allows(self, principal: str, host: str, right: Right, first: int, last: int) -> bool:
        return any(
            self.allows(principal, (host,), right, offset) for offset in self._moments(first, last)
        )

    def always_allows(self, principal: str, host: str, right: Right, first: int, last: int) -> bool:
        return all(
            self.allows(principal, (host,), right, offset) for offset in self._moments(first, last)
        )

    def _moments(self, first: int, last: int) -> Iterator[int]:
        yield first
        yield from (offset for offset in self.changes if first < offset <= last)

    @staticmethod
    def _verdict(entries: list[_Entry], host: str, operation: int) -> bool:
        here = [entry for entry in entries if entry.host in (EVERY_HOST, host)]
        if any(entry.denies and entry.operation in (ALL, operation) for entry in here):
            return False
        allowing = (ALL, operation, *IMPLYING.get(operation, ()))
        return any(not entry.denies and entry.operation in allowing for entry in here)
