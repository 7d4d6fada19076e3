"""The manifest of an export: the owner of its log, its files, and the states that nodes have
reported.

It is written last, so a file that it does not list is not part of the export. It is JSON, so that
it can be read without raftlog. ``checksum`` is the SHA-256 of the document without that field, with
sorted keys and no spaces. All offsets are inclusive except ``high_watermark``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import msgspec

from raftlog.clock import MAX_MS
from raftlog.segments import files
from raftlog.segments.errors import (
    CorruptExportError,
    ExportError,
    ExportGapError,
    NoExportError,
    UnsupportedExportError,
)
from raftlog.segments.files import LocalPlace, Place, open_place
from raftlog.text import printable

__all__ = [
    "BUCKETS",
    "BY_GROUP",
    "CHECKPOINTS",
    "ED25519",
    "FORMAT_VERSION",
    "KAFKA",
    "KINDS",
    "MANIFEST_NAME",
    "MAX_BYTES",
    "ORIGINS",
    "RAW",
    "RECORDS",
    "Bucket",
    "Bucketing",
    "Checkpoint",
    "Manifest",
    "ManifestSigner",
    "Retired",
    "Segment",
    "Signature",
    "StateHash",
    "encode",
    "read_manifest",
    "read_signed",
]

FORMAT_VERSION = 1
ED25519 = "ed25519"
"""The only supported signature algorithm."""
MANIFEST_NAME = "manifest.json"
RAW = "raw"
RECORDS = "records"
KINDS = (RAW, RECORDS)
"""Kinds of segments: each range of offsets is exported once as each kind."""
CHECKPOINTS = "checkpoints"
BUCKETS = "buckets"
"""Kind and directory of the records by group."""
BY_GROUP = "crc32(group_id)"
"""The only supported rule for buckets (raftlog/segments/buckets.py)."""
FILES = {
    RAW: re.compile(r"([0-9]{20})(-[0-9]{20})?\.rls"),
    RECORDS: re.compile(r"([0-9]{20})(-[0-9]{20})?\.parquet"),
    CHECKPOINTS: re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint"),
    BUCKETS: re.compile(r"[0-9]{2,}-[0-9]{20}-[0-9]{20}\.parquet"),
}
"""Patterns of an export's file names by directory; those of RAW and RECORDS begin with the first
offset.

No other file is read or removed, whatever a manifest lists.
"""
KAFKA = "kafka"
"""The only other system whose logs can be imported (replay/kafka)."""
ORIGINS = ("", KAFKA)
"""Origins of a log; empty for raftlog's own."""


def is_ours(file: str) -> bool:
    """Return whether a path, relative to an export, belongs to one of its files."""
    kind, _, name = file.partition("/")
    return kind in FILES and FILES[kind].fullmatch(name) is not None


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A file with a run of whole batches. ``file`` is relative to the export, with slashes;
    ``bytes`` is its size.
    """

    kind: str
    file: str
    base_offset: int
    last_offset: int
    first_epoch: int
    last_epoch: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    batches: int
    records: int
    bytes: int
    sha256: str

    def describe(self) -> str:
        """Return the file and its offsets, for messages."""
        return f"{self.file} (offsets {self.base_offset} to {self.last_offset})"


class Bucket(Segment, frozen=True, kw_only=True):
    """The rows of one bucket of a range, in log order. ``records`` is the number of rows; epochs,
    times and ``batches`` are the range's.
    """

    bucket: int


class Bucketing(msgspec.Struct, frozen=True, kw_only=True):
    """The records of some ranges, repeated in ``count`` files each.

    ``by``: the rule that assigns rows to buckets. ``segments``: by offset and number.
    """

    by: str
    count: int
    segments: tuple[Bucket, ...] = ()


class StateHash(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A node's report of its state after the batch that ends at ``offset`` (inclusive), in
    ``epoch``.

    ``state_hash``: 32 hex digits. ``source``: ``image`` (the committed image in the node's memory)
    or ``snapshot`` (the footer of one of its snapshots). ``node_id``: -1 for a snapshot of an
    unknown node. ``log_hash``: 64 hex digits, of the log from ``log_hash_begin_offset`` to
    ``offset``; empty if not reported.
    """

    offset: int
    epoch: int
    state_hash: str
    node_id: int
    source: str
    log_hash: str = ""
    log_hash_begin_offset: int = -1

    def describe(self) -> str:
        """Return the reporting node, for messages."""
        node = f"node {self.node_id}" if self.node_id >= 0 else "a node"
        return node if self.source == "image" else f"a snapshot of {node}"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A file with the state after the batch that ends at ``offset`` (inclusive), in the format of a
    controller's snapshot (raftlog/segments/checkpoints.py).

    ``epoch`` and ``timestamp_ms`` are that batch's. ``bytes`` and ``sha256`` are the file's.
    ``state_hash``: 32 hex digits. ``log_hash``: of the log up to ``offset``, as in StateHash; empty
    if unknown.
    """

    file: str
    offset: int
    epoch: int
    timestamp_ms: int
    bytes: int
    sha256: str
    state_hash: str
    log_hash: str = ""
    log_hash_begin_offset: int = -1

    def describe(self) -> str:
        """Return the file and its offset, for messages."""
        return f"{self.file} (the state at offset {self.offset})"


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signature of all fields of the manifest except itself and the checksum
    (raftlog/segments/signing.py), in hexadecimal.

    It has no other fields, as the signature would not cover them.
    """

    algorithm: str
    public_key: str
    value: str


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is not, or no longer, part of the export. ``since_ms``: time, in ms since 1970,
    at which it was retired, or 0 if it never was part of the export.
    """

    file: str
    since_ms: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of an export.

    ``generations``: the log's generations that its records name, oldest first. ``history_begin``:
    the first offset of the export, which has no earlier history. ``high_watermark`` (exclusive):
    the log's at the time of the export. ``metadata_version``: the level of that feature at the end,
    or None if never set. ``exported_at``: UTC. ``features``: the levels of all features at the end,
    or None if written by a raftlog that did not record them. ``state_hashes``: the nodes' reports
    of the state and of the log, by offset. ``log_hash``: the hash of the exported bytes from
    ``log_hash_begin_offset`` onwards, or empty if unknown. ``origin``: the kind of the log's
    cluster, empty for raftlog's own. ``state_from``: the records before this offset are the state
    there, not history; None if all are history. ``differs_from``: an offset at which the state of
    the system whose log was imported differs from the fold of this log, or None if none is known;
    ``differs_in``: what differed. ``checkpoints``: states at intermediate offsets, by offset.
    ``bucketing``: records by group of the compacted ranges, or None if no range has them.
    ``retired``: files that are no longer part of the export, and are removed after a while.
    """

    format_version: int = FORMAT_VERSION
    cluster_id: str
    generation: int
    generations: tuple[int, ...] = ()
    history_begin: int
    high_watermark: int
    metadata_version: int | None = None
    exported_at: str
    features: dict[str, int] | None = None
    log_hash: str = ""
    log_hash_begin_offset: int = -1
    state_hashes: tuple[StateHash, ...] = ()
    origin: str = ""
    state_from: int | None = None
    differs_from: int | None = None
    differs_in: str = ""
    segments: tuple[Segment, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    bucketing: Bucketing | None = None
    retired: tuple[Retired, ...] = ()
    signature: Signature | None = None

    @property
    def owner(self) -> tuple[str, int]:
        """Cluster id and generation of the log."""
        return self.cluster_id, self.generation

    @property
    def doubt(self) -> str:
        """A known fault of the log's final state, or an empty string."""
        if self.differs_from is None:
            return ""
        return (
            f"the state in this export differs from {self.origin.capitalize()}'s own snapshot at"
            f" offset {self.differs_from}, and perhaps from others, in"
            f" {printable(self.differs_in)}"
        )

    @property
    def end_offset(self) -> int:
        """Offset after the last exported one, where the next export continues."""
        return self.segments[-1].last_offset + 1 if self.segments else self.history_begin

    @property
    def exported_ms(self) -> int:
        """Time of the last publish, in ms since 1970."""
        return round(datetime.fromisoformat(self.exported_at).timestamp() * 1000)

    @property
    def file_count(self) -> int:
        """Number of files that are part of the export."""
        return len(self.segments) + len(self.checkpoints) + len(self.buckets)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """Files of records by group, by offset and number."""
        return () if self.bucketing is None else self.bucketing.segments

    def of_kind(self, kind: str) -> tuple[Segment, ...]:
        """Return the segments of one kind, by offset."""
        return tuple(segment for segment in self.segments if segment.kind == kind)


def check_fields(manifest: Manifest, path: str) -> None:
    """Check the value of each field. Raises CorruptExportError, UnsupportedExportError."""
    if manifest.format_version < 1:
        raise CorruptExportError(
            f"{path} is corrupt: format_version is {manifest.format_version}, but must be positive",
            file=MANIFEST_NAME,
        )
    if manifest.history_begin < 0:
        raise CorruptExportError(
            f"{path} is corrupt: history_begin is {manifest.history_begin}, but must not be"
            " negative",
            file=MANIFEST_NAME,
        )
    if manifest.origin not in ORIGINS:
        raise UnsupportedExportError(
            f"{path} describes a log of {manifest.origin!r}, which this build does not support: use"
            " a newer raftlog"
        )
    times = [(one.file, one.min_timestamp_ms) for one in manifest.segments]
    times += [(one.file, one.max_timestamp_ms) for one in manifest.segments]
    times += [(one.file, one.timestamp_ms) for one in manifest.checkpoints]
    for file, time_ms in times:
        if not 0 <= time_ms <= MAX_MS:
            raise CorruptExportError(
                f"{path} is corrupt: {time_ms} ms is not a valid time for {file}",
                file=MANIFEST_NAME,
            )
    for name in ("state_from", "differs_from"):
        if (value := getattr(manifest, name)) is not None and not manifest.origin:
            raise CorruptExportError(
                f"{path} is corrupt: it has {name} {value}, which only the log of another system"
                " can have",
                file=MANIFEST_NAME,
            )


def check_ranges(manifest: Manifest, path: str) -> None:
    """Require that every kind covers history_begin to the end without a gap and without an overlap.

    Raises ExportError or one of its subclasses.
    """
    for segment in manifest.segments:
        if segment.kind not in KINDS or not is_ours(segment.file):
            raise CorruptExportError(
                f"{path} is corrupt: it lists {segment.file} of kind {segment.kind}, which is not a"
                " segment of an export",
                file=MANIFEST_NAME,
            )
    others = (manifest.checkpoints, manifest.buckets, manifest.retired)
    for file in (one.file for some in others for one in some):
        if not is_ours(file):
            raise CorruptExportError(
                f"{path} is corrupt: it lists {file}, which is not a file of an export",
                file=MANIFEST_NAME,
            )
    _check_buckets(manifest, path)
    offsets = [one.offset for one in manifest.checkpoints]
    if offsets != sorted(set(offsets)) or not all(
        manifest.history_begin <= offset < manifest.end_offset for offset in offsets
    ):
        raise CorruptExportError(
            f"{path} lists checkpoints that are out of order or outside the export's offsets",
            file=MANIFEST_NAME,
        )
    for kind in KINDS:
        segments = manifest.of_kind(kind)
        if segments and segments[0].base_offset != manifest.history_begin:
            raise ExportGapError(
                f"{path}: history begins at {manifest.history_begin}, but the first segment is"
                f" {segments[0].describe()}"
            )
        for left, right in pairwise(segments):
            if right.base_offset != left.last_offset + 1:
                what = "a gap" if right.base_offset > left.last_offset else "an overlap"
                raise ExportGapError(
                    f"{path}: {what} between {left.describe()} and {right.describe()}"
                )
        end = segments[-1].last_offset + 1 if segments else manifest.history_begin
        if end != manifest.end_offset:
            raise ExportGapError(
                f"{path}: the {kind} files end before offset {end}, but the others before offset"
                f" {manifest.end_offset}"
            )
    if manifest.high_watermark < manifest.end_offset:
        raise ExportError(
            f"{path}: the export ends before offset {manifest.end_offset}, above the high watermark"
            f" {manifest.high_watermark}"
        )


def _check_buckets(manifest: Manifest, path: str) -> None:
    """Require that each range with buckets is a range of records, and has all its buckets."""
    if manifest.bucketing is None:
        return
    ranges = {(one.base_offset, one.last_offset) for one in manifest.of_kind(RECORDS)}
    found: dict[tuple[int, int], list[int]] = {}
    for one in manifest.buckets:
        found.setdefault((one.base_offset, one.last_offset), []).append(one.bucket)
    count = manifest.bucketing.count
    for span, buckets in found.items():
        if span not in ranges or len(buckets) != count or buckets != list(range(len(buckets))):
            raise CorruptExportError(
                f"{path} lists the buckets {buckets} for offsets {span[0]} to {span[1]}: a range of"
                f" records must have {count} buckets",
                file=MANIFEST_NAME,
            )


MAX_OFFSETS = 512
"""Approximate limit on the number of offsets with reports in the manifest. Above it, every second
one of the older half is dropped.
"""


def merged_state_hashes(
    known: tuple[StateHash, ...], said: Iterable[StateHash], manifest: Manifest
) -> tuple[StateHash, ...]:
    """Return the known and the new reports of offsets in ``manifest``, each once, by offset.

    Contradicting reports are both kept, as the reports serve to detect contradictions.
    """
    inside = (one for one in said if manifest.history_begin <= one.offset < manifest.end_offset)
    everything = sorted({*known, *inside})
    offsets = sorted({one.offset for one in everything})
    if len(offsets) <= MAX_OFFSETS:
        return tuple(everything)
    kept = {*offsets[: MAX_OFFSETS // 2 : 2], *offsets[MAX_OFFSETS // 2 :]}
    return tuple(one for one in everything if one.offset in kept)


MAX_BYTES = 512 << 20
"""Largest manifest, in bytes, larger than any that lists a million files."""


def _checksum(document: dict[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()


class ManifestSigner(Protocol):
    """A signer of manifests."""

    @property
    def public_key(self) -> str:
        """Public key, 64 hex digits."""

    def sign(self, message: bytes) -> Signature:
        """Return the signature of a manifest's ``message``."""


def _message(document: dict[str, Any]) -> bytes:
    """Return the signed bytes of a manifest."""
    signed = {k: v for k, v in document.items() if k not in ("checksum", "signature")}
    return msgspec.json.encode(signed, order="sorted")


def encode(manifest: Manifest, signer: ManifestSigner | None = None) -> bytes:
    """Return the bytes of a manifest's file; without a signer its signature stays unchanged."""
    document = msgspec.to_builtins(manifest)
    if signer is not None:
        document["signature"] = msgspec.to_builtins(signer.sign(_message(document)))
    document["checksum"] = _checksum(document)
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def read_manifest(target: Path | str | Place) -> Manifest:
    """Read and check the manifest of the export at a path or a URI.

    Raises ExportError or one of its subclasses. Reads no segment.
    """
    return read_signed(target)[0]


def read_signed(target: Path | str | Place) -> tuple[Manifest, bytes]:
    """Read a manifest like ``read_manifest``; also return the signed bytes, including fields of
    later versions.
    """
    place = open_place(target)
    path = f"{place}/{MANIFEST_NAME}"
    try:
        with files.named_errors("read", path), place.open(MANIFEST_NAME) as file:
            if (size := place.size(MANIFEST_NAME)) > MAX_BYTES:
                raise CorruptExportError(
                    f"{path} is corrupt: it has {size} bytes, but a manifest has at most"
                    f" {MAX_BYTES}",
                    file=MANIFEST_NAME,
                )
            data = file.read()
    except ExportError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            gone = isinstance(place, LocalPlace) and not place.directory.exists()
            why = "it does not exist" if gone else f"it contains no {MANIFEST_NAME}"
            raise NoExportError(f"{place} is not an export: {why}") from error
        raise
    try:
        manifest, message = _decode(data, path)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptExportError(f"{path} is corrupt: {error}", file=MANIFEST_NAME) from error
    check_ranges(manifest, path)
    return manifest, message


def _decode(data: bytes, path: str) -> tuple[Manifest, bytes]:
    document = msgspec.json.decode(data, type=dict[str, Any])
    version = document.get("format_version")
    # Before the checksum, whose rule a later format may change.
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UnsupportedExportError(
            f"{path} has format version {version}, but this build reads up to {FORMAT_VERSION}: use"
            " a newer raftlog"
        )
    expected = document.pop("checksum", None)
    actual = _checksum(document)
    if expected != actual:
        raise CorruptExportError(
            f"{path} is corrupt: expected the checksum {expected}, found {actual}",
            file=MANIFEST_NAME,
        )
    manifest = msgspec.convert(document, Manifest)
    check_fields(manifest, path)
    return manifest, _message(document)
