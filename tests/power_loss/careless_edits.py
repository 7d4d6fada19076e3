"""Edits of the product that forget one sync, or change the order of two steps, each with the
program that shows it. They are made in the recorded process.
"""

import importlib
from pathlib import Path
from typing import Any, NamedTuple

from simulation.mutants.edits import Edit, edited

STORAGE = "raftlog.node.storage"
LOG_STORE = f"{STORAGE}.log_store:RocksLogStore"
MODULES = {"partitions": "partition_programs"} | dict.fromkeys(
    ("export", "backup", "restore_backup", "ledger"), "file_programs"
)
"""Modules of the programs that are not in ``node_programs``."""


class Careless(NamedTuple):
    """Edits, and the recorded program that shows them."""

    function: str
    edits: tuple[Edit, ...]

    @property
    def module(self) -> str:
        return MODULES.get(self.function, "node_programs")


def careless_in(program: str, target: str, old: str, new: str = "pass") -> Careless:
    """Return one edit, an omission by default."""
    return Careless(program, (Edit(target, old, new),))


EDITS = {
    # ``flush_wal(True)`` -> ``False``.
    "log_not_synced": careless_in(
        "append",
        f"{STORAGE}.rocks_adapter:RocksLog.sync",
        "super().sync()",
        "return super() and self._db.flush_wal(False)",
    ),
    "partitions_not_synced": careless_in(
        "partitions", f"{STORAGE}.rocks_adapter:_RocksMap.sync", "(True)", "(False)"
    ),
    # The vote, the identity and the log's state.
    "directory_of_small_files_not_synced": careless_in(
        "append", f"{STORAGE}.files:replace_file", "fsync_directory(path.parent)"
    ),
    "small_files_not_synced": careless_in(
        "append", f"{STORAGE}.files:_stage", "os.fsync(file.fileno())"
    ),
    "vote_not_synced": careless_in(
        "append", f"{STORAGE}.files:VoteFile._overwrite", "os.fdatasync(self._fd)"
    ),
    "new_identity_not_synced": careless_in(
        "format_anew",
        f"{STORAGE}.files:_stage",
        "os.fsync(file.fileno())",
        "path.name == 'meta.json' or os.fsync(file.fileno())",
    ),
    "new_identity_renamed_unsynced": careless_in(
        "format_anew",
        f"{STORAGE}.directory:_fill",
        "staged.replace(directory / META_FILE) fsync_directory(directory)",
        "staged.replace(directory / META_FILE)",
    ),
    "directories_above_not_synced": careless_in(
        "format_anew", "raftlog.files:make_directories", "fsync_directory(above)"
    ),
    "snapshot_not_synced": careless_in(
        "move_start", f"{STORAGE}.snapshot_files:SnapshotFiles._freeze", "os.fsync(file.fileno())"
    ),
    "snapshot_directory_not_synced": careless_in(
        "move_start",
        f"{STORAGE}.snapshot_files:SnapshotFiles._freeze",
        "fsync_directory(self._directory)",
    ),
    "snapshots_directory_itself_not_synced": careless_in(
        "move_start",
        f"{STORAGE}.snapshot_files:SnapshotFiles._freeze",
        "fsync_directory(self._directory.parent)",
    ),
    "log_emptied_after_its_state": careless_in(
        "install",
        f"{LOG_STORE}._empty_at",
        "self._rocks.replace_tail(",
        "self._keep_state(emptied_at(self._state, snapshot_id)); self._rocks.replace_tail(",
    ),
    "log_emptied_without_a_sync": careless_in(
        "install", f"{LOG_STORE}._empty_at", "self._rocks.sync()"
    ),
    "chunks_deleted_before_the_start_moves": careless_in(
        "move_start",
        f"{LOG_STORE}._advance",
        "self._raise_format()",
        "self._raise_format(); self._rocks.delete_below(snapshot_id.end_offset); self._rocks.sync()",
    ),
    # What the log was durable up to at least is not lowered by a truncation.
    "truncation_below_its_floor": careless_in(
        "truncate",
        f"{LOG_STORE}._keep_state",
        "state != self._state",
        "state.end_offset_at_least >= self._state.end_offset_at_least"
        " or state.start_offset != self._state.start_offset",
    ),
    "acknowledged_before_the_sync": careless_in(
        "append",
        f"{STORAGE}.rocks_store:RocksStore._start_sync",
        "self._disk.run(self._database.sync, self._synced, inline=inline)",
        # Behind whoever was waiting for the report.
        "self._commit.sync_finished(None); asyncio.get_running_loop().call_soon(lambda:"
        " self._disk.run(self._database.sync, lambda _: None, inline=inline))",
    ),
    "sync_covers_what_came_after": careless_in(
        "group_commit",
        f"{STORAGE}.rocks_store:GroupCommit.sync_finished",
        "self._covered_end_offset",
        "self.end_offset",
    ),
    "recovery_votes_last": careless_in(
        "recover_by_hand",
        "raftlog.node.recovery.unsafe_recovery:begin_anew",
        "await _write_vote(store, VoteState(epoch=epoch)) store.append(chunk, base, end)"
        " await _flush(store)",
        "store.append(chunk, base, end); await _flush(store);"
        " await _write_vote(store, VoteState(epoch=epoch))",
    ),
    # The records stay in the WAL: RocksDB is not closed.
    "restored_log_not_synced": Careless(
        "restore_backup",
        tuple(
            Edit("raftlog.node.recovery.restore:_write_log", old, new)
            for old, new in (
                ("rocks.sync()", "rocks._db.flush_wal(False)"),
                ("rocks.close()", "RocksLog.left_open = rocks"),
            )
        ),
    ),
    "backup_not_synced": careless_in(
        "backup", "raftlog.ops.backup:write_backup", "os.fsync(out.fileno())"
    ),
    "backup_name_not_synced": careless_in(
        "backup", "raftlog.ops.backup:write_backup", "fsync_directory(file.parent)"
    ),
    "segments_directory_not_synced": Careless(
        "export",
        tuple(
            Edit(
                f"raftlog.segments.files:LocalPlace.{method}",
                f"make_directories({path})",
                f"{path}.mkdir(parents=True, exist_ok=True)",
            )
            for method, path in (("begin", "self.directory"), ("names", "folder"))
        ),
    ),
    # Nothing else syncs what Spark wrote.
    "remembered_not_synced": careless_in(
        "ledger", "replay.streaming.ledger:_write", "files.sync_file(path)"
    ),
    "partitions_marked_clean_first": careless_in(
        "partitions",
        f"{STORAGE}.rocks_store:RocksStore.close",
        "self._close_database()",
        "self._mark_closed(in_order=True); self._close_database()",
    ),
    "segments_not_synced": careless_in(
        "export",
        "raftlog.segments.files:sync_file",
        "os.fsync(descriptor)",
        "path.is_dir() and os.fsync(descriptor)",
    ),
    "segments_names_not_synced": careless_in(
        "export",
        "raftlog.segments.files:sync_file",
        "os.fsync(descriptor)",
        "path.is_dir() or os.fsync(descriptor)",
    ),
    # They are removed before the manifest without them is durable.
    "removed_segments_come_back": careless_in(
        "export", "raftlog.segments.files:LocalPlace.remove", "fsync_directory(path.parent)"
    ),
}


def prepare_careless(root: Path, edit: str) -> Any:
    program = EDITS[edit]
    prepare = getattr(importlib.import_module(program.module), f"prepare_{program.function}", None)
    return prepare(root) if prepare is not None else None


def careless(root: Path, edit: str) -> None:
    program = EDITS[edit]
    function = getattr(importlib.import_module(program.module), program.function)
    with edited(program.edits):
        function(root)
