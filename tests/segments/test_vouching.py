"""Who vouches for an export: each forgery with valid checksums contradicts a hash that the forger
could not write, and unvouched parts are reported.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from exports import publish
from log_history import CLUSTER_ID, LogHistory
from msgspec.structs import replace

from raftlog import batch
from raftlog.metadata.control_records import RESTORED
from raftlog.metadata.log_hash import EMPTY, extended, unknown
from raftlog.metadata.records import RecordType, parse, record
from raftlog.segments.errors import ExportError, ExportMismatchError
from raftlog.segments.files import open_place
from raftlog.segments.log_hashes import vouched
from raftlog.segments.manifest import Manifest, StateHash, read_manifest, read_signed
from raftlog.segments.signing import Signer, why_not_signed
from raftlog.segments.verify import Vouching, claims_beyond_end, judge
from raftlog.segments.writer import ExportWriter
from raftlog.wire.records.v1 import records_pb2 as pb

Edit = Callable[[batch.BatchHeader, list[batch.RecordData]], tuple[str, list[batch.RecordData]]]


class World:
    """A log whose progress records contain its hash, and what a node would report."""

    def __init__(self) -> None:
        self.history = LogHistory(5).run(300)
        self.batches, self.known = self.history.batches, self.history.log_hash
        self.said, self.last = self.history.said, self.known.end_offset - 1
        self.headers = [next(batch.headers(data)) for data in self.batches]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def exported(
    where: Path, batches: Sequence[bytes], said: Sequence[StateHash], signer: Signer | None = None
) -> Path:
    """Export these bytes, with matching checksums and manifest."""
    with ExportWriter(where, CLUSTER_ID, 0, max_segment_records=60, signer=signer) as writer:
        writer.append_chunk(b"".join(batches))
        writer.record(said)
        writer.commit(writer.next_offset)
    return where


def judged(where: Path, asked: Sequence[StateHash] = ()) -> Vouching:
    manifest = read_manifest(where)
    found = vouched(open_place(where), manifest, asked=asked)
    return judge(manifest, found, asked=bool(asked))


def encoded(header: batch.BatchHeader, records: list[batch.RecordData], **other: Any) -> bytes:
    """Return a batch with other contents, and a right checksum."""
    names = "base_offset epoch timestamp_ms control principal client_id sequence all_below_done"
    fields: dict[str, Any] = {name: getattr(header, name) for name in names.split()}
    return batch.encode(records, **fields | other)


def rewritten(batches: Sequence[bytes], edit: Edit) -> list[bytes]:
    """Return the batches as a forger writes them."""
    made = []
    for data in batches:
        (header,) = batch.headers(data)
        principal, records = edit(header, batch.records(data, header))
        made.append(encoded(header, records, principal=principal))
    return made


def mallory(batches: Sequence[bytes]) -> tuple[int, list[bytes]]:
    """Forge the principal of one batch in the middle."""
    headers = [next(batch.headers(data)) for data in batches]
    later = headers[len(headers) // 2 :]
    base = next(one.base_offset for one in later if one.principal == "User:alice")

    def edit(
        header: batch.BatchHeader, records: list[batch.RecordData]
    ) -> tuple[str, list[batch.RecordData]]:
        return "User:mallory" if header.base_offset == base else header.principal, records

    return base, rewritten(batches, edit)


def another_value(batches: Sequence[bytes]) -> tuple[int, list[bytes]]:
    """Forge the value of one config, and remove the recorded hashes from all progress records."""
    found: list[int] = []

    def edit(
        header: batch.BatchHeader, records: list[batch.RecordData]
    ) -> tuple[str, list[batch.RecordData]]:
        made = []
        for one in records:
            message = parse(one)
            if one.type == RecordType.CONFIG and message.HasField("value") and not found:
                found.append(header.base_offset)
                message.value = "forged"
            elif one.type == RecordType.PROGRESS:
                for field in ("log_hash", "log_hash_begin_offset", "log_hash_end_offset"):
                    message.ClearField(field)
            made.append(record(message).data)
        return header.principal, made

    made = rewritten(batches, edit)
    return found[0], made


def renumbered(batches: Sequence[bytes]) -> list[bytes]:
    """Omit these batches and renumber the offsets without a gap."""
    made, offset = [], 0
    for data in batches:
        (header,) = batch.headers(data)
        made.append(encoded(header, batch.records(data, header), base_offset=offset))
        offset += header.record_count
    return made


def test_whole_export_is_vouched_for_by_nodes_and_by_the_log(world: World, tmp_path: Path) -> None:
    words = [world.said(world.last, 1), world.said(world.last, 2)]
    found = judged(exported(tmp_path / "e", world.batches, words))
    assert found.faults == []
    assert found.log_hash == world.known.digest.hex()
    by = {(one.who, one.how): (one.first_offset, one.last_offset) for one in found.witnesses}
    assert by["node 1", "manifest"] == by["node 2", "manifest"] == (0, world.last)
    ((who, (first, last)),) = [(who, span) for (who, how), span in by.items() if how == "log"]
    assert who.endswith("progress records")
    assert first == 0
    assert 0 < last < world.last
    (warning,) = found.warnings
    assert "The nodes' reports are recorded only in this export" in warning
    assert judged(tmp_path / "e", [world.said(world.last)]).warnings == []


def test_consistently_forged_principal_is_detected(world: World, tmp_path: Path) -> None:
    at, forged = mallory(world.batches)
    found = judged(exported(tmp_path / "e", forged, [world.said(world.last)]))
    # The node's word in the manifest, and each progress record after the batch, give it away.
    assert {one.check for one in found.faults} == {"LOG_HASH"}
    assert any("but node 1 has" in one.message for one in found.faults)
    assert any("the progress record at offset" in one.message for one in found.faults)
    assert all(one.last_offset >= at for one in found.faults)
    assert found.witnesses == []


def test_recorded_hashes_removed_everywhere_are_reported(world: World, tmp_path: Path) -> None:
    _, forged = another_value(world.batches)
    where = exported(tmp_path / "e", forged, [])
    found = judged(where)
    # Nothing contradicts it offline: it is the warning that says so, and the nodes that tell.
    assert found.faults == []
    assert found.warnings == [f"No node vouches for offsets 0 to {world.last}."]
    assert [one.check for one in judged(where, [world.said(world.last)]).faults] == ["LOG_HASH"]


def test_recorded_hashes_removed_from_some_records_are_seen(world: World, tmp_path: Path) -> None:
    _, stripped = another_value(world.batches)
    half = len(world.batches) // 2
    where = exported(tmp_path / "e", [*world.batches[:half], *stripped[half:]], [])
    (fault,) = judged(where).faults
    assert "contains no log hash, but earlier ones do" in fault.message


def test_truncated_end_is_detected(world: World, tmp_path: Path) -> None:
    where = exported(tmp_path / "e", world.batches[:-4], [world.said(world.last)])
    last = read_manifest(where).end_offset - 1
    found = judged(where)
    # The log goes on after it, which no hash below can know.
    assert found.faults == []
    assert f"No node vouches for offsets 0 to {last}." in found.warnings
    # A node that is asked vouches for what is there, and so for the cut.
    rest = b"".join(world.batches[-4:])
    manifest = read_manifest(where)
    first = vouched(open_place(where), manifest)
    later = claims_beyond_end(first.end, [world.said(world.last)], lambda _: rest)
    found = judge(manifest, first, later, asked=True)
    assert (found.faults, found.warnings) == ([], [])
    asked = [(one.who, one.last_offset) for one in found.witnesses if one.how == "asked"]
    assert asked == [("node 1", last)]


def test_report_of_the_first_record_after_the_end_counts(world: World, tmp_path: Path) -> None:
    headers = world.headers
    at = next(i for i, one in enumerate(headers) if i > 100 and one.record_count == 1)
    where = exported(tmp_path / "e", world.batches[:at], [])
    end = vouched(open_place(where), read_manifest(where)).end
    assert end.end_offset == headers[at].last_offset
    word = world.said(headers[at].last_offset)
    (found,) = claims_beyond_end(end, [word], lambda _: world.batches[at])
    assert (found.end_offset, found.agrees) == (headers[at].end_offset, True)


def test_removed_middle_is_detected(world: World, tmp_path: Path) -> None:
    headers = world.headers
    at = next(i for i, one in enumerate(headers) if i > 40 and one.principal and not one.control)
    cut = renumbered([*world.batches[:at], *world.batches[at + 1 :]])
    where = exported(tmp_path / "e", cut, [])
    assert any("the progress record at offset" in one.message for one in judged(where).faults)


def test_history_forged_from_its_beginning_is_detected_by_others_hashes_only(
    world: World, tmp_path: Path
) -> None:
    """A whole new history with matching hashes: only others' hashes or signatures differ."""
    _, forged = mallory(world.batches)
    known = EMPTY
    made: list[bytes] = []
    for each in forged:
        data = each
        (header,) = batch.headers(data)
        records = batch.records(data, header)
        if records[0].type == RecordType.PROGRESS and parse(records[0]).log_hash:
            message = parse(records[0])
            message.log_hash = known.digest
            data = encoded(header, [record(message).data])
        known = extended(known, data)
        made.append(data)
    words = [replace(world.said(world.last, one), log_hash=known.digest.hex()) for one in (1, 2)]
    where = exported(tmp_path / "e", made, words)
    found = judged(where)
    assert found.faults == []
    assert "A person who can rewrite its files can rewrite them, too" in found.warnings[-1]
    (fault,) = judged(where, [world.said(world.last)]).faults
    assert f"node 1 has {world.known.digest.hex()}" in fault.message


def test_signature_covers_the_whole_manifest(world: World, signer: Signer, tmp_path: Path) -> None:
    where = exported(tmp_path / "e", world.batches, [world.said(world.last)], signer)
    manifest, message = read_signed(where)
    assert why_not_signed(message, manifest.signature, signer.public_key) == ""
    assert "with the key" in why_not_signed(message, manifest.signature, "00" * 32)
    assert why_not_signed(message, None, signer.public_key) == "the manifest is not signed"

    def forged(manifest: Manifest) -> str:
        copy = Path(shutil.copytree(where, tmp_path / "copy", dirs_exist_ok=True))
        publish(copy, manifest)
        changed, text = read_signed(copy)
        return why_not_signed(text, changed.signature, signer.public_key)

    first = replace(manifest.segments[0], sha256="0" * 64)
    assert "was changed" in forged(replace(manifest, segments=(first, *manifest.segments[1:])))
    assert "was changed" in forged(replace(manifest, state_hashes=()))
    assert forged(manifest) == ""


def test_signed_export_needs_its_key(world: World, signer: Signer, tmp_path: Path) -> None:
    where = exported(tmp_path / "e", world.batches[:50], [], signer)
    with pytest.raises(ExportError, match="pass the private key with --sign"):
        exported(where, world.batches[50:], [])
    exported(where, world.batches[50:], [], signer)
    manifest, message = read_signed(where)
    assert why_not_signed(message, manifest.signature, signer.public_key) == ""
    assert manifest.log_hash == world.known.digest.hex(), "the chain goes on, too"
    publish(where, manifest, exported_at="then")
    with pytest.raises(ExportMismatchError, match="Nothing was added"):
        exported(where, [], [], signer)


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


def test_export_with_a_late_start_relies_on_a_snapshot(world: World, tmp_path: Path) -> None:
    headers = world.headers
    start = headers[30].base_offset
    with ExportWriter(tmp_path, CLUSTER_ID, 0, start_offset=start) as writer:
        writer.append_chunk(b"".join(world.batches[30:]))
        writer.record([world.said(headers[40].last_offset, 1), world.said(world.last, 2)])
        writer.commit(world.last + 1)
    found = judged(tmp_path)
    assert found.faults == []
    begins = headers[41].base_offset
    nodes = [one for one in found.witnesses if one.how == "manifest"]
    assert [(one.first_offset, one.last_offset) for one in nodes] == [(begins, world.last)]
    assert any(f"offsets {start} to {begins - 1}" in one for one in found.warnings)
    assert any("is only a claim by node 1" in one for one in found.warnings)


def test_report_where_the_known_bytes_begin_covers_none(world: World, tmp_path: Path) -> None:
    """[It was shown for "offsets 79 to 78", and hid that no node vouched for offset 78.]"""
    start = world.headers[-1].base_offset
    with ExportWriter(tmp_path, CLUSTER_ID, 0, start_offset=start) as writer:
        writer.append_chunk(world.batches[-1])
        writer.record([world.said(world.last, 1)])
        writer.commit(world.last + 1)
    found = judged(tmp_path)
    assert found.witnesses == []
    assert any(one.startswith("No node vouches for offset") for one in found.warnings)


@pytest.mark.parametrize("by_log", [False, True])
def test_restored_log_is_vouched_for_from_its_beginning(tmp_path: Path, by_log: bool) -> None:
    """Its level was set in the restored state; its log hash begins here."""
    known, chunks = unknown(26), list[bytes]()

    def append(message: Any, *, control: bool = False) -> None:
        at: dict[str, Any] = {"base_offset": 26 + len(chunks), "epoch": 1, "timestamp_ms": 1}
        chunks.append(batch.encode([record(message)], control=control, **at))

    append(pb.RecoveryRecord(kind=RESTORED), control=True)
    append(pb.NoOpRecord())
    known = extended(known, b"".join(chunks))
    if by_log:
        span: dict[str, Any] = {"log_hash_begin_offset": 26, "log_hash_end_offset": 28}
        append(pb.ProgressRecord(log_hash=known.digest, **span))
    word = StateHash(
        offset=27,
        epoch=1,
        state_hash="0" * 32,
        node_id=1,
        source="image",
        log_hash=known.digest.hex(),
        log_hash_begin_offset=26,
    )
    with ExportWriter(tmp_path / "e", CLUSTER_ID, 7, start_offset=26) as writer:
        writer.append_chunk(b"".join(chunks))
        writer.record([] if by_log else [word])
        writer.commit(writer.next_offset)
    found = judged(tmp_path / "e")
    assert not found.faults
    witnesses = [(one.how, one.first_offset, one.last_offset) for one in found.witnesses]
    assert witnesses == [("log" if by_log else "manifest", 26, 27)]
    assert not any("controllers keep the log hash" in one for one in found.warnings)
    assert found.log_hash == extended(known, b"".join(chunks[2:])).digest.hex()
