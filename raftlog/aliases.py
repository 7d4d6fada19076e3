"""The names that KIP-343 gave to what has other names since: whoever knows only those finds the
way.

The one place for them: error texts and ``raftlog`` help take them from here, and docs/protocol.md
has the table.
"""

from __future__ import annotations

OLD_NAMES: dict[str, str] = {
    "broker epoch": "incarnation id",
    "STALE_BROKER_EPOCH": "INVALID_INCARNATION_ID",
    "BrokerHeartbeat": "MetadataHeartbeat",
    "AlterPartition": "IsrChange",
    "registration version": "BrokerInfo version",
}
"""Today's name -> KIP-343's."""


def with_old_name(name: str) -> str:
    """A name, with its old one behind it if it has one."""
    old = OLD_NAMES.get(name)
    return f"{name} (KIP-343: {old})" if old else name
