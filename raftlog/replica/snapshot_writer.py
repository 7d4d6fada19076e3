"""Writing a snapshot slice by slice, so that nothing else on the loop waits for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from raftlog.errors import FatalError
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.storage.api import LogStore, SnapshotId

PAUSE_S = 0.003
"""Between two slices of a snapshot being written: the loop is everybody else's for at least as long
as it was the writer's.
"""


class SnapshotWriter:
    """Writes one snapshot: a slice, a pause, a slice; then has the store verify it and make it
    durable.

    ``done`` is called with the error, or None when the snapshot is complete; not after ``cancel``,
    and not inside ``__init__``.
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
        # a defect of ours: a node whose state cannot be written down is not to be trusted
        except Exception as error:
            self._done(FatalError(f"a snapshot could not be made: {type(error).__name__}: {error}"))
            return
        self._handle = self._loop.call_later(PAUSE_S, self._slice)

    def _frozen(self, error: FatalError | None) -> None:
        if not self._cancelled:
            self._done(error)

    def cancel(self, *, drop: bool = True) -> None:
        """Give it up.

        One that is being made durable may appear all the same, and is as good as any.

        ``drop`` false: without a word to the store.
        """
        self._cancelled = True
        if self._handle is not None:
            self._handle.cancel()
            if drop:
                self._store.drop_snapshot(self.snapshot_id)
