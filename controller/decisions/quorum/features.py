"""UpdateFeatures (KIP-584): feature levels change once every node that must support the new level
does.

A request succeeds completely or not at all. A downgrade loses nothing that is in the log; a warning
states its consequences.

Why: docs/decisions/018-feature-levels.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controller.decision import (
    Decision,
    FeatureLevelsUpdated,
    Reply,
    refuse,
    write_or_reply,
)
from controller.decisions.quorum.membership import Look
from controller.state.state import LEGACY_REGISTRATION, ControllerState, heartbeats_off, obstacles
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata import versions
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, record
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""Kafka's upgrade types."""
HEARD_WITHIN_MS = 5_000
"""Maximum age, in ms, of a voter's last fetch at which the features that it reported count as those
of its current build (it may have been upgraded since).
"""


def known_features() -> dict[str, tuple[int, int]]:
    """Return the features of this build: name -> (lowest level, highest level). 0 means not
    finalized.
    """
    return {
        versions.METADATA_VERSION: (
            versions.MIN_METADATA_VERSION,
            versions.LATEST_METADATA_VERSION,
        ),
        versions.LAO_VERSION: (0, 1),
        versions.BROKER_HEARTBEAT_VERSION: (0, 1),
    }


def update_features(
    state: ControllerState,
    request: rpc.UpdateFeaturesRequest,
    node_id: int,
    look: Look | None,
    now: float,
) -> Decision:
    """Decide all updates.

    Raises INVALID_UPDATE_VERSION, which names the obstacle to the first impossible update, or
    INVALID_REQUEST.
    """
    image = state.log.pending.snapshot()
    records: list[Record] = []
    seen: set[str] = set()
    for index, update in enumerate(request.updates):
        if update.name in seen:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"feature {update.name!r} is given twice",
                f"updates[{index}].name",
            )
        seen.add(update.name)
        _check_direction(image, update, f"updates[{index}]")
        level, field = update.max_version_level, f"updates[{index}].max_version_level"
        if level == image.features.get(update.name, 0):
            continue
        for reason in _obstacles(
            state, image, update, node_id, look(now) if look is not None else None
        ):
            raise _invalid(reason, field)
        records.append(record(pb.FeatureLevelRecord(name=update.name, feature_level=level)))
    asked = {update.name: update.max_version_level for update in request.updates}
    for name, reason in obstacles(image, asked) if records else ():
        raise _invalid(reason, f"updates[{list(asked).index(name)}].max_version_level")
    body = rpc.UpdateFeaturesResponse(warnings=_warnings(image, request.updates))
    if request.validate_only:
        return Reply(body)
    effects = (FeatureLevelsUpdated(),) if heartbeats_off(state) else ()
    return write_or_reply(records, body, *effects)


def _check_direction(image: Image, update: rpc.FeatureUpdate, field: str) -> None:
    """Check that this build supports the level, and that the upgrade type fits the direction."""
    known = known_features().get(update.name)
    if known is None:
        raise _invalid(
            f"{update.name!r} is not a feature; use one of {', '.join(sorted(known_features()))}",
            f"{field}.name",
        )
    low, high = known
    level, current = update.max_version_level, image.features.get(update.name, 0)
    if not low <= level <= high:
        raise _invalid(
            f"this controller supports {update.name} {low} to {high}, not {level}",
            f"{field}.max_version_level",
        )
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(f"upgrade_type {update.upgrade_type} is unknown", f"{field}.upgrade_type")
    if level < current and update.upgrade_type == UPGRADE:
        raise _invalid(
            f"{update.name} is at {current}: {level} would be a downgrade, not an upgrade",
            f"{field}.upgrade_type",
        )
    if level > current and update.upgrade_type != UPGRADE:
        raise _invalid(
            f"{update.name} is at {current}: {level} would be an upgrade, not a downgrade",
            f"{field}.upgrade_type",
        )


def _obstacles(
    state: ControllerState,
    image: Image,
    update: rpc.FeatureUpdate,
    node_id: int,
    seen: QuorumDescription | None,
) -> Iterator[str]:
    """Yield the obstacles to a change of level."""
    name, level = update.name, update.max_version_level
    if name == versions.BROKER_HEARTBEAT_VERSION:
        return  # Brokers state by their registration version whether they support it.
    yield from _brokers_against(image, name, level)
    if name != versions.METADATA_VERSION:
        return
    if seen is None:
        yield "this controller does not know the voters yet"
        return
    yield from _voters_against(seen, node_id, level)


def _warnings(image: Image, updates: Iterable[rpc.FeatureUpdate]) -> Iterator[str]:
    """Yield a warning for each accepted update that lowers a level."""
    for update in updates:
        current, level = image.features.get(update.name, 0), update.max_version_level
        if level >= current:
            continue
        if update.name == versions.METADATA_VERSION:
            yield (
                f"{update.name} goes from {current} to {level}: ISR changes no longer need"
                " broker epochs, so a replica that has lost its disk may join an ISR"
            )
        elif update.name == versions.LAO_VERSION:
            yield (
                f"{update.name} goes from {current} to {level}: the lowest acknowledged offset is"
                " no longer promised"
            )
        elif update.name == versions.BROKER_HEARTBEAT_VERSION:
            yield (
                f"{update.name} goes from {current} to {level}: brokers are no longer fenced for"
                " silence, and do not fence themselves"
            )
        else:
            yield f"{update.name} goes from {current} to {level}"


def _brokers_against(image: Image, name: str, level: int) -> Iterator[str]:
    for broker_id in sorted(image.brokers):
        broker = image.brokers[broker_id]
        if not level or (
            name == versions.LAO_VERSION and broker.registration_version == LEGACY_REGISTRATION
        ):
            continue
        low, high = next(
            ((low, high) for known, low, high in broker.features if known == name), (0, 0)
        )
        if not low <= level <= high:
            yield f"broker {broker_id} supports {name} {low} to {high}, not {level}"


def _voters_against(seen: QuorumDescription, node_id: int, level: int) -> Iterator[str]:
    """Yield an obstacle for each current voter that has not recently reported support for the
    level.

    This node's own levels are known.
    """
    progress = {replica.node_id: replica for replica in seen.voters}
    for voter_id in sorted({voter.node_id for voter in seen.voter_set} | set(progress)):
        if voter_id == node_id:
            continue
        known = _level_of(progress.get(voter_id))
        if known is None:
            yield (
                f"voter {voter_id} has not been heard from recently: whether it supports"
                f" metadata.version {level} is unknown"
            )
        elif known < level:
            yield f"voter {voter_id} supports metadata.version up to {known}, not {level}"


def _level_of(replica: ReplicaDescription | None) -> int | None:
    if replica is None or not 0 <= replica.last_fetch_age_ms <= HEARD_WITHIN_MS:
        return None
    return replica.max_metadata_version


def _invalid(message: str, field: str) -> ApiError:
    return refuse(ErrorCode.INVALID_UPDATE_VERSION, message, field)
