"""How large the state was is the same from columns as from a fold of every record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from log_history import CLUSTER_ID, LogHistory

from raftlog.metadata.entities import entity_bytes
from raftlog.metadata.records import RecordType
from raftlog.segments.writer import ExportWriter
from replay.churn.configs import config_churn
from replay.churn.packed import packed_ints, packed_list
from replay.churn.partition_sizes import size_watcher
from replay.churn.progress_sizes import progress_sizes
from replay.churn.state_size import state_sizes
from replay.kernels.intervals import of_partitions
from replay.kernels.passes import facts_of
from replay.local import reading
from replay.local.passes import ExportLog
from replay.local.pool import Pool
from replay.opened import open_export
from replay.request import JobRequest


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workers", [1, 3])
def test_columns_say_what_a_fold_says(
    seed: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogHistory(seed + 70, metadata_version=8).run(900)
    with ExportWriter(tmp_path, CLUSTER_ID, 0, max_segment_records=250) as writer:
        writer.append_chunk(b"".join(log.batches))
        writer.commit(log.end_offset)
    monkeypatch.setattr(reading, "SLICE_ROWS", 41)
    with Pool(0) as pool:
        pool.size = workers
        read = ExportLog(open_export(JobRequest(job="churn", export=str(tmp_path))), pool)
        span_ms = read.table(("timestamp_ms",), list(RecordType))["timestamp_ms"].to_numpy()
        period_ms = max(1, int(np.ptp(span_ms)) // 9)
        grown = [
            part[0] for part in read.run(of_partitions(facts_of(read), size_watcher(period_ms)))
        ]
        configs = config_churn(read, 0, period_ms)[1]
        progress = progress_sizes(read, period_ms)
        assert progress
        assert any(grown)
        assert any(configs)
        columns = state_sizes(read, period_ms, [*grown, *configs, progress])
        assert columns == state_sizes(read, period_ms)
        assert len(columns) > 5


def test_packed_numbers_are_as_long_as_messagepack_makes_them() -> None:
    edges = [0, *(sign * (1 << bits) for bits in (5, 7, 8, 15, 16, 31, 32, 62) for sign in (1, -1))]
    values = [edge + more for edge in edges for more in (-1, 0, 1)]
    assert packed_ints(np.array(values)).tolist() == [len(entity_bytes(each)) for each in values]
    for count in (0, 1, 15, 16, 17, 300):
        assert packed_list(range(count)) == len(entity_bytes(tuple(range(count))))
