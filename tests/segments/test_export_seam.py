"""An export that continues: only with the log that it was made of, even if another one has the same
cluster and generation.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import format_hash
from raftlog.segments.errors import ExportGapError, ExportMismatchError
from raftlog.segments.export import PublishPolicy, export, follow
from raftlog.segments.manifest import StateHash, read_manifest
from raftlog.segments.verify import verify_export


class Cluster:
    """A running cluster: ``log`` may be replaced, which takes a new connection."""

    cluster_id, generation, start_offset, connections = CLUSTER_ID, 0, 0, 1

    def __init__(self, log: LogHistory) -> None:
        self.log = log

    @property
    def high_watermark(self) -> int:
        return self.log.end_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        if offset not in self.log.positions:
            if offset >= self.high_watermark:
                return b""
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, "no batch begins there")
        return self.log.read(offset, max_bytes)

    def poll(self, offset: int, max_bytes: int, wait_s: float) -> bytes:
        return self.read(offset, max_bytes) if offset < self.high_watermark else b""

    def replace(self, log: LogHistory) -> None:
        self.log, self.connections = log, self.connections + 1


class Directory(Cluster):
    connections = 0


def forked(seed: int, *, at: int = 100) -> tuple[LogHistory, LogHistory]:
    """Two logs of one generation that are the same up to about an offset."""
    one, other = (LogHistory(seed).run(at) for _ in range(2))
    assert one.batches == other.batches
    other.rng.seed(seed + 1000)
    other.elect(3)
    return one.run(at + 50), other


@pytest.mark.parametrize("seed", range(5))
def test_export_refuses_log_that_was_replaced(seed: int, tmp_path: Path) -> None:
    exported, other = forked(seed)
    source = Cluster(exported)
    export(source, tmp_path)
    before = read_manifest(tmp_path)
    source.replace(other.run(exported.end_offset + 100))
    with pytest.raises(ExportMismatchError, match=r"is not the log that was exported"):
        export(source, tmp_path)
    assert read_manifest(tmp_path).segments == before.segments
    export(Cluster(exported.run(300)), tmp_path)
    verify_export(tmp_path)


def test_export_refuses_cluster_whose_log_ends_before_it(tmp_path: Path) -> None:
    exported, shorter = forked(7)
    export(Cluster(exported), tmp_path)
    with pytest.raises(ExportMismatchError, match="does not reach to there"):
        export(Cluster(shorter), tmp_path)


def test_directory_may_lag_behind_the_export_but_not_differ(tmp_path: Path) -> None:
    exported, other = forked(0)
    export(exported, tmp_path)
    assert export(other, tmp_path).records == 0
    with pytest.raises(ExportMismatchError, match="has another one there, of epoch"):
        export(Directory(other.run(exported.end_offset + 50)), tmp_path)


def test_export_continues_where_the_log_begins_at_its_end(tmp_path: Path) -> None:
    """The last batch of the export is not there to be compared."""
    history = LogHistory(9).run(100)
    export(history, tmp_path)
    history.start_offset = history.end_offset
    assert export(history.run(history.end_offset + 50), tmp_path).records >= 50
    history.start_offset = history.run(history.end_offset + 50).end_offset
    with pytest.raises(ExportGapError):
        export(history, tmp_path)


def test_follow_ends_when_the_log_is_replaced_between_two_polls(tmp_path: Path) -> None:
    """Also before anything was published, so that no manifest could tell."""
    exported, other = forked(10)
    source, polls = Cluster(exported), 0
    other.run(exported.end_offset + 100)

    def stop() -> bool:
        nonlocal polls
        polls += 1
        if polls == 3:
            source.replace(other)
        return polls > 10

    with pytest.raises(ExportMismatchError, match="is not the log that was exported"):
        follow(source, tmp_path, PublishPolicy(interval_s=1e9), stop=stop)
    assert polls == 3
    assert read_manifest(tmp_path).segments == ()


def test_follow_compares_again_after_a_controller_was_away(tmp_path: Path) -> None:
    source, polls = Cluster(LogHistory(11).run(100)), 0

    def stop() -> bool:
        nonlocal polls
        polls += 1
        source.replace(source.log.run(100 + 10 * polls))
        return polls > 5

    assert follow(source, tmp_path, PublishPolicy(), stop=stop).records >= 150
    verify_export(tmp_path)


def said(log: LogHistory, *, node_id: int = 1) -> StateHash:
    offset = log.end_offset - 1
    known = log.log_hashes[offset]
    return StateHash(
        offset=offset,
        epoch=log.epoch,
        state_hash=format_hash(log.hashes[offset]),
        node_id=node_id,
        source="image",
        log_hash=known.digest.hex(),
        log_hash_begin_offset=known.begin_offset,
    )


def test_export_refuses_log_whose_hash_no_node_names(tmp_path: Path) -> None:
    """The last batch is the same: only the log hash knows what lies below."""
    exported, other = forked(12)
    export(exported, tmp_path)
    exported.run(300)
    with pytest.raises(ExportMismatchError, match=r"up to offset .* the log hash of"):
        export(exported, tmp_path, state_hashes=lambda: [_moved(said(other), exported)])
    assert read_manifest(tmp_path).end_offset < exported.end_offset
    # One node in three: its disk or its memory is damaged.
    hashes = [_moved(said(other), exported), said(exported, node_id=2)]
    assert export(exported, tmp_path, state_hashes=lambda: hashes).end_offset == exported.end_offset


def _moved(one: StateHash, log: LogHistory) -> StateHash:
    return replace(one, offset=log.end_offset - 1, epoch=log.epoch)
