"""The parallel fold gives the nodes' state at any point, with any number of tasks."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from asking import ask, ask_shared, written
from log_history import LogHistory
from spark_runs import Replay
from tiers import in_gate

from raftlog.metadata.entities import format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.words import plain
from raftlog.segments.export import export
from raftlog.segments.manifest import RECORDS, read_manifest
from replay.errors import ReplayError
from replay.kernels.folding import entities


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(21).run(1500)


@pytest.fixture(scope="module")
def exported(history: LogHistory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several segments, in a directory whose name Spark would take for a pattern."""
    directory = tmp_path_factory.mktemp("exports") / "all [of] {it} *"
    written(history, directory, max_segment_records=400)
    assert len(read_manifest(directory).of_kind(RECORDS)) >= 3
    return directory


@pytest.fixture(scope="module")
def with_clients(tmp_path_factory: pytest.TempPathFactory) -> tuple[LogHistory, Path]:
    history = LogHistory(23).run(1000)
    directory = tmp_path_factory.mktemp("clients")
    return history, written(history, directory, max_segment_records=300)


def image_at(history: LogHistory, offset: int) -> Image:
    draft = ImageBuilder(Image())
    draft.apply_chunk(b"".join(history.batches), until=offset + 1)
    return draft.snapshot()


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_state_hash_at_an_offset_equals_the_nodes(
    replay: Replay, history: LogHistory, exported: Path, share: float
) -> None:
    ends = sorted(history.hashes)
    offset = ends[int(share * (len(ends) - 1))]
    result = replay("state", exported, at_offset=offset, limit=1)
    assert (result.point.offset, result.state_hash) == (offset, format_hash(history.hashes[offset]))
    assert result.point.records == offset + 1


@pytest.mark.parametrize("partitions", in_gate((1, 7, 16), (7,)))
def test_state_does_not_depend_on_the_number_of_tasks(
    history: LogHistory, exported: Path, partitions: int
) -> None:
    result = ask_shared(partitions, "state", exported, limit=5000)
    assert result.state_hash == format_hash(history.hashes[history.end_offset - 1])
    image = image_at(history, history.end_offset - 1)
    expected = sorted(
        (kind, key, plain(value)) for kind, key, value in entities(image) if kind != "partition"
    )
    found = [
        (row.kind, row.key, msgspec.json.decode(row.value))
        for row in result.rows
        if row.kind != "partition"
    ]
    assert sorted(found, key=lambda row: row[:2]) == sorted(expected, key=lambda row: row[:2])
    partitions_found = {
        row.key: msgspec.json.decode(row.value) for row in result.rows if row.kind == "partition"
    }
    assert partitions_found == {
        key: plain(value) for kind, key, value in entities(image) if kind == "partition"
    }
    assert result.entities == {
        kind: sum(row.kind == kind for row in result.rows) for kind in result.entities
    }


def test_offset_within_a_batch_means_the_last_batch(history: LogHistory, exported: Path) -> None:
    ends = sorted(history.hashes)
    before, end = next((a, b) for a, b in pairwise(ends[200:]) if b - a > 2)
    result = ask("state", exported, at_offset=end - 1, limit=1)
    assert (result.point.offset, result.state_hash) == (before, format_hash(history.hashes[before]))


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
    assert result.entities["topic"] == len(history.topics)
    assert result.entities["broker"] == 3
    # Its clients write what no entry allows them to.
    assert {each.rule for each in result.audit.findings} == {"WRITE_WITHOUT_RIGHT"}


@pytest.mark.parametrize("seed", [31, 32])
def test_state_hash_equals_the_fold_for_more_brokers(tmp_path: Path, seed: int) -> None:
    history = LogHistory(seed, brokers=5).run(500)
    export(history, tmp_path)
    result = ask_shared(3, "state", tmp_path, limit=1)
    assert result.state_hash == format_hash(history.hashes[history.end_offset - 1])


@pytest.mark.parametrize("share", in_gate((0.3, 0.7, 1.0), (0.7,)))
def test_state_includes_clients_and_their_results(
    replay: Replay, with_clients: tuple[LogHistory, Path], share: float
) -> None:
    history, directory = with_clients
    ends = sorted(history.hashes)
    offset = ends[int(share * (len(ends) - 1))]
    image = image_at(history, offset)
    assert len(image.clients) > 1
    assert len(image.client_results) > 10
    result = replay("state", directory, at_offset=offset, limit=5000)
    assert result.state_hash == format_hash(image.state_hash) == format_hash(history.hashes[offset])
    expected = [
        (kind, key, plain(value))
        for kind, key, value in entities(image)
        if kind.startswith("client")
    ]
    found = [(row.kind, row.key, msgspec.json.decode(row.value)) for row in result.rows]
    assert sorted(row[:2] for row in expected) == sorted(
        row[:2] for row in found if row[0].startswith("client")
    )
    assert all(row in found for row in expected)
    assert any(client.principal for client in image.clients.values())
    for named in ("hostname", "export_cursor", "kv", "acl"):
        expected = [
            (kind, key, plain(value)) for kind, key, value in entities(image) if kind == named
        ]
        assert expected or named == "hostname"
        assert expected == sorted(row for row in found if row[0] == named)


def test_history_of_a_client_is_listed(with_clients: tuple[LogHistory, Path]) -> None:
    history, directory = with_clients
    clients = image_at(history, history.end_offset - 1).clients
    client_id = max(clients, key=lambda id_: clients[id_].all_below_done)
    result = ask("history", directory, key=("client", str(client_id)), limit=5000)
    assert result.changes[0].offset == client_id
    assert result.changes[0].type_name == "OPEN_CLIENT"
    written = {change.key for change in result.changes if change.kind == "client_result"}
    assert {f"{client_id}-{sequence}" for sequence in (1, 2, 3)} <= written


def test_state_covers_a_later_export(replay: Replay, tmp_path: Path) -> None:
    history = LogHistory(41).run(60)
    export(history, tmp_path)
    first = replay("state", tmp_path, limit=1)
    export(history.run(90), tmp_path)
    second = replay("state", tmp_path, limit=1)
    assert first.point.offset < second.point.offset == history.end_offset - 1
    assert second.state_hash == format_hash(history.hashes[history.end_offset - 1])


@pytest.mark.parametrize("offset", [-1, 10**6])
def test_missing_offset_is_refused(exported: Path, offset: int) -> None:
    with pytest.raises(ReplayError, match=f"offset {offset} is not in .*: it holds offsets 0 to"):
        ask("state", exported, at_offset=offset)


def test_time_before_the_first_record_is_refused(exported: Path) -> None:
    with pytest.raises(ReplayError, match="holds nothing at or before 1970-01-01 00:00:00Z"):
        ask("state", exported, at_time_ms=0)
