"""What a manifest says: whose log an export holds, which files, and what nodes have said of it.

All offsets are inclusive except ``high_watermark``.
"""

from __future__ import annotations

import re

import msgspec

FORMAT_VERSION = 1
ED25519 = "ed25519"
"""The only algorithm of signatures so far."""
MANIFEST_NAME = "manifest.json"
RAW = "raw"
RECORDS = "records"
KINDS = (RAW, RECORDS)
"""Each range of offsets is exported once as each kind."""
CHECKPOINTS = "checkpoints"
"""The directory of the states in between."""
BUCKETS = "buckets"
"""The kind, and the directory, of the records by group."""
BY_GROUP = "crc32(group_id)"
"""The only rule for buckets so far (raftlog/segments/buckets.py)."""
FILES = {
    RAW: re.compile(r"([0-9]{20})(-[0-9]{20})?\.rls"),
    RECORDS: re.compile(r"([0-9]{20})(-[0-9]{20})?\.parquet"),
    CHECKPOINTS: re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint"),
    BUCKETS: re.compile(r"[0-9]{2,}-[0-9]{20}-[0-9]{20}\.parquet"),
}
"""Directory -> the names of an export's files in it; those of RAW and RECORDS begin with the first
offset. Nothing else is read or removed, whatever a manifest says."""
KAFKA = "kafka"
"""The only other system so far whose logs are imported (replay/kafka)."""
ORIGINS = ("", KAFKA)
"""Empty: raftlog's own log."""


def is_ours(file: str) -> bool:
    """Return whether a name, relative to an export, is one of an export's files."""
    kind, _, name = file.partition("/")
    return kind in FILES and FILES[kind].fullmatch(name) is not None


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One file: a run of whole batches.

    ``file`` is relative to the export, with slashes; ``bytes`` is its size.
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
        """The file and its offsets, for messages."""
        return f"{self.file} (offsets {self.base_offset} to {self.last_offset})"


class Bucket(Segment, frozen=True, kw_only=True):
    """The rows of one bucket of a range, in the order of the log. ``records`` is how many rows they
    are; epochs, times and ``batches`` are the range's.
    """

    bucket: int


class Bucketing(msgspec.Struct, frozen=True, kw_only=True):
    """The records of some ranges once more, in ``count`` files each; ``by``: the rule that says
    which row is in which. ``segments`` by offset and number.
    """

    by: str
    count: int
    segments: tuple[Bucket, ...] = ()


class StateHash(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What a node has said of the state behind the batch that ends at ``offset`` (inclusive), in
    ``epoch``.

    ``state_hash``: 32 hex digits. ``source``: ``image`` (the committed image in its memory) or
    ``snapshot`` (the footer of a snapshot of its). ``node_id`` -1: a snapshot of a node that is not
    known.

    ``log_hash``: 64 hex digits, of the log from ``log_hash_begin_offset`` up to there; empty: it
    did not say.
    """

    offset: int
    epoch: int
    state_hash: str
    node_id: int
    source: str
    log_hash: str = ""
    log_hash_begin_offset: int = -1

    def describe(self) -> str:
        """Who said it, for messages."""
        node = f"node {self.node_id}" if self.node_id >= 0 else "a node"
        return node if self.source == "image" else f"a snapshot of {node}"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state behind the batch that ends at ``offset`` (inclusive), in a file of its own: as a
    snapshot of a controller (raftlog/segments/checkpoints.py).

    ``epoch`` and ``timestamp_ms`` are that batch's. ``bytes`` and ``sha256`` are the file's.
    ``state_hash``: 32 hex digits. ``log_hash``: of the log up to there, as in StateHash; empty: not
    known.
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
        """The file and its offset, for messages."""
        return f"{self.file} (the state at offset {self.offset})"


class Signature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of all fields of the manifest but itself and the checksum (raftlog/segments/signing.py), in
    hexadecimal. It has no other fields: nothing would sign those.
    """

    algorithm: str
    public_key: str
    value: str


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """A file that does not count (any more); ``since_ms``: since then, in ms since 1970.

    0: it never did.
    """

    file: str
    since_ms: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an export holds.

    ``history_begin`` is the first offset of the export: history before it is not there.
    ``high_watermark`` (exclusive) is the log's at the time of the export, ``metadata_version`` the
    level of that feature at the end (None: never set), ``exported_at`` UTC. ``features``: the
    levels of all features at the end (None: written by a raftlog that did not say).
    ``state_hashes``: what nodes have said of the state and of the log, by offset. ``log_hash``: of
    what is exported, as made of its bytes, from ``log_hash_begin_offset`` on (empty: not known).
    ``origin``: what kind of cluster the log is of, empty for raftlog's own. ``state_from``: the
    records before this offset are the state there, not history (None: all are history).
    ``differs_from``: at this offset the system that the log is imported from had another state than
    the log comes to here (None: no such offset is known).
    ``checkpoints``: states in between, by offset. ``bucketing``: records by group, of the ranges
    that were compacted (None: of none). ``retired``: files that do not count any more,
    and are removed after a while.
    """

    format_version: int = FORMAT_VERSION
    cluster_id: str
    generation: int
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
    segments: tuple[Segment, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    bucketing: Bucketing | None = None
    retired: tuple[Retired, ...] = ()
    signature: Signature | None = None

    @property
    def owner(self) -> tuple[str, int]:
        """Whose log it is: cluster and generation."""
        return self.cluster_id, self.generation

    @property
    def doubt(self) -> str:
        """What is known to be wrong with the state that the log comes to; empty: nothing."""
        if self.differs_from is None:
            return ""
        return (
            f"the state in this export is wrong at offset {self.differs_from}, and maybe before and"
            f" after that: {self.origin.capitalize()}'s own snapshot there has another one (the"
            " import says in what)"
        )

    @property
    def end_offset(self) -> int:
        """The offset after the last one exported: where the next export goes on."""
        return self.segments[-1].last_offset + 1 if self.segments else self.history_begin

    @property
    def file_count(self) -> int:
        """How many files count."""
        return len(self.segments) + len(self.checkpoints) + len(self.buckets)

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The files of records by group, by offset and number."""
        return () if self.bucketing is None else self.bucketing.segments

    def of_kind(self, kind: str) -> tuple[Segment, ...]:
        """The segments of one kind, by offset."""
        return tuple(segment for segment in self.segments if segment.kind == kind)
