"""A stopped node's log: what is exported ends where the log itself proves that it is committed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raftlog import batch
from raftlog.cli.log_sources import DirectoryLog
from raftlog.metadata.records import record
from raftlog.segments.export import export
from raftlog.storage.chunks import read_span
from raftlog.wire.records.v1 import records_pb2 as pb


class FakeReader:
    """Four batches in one chunk; the third proves the first two, the last proves nothing."""

    def __init__(self) -> None:
        self.identity = SimpleNamespace(cluster_id="c", generation=0)
        messages: list[Any] = [
            pb.LeaderChangeRecord(leader_id=1, voters=[1, 2, 3]),
            pb.ConfigRecord(resource_type=16, resource_name="a", name="match", value="1"),
            pb.ProgressRecord(lowest_acknowledged_offset=1, high_watermark=2),
            pb.ConfigRecord(resource_type=16, resource_name="b", name="match", value="2"),
        ]
        self.chunk = b"".join(
            batch.encode([record(m)], base_offset=i, epoch=1, timestamp_ms=1, control=not i)
            for i, m in enumerate(messages)
        )
        self.start_offset, self.end_offset = 0, len(messages)

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        return read_span([(0, self.chunk)], offset, until, max_bytes)


def test_only_what_is_proven_is_exported(tmp_path: Path) -> None:
    source = DirectoryLog(FakeReader())
    assert (source.high_watermark, source.end_offset) == (2, 4)
    assert export(source, tmp_path).end_offset == 2


def test_all_of_it_is_exported_on_the_operators_word(tmp_path: Path) -> None:
    source = DirectoryLog(FakeReader())
    source.assume_committed()
    assert export(source, tmp_path).end_offset == 4
