"""Unsafe recovery: a lost quorum continues from one of its directories.

It happens offline, and is an operator's decision: no rule of Raft permits it. Committed records
that are not in this directory are lost; uncommitted records in it become committed. The log's next
leader begins another generation, by which all readers of the old history detect the change. The
order of the writes makes an interrupted recovery harmless: until the last write the directory has
its old voters and leads no quorum, so the recovery can simply be repeated.

Why: docs/decisions/016-leader-epoch-ranges.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from raftlog.endpoint import Voter
from raftlog.errors import ConfigError, StorageError
from raftlog.metadata.control_records import MAX_RECOVERIES, RECOVERED, Lineage, to_entries
from raftlog.node.recovery.first_chunk import RECORDS, beginning_chunk
from raftlog.node.storage.api import LogStore, NodeIdentity, RecoveredLog, VoteState
from raftlog.node.storage.files import read_bootstrap
from raftlog.node.storage.log_store import RocksLogStore
from raftlog.node.storage.opening import open_store
from raftlog.quorum.admission import EPOCH_LIMIT, MAX_EPOCH
from raftlog.wire.records.v1 import records_pb2 as pb

EPOCHS_SKIPPED = 1000
"""Number of skipped epochs: lost nodes may have campaigned in epochs that this directory does not
know.
"""


@dataclass(frozen=True, slots=True)
class Survivor:
    """The state of a directory. Compare (``last_epoch``, ``end_offset``) between all surviving
    ones, and recover the highest.
    """

    identity: NodeIdentity
    lineage: Lineage
    epoch: int
    last_epoch: int
    """Epoch of the last record, or of the snapshot if no record follows it."""
    start_offset: int
    end_offset: int
    voters: tuple[Voter, ...]
    """Voter set at the log's end, or the configured one; empty if the directory contains
    neither.
    """

    def endpoint(self) -> str:
        """Return this node's endpoint in the voter set, or empty if the node is not in it."""
        return next(
            (voter.endpoint for voter in self.voters if voter.node_id == self.identity.node_id), ""
        )


@dataclass(frozen=True, slots=True)
class Recovery:
    """Result of a recovery: the state ``before``, and the new epoch, sole voter and end of
    the log.
    """

    before: Survivor
    epoch: int
    voter: Voter
    end_offset: int


async def examine(directory: Path) -> Survivor:
    """Open and check a stopped node's directory as the node itself would.

    Raises ConfigError, CorruptLogError, StorageError.
    """
    async with _opened(directory) as (store, found):
        return _survivor(directory, store.identity, found)


async def recover_unsafely(directory: Path, *, endpoint: str, reason: str, now_ms: int) -> Recovery:
    """Make the directory a quorum of its own. ``endpoint``: this node's, or empty for the one in
    its voter set.

    Raises ConfigError (nothing was changed), CorruptLogError, StorageError.
    """
    async with _opened(directory) as (store, found):
        return await begin_anew(
            store,
            _survivor(directory, store.identity, found),
            endpoint=endpoint,
            reason=reason,
            now_ms=max(now_ms, found.last_timestamp_ms),
        )


async def begin_anew(
    store: LogStore, before: Survivor, *, endpoint: str, reason: str, now_ms: int
) -> Recovery:
    """Recover an open store. ``now_ms``: no earlier than the last record. Raises like
    ``recover_unsafely``.
    """
    identity = before.identity
    endpoint = endpoint or before.endpoint()
    if not endpoint:
        raise ConfigError(
            f"the log contains no endpoint of node {identity.node_id}: give --endpoint HOST:PORT"
        )
    voter = Voter(identity.node_id, endpoint, identity.directory_id)
    if before.lineage.recoveries >= MAX_RECOVERIES:
        raise ConfigError(
            f"the log was recovered {MAX_RECOVERIES} times, the limit: no leader epochs are left"
        )
    epoch = _next_epoch(before)
    what = pb.RecoveryRecord(
        kind=RECOVERED,
        previous_cluster_id=identity.cluster_id,
        previous_generation=before.lineage.current,
        # A vote may have an epoch that no record can have.
        previous_epoch=min(before.epoch, EPOCH_LIMIT),
        previous_voters=to_entries(before.voters),
        reason=reason,
    )
    base, end = before.end_offset, before.end_offset + RECORDS
    chunk = beginning_chunk(what, (voter,), base_offset=base, epoch=epoch, timestamp_ms=now_ms)
    await _write_vote(store, VoteState(epoch=epoch))
    store.append(chunk, base, end)
    await _flush(store)
    return Recovery(before, epoch, voter, end)


def _next_epoch(before: Survivor) -> int:
    """Return an epoch above all that this directory knows, ignoring a vote close to the highest
    possible epoch.

    Elections never reach such an epoch, so the vote was forged, and no record in this directory has
    that epoch, so nothing shows that a node led in it. Raises ConfigError if the log itself leaves
    no room.
    """
    highest = max(before.epoch, before.last_epoch)
    if highest + EPOCHS_SKIPPED > MAX_EPOCH:
        highest = before.last_epoch
    if highest + EPOCHS_SKIPPED > MAX_EPOCH:
        raise ConfigError(f"no epoch is left above {highest}, the epoch of the last record")
    return highest + EPOCHS_SKIPPED


@asynccontextmanager
async def _opened(directory: Path) -> AsyncIterator[tuple[RocksLogStore, RecoveredLog]]:
    store = open_store(
        directory, expect_cluster_id=None, expect_node_id=None, loop=asyncio.get_running_loop()
    )
    try:
        yield store, store.recover()
    finally:
        store.close()


def _survivor(directory: Path, identity: NodeIdentity, found: RecoveredLog) -> Survivor:
    return survivor_of(identity, found, read_bootstrap(directory).voters or ())


def survivor_of(
    identity: NodeIdentity, found: RecoveredLog, configured: tuple[Voter, ...]
) -> Survivor:
    """Return the state of a recovered log. ``configured``: the voters to use if the log contains no
    voter set.
    """
    logged = found.voters[-1].voters if found.voters else ()
    return Survivor(
        identity=identity,
        lineage=Lineage(found.generations),
        epoch=found.vote.epoch,
        last_epoch=found.epochs[-1][0] if found.epochs else found.start_epoch,
        start_offset=found.start_offset,
        end_offset=found.end_offset,
        voters=logged or configured,
    )


async def _write_vote(store: LogStore, vote: VoteState) -> None:
    done: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
    store.write_vote(vote, done.set_result)
    if (error := await done) is not None:
        raise error


async def _flush(store: LogStore) -> None:
    done: asyncio.Future[int | StorageError] = asyncio.get_running_loop().create_future()
    store.flush(done.set_result, inline=False)
    if isinstance(outcome := await done, StorageError):
        raise outcome
