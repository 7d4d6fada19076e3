"""A controller whose log, snapshots or vote are damaged joins its quorum anew, as another replica.

What the damaged directory promised cannot be known: which records it acknowledged, and for whom it
voted. But a voter is a node id *and* a directory id. So the quorum first commits, without this
node, that the damaged directory is no voter: from then on no promise of it counts, as of any voter
that is removed (Raft dissertation, section 4.1). Only then is the data set aside, and the directory
formatted under a new id, which has promised nothing. The node follows as an observer, and is added
as a voter once it has caught up (:func:`controller.service.upkeep.wish`), or when autopilot gives
it a seat.

If the identity itself is damaged, the configuration says which node it was, and the voter set which
directory. The leader removes neither while a process with that directory fetches from it.

Without a majority of the others nothing is changed: their logs may lack what is readable here.

Why: docs/decisions/035-a-damaged-voter-joins-anew.md
"""

from __future__ import annotations

import asyncio
import random
import uuid
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import structlog

from controller.service.upkeep import ask_leader
from raftlog.errors import ApiError, CorruptLogError, DamagedIdentityError, ErrorCode
from raftlog.node.config.node import NodeConfig
from raftlog.node.storage.api import NodeIdentity
from raftlog.node.storage.directory import (
    DirectoryLock,
    format_anew,
    read_identity,
    set_aside_before,
)
from raftlog.node.transport import transport_of
from raftlog.wire.controller.v1 import controller_pb2 as rpc

log = structlog.get_logger(__name__)

SET_ASIDE_MAX = 3
"""Most damaged states that a directory keeps: a disk that damages more of them is replaced."""


class Answer(Enum):
    """The quorum's answer to the removal of the damaged directory."""

    NO_VOTER = "no voter"
    """The damaged directory is no voter: committed."""
    ANOTHER_DIRECTORY = "another directory"
    """The node is a voter with another directory: this one has been replaced."""
    NOT_NOW = "not now"


def answer_of(error: ApiError | None) -> Answer:
    """Return what the reply to RemoveRaftVoter says; None: it succeeded."""
    if error is None:
        return Answer.NO_VOTER
    if error.code != ErrorCode.VOTER_NOT_FOUND:
        return Answer.NOT_NOW
    return Answer.ANOTHER_DIRECTORY if error.field == "voter_directory_id" else Answer.NO_VOTER


def others(config: NodeConfig) -> list[str]:
    """Return the addresses at which the configuration has the other controllers."""
    own = config.controller
    assert own is not None
    known = (*(voter.endpoint for voter in own.voters), *own.bootstrap_servers)
    return [one for one in dict.fromkeys(known) if one != own.endpoints]


def may_rejoin(config: NodeConfig) -> bool:
    """Return whether a damaged node may join anew by itself."""
    settings = config.settings
    joins = settings.controller_quorum_auto_join_enable
    return (joins or settings.controller_quorum_voter_replace_after_ms > 0) and bool(others(config))


async def rejoin(
    config: NodeConfig, damage: CorruptLogError | DamagedIdentityError, stop: asyncio.Event
) -> Path | None:
    """Have the damaged directory removed from the voters, set its data aside, and format it anew.

    Return where the data is now; None if ``stop`` was set before: nothing was changed here.

    Raises CorruptLogError if the directory must not be replaced (``damage``, and why); ConfigError,
    StorageError.
    """
    lock = DirectoryLock.exclusive(config.directory)
    try:
        identity = _identity_of(config)
        if set_aside_before(config.directory) >= SET_ASIDE_MAX:
            raise CorruptLogError(
                f"{damage}; data was damaged here {SET_ASIDE_MAX} times before: replace the disk",
                offset=offset_of(damage),
            )
        log.error("the directory is damaged: this node asks to join anew", damage=str(damage))
        if not await _removed(config, identity, damage, stop):
            return None
        anew = NodeIdentity(identity.cluster_id, identity.node_id, str(uuid.uuid4()))
        kept = format_anew(config.directory, anew, f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    finally:
        lock.release()
    log.warning(
        "the damaged data is set aside, and the directory is a new one",
        set_aside=str(kept),
        was=identity.directory_id,
        directory=anew.directory_id,
    )
    return kept


def offset_of(damage: CorruptLogError | DamagedIdentityError) -> int:
    """Return the first offset that cannot be trusted; -1: not in the log."""
    return damage.offset if isinstance(damage, CorruptLogError) else -1


def _identity_of(config: NodeConfig) -> NodeIdentity:
    """Return whose directory this is; without a directory id if that cannot be read.

    Raises ConfigError, StorageError.
    """
    try:
        return read_identity(config.directory)
    except DamagedIdentityError:
        return NodeIdentity(config.cluster_id, config.node_id, "")


async def _removed(
    config: NodeConfig,
    identity: NodeIdentity,
    damage: CorruptLogError | DamagedIdentityError,
    stop: asyncio.Event,
) -> bool:
    """Return True once the quorum has committed that the directory is no voter, False if ``stop``
    was set before.
    """
    pause_s = 2 * config.settings.controller_quorum_fetch_timeout_ms / 1000
    transport, rng = transport_of(config), random.Random()
    wanted = rpc.RemoveRaftVoterRequest(
        voter_id=identity.node_id, voter_directory_id=identity.directory_id, joins_anew=True
    )
    try:
        while not stop.is_set():
            error: ApiError | None = None
            try:
                await ask_leader(
                    wanted,
                    transport,
                    others(config),
                    rng=rng,
                    cluster_id=identity.cluster_id,
                    node_id=identity.node_id,
                )
            except ApiError as refused:
                error = refused
            match answer_of(error):
                case Answer.NO_VOTER:
                    return True
                case Answer.ANOTHER_DIRECTORY:
                    raise CorruptLogError(f"{damage}; {error}", offset=offset_of(damage))
                case Answer.NOT_NOW:
                    log.warning("the damaged directory stays as it is for now", why=str(error))
            try:
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            except TimeoutError:
                continue
        return False
    finally:
        await transport.close()
