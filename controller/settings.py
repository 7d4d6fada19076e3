"""The settings of the active controller."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.node.config.settings import Settings


@dataclass(frozen=True)
class ControllerSettings(Settings):
    """The keys of a configuration, and the values set by formatting and by the disk."""

    bootstrap_metadata_version: int = 0
    """Level of metadata.version that a new cluster starts with (``storage format
    --release-version``); 0 for the latest.
    """
    bootstrap_super_users: tuple[str, ...] = ()
    """Principals for which a new cluster starts with access control entries (``storage format
    --super-user``).
    """
    free_space_reserve_bytes: int = 0
    """Effective value of metadata.log.free.space.reserve.bytes on this disk; 0 if the space is not
    watched.
    """
