"""A controller whose log, snapshots or vote are damaged joins its quorum anew, as another replica.

Nobody can know what the damaged directory promised: which records it acknowledged, and for whom it
voted. But a voter is identified by its node id *and* its directory id. So the quorum first commits,
without this node, that the damaged directory is not a voter. From then on none of its promises
counts, as for any removed voter (Raft dissertation, section 4.1). Only then is the data set aside,
and the directory formatted under a new id, which has promised nothing. The node follows as an
observer, and is added as a voter once it has caught up
(:func:`controller.service.upkeep.requested_change`), or when autopilot gives it a seat.

If the identity itself is damaged, the configuration names the node, and the voter set names the
directory. The leader removes neither while a process with that directory fetches from it.

Without a majority of the others nothing is changed, as their logs may lack records that are
readable here. The same holds for a log that cannot be mended (:mod:`controller.mending`).

Why: docs/decisions/035-a-damaged-voter-joins-anew.md
"""

from __future__ import annotations

import random
import uuid
from enum import Enum
from pathlib import Path

import structlog

from controller.service.upkeep import ask_leader
from raftlog.errors import ApiError, CorruptLogError, DamagedIdentityError, ErrorCode
from raftlog.node.config.node import NodeConfig
from raftlog.node.storage.api import NodeIdentity
from raftlog.node.storage.directory import (
    format_anew,
    read_identity,
)
from raftlog.transport.api import Transport
from raftlog.wire.controller.v1 import controller_pb2 as rpc

log = structlog.get_logger(__name__)


class Answer(Enum):
    """The quorum's answer to the request to remove the damaged directory."""

    NO_VOTER = "no voter"
    """It is committed that the damaged directory is not a voter."""
    ANOTHER_DIRECTORY = "another directory"
    """The node is a voter with another directory, which has replaced this one."""
    NOT_NOW = "not now"


def answer_of(error: ApiError | None) -> Answer:
    """Return what the reply to RemoveRaftVoter means; ``error`` is None if it succeeded."""
    if error is None:
        return Answer.NO_VOTER
    if error.code != ErrorCode.VOTER_NOT_FOUND:
        return Answer.NOT_NOW
    return Answer.ANOTHER_DIRECTORY if error.field == "voter_directory_id" else Answer.NO_VOTER


def others(config: NodeConfig) -> list[str]:
    """Return the addresses of the other controllers in the configuration."""
    own = config.controller
    assert own is not None
    known = (*(voter.endpoint for voter in own.voters), *own.bootstrap_servers)
    return [one for one in dict.fromkeys(known) if one != own.endpoints]


def may_rejoin(config: NodeConfig) -> bool:
    """Return whether a damaged node may join anew without an operator."""
    settings = config.settings
    joins = settings.controller_quorum_auto_join_enable
    return (joins or settings.controller_quorum_voter_replace_after_ms > 0) and bool(others(config))


def begin_anew(directory: Path, identity: NodeIdentity, name: str) -> Path:
    """Set the damaged data aside as ``damaged/NAME``, format the directory under a new id, and
    return where the data is.

    The caller has locked the directory, and the quorum has removed the old id. Raises StorageError.
    """
    anew = NodeIdentity(identity.cluster_id, identity.node_id, str(uuid.uuid4()))
    kept = format_anew(directory, anew, name)
    log.warning(
        "the damaged data was set aside, and the directory formatted anew",
        set_aside=str(kept),
        previous_directory=identity.directory_id,
        directory=anew.directory_id,
    )
    return kept


def offset_of(damage: CorruptLogError | DamagedIdentityError) -> int:
    """Return the first offset that cannot be trusted, or -1 if the damage is not in the log."""
    return damage.offset if isinstance(damage, CorruptLogError) else -1


def identity_of(config: NodeConfig) -> NodeIdentity:
    """Return the identity of the directory, without a directory id if that cannot be read.

    Raises ConfigError, StorageError.
    """
    try:
        return read_identity(config.directory)
    except DamagedIdentityError:
        return NodeIdentity(config.cluster_id, config.node_id, "")


async def removed(
    config: NodeConfig,
    identity: NodeIdentity,
    damage: CorruptLogError | DamagedIdentityError,
    transport: Transport,
) -> str:
    """Have the quorum commit that the directory is not a voter; return "" if it has, else why not.

    Raises CorruptLogError if the directory must not be replaced (``damage``, and why).
    """
    error: ApiError | None = None
    try:
        await ask_leader(
            rpc.RemoveRaftVoterRequest(
                voter_id=identity.node_id, voter_directory_id=identity.directory_id, joins_anew=True
            ),
            transport,
            others(config),
            rng=random.Random(),
            cluster_id=identity.cluster_id,
            node_id=identity.node_id,
        )
    except ApiError as refused:
        error = refused
    match answer_of(error):
        case Answer.NO_VOTER:
            return ""
        case Answer.ANOTHER_DIRECTORY:
            raise CorruptLogError(f"{damage}; {error}", offset=offset_of(damage))
        case Answer.NOT_NOW:
            return str(error)
