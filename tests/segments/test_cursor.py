"""The cursor of an export."""

from typing import Any

import pytest

from raftlog import batch
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.metadata.records import record
from raftlog.segments.cursor import INTERVAL_S, LAG_MAX_RECORDS, STALE_S, Cursor, CursorKeeper
from raftlog.segments.manifest import RAW, Manifest, Segment
from raftlog.wire.records.v1 import records_pb2 as pb

NEWS, PROGRESS, CURSOR = (
    pb.ConfigRecord(name="k"),
    pb.ProgressRecord(),
    pb.ExportCursorRecord(name="c", end_offset=1),
)


class Cluster:
    """A cluster's cursors, and the log that records them."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.cursors: dict[str, Cursor] = {}
        self.puts: list[int] = []
        self.refusal: ApiError | None = None
        self.end_offset = 0
        self.failures: list[str] = []

    def get(self, name: str) -> Cursor | None:
        return self.cursors.get(name)

    def put(self, name: str, end_offset: int, target: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.puts.append(end_offset)
        self.cursors[name] = Cursor(end_offset, target, int(self.now * 1000))

    def log(self, *messages: Any) -> bytes:
        """Return a chunk with a batch of each."""
        chunk = b""
        for message in messages:
            chunk += batch.encode(
                [record(message).data], base_offset=self.end_offset, epoch=1, timestamp_ms=0
            )
            self.end_offset += 1
        return chunk

    def keeper(self, target: str = "here", begin: int | None = 0) -> CursorKeeper:
        made = CursorKeeper(self, "c", target, failed=self.failures.append, clock=lambda: self.now)
        if begin is not None:
            made.begin(begin)
        return made


def manifest(end_offset: int) -> Manifest:
    """Return a manifest up to that offset."""
    segment = Segment(
        kind=RAW, file="raw/0.rls", base_offset=0, last_offset=end_offset - 1, first_epoch=1, last_epoch=1,
        min_timestamp_ms=0, max_timestamp_ms=0, batches=1, records=end_offset, bytes=1, sha256="",
    )  # fmt: skip
    return Manifest(
        cluster_id="c",
        generation=0,
        history_begin=0,
        high_watermark=end_offset,
        exported_at="",
        segments=(segment,),
    )


def run(cluster: Cluster, *messages: Any) -> None:
    """Export from where the last run ended to the end."""
    keeper = cluster.keeper(begin=cluster.end_offset)
    keeper.hear(cluster.log(*messages))
    keeper.published(manifest(cluster.end_offset))
    keeper.finish()


def test_cursor_holds_the_log_before_the_first_read() -> None:
    cluster = Cluster()
    cluster.keeper(begin=7)
    assert cluster.cursors["c"] == Cursor(7, "here", 1_000_000_000)


def test_cursor_moves_for_records_but_not_for_its_own_or_progress() -> None:
    cluster = Cluster()
    run(cluster, NEWS, PROGRESS)
    run(cluster, CURSOR, PROGRESS)
    run(cluster, pb.NoOpRecord())
    assert cluster.puts == [0, 2]
    run(cluster, CURSOR, NEWS)
    assert cluster.puts == [0, 2, 7]


def test_records_read_twice_are_not_older() -> None:
    """After a lost connection the same batch may be read again, without news."""
    cluster = Cluster()
    keeper = cluster.keeper()
    first, second = cluster.log(NEWS), cluster.log(NEWS)
    for chunk in (first, second, first):
        keeper.hear(chunk)
    keeper.published(manifest(1))
    cluster.now += INTERVAL_S
    keeper.published(manifest(2))
    assert cluster.puts == [0, 1, 2]


def test_cursor_is_refreshed_hourly() -> None:
    cluster = Cluster()
    run(cluster, NEWS)
    cluster.now += STALE_S - 1
    run(cluster, CURSOR)
    assert cluster.puts == [0, 1]
    cluster.now += 1
    run(cluster)
    assert cluster.puts == [0, 1, 2]


def test_failed_cursor_move_is_retried() -> None:
    cluster = Cluster()
    run(cluster, NEWS)
    keeper = cluster.keeper(begin=1)
    cluster.refusal = ApiError(ErrorCode.REQUEST_TIMED_OUT, "nobody leads")
    keeper.hear(cluster.log(*[NEWS] * LAG_MAX_RECORDS))
    keeper.published(manifest(cluster.end_offset))
    (why,) = cluster.failures
    assert "the cursor c stays at offset 1" in why
    assert "nobody leads" in why
    cluster.refusal = None
    run(cluster)
    assert cluster.puts == [0, 1, 1 + LAG_MAX_RECORDS]


def test_replaced_cursor_ends_the_export() -> None:
    cluster = Cluster()
    keeper = cluster.keeper()
    keeper.hear(cluster.log(NEWS))
    cluster.refusal = ApiError(ErrorCode.INVALID_UPDATE_VERSION, "it is another's")
    with pytest.raises(ApiError, match="another's"):
        keeper.published(manifest(1))


def test_cursor_of_another_export_is_not_changed() -> None:
    cluster = Cluster()
    cluster.keeper("here")
    with pytest.raises(
        ConfigError,
        match=r"cursor c belongs to the export here, not to there: .*`raftlog cluster cursors"
        r" delete c`",
    ):
        cluster.keeper("there")
    assert cluster.puts == [0]
    cluster.cursors["c"] = Cursor(0, "", 0)
    cluster.keeper("there")  # set by hand, for whoever comes


def test_export_that_restarts_moves_its_cursor_back() -> None:
    cluster = Cluster()
    run(cluster, NEWS, NEWS, NEWS)
    cluster.keeper(begin=1)
    assert cluster.cursors["c"].end_offset == 1


def test_stream_moves_the_cursor_periodically_and_at_its_end() -> None:
    cluster = Cluster()
    keeper = cluster.keeper()
    for _ in range(5):
        keeper.hear(cluster.log(NEWS))
        keeper.published(manifest(cluster.end_offset))
        cluster.now += INTERVAL_S / 2
    assert cluster.puts == [0, 1, 3, 5]
    keeper.hear(cluster.log(NEWS))
    keeper.published(manifest(cluster.end_offset))
    keeper.finish()
    assert cluster.puts == [0, 1, 3, 5, 6]


def test_cursor_moves_for_records_read_before_the_last_publish() -> None:
    cluster = Cluster()
    keeper = cluster.keeper()
    keeper.hear(cluster.log(NEWS, NEWS, NEWS))
    keeper.published(manifest(2))
    keeper.published(manifest(3))
    keeper.finish()
    assert cluster.puts == [0, 2, 3]
