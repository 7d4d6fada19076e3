"""What the active controller can be told."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.node.config.settings import Settings


@dataclass(frozen=True)
class ControllerSettings(Settings):
    """The keys of a configuration, and what formatting and the disk say."""

    bootstrap_metadata_version: int = 0
    """The level of metadata.version that a new cluster starts with (``storage format
    --release-version``); 0: the latest.
    """
    bootstrap_super_users: tuple[str, ...] = ()
    """Principals that a new cluster begins with entries for (``storage format --super-user``)."""
    free_space_reserve_bytes: int = 0
    """metadata.log.free.space.reserve.bytes, as it is effective on this disk; 0: not watched."""
