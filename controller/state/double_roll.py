"""The double roll of KIP-343 as a feature level, ``broker.heartbeat.version``.

Level 0: every registered broker counts as active from its registration on, legacy ones
(registration version 0) too. None is fenced for silence, and brokers that know heartbeats neither
heartbeat nor fence themselves: what they do is the same whichever build they run, so that they can
be replaced, and rolled back, one by one. Whoever fetches the log or registers is heard from, so
that a second process under a living broker's id is still refused.

Level 1: heartbeats are in force. It is raised when every registered broker knows them, and can be
lowered again. As LAO is made of what brokers report, ``lao.version`` 1 goes with level 1 only; at
level 0 LAO is unknown.

Why: docs/decisions/018-feature-levels.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from controller.state.state import ControllerState
from raftlog.metadata import versions
from raftlog.metadata.image import Image
from raftlog.metadata.versions import (
    BROKER_HEARTBEAT_VERSION,
    LAO_VERSION,
    METADATA_VERSION,
    heartbeats_in_force,
)

LEGACY_REGISTRATION = 0
"""The registration version of a broker that does not heartbeat (KIP-343's BrokerInfo below version
5).
"""
KNOWS_HEARTBEATS = 1
"""The registration version by which a broker says that it does."""


def heartbeats_off(state: ControllerState) -> bool:
    """Whether brokers count as active without heartbeats."""
    # Each fetch of a broker asks. No config write changes a level: none has to be folded for it.
    return not heartbeats_in_force(state.log.pending_but_configs.features)


def why_without_heartbeats(
    registration_version: int, features: Iterable[tuple[str, int, int]]
) -> str:
    """Why a broker cannot heartbeat, for people; empty if it can.

    The registration version says it, as in KIP-343.
    """
    if registration_version < KNOWS_HEARTBEATS:
        return (
            f"has a legacy registration (version {registration_version}), which does not heartbeat"
        )
    for name, low, high in features:
        if name == BROKER_HEARTBEAT_VERSION and not low <= 1 <= high:
            return f"knows {BROKER_HEARTBEAT_VERSION} from {low} to {high}, not 1"
    return ""


def obstacles(image: Image, updates: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """(feature named in the request, what stands against it) of levels that rest on each other, or
    on what brokers do.
    """
    after = {**{name: image.features[name] for name in image.features}, **updates}
    yield from _dependencies(after, updates)
    before = heartbeats_in_force(image.features)
    if before and not heartbeats_in_force(after) and BROKER_HEARTBEAT_VERSION not in updates:
        yield (
            next(iter(updates)),
            (
                f"this would end the brokers' heartbeats: name {BROKER_HEARTBEAT_VERSION}=0 in the"
                " same request if that is meant"
            ),
        )
    if heartbeats_in_force(after) and (not before or updates.get(BROKER_HEARTBEAT_VERSION)):
        cause = (
            BROKER_HEARTBEAT_VERSION if BROKER_HEARTBEAT_VERSION in updates else next(iter(updates))
        )
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            why = why_without_heartbeats(broker.registration_version, broker.features)
            if why:
                yield cause, f"broker {broker_id} {why}"


def begin_heartbeats(state: ControllerState, now: float) -> None:
    """If heartbeats are in force from here on, every broker that counts as active has a whole
    session to send its first.
    """
    if heartbeats_off(state):
        return
    state.sessions_given_at = now
    for broker_id, broker in sorted(state.log.pending.snapshot().brokers.items()):
        if not broker.fenced:
            state.sessions.touch(broker_id, broker.epoch, now)


def ask_for_the_silent(state: ControllerState) -> None:
    """At the claim without heartbeats in force: the fenced brokers that never say anything more are
    to be unfenced, as an earlier controller had to.
    """
    if not heartbeats_off(state):
        return
    for broker_id, broker in sorted(state.log.pending.snapshot().brokers.items()):
        if (
            broker.registration_version == LEGACY_REGISTRATION
            and broker.fenced
            and not broker.has_left
        ):
            state.ask_unfence(broker_id)


def _dependencies(
    after: Mapping[str, int], updates: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    level, lao = after.get(BROKER_HEARTBEAT_VERSION, 0), after.get(LAO_VERSION, 0)
    if not versions.supports_heartbeat_levels(after):
        if level:
            named = (
                BROKER_HEARTBEAT_VERSION
                if updates.get(BROKER_HEARTBEAT_VERSION)
                else METADATA_VERSION
            )
            yield named, f"{BROKER_HEARTBEAT_VERSION} {level} needs metadata.version 3"
    elif lao and not level and BROKER_HEARTBEAT_VERSION in updates:
        yield (
            BROKER_HEARTBEAT_VERSION,
            (
                f"{LAO_VERSION} {lao} rests on the brokers' heartbeats: lower it to 0 in the same"
                " request"
            ),
        )
    elif lao and not level and updates.get(LAO_VERSION):
        yield (
            LAO_VERSION,
            (
                f"{LAO_VERSION} {lao} rests on the brokers' heartbeats: raise"
                f" {BROKER_HEARTBEAT_VERSION} to 1 in the same request"
            ),
        )
