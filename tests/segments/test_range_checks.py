"""Raw segments compared with Parquet files, the manifest and the rules of a log."""

import io
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exports import written
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog import batch
from raftlog.metadata.records import record
from raftlog.segments import range_checks
from raftlog.segments.columns import RowBuffer
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.files import LocalPlace
from raftlog.segments.manifest import RAW, RECORDS, Segment, read_manifest
from raftlog.segments.range_checks import check_forms
from raftlog.segments.raw import RawHeader, RawWriter, batch_bytes, read_stream
from raftlog.wire.records.v1 import records_pb2 as pb

Forms = tuple[LocalPlace, Segment, Segment]
"""An export, its raw segment and its Parquet segment."""


@pytest.fixture(scope="module")
def history() -> LogHistory:
    return LogHistory(111).run(300)


@pytest.fixture(autouse=True)
def few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_checks, "ROWS", 37)


@pytest.fixture
def exported(history: LogHistory, tmp_path: Path) -> Forms:
    raw, records = read_manifest(written(history, tmp_path)).segments
    return LocalPlace(tmp_path), raw, records


def rewrite(place: LocalPlace, segment: Segment, change: object) -> None:
    path = place.directory / segment.file
    pq.write_table(change(pq.read_table(path)), path, store_schema=False)  # type: ignore[operator]


def fault(place: LocalPlace, raw: Segment, *records: Segment) -> str:
    with pytest.raises(CorruptExportError) as caught:
        check_forms(place, raw, records)
    return str(caught.value)


def test_valid_ranges_pass(history: LogHistory, exported: Forms) -> None:
    place, raw, records = exported
    ends = sorted(history.hashes)
    inside = next(end for before, end in pairwise(ends) if end - before > 1) - 1
    facts = check_forms(place, raw, [records], [ends[3], ends[-1], inside, 10**9])
    assert (facts.batches, facts.records) == (len(history.batches), history.end_offset)
    assert facts.ends == {ends[3]: 1, ends[-1]: history.epoch}


def test_ranges_differing_between_the_forms_are_reported(
    history: LogHistory, tmp_path: Path
) -> None:
    small, large = (
        read_manifest(written(history, tmp_path / name, max_segment_records=records))
        for name, records in (("small", 40), ("large", 100))
    )
    raws, records = small.of_kind(RAW), large.of_kind(RECORDS)
    for segment in records:
        (tmp_path / "large" / segment.file).rename(tmp_path / "small" / segment.file)
    place = LocalPlace(tmp_path / "small")
    assert sum(check_forms(place, raw, records).records for raw in raws) == history.end_offset
    assert "it ends before offset" in fault(place, raws[2], *records[:1])


def test_missing_or_surplus_rows_are_reported(
    exported: Forms,
) -> None:
    place, raw, records = exported
    whole = pq.read_table(place.directory / records.file)
    rewrite(place, records, lambda table: table.slice(0, 50))
    assert fault(place, raw, records).endswith(f"it ends before offset 50, but {raw.file} does not")
    rewrite(place, records, lambda _: whole.slice(1))
    assert "column offset has 1 at offset 0" in fault(place, raw, records)
    rewrite(place, records, lambda _: pa.concat_tables([whole, whole.slice(5, 1)]))
    assert f"it continues at offset 5, after the end of {raw.file}" in fault(place, raw, records)
    rewrite(place, records, lambda _: pa.concat_tables([whole.slice(0, 8), whole.slice(7)]))
    assert "column offset has 7 at offset 8" in fault(place, raw, records)
    rewrite(place, records, lambda _: whole.take(list(range(whole.num_rows))[::-1]))
    assert f"column offset has {whole.num_rows - 1} at offset 0" in fault(place, raw, records)
    assert fault(place, raw).startswith(f"{raw.file} (offsets 0 to ")
    (place.directory / records.file).write_bytes(b"not Parquet")
    assert (
        f"{records.file} (offsets 0 to {records.last_offset}) is corrupt: it cannot be read"
        in fault(place, raw, records)
    )


@pytest.mark.nightly
def test_any_changed_column_value_is_reported(
    exported: Forms,
) -> None:
    """In a file whose every checksum is right, as it was written so."""
    place, raw, records = exported
    whole = pq.read_table(place.directory / records.file)
    for index, field in enumerate(whole.schema):
        values = whole[field.name].to_pylist()
        at = next((row for row, value in enumerate(values) if value is not None and row > 40), None)
        if at is None:
            continue
        other = next((value for value in values if value is not None and value != values[at]), None)
        if field.nullable:
            other = None
        elif other is None:
            continue
        values[at] = other
        changed = whole.set_column(index, field, pa.array(values, field.type))
        rewrite(place, records, lambda _, changed=changed: changed)
        assert f"column {field.name} has" in fault(place, raw, records)
        assert f"at offset {at}, but {raw.file} has" in fault(place, raw, records)


def test_columns_newer_than_a_file_are_read(exported: Forms) -> None:
    place, raw, records = exported
    rewrite(place, records, lambda table: table.drop_columns(["leader_recovery_state", "cause"]))
    assert check_forms(place, raw, [records]).records == records.records
    for since_the_first in ("proposer_id", "body"):
        rewrite(place, records, lambda table, name=since_the_first: table.drop_columns([name]))
        assert fault(place, raw, records).endswith(
            f"is corrupt: it lacks the column {since_the_first}"
        )


@pytest.mark.parametrize(
    ("epochs", "times", "why"),
    [
        ([1, 3, 2], [5, 5, 5], "the batch at offset 2 has epoch 2 after epoch 3"),
        ([1, 2, 2], [5, 7, 5], "expected highest timestamp 5, found 7"),
        ([2, 2], [5, 5], "the batch at offset 0 has epoch 2 after epoch 1"),
        ([1, 2, 2], [5, 5, 4], "expected lowest timestamp 5, found 4"),
        ([1, 1, 1], [5, 5, 5], "expected last epoch 2, found 1"),
        ([1, 2, 2], [5, 5, 6], "expected highest timestamp 5, found 6"),
        ([1, 2], [5, 5], "expected the last offset 2, found 1"),
    ],
)
def test_broken_chain_is_reported(
    tmp_path: Path, epochs: list[int], times: list[int], why: str
) -> None:
    """One NO_OP per batch; the manifest says: three records, epochs 1 to 2, all at 5 ms."""
    (tmp_path / RAW).mkdir()
    writer = RawWriter(tmp_path / RAW / "x.rls", RawHeader(CLUSTER_ID, 0, 0))
    chunks = [
        batch.encode(
            [record(pb.NoOpRecord()).data], base_offset=offset, epoch=epoch, timestamp_ms=time
        )
        for offset, (epoch, time) in enumerate(zip(epochs, times, strict=True))
    ]
    for offset, data in enumerate(chunks):
        writer.append(data, batches=1, end_offset=offset + 1)
    writer.finish()
    raw = Segment(
        kind=RAW, file="raw/x.rls", base_offset=0, last_offset=2, first_epoch=1, last_epoch=2, min_timestamp_ms=5,
        max_timestamp_ms=5, batches=3, records=3, bytes=0, sha256="",
    )  # fmt: skip
    records = replace(raw, kind=RECORDS, file="records/x.parquet")
    (tmp_path / RECORDS).mkdir()
    rows = RowBuffer()
    for data in chunks:
        for header in batch.headers(data):
            rows.add(data, header)
    pq.write_table(rows.take(), tmp_path / records.file, store_schema=False)
    assert why in fault(LocalPlace(tmp_path), raw, records)


def test_large_batch_is_read_at_once(tmp_path: Path) -> None:
    large = record(pb.KeyValueRecord(key="k", value=bytes(8 << 20))).data
    data = batch.encode([large], base_offset=0, epoch=1, timestamp_ms=0)
    file = tmp_path / "x.rls"
    writer = RawWriter(file, RawHeader(CLUSTER_ID, 0, 0))
    writer.append(data, batches=1, end_offset=1)
    writer.finish()
    reads = []

    class Counted(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            reads.append(size)
            return super().read(size)

    content = file.read_bytes()
    assert [batch_bytes(*one) for one in read_stream(Counted(content), len(content), "x")] == [data]
    assert len(reads) < 9, "not a MiB at a time, each copied after all before"
