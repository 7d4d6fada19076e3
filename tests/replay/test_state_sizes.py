"""How large the state was is the same from columns as from a fold of every record."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from asking import opened, written
from log_history import LogHistory

from raftlog.metadata.entities import entity_bytes
from raftlog.metadata.records import RecordType
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.churn.configs import config_churn
from replay.churn.growth import (
    SizeWatcher,
    client_sizes,
    packed_ints,
    packed_list,
    progress_sizes,
    state_sizes,
)
from replay.engine import reading
from replay.engine.passes import ExportLog
from replay.engine.pool import Pool
from replay.kernels.intervals import of_partitions
from replay.kernels.passes import facts_of


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workers", [1, 3])
def test_columns_say_what_a_fold_says(
    seed: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SLICE_ROWS", 41)
    assert _periods(LogHistory(seed + 70).run(900), tmp_path, workers) > 5


@pytest.mark.parametrize("workers", [1, 3])
def test_columns_count_eligible_and_last_known_leaders_as_a_fold(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SLICE_ROWS", 3)
    log = LogHistory(70).run(300)
    partitions = list(log.draft.snapshot().partitions.items())
    assert len(partitions) > 5
    stated: list[dict[str, list[int]]] = [
        {"eligible_leader_replicas": [300, 2]},
        {"last_known_elr": [2]},
        {},
        {"eligible_leader_replicas": [], "last_known_elr": [300]},
        {"last_known_elr": []},
    ]
    for lists in stated:
        for (topic_id, index), _ in partitions:
            change = pb.PartitionChangeRecord(topic_id=topic_id, partition_id=index)
            for name, ids in lists.items():
                getattr(change, name).CopyFrom(pb.IdList(ids=ids))
            log.append(change)
    assert _periods(log, tmp_path, workers) > 5


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_that_write_much_and_leave(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers grow longer, results stay beyond a slice, one client closes itself by its last write,
    and a header names one that nobody has opened, or that comes later.
    """
    monkeypatch.setattr(reading, "SLICE_ROWS", 3)
    log, config = LogHistory(3), pb.ConfigRecord(resource_type=4, name="x")
    never, later = 777_777, log.end_offset + 2
    log.append(config, client_id=later)
    busy, quiet = (log.append(pb.OpenClientRecord(name=name)) for name in ("busy", "quiet"))
    assert later == quiet
    for number in range(350):
        config.value = str(number)
        log.append(config, client_id=(busy, busy, quiet)[number % 3])
        if number % 50 == 0:
            log.append(config, config, client_id=never)
    log.append(config, pb.CloseClientRecord(client_id=busy, reason="done"), client_id=busy)
    for _ in range(60):
        log.append(config, client_id=busy)
    log.append(pb.CloseClientRecord(client_id=quiet, reason="expired"))
    log.append(config)
    assert _periods(log, tmp_path, workers) > 5


def _periods(log: LogHistory, directory: Path, workers: int) -> int:
    """So many periods have the same size by columns as by a fold."""
    written(log, directory, max_segment_records=250)
    with Pool(0) as pool:
        pool.size = workers
        read = ExportLog(opened(directory), pool)
        span_ms = read.table(("timestamp_ms",), list(RecordType))["timestamp_ms"].to_numpy()
        period_ms = max(1, int(np.ptp(span_ms)) // 60)
        parts = read.run(of_partitions(facts_of(read), partial(SizeWatcher, period_ms)))
        configs = config_churn(read, 0, period_ms)[1]
        clients = client_sizes(read, period_ms)
        assert any(configs)
        assert len(clients) == 1 + workers
        by_columns = [part[0] for part in parts]
        by_columns += [*configs, progress_sizes(read, period_ms), *clients]
        columns = state_sizes(read, period_ms, by_columns)
        folded = state_sizes(read, period_ms)
        assert columns == folded
        # Where there are few others, they are folded in one piece.
        assert state_sizes(read, period_ms, by_columns, types={}) == folded
    return len(columns)


def test_packed_numbers_are_as_long_as_messagepack_makes_them() -> None:
    edges = [0, *(sign * (1 << bits) for bits in (5, 7, 8, 15, 16, 31, 32, 62) for sign in (1, -1))]
    values = [edge + more for edge in edges for more in (-1, 0, 1)]
    assert packed_ints(np.array(values)).tolist() == [len(entity_bytes(each)) for each in values]
    for count in (0, 1, 15, 16, 17, 300):
        assert packed_list(range(count)) == len(entity_bytes(tuple(range(count))))
