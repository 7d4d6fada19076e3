"""A replica's snapshots: given out piece by piece, and written here slice by slice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from raftlog.errors import ErrorCode, FatalError
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.quorum import events as ev
from raftlog.storage.api import LogStore, SnapshotId
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

PIECE_MAX_BYTES = 1 << 20
"""What one FetchSnapshot answers at the most, whatever it asks for."""
PAUSE_S = 0.003
"""Between two slices of a snapshot being written: the loop is everybody else's for at least as long as it was the writer's."""


def fill(store: LogStore, effect: ev.ReplySnapshot) -> ev.Reply:
    """The answer to a FetchSnapshotRequest, with its bytes. Raises StorageError, CorruptLogError."""
    response = effect.response
    snapshot_id = SnapshotId(response.snapshot_id.end_offset, response.snapshot_id.epoch)
    try:
        size = store.snapshot_size(snapshot_id)
        if 0 <= effect.position < size:
            max_bytes = max(1, min(effect.max_bytes, PIECE_MAX_BYTES))
            response.size, response.position = size, effect.position
            response.bytes = store.read_snapshot(snapshot_id, effect.position, max_bytes)
        else:
            response.error_code = ErrorCode.POSITION_OUT_OF_RANGE
    except LookupError:
        response.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
    return ev.Reply(effect.reply_to, response)


class SnapshotWriter:
    """Writes one snapshot: a slice, a pause, a slice; then has the store verify it and make it durable.

    ``done`` is called with the error, or None when the snapshot is complete; not after ``cancel``, and not inside ``__init__``.
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
        except Exception as error:  # a defect of ours: a node whose state cannot be written down is not to be trusted
            self._done(FatalError(f"a snapshot could not be made: {type(error).__name__}: {error}"))
            return
        self._handle = self._loop.call_later(PAUSE_S, self._slice)

    def _frozen(self, error: FatalError | None) -> None:
        if not self._cancelled:
            self._done(error)

    def cancel(self, *, drop: bool = True) -> None:
        """Give it up. One that is being made durable may appear all the same, and is as good as any.

        ``drop`` false: without a word to the store.
        """
        self._cancelled = True
        if self._handle is not None:
            self._handle.cancel()
            if drop:
                self._store.drop_snapshot(self.snapshot_id)


def wire_id(snapshot_id: SnapshotId) -> pb.SnapshotId:
    """As messages name it."""
    return pb.SnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch)
