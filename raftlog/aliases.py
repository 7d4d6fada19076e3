"""KIP-343's names for concepts that have other names today.

Error texts and ``raftlog`` help take the names from here; docs/protocol.md has the table.
"""

from __future__ import annotations

OLD_NAMES: dict[str, str] = {
    "broker epoch": "incarnation id",
    "STALE_BROKER_EPOCH": "INVALID_INCARNATION_ID",
    "BrokerHeartbeat": "MetadataHeartbeat",
    "AlterPartition": "IsrChange",
    "registration version": "BrokerInfo version",
}
"""Current name -> KIP-343's name."""


def with_old_name(name: str) -> str:
    """Return a name, followed by its KIP-343 name if it has one."""
    old = OLD_NAMES.get(name)
    return f"{name} (KIP-343: {old})" if old else name
