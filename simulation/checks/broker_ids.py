"""Broker ids that are found (KIP-426): every registration maps its host, and a host keeps its broker's id whatever becomes of its disk.

In the simulated world broker N runs on host bN. Wherever N has not registered from elsewhere meanwhile (as a twin makes it do), nothing but
N may ever be registered from bN: neither another's id, nor a new one. Newcomers, on hosts nK, never get an id that was registered from
another host: no broker is away for so long that its id could be missing.

Would catch: a registration without its mapping, a mapping that is ignored or taken for another host's, an id that is given to a
neighbour or generated while its own broker's session runs out.
"""

from __future__ import annotations

from typing import Any

from raftlog.metadata.hostnames import hostname_key
from raftlog.metadata.records import Record, RecordType
from simulation.checks.api import Checker, CheckFailedError
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged

_LEVEL = 3
"""Of metadata.version, from which on hosts are mapped."""


class BrokerIds(Checker):
    """Reads the committed records, not the fold that is under test."""

    def __init__(self, ledger: Ledger) -> None:
        self._level = 0
        self._mapped: dict[str, int] = {}
        self._hosts: dict[int, set[str]] = {}
        """Broker id -> the hosts that it was ever registered from."""
        ledger.golden.listeners.append(self._committed)

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        registered: list[tuple[str, int]] = []
        for record in records:
            message: Any = record.message
            if record.type == RecordType.FEATURE_LEVEL and message.name == "metadata.version":
                self._level = message.feature_level
            elif record.type == RecordType.HOSTNAME and message.HasField("broker_id"):
                self._mapped[message.hostname] = message.broker_id
            elif record.type == RecordType.HOSTNAME:
                self._mapped.pop(message.hostname, None)
            elif record.type == RecordType.REGISTER_BROKER and message.broker_epoch == logged.header.base_offset:
                registered.append((hostname_key(message.end_points[0].host), message.broker_id))
        if self._level < _LEVEL:
            return
        for host, broker_id in registered:
            self._registered(host, broker_id, logged.header.base_offset)

    def _registered(self, host: str, broker_id: int, offset: int) -> None:
        if self._mapped.get(host) != broker_id:
            raise CheckFailedError(
                f"broker {broker_id} is registered from {host} at offset {offset}, and {host} is mapped to {self._mapped.get(host)}"
            )
        others = self._hosts.setdefault(broker_id, set())
        if host[:1] == "n" and others - {host}:
            raise CheckFailedError(
                f"newcomer {host} registers as broker {broker_id} at offset {offset}: that is {min(others)}'s"
            )
        others.add(host)
        own = int(host[1:]) if host[:1] == "b" and host[1:].isdigit() else None
        if own not in (None, broker_id) and self._hosts.get(own, {host}) <= {host}:
            raise CheckFailedError(
                f"host {host} registers as broker {broker_id} at offset {offset}: it is broker {own}'s"
            )
