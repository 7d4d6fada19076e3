"""The feature levels of a cluster: the behaviour that they enable, and the levels that this build
supports.

UpdateFeatures raises a level only if every voter and every broker supports it (KIP-584). The
behaviour is not used below that level, so until then each node can return to the previous build.

Why: docs/decisions/018-feature-levels.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METADATA_VERSION = "metadata.version"
"""1: leaders propose ISR members, and followers fetch, without broker epochs. 2: both name the
epochs, and -1 is not a valid epoch (KIP-903).
"""
LAO_VERSION = "lao.version"
"""1: brokers report the offset they have applied, and LAO is computed from it."""
BROKER_HEARTBEAT_VERSION = "broker.heartbeat.version"
"""1: brokers send heartbeats, are fenced for silence, and fence themselves (KIP-343)."""
MIN_METADATA_VERSION = 1
"""The lowest level at which this build works."""
LATEST_METADATA_VERSION = 2
"""The highest level that this build supports."""
REPLICA_EPOCHS = 2
"""The level from which brokers name epochs in fetches and ISR changes."""

Features = Mapping[str, int] | Any
"""Feature name -> finalized level: ``features`` of an image or of a draft."""


def metadata_version(features: Features) -> int:
    """Return the finalized level, or MIN_METADATA_VERSION while none has been written."""
    level: int = features.get(METADATA_VERSION, MIN_METADATA_VERSION)
    return level


def supports_replica_epochs(features: Features) -> bool:
    """Return whether every broker names its epoch in fetches, and every leader the epochs of an ISR
    that it proposes (KIP-903): -1 is then not a valid epoch.
    """
    return metadata_version(features) >= REPLICA_EPOCHS


def heartbeats_enabled(features: Features) -> bool:
    """Return whether brokers send heartbeats and are fenced for silence; also true before the log
    has levels. A level of 0 may be absent (as in an image) or explicit.
    """
    return bool(features.get(BROKER_HEARTBEAT_VERSION, 0)) or METADATA_VERSION not in features
