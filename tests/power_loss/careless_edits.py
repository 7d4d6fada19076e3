"""Edits of the product that forget one sync, or change the order of two steps, each with the
program that shows it.

They are made in the recorded process, so that what is examined is the store with this one edit.
What only some of them need is imported there: it takes longer than the rest.
"""

import asyncio
import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from raftlog import files as durable
from raftlog.node.recovery import unsafe_recovery
from raftlog.node.storage import directory, files, snapshot_files
from raftlog.node.storage.directory import PartitionsState, write_partitions_state
from raftlog.node.storage.files import VoteFile
from raftlog.node.storage.log_bounds import emptied_at, started_at
from raftlog.node.storage.log_store import RocksLogStore
from raftlog.node.storage.partition_store import RocksPartitionStore
from raftlog.node.storage.rocks_adapter import RocksLog, RocksPartitions
from raftlog.node.storage.rocks_store import GroupCommit
from raftlog.node.storage.wal import NO_END

Edit = Callable[[], None]


def _nothing(*_: object, **__: object) -> None:
    return


def log_not_synced() -> None:
    """``flush_wal(True)`` -> ``False``."""
    RocksLog.sync = lambda self: self._db.flush_wal(False)


def partitions_not_synced() -> None:
    """``flush_wal(True)`` -> ``False``."""
    RocksPartitions.sync = lambda self: self._db.flush_wal(False)


def directory_of_small_files_not_synced() -> None:
    """No directory sync after the rename of the vote, the identity, the log's state."""
    files.fsync_directory = _nothing


def small_files_not_synced() -> None:
    """The vote, the identity and the log's state are renamed before they are synced."""

    def stage(path: Path, data: bytes) -> Path:
        temporary = path.with_name(path.name + files.TEMPORARY_SUFFIX)
        temporary.write_bytes(data)
        return temporary

    files._stage = stage


def vote_not_synced() -> None:
    """Overwritten in place, it is reported before it is durable."""
    real = VoteFile._overwrite

    def overwrite(self: VoteFile, copies: bytes) -> None:
        fdatasync, os.fdatasync = os.fdatasync, _nothing
        try:
            real(self, copies)
        finally:
            os.fdatasync = fdatasync

    VoteFile._overwrite = overwrite


def new_identity_not_synced() -> None:
    """Skip the sync of a new identity, when formatting alone."""
    real = directory.stage_checked

    def stage(path: Path, kind: str, content: Any) -> Path:
        fsync, os.fsync = os.fsync, _nothing
        try:
            return real(path, kind, content)
        finally:
            os.fsync = fsync

    directory.stage_checked = stage


def new_identity_renamed_unsynced() -> None:
    """Formatting reports success before its last rename is durable."""
    directory.fsync_directory = _nothing


def directories_above_not_synced() -> None:
    """Formatting makes directories, and syncs the names in the lowest one alone."""
    real = durable.make_directories

    def make(directory: Path, mode: int = 0o777) -> None:
        fsync, durable.fsync_directory = durable.fsync_directory, _nothing
        try:
            real(directory, mode)
        finally:
            durable.fsync_directory = fsync

    directory.make_directories = make


def snapshot_not_synced() -> None:
    """Renamed before its bytes are durable."""
    snapshot_files.os = _OsWithoutFsync


class _OsWithoutFsync:
    fsync = staticmethod(_nothing)
    fdopen, pread, O_WRONLY, O_CREAT, O_TRUNC = (
        staticmethod(os.fdopen),
        staticmethod(os.pread),
        os.O_WRONLY,
        os.O_CREAT,
        os.O_TRUNC,
    )


def snapshot_directory_not_synced() -> None:
    """Reported as stored before its name is durable."""
    snapshot_files.fsync_directory = lambda directory: (
        None
        if directory.name == snapshot_files.SNAPSHOT_DIRECTORY
        else durable.fsync_directory(directory)
    )


def snapshots_directory_itself_not_synced() -> None:
    """The name of the first snapshot is durable, and that of its directory is not."""
    snapshot_files.fsync_directory = lambda directory: (
        durable.fsync_directory(directory)
        if directory.name == snapshot_files.SNAPSHOT_DIRECTORY
        else None
    )


def log_emptied_after_its_state() -> None:
    """install_snapshot: the start moves first."""

    def empty_at(self: RocksLogStore, snapshot_id: Any) -> None:
        self._raise_format()
        self._keep_state(emptied_at(self._state, snapshot_id))
        self._rocks.replace_tail(0, None, NO_END)
        self._rocks.sync()
        self._snapshots.delete_before(snapshot_id)

    RocksLogStore._empty_at = empty_at


def log_emptied_without_a_sync() -> None:
    """install_snapshot: the start moves while the deletion is not durable."""

    def empty_at(self: RocksLogStore, snapshot_id: Any) -> None:
        self._raise_format()
        self._rocks.replace_tail(0, None, NO_END)
        self._keep_state(emptied_at(self._state, snapshot_id))
        self._snapshots.delete_before(snapshot_id)

    RocksLogStore._empty_at = empty_at


def chunks_deleted_before_the_start_moves() -> None:
    """advance_log_start: records below the new start are deleted first."""

    def advance(self: RocksLogStore, snapshot_id: Any) -> None:
        self._raise_format()
        self._rocks.delete_below(snapshot_id.end_offset)
        self._rocks.sync()
        self._keep_state(started_at(self._state, snapshot_id))
        self._snapshots.delete_before(snapshot_id)

    RocksLogStore._advance = advance


def truncation_below_its_floor() -> None:
    """truncate: what the log was durable up to at least is not lowered."""
    real = RocksLogStore._keep_state

    def keep(self: RocksLogStore, state: Any) -> None:
        if (
            state.end_offset_at_least >= self._state.end_offset_at_least
            or state.start_offset != self._state.start_offset
        ):
            real(self, state)

    RocksLogStore._keep_state = keep


def acknowledged_before_the_sync() -> None:
    """Group commit reports, then syncs."""

    def start(self: RocksLogStore, inline: bool) -> None:
        self._commit.sync_finished(None)
        # Behind whoever was waiting for the report.
        asyncio.get_running_loop().call_soon(
            lambda: self._disk.run(self._rocks.sync, _nothing, inline=inline)
        )

    RocksLogStore._start_sync = start


def sync_covers_what_came_after() -> None:
    """A sync is assumed to cover records that were appended while it ran."""
    real = GroupCommit.sync_finished

    def finished(self: GroupCommit, error: Any) -> None:
        self._covered_end_offset = self.end_offset
        real(self, error)

    GroupCommit.sync_finished = finished


def recovery_votes_last() -> None:
    """Unsafe recovery: the records are durable before the vote of their epoch."""
    vote, flush = unsafe_recovery._write_vote, unsafe_recovery._flush
    late: list[Any] = []

    async def write_vote(store: RocksLogStore, state: Any) -> None:
        late.append(state)

    async def flush_first(store: RocksLogStore) -> None:
        await flush(store)
        await vote(store, late.pop())

    unsafe_recovery._write_vote, unsafe_recovery._flush = write_vote, flush_first


def restored_log_not_synced() -> None:
    """The records of a restore stay in the WAL, unsynced: RocksDB is not closed."""
    from raftlog.node.recovery import restore

    class Unsynced(RocksLog):
        def sync(self) -> None:
            self._db.flush_wal(False)

        def close(self) -> None:
            _LEFT_OPEN.append(self)

    restore.RocksLog = Unsynced


_LEFT_OPEN: list[RocksLog] = []


def backup_not_synced() -> None:
    """Linked before it is durable."""
    from raftlog.ops import backup

    backup.os = type(
        "_", (), {"fsync": staticmethod(_nothing), "getpid": os.getpid, "link": os.link}
    )


def backup_name_not_synced() -> None:
    """Reported before its name is durable."""
    from raftlog.ops import backup

    backup.fsync_directory = _nothing


def segments_directory_not_synced() -> None:
    """A manifest may name files of which the directory is not durable."""
    from raftlog.segments import files

    files.make_directories = partial(Path.mkdir, parents=True, exist_ok=True)


def remembered_not_synced() -> None:
    """A streaming job records files as done that Spark wrote and nothing synced."""
    from replay.streaming import ledger

    def write(rows: Any, final: Path) -> None:
        temporary = final.with_name(f".tmp-{final.name}")
        rows.write.mode("overwrite").parquet(str(temporary))
        durable.make_directories(final.parent)
        ledger.files.publish(temporary, final)

    ledger._write = write


def partitions_marked_clean_first() -> None:
    """The sums of the replicas are noted before RocksDB is closed."""
    real = RocksPartitionStore.close

    def close(self: RocksPartitionStore) -> None:
        left = PartitionsState(clean=True, partitions=len(self._ends), records=self._ends.records())
        write_partitions_state(self._directory, left)
        real(self)

    RocksPartitionStore.close = close


def segments_not_synced() -> None:
    """An export's files are renamed before they are durable."""
    from raftlog.segments import files

    real = files.sync_file
    files.sync_file = lambda path: real(path) if path.is_dir() else None


def segments_names_not_synced() -> None:
    """An export is published before its names are durable."""
    from raftlog.segments import files

    real = files.sync_file
    files.sync_file = lambda path: None if path.is_dir() else real(path)


def removed_segments_come_back() -> None:
    """Remove merged segments before the manifest without them is durable."""
    from raftlog.segments import files

    files.fsync_directory = _nothing


SHOWN_BY: dict[str, tuple[str, str, str]] = {
    # edit: module and function that show it, and how the next start goes
    "log_not_synced": ("node_programs", "append", "node"),
    "partitions_not_synced": ("partition_programs", "partitions", "partitions"),
    "directory_of_small_files_not_synced": ("node_programs", "append", "node"),
    "small_files_not_synced": ("node_programs", "append", "node"),
    "vote_not_synced": ("node_programs", "append", "node"),
    "new_identity_not_synced": ("node_programs", "format_anew", "node"),
    "new_identity_renamed_unsynced": ("node_programs", "format_anew", "node"),
    "directories_above_not_synced": ("node_programs", "format_anew", "node"),
    "snapshot_not_synced": ("node_programs", "move_start", "node"),
    "snapshot_directory_not_synced": ("node_programs", "move_start", "node"),
    "snapshots_directory_itself_not_synced": ("node_programs", "move_start", "node"),
    "log_emptied_after_its_state": ("node_programs", "install", "node"),
    "log_emptied_without_a_sync": ("node_programs", "install", "node"),
    "chunks_deleted_before_the_start_moves": ("node_programs", "move_start", "node"),
    "truncation_below_its_floor": ("node_programs", "truncate", "node"),
    "acknowledged_before_the_sync": ("node_programs", "append", "node"),
    "sync_covers_what_came_after": ("node_programs", "group_commit", "node"),
    "recovery_votes_last": ("node_programs", "recover_by_hand", "node"),
    "restored_log_not_synced": ("file_programs", "restore_backup", "node"),
    "backup_not_synced": ("file_programs", "backup", "backup"),
    "backup_name_not_synced": ("file_programs", "backup", "backup"),
    "segments_directory_not_synced": ("file_programs", "export", "export"),
    "remembered_not_synced": ("file_programs", "ledger", "ledger"),
    "partitions_marked_clean_first": ("partition_programs", "partitions", "partitions"),
    "segments_not_synced": ("file_programs", "export", "export"),
    "segments_names_not_synced": ("file_programs", "export", "export"),
    "removed_segments_come_back": ("file_programs", "export", "export"),
}


def prepare_careless(root: Path, edit: str) -> Any:
    module, function, _ = SHOWN_BY[edit]
    prepare = getattr(importlib.import_module(module), f"prepare_{function}", None)
    return prepare(root) if prepare is not None else None


def careless(root: Path, edit: str) -> None:
    module, function, _ = SHOWN_BY[edit]
    program = getattr(importlib.import_module(module), function)
    globals()[edit]()
    program(root)
