"""The parallel fold gives the nodes' state at any point, with any number of tasks."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from asking import ask, ask_shared, opened, written
from log_history import LogHistory
from pyspark.sql import SparkSession
from spark_runs import Replay
from tiers import in_gate, nightly

from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.words import plain
from raftlog.segments.manifest import RECORDS, read_manifest
from replay.engine.fold import state_hashes
from replay.engine.pool import Pool
from replay.errors import ReplayError
from replay.kernels.folding import entities
from replay.spark.pool import SparkPool


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(23).run(1500)


@pytest.fixture(scope="module")
def exported(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several segments, in a directory whose name Spark would take for a pattern."""
    directory = tmp_path_factory.mktemp("exports") / "all [of] {it} *"
    written(history, directory, max_segment_records=400)
    assert len(read_manifest(directory).of_kind(RECORDS)) >= 3
    return directory


def image_at(history: LogHistory, offset: int) -> Image:
    draft = ImageBuilder(Image())
    draft.apply_chunk(b"".join(history.batches), until=offset + 1)
    return draft.snapshot()


@pytest.mark.parametrize("share", in_gate((0.0, 0.3, 0.7, 1.0), (0.0, 0.7)))
def test_spark_returns_the_state_of_the_nodes_at_an_offset(
    replay: Replay, history: LogHistory, exported: Path, share: float
) -> None:
    ends = sorted(history.hashes)
    offset = ends[int(share * (len(ends) - 1))]
    result = replay("state", exported, at_offset=offset, limit=1)
    assert (result.point.offset, result.state_hash) == (offset, format_hash(history.hashes[offset]))
    assert result.point.records == offset + 1


@pytest.mark.parametrize("tasks", [None, 1, 7, nightly(200)])
def test_state_hashes_equal_the_nodes_at_every_batch_end(
    history: LogHistory, exported: Path, tasks: int | None
) -> None:
    found = state_hashes(opened(exported), Pool(0), history.hashes, tasks=tasks)
    assert found == history.hashes


@pytest.mark.parametrize("tasks", [1, 7])
def test_state_hashes_by_a_spark_shuffle_equal_the_nodes(
    spark: SparkSession, history: LogHistory, exported: Path, tasks: int
) -> None:
    pool = SparkPool(spark, 0)
    pool.size = 3
    assert state_hashes(opened(exported), pool, history.hashes, tasks=tasks) == history.hashes


def test_state_hash_between_batches_is_that_of_the_previous_batch(
    history: LogHistory, exported: Path
) -> None:
    ends = sorted(history.hashes)
    before, end = next((a, b) for a, b in pairwise(ends[200:]) if b - a > 2)
    beyond = history.end_offset + 100
    hashes = state_hashes(opened(exported), Pool(0), [-1, end - 1, beyond], tasks=3)
    assert hashes == {-1: 0, end - 1: history.hashes[before], beyond: history.hashes[ends[-1]]}
    assert state_hashes(opened(exported), Pool(0), []) == {}
    result = ask("state", exported, at_offset=end - 1, limit=1)
    assert (result.point.offset, result.state_hash) == (before, format_hash(history.hashes[before]))


@pytest.mark.parametrize("tasks", in_gate((1, 7, 16), (7,)))
def test_state_has_the_entities_of_the_image(
    history: LogHistory, exported: Path, tasks: int
) -> None:
    result = ask_shared(tasks, "state", exported, limit=5000)
    image = image_at(history, history.end_offset - 1)
    found = {(row.kind, row.key): msgspec.json.decode(row.value) for row in result.rows}
    assert found == {(kind, key): plain(value) for kind, key, value in entities(image)}
    kinds = [row.kind for row in result.rows]
    assert len(kinds) == len(found)
    assert result.entities == {kind: kinds.count(kind) for kind in set(kinds)}
    assert {"client", "client_result", "export_cursor", "kv", "acl", "hostname"} <= set(kinds)
    assert any(client.principal for client in image.clients.values())


def test_state_at_a_time_is_returned(history: LogHistory, exported: Path) -> None:
    whole = image_at(history, history.end_offset - 1)
    middle = image_at(history, sorted(history.hashes)[len(history.hashes) // 2])
    for image, time_ms in ((middle, middle.timestamp_ms), (whole, whole.timestamp_ms + 1_000_000)):
        result = ask("state", exported, at_time_ms=time_ms, limit=1)
        assert result.point.offset == image.offset
        assert result.state_hash == format_hash(image.state_hash)
        assert result.point.timestamp_ms == image.timestamp_ms


def test_summary_has_the_hash_and_counts_of_the_log(history: LogHistory, exported: Path) -> None:
    result = ask("summary", exported)
    assert result.state_hash == format_hash(history.hashes[history.end_offset - 1])
    assert (result.first_offset, result.point.offset) == (0, history.end_offset - 1)
    assert result.point.records == history.end_offset
    assert (result.first_epoch, result.point.epoch) == (1, history.epoch)
    assert (result.entities["topic"], result.entities["broker"]) == (len(history.topics), 3)
    # Its clients write what no entry allows them to.
    assert {each.rule for each in result.audit.findings} == {"WRITE_WITHOUT_RIGHT"}


def test_history_of_a_client_is_listed(history: LogHistory, exported: Path) -> None:
    clients = image_at(history, history.end_offset - 1).clients
    client_id = max(clients, key=lambda id_: clients[id_].all_below_done)
    result = ask("history", exported, key=("client", str(client_id)), limit=5000)
    assert (result.changes[0].offset, result.changes[0].type_name) == (client_id, "OPEN_CLIENT")
    results = {change.key for change in result.changes if change.kind == "client_result"}
    assert {f"{client_id}-{sequence}" for sequence in (1, 2, 3)} <= results


@pytest.mark.parametrize(
    ("point", "why"),
    [
        ({"at_offset": -1}, "offset -1 is not in .*: it holds offsets 0 to"),
        ({"at_offset": 10**6}, "offset 1000000 is not in .*: it holds offsets 0 to"),
        ({"at_time_ms": 0}, "holds nothing at or before 1970-01-01 00:00:00Z"),
    ],
)
def test_point_outside_the_export_is_refused(
    exported: Path, point: dict[str, int], why: str
) -> None:
    with pytest.raises(ReplayError, match=why):
        ask("state", exported, **point)
