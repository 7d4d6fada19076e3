"""The snapshots of one replica: complete ones, those being written or fetched, and the parts sent
to peers. The listener decides when to write one, and which ones to keep.

Why: docs/decisions/007-snapshots.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from raftlog.errors import CorruptLogError, ErrorCode, FatalError, InvariantError
from raftlog.logger import get_logger
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.node.replica.local_log import LocalLog
from raftlog.node.storage.api import LogStore, SnapshotId
from raftlog.node.storage.log_bounds import require_header
from raftlog.quorum import events as ev
from raftlog.quorum.voters import VoterSet

PAUSE_S = 0.003
"""Pause between two slices of a snapshot being written, in seconds, in which the loop does other
work.
"""


class SnapshotWriter:
    """A writer of one snapshot: slices alternate with pauses; then the store verifies the snapshot
    and makes it durable.

    ``done`` is called with the error, or with None when the snapshot is complete; never after
    ``cancel``, nor inside ``__init__``.
    """

    def __init__(
        self,
        store: LogStore,
        header: SnapshotHeader,
        pieces: Iterator[bytes],
        done: Callable[[FatalError | None], None],
    ) -> None:
        self.snapshot_id = SnapshotId(header.end_offset, header.epoch)
        self.written_bytes = 0
        self._store, self._pieces, self._done = store, pieces, done
        self._loop = asyncio.get_running_loop()
        self._cancelled = False
        self._handle: asyncio.Handle | None = self._loop.call_soon(self._slice)

    def _slice(self) -> None:
        self._handle = None
        try:
            piece = next(self._pieces, None)
            if piece is None:
                self._store.freeze_snapshot(self.snapshot_id, self._frozen)
                return
            if piece:
                self._store.store_snapshot(self.snapshot_id, self.written_bytes, piece)
                self.written_bytes += len(piece)
        except FatalError as error:
            self._done(error)
            return
        # A defect of raftlog: a node whose state cannot be written cannot be trusted.
        except Exception as error:
            self._done(
                FatalError(f"a snapshot could not be taken: {type(error).__name__}: {error}")
            )
            return
        self._handle = self._loop.call_later(PAUSE_S, self._slice)

    def _frozen(self, error: FatalError | None) -> None:
        if not self._cancelled:
            self._done(error)

    def cancel(self, *, drop: bool = True) -> None:
        """Give up the snapshot. It may still appear if it is already being made durable.

        ``drop``: False to leave its part in the store.
        """
        self._cancelled = True
        if self._handle is not None:
            self._handle.cancel()
            if drop:
                self._store.drop_snapshot(self.snapshot_id)


log = get_logger(__name__)

T = TypeVar("T")
PIECE_MAX_BYTES = 1 << 20
"""Largest part in one FetchSnapshot response, in bytes, whatever the request asks for."""
FETCHED_WITHIN_S = 5.0
"""Seconds within which an active fetcher requests the next piece, or repeats a request. After the
last piece it fetches the log that follows.
"""


class ReplicaSnapshots:
    """The snapshots of one replica. Results are stepped as events; a disk error stops the replica,
    through ``fail``.
    """

    def __init__(
        self,
        store: LogStore,
        local_log: LocalLog,
        cluster_id: str,
        *,
        step: Callable[[ev.Event], None],
        fail: Callable[[Exception], None],
        now: Callable[[], float],
    ) -> None:
        """``now`` returns the seconds of a monotonic clock."""
        self._store, self._log, self._cluster_id = store, local_log, cluster_id
        self._step, self._fail, self._now = step, fail, now
        self._writer: SnapshotWriter | None = None
        self._closed = False
        self._asked_at: dict[SnapshotId, float] = {}
        self.ids: tuple[SnapshotId, ...] = ()
        """Ids of the complete snapshots, ascending."""

    @property
    def newest(self) -> SnapshotId | None:
        """The newest complete snapshot, or None."""
        return self.ids[-1] if self.ids else None

    def close(self) -> None:
        """Stop: after this no part is stored and no event stepped."""
        self._closed = True
        if self._writer is not None:
            # The store may already be broken: its part of the snapshot is removed when it is next
            # opened.
            self._writer.cancel(drop=False)

    # --- reading ---------------------------------------------------------------------------------

    def size(self, snapshot_id: SnapshotId) -> int:
        """Return the size of a snapshot in bytes. Raises LookupError."""
        return self._store.snapshot_size(snapshot_id)

    def header(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        """Return the header of a snapshot.

        Raises LookupError; CorruptLogError, after which the replica has failed.
        """
        return self._from_store(lambda: self._store.snapshot_header(snapshot_id))

    def read(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Return bytes of a complete snapshot; empty at its end.

        Raises LookupError; StorageError, after which the replica has failed.
        """
        return self._from_store(lambda: self._store.read_snapshot(snapshot_id, position, max_bytes))

    def _from_store(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except FatalError as error:
            self._fail(error)
            raise

    def reply(self, effect: ev.ReplySnapshot) -> ev.Reply:
        """Return the response to a FetchSnapshotRequest, with its bytes. Raises StorageError,
        CorruptLogError.
        """
        response = effect.response
        snapshot_id = SnapshotId(response.snapshot_id.end_offset, response.snapshot_id.epoch)
        try:
            size = self._store.snapshot_size(snapshot_id)
            if 0 <= effect.position < size:
                max_bytes = max(1, min(effect.max_bytes, PIECE_MAX_BYTES))
                response.size, response.position = size, effect.position
                response.bytes = self._store.read_snapshot(snapshot_id, effect.position, max_bytes)
                self._asked_at[snapshot_id] = self._now()
            else:
                response.error_code = ErrorCode.POSITION_OUT_OF_RANGE
        except LookupError:
            response.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        return ev.Reply(effect.reply_to, response)

    def fetched(self) -> list[SnapshotId]:
        """Return the snapshots of which a peer has fetched a part within FETCHED_WITHIN_S."""
        since, ids = self._now() - FETCHED_WITHIN_S, set(self.ids)
        for snapshot_id in [
            one for one, at in self._asked_at.items() if at < since or one not in ids
        ]:
            del self._asked_at[snapshot_id]
        return sorted(self._asked_at)

    # --- writing ---------------------------------------------------------------------------------

    def write(
        self,
        header: SnapshotHeader,
        pieces: Iterator[bytes],
        done: Callable[[SnapshotId, int], None],
    ) -> None:
        """Write a snapshot of the committed state, slice by slice; one snapshot at a time.

        Each step of ``pieces`` must be short, and may yield empty bytes. ``done`` is called with
        the snapshot's id and size when it is complete and durable, but never if it is given up or
        the replica fails.
        """
        if self._writer is not None:
            raise InvariantError("a snapshot cannot be started while another is being written")
        writer: SnapshotWriter

        def finished(error: FatalError | None) -> None:
            if error is not None:
                # The state or the disk of this node can no longer be trusted.
                self._fail(error)
            elif not self._closed:
                self._writer = None
                self.ids = tuple(sorted({*self.ids, writer.snapshot_id}))
                self._step(ev.SnapshotFrozen(writer.snapshot_id))
                done(writer.snapshot_id, writer.written_bytes)

        writer = self._writer = SnapshotWriter(self._store, header, pieces, finished)

    def forget_before(self, snapshot_id: SnapshotId) -> None:
        """Forget the snapshots before this one, which were dropped with the log below it."""
        self.ids = tuple(one for one in self.ids if one >= snapshot_id)

    # --- fetching and installing -----------------------------------------------------------------

    def store(self, effect: ev.StoreSnapshot) -> None:
        """Write a part of a fetched snapshot; after the last part, verify and install it. Raises
        StorageError.
        """
        snapshot_id = effect.snapshot_id
        self._store.store_snapshot(snapshot_id, effect.position, effect.data)
        if effect.last:
            self._store.freeze_snapshot(
                snapshot_id, lambda error: self._fetched(snapshot_id, error), self._accept_header
            )

    def drop(self, snapshot_id: SnapshotId) -> None:
        """Drop a partially fetched snapshot."""
        self._store.drop_snapshot(snapshot_id)

    def _fetched(self, snapshot_id: SnapshotId, error: FatalError | None) -> None:
        """Process the verification of a fetched snapshot: it is durable, or was rejected."""
        if self._closed:
            return
        if isinstance(error, CorruptLogError):
            log.warning(
                "a fetched snapshot is invalid", snapshot=str(snapshot_id), error=str(error)
            )
            self._step(ev.SnapshotStored(snapshot_id, error=str(error)))
            return
        if error is not None:
            self._fail(error)
            return
        try:
            header = self._install(snapshot_id)
        except Exception as failure:
            self._fail(failure)
            return
        self._step(ev.SnapshotStored(snapshot_id, header.voters, header.generations))

    def _accept_header(self, header: SnapshotHeader) -> None:
        """Raise CorruptLogError for a snapshot that a peer should not have sent. Runs in the disk's
        thread, before the snapshot has its final name.

        A wrong header is not a defect of this node: if the node stopped because of one, a forged
        peer could stop every follower.
        """
        # The earlier fetches have matched the cluster id, so the address is not wrong.
        require_header(header, self._cluster_id, self._store.identity.generation)
        flaw = VoterSet.flaw(header.voters)
        if flaw:
            raise CorruptLogError(f"the voters in the snapshot are invalid: {flaw}")

    def _install(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        header = self._store.snapshot_header(snapshot_id)
        if self._writer is not None:
            self._writer.cancel()
            self._writer = None
        self._log.install(snapshot_id, header)
        # Earlier snapshots were dropped with the log.
        self.ids = (snapshot_id,)
        log.info("snapshot installed", snapshot=str(snapshot_id))
        return header
