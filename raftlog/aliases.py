"""KIP-343's names of concepts that have other names now, for readers who know only the old ones.

The one place for them: error texts and ``raftlog`` help read them here, and docs/protocol.md has
the table.
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
    """Return a name, followed by its old one if it has one."""
    old = OLD_NAMES.get(name)
    return f"{name} (KIP-343: {old})" if old else name
