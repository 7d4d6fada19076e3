"""The writer of an export, which turns chunks of the log into pairs of segments and a manifest.

The order is temporary file → sync → hash → rename → manifest. A crash at any point leaves the
export of the last manifest; the next writer removes all other files. An export is append-only: its
next chunk begins where it ends. Files that were merged into others are removed once no reader can
need them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from raftlog import batch
from raftlog.metadata.control_records import Lineage, generations_in
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import LogHash, extended
from raftlog.metadata.versions import METADATA_VERSION
from raftlog.segments import files
from raftlog.segments.checkpoints import (
    CHECKPOINT_RECORDS,
    CheckpointMaker,
    batches_from,
    can_fold,
    thinned,
)
from raftlog.segments.columns import SCHEMA, RowBuffer, feature_levels
from raftlog.segments.errors import ExportError, ExportGapError, ExportMismatchError
from raftlog.segments.files import Place, open_place
from raftlog.segments.log_hashes import log_hash_fields, log_hash_of
from raftlog.segments.manifest import (
    BUCKETS,
    CHECKPOINTS,
    FILES,
    KINDS,
    MANIFEST_NAME,
    RAW,
    RECORDS,
    Checkpoint,
    Manifest,
    ManifestSigner,
    Retired,
    Segment,
    StateHash,
    encode,
    merged_state_hashes,
    read_signed,
)
from raftlog.segments.parquet_files import identity, parquet_writer
from raftlog.segments.raw import Headed, RawHeader, RawWriter, batch_bytes

ROW_GROUP_RECORDS = 131_072


ROW_GROUP_BYTES = 64 << 20
"""Size in bytes at which a row group is written, unless it reaches ROW_GROUP_RECORDS earlier; both
limit the memory of writer and reader.
"""


def raw_name(base_offset: int, last_offset: int | None = None) -> str:
    """Return a raw segment's path within the export. ``last_offset`` is part of the name of a
    merged segment.
    """
    return (
        f"{RAW}/{base_offset:020d}.rls"
        if last_offset is None
        else f"{RAW}/{base_offset:020d}-{last_offset:020d}.rls"
    )


def records_name(base_offset: int, last_offset: int) -> str:
    """Return a Parquet segment's path within the export."""
    return f"{RECORDS}/{base_offset:020d}-{last_offset:020d}.parquet"


class OpenPair:
    """A pair of growing segments. Blocking; one thread."""

    def __init__(self, place: Place, header: RawHeader, *, whole_name: bool = False) -> None:
        """``whole_name``: True to include the last offset in the raw file's name, as another file
        may begin at the same offset.
        """
        self.base_offset = self.end_offset = header.base_offset
        self.features: dict[str, int] = {}
        """Feature levels set by the records of the finished pair (0: removed)."""
        self.raw_bytes = 0
        self._place = place
        self._whole_name = whole_name
        self._first: batch.BatchHeader | None = None
        self._last: batch.BatchHeader | None = None
        self._times_ms = (0, 0)
        """Lowest and highest timestamp, in ms."""
        self._batches = 0
        self._rows = RowBuffer()
        self._raw_temp = place.temporary(raw_name(header.base_offset))
        self._records_temp = place.temporary(f"{RECORDS}/{header.base_offset:020d}.parquet")
        self._raw = RawWriter(self._raw_temp, header)
        self._parquet = parquet_writer(
            self._records_temp, SCHEMA, identity(header.cluster_id, header.generation)
        )

    @property
    def records(self) -> int:
        """Number of records in the pair."""
        return self.end_offset - self.base_offset

    def append(self, chunk: bytes, header: batch.BatchHeader) -> None:
        """Add one verified batch of a chunk. A record of an unknown type may be detected later.

        Raises UnknownRecordError, CorruptLogError, OSError.
        """
        self._rows.add(chunk, header)
        self._raw.append(
            chunk[header.position : header.position + header.size],
            batches=1,
            end_offset=header.end_offset,
        )
        if self._first is None:
            self._first, self._times_ms = header, (header.timestamp_ms, header.timestamp_ms)
        low_ms, high_ms = self._times_ms
        self._times_ms = min(low_ms, header.timestamp_ms), max(high_ms, header.timestamp_ms)
        self._last = header
        self._batches += 1
        self.end_offset = header.end_offset
        self.raw_bytes += header.size
        if self._rows.rows >= ROW_GROUP_RECORDS or self._rows.bytes >= ROW_GROUP_BYTES:
            self._write_rows()

    def _write_rows(self) -> None:
        rows = self._rows.take()
        self.features |= feature_levels(rows)
        self._parquet.write_table(rows, row_group_size=ROW_GROUP_RECORDS)

    def finish(self) -> tuple[Segment, Segment]:
        """Complete both files, durably and under their final names; the caller then writes the
        manifest. The pair must not be empty.
        """
        if self._rows.rows:
            self._write_rows()
        self._parquet.close()
        raw_sha256 = self._raw.finish()
        raw_file = raw_name(self.base_offset, self.end_offset - 1 if self._whole_name else None)
        raw = self._publish(RAW, self._raw_temp, raw_file, raw_sha256)
        name = records_name(self.base_offset, self.end_offset - 1)
        return raw, self._publish(
            RECORDS, self._records_temp, name, files.sha256_of(self._records_temp)
        )

    def _publish(self, kind: str, temp: Path, name: str, sha256: str) -> Segment:
        size = temp.stat().st_size
        self._place.put(temp, name)
        if self._first is None or self._last is None:
            raise ValueError("an empty pair of segments has no range")
        return Segment(
            kind=kind,
            file=name,
            base_offset=self.base_offset,
            last_offset=self.end_offset - 1,
            first_epoch=self._first.epoch,
            last_epoch=self._last.epoch,
            min_timestamp_ms=self._times_ms[0],
            max_timestamp_ms=self._times_ms[1],
            batches=self._batches,
            records=self.records,
            bytes=size,
            sha256=sha256,
        )

    def abandon(self) -> None:
        """Close and remove both files, ignoring errors.

        On a full disk closing also fails; the next writer then removes the files.
        """
        for close in (self._raw.abandon, self._parquet.close):
            with suppress(OSError, pa.ArrowException):
                close()
        for temp in (self._raw_temp, self._records_temp):
            with suppress(OSError):
                temp.unlink(missing_ok=True)


KEEP_RETIRED_MS = 3_600_000
"""Time in ms for which merged files are kept, as a reader of an older manifest may still
read them.
"""
_MADE_AGAIN = (CHECKPOINTS, BUCKETS)
"""Directories of files that can be recreated from any part of the log."""


def remove_leftovers(place: Place, manifest: Manifest) -> None:
    """Remove the files of a crashed writer.

    Raises ExportError for a file that does not belong to an export, OSError.
    """
    known = {segment.file for segment in manifest.segments} | {one.file for one in manifest.retired}
    for kind in KINDS:
        for name in place.names(kind):
            if f"{kind}/{name}" in known:
                continue
            ours = FILES[kind].fullmatch(name.removeprefix(files.TEMP_PREFIX))
            if ours and (name.startswith(files.TEMP_PREFIX) or int(ours[1]) >= manifest.end_offset):
                place.remove(f"{kind}/{name}")
            elif not name.startswith("."):
                raise _foreign(place, f"{kind}/{name}")
    known |= {one.file for one in manifest.checkpoints} | {one.file for one in manifest.buckets}
    there = set(place.names(""))
    for kind in _MADE_AGAIN:
        for name in place.names(kind) if kind in there else ():
            file = f"{kind}/{name}"
            if file in known:
                continue
            if FILES[kind].fullmatch(name.removeprefix(files.TEMP_PREFIX)):
                place.remove(file)
            elif not name.startswith("."):
                raise _foreign(place, file)


def _foreign(place: Place, file: str) -> ExportError:
    return ExportError(f"{place}/{file} is not part of this export: move it away")


def remove_retired(place: Place, manifest: Manifest, now_ms: int) -> Manifest:
    """Remove the retired files whose time is over. Return the manifest without them. Raises
    OSError.
    """
    over = [one for one in manifest.retired if one.since_ms + KEEP_RETIRED_MS <= now_ms]
    counting = (manifest.segments, manifest.checkpoints, manifest.buckets)
    counted = {one.file for some in counting for one in some}
    for one in over:
        if one.file in counted:
            raise ExportError(
                f"{place}: the manifest lists {one.file} both as part of the export and as retired"
            )
        # Already removed if a writer crashed after this and before it wrote the manifest.
        with suppress(FileNotFoundError):
            place.remove(one.file)
    return (
        replace(manifest, retired=tuple(one for one in manifest.retired if one not in over))
        if over
        else manifest
    )


MAX_SEGMENT_RECORDS = 1_000_000
MAX_SEGMENT_BYTES = 256 << 20
"""Size limit of one segment, in bytes of the log; the last batch may exceed it."""

Published = Callable[[Manifest], None]
"""Callback after each publish, on the writer's thread, with the published manifest. If it raises,
the export stops; the publish remains.
"""


class Added(NamedTuple):
    """The additions of a writer to an export.

    ``batches`` are counted once, ``files`` and ``bytes`` in both forms; ``checkpoints`` are not
    included in ``files``.
    """

    batches: int = 0
    files: int = 0
    bytes: int = 0
    checkpoints: int = 0

    def with_pair(self, raw: Segment, records: Segment) -> Added:
        """Return these additions plus a further pair of files."""
        return self._replace(
            batches=self.batches + raw.batches,
            files=self.files + 2,
            bytes=self.bytes + raw.bytes + records.bytes,
        )


class Beginning(NamedTuple):
    """The known beginning of a log whose first records were dropped."""

    generations: tuple[int, ...]
    """All generations of the log, oldest first."""
    state: Callable[[], Image | None]
    """Function that returns the state at the start of the remaining log, or a later one; None if
    unknown.
    """


class ExportWriter:
    """The only writer of an export.

    Blocking; one thread; after an error nothing more can be appended. ``start_offset``: where a new
    export begins; an existing one continues where it ends (``next_offset``). Raises ExportError and
    its subclasses if the place is not an export, belongs to another log, or has another writer.
    """

    def __init__(
        self,
        target: Path | str | Place,
        cluster_id: str,
        generation: int,
        *,
        start_offset: int = 0,
        max_segment_records: int = MAX_SEGMENT_RECORDS,
        max_segment_bytes: int = MAX_SEGMENT_BYTES,
        checkpoint_records: int = CHECKPOINT_RECORDS,
        beginning: Beginning | None = None,
        draft: ImageBuilder | None = None,
        published: Published | None = None,
        signer: ManifestSigner | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``checkpoint_records``: smallest number of records between two checkpoints; 0 for no
        checkpoints.

        ``beginning``: for a log whose first records were dropped. ``draft``: state of a caller that
        itself folds each batch before it is appended or passed over. ``signer``: signs each
        publish. A writer that continues a signed export needs it, and requires a valid signature.
        """
        self.place = self._place = open_place(target)
        self.max_records, self.max_bytes = max_segment_records, max_segment_bytes
        """Bounds of a segment, in records and bytes."""
        self.added = Added()
        """The published additions of this writer."""
        self._clock = clock
        self._published, self._signer = published, signer
        self._open: OpenPair | None = None
        self._broken = False
        self._said: list[StateHash] = []
        self._checkpoint_records = checkpoint_records
        self._maker: CheckpointMaker | None = None
        self._draft, self._beginning = draft, beginning
        self._checkpoints: list[Checkpoint] = []
        with files.named_errors("write to", self._place):
            self._place.begin()
        try:
            with files.named_errors("write to", self._place):
                self._manifest = self._begin(cluster_id, generation, start_offset)
                remove_leftovers(self._place, self._manifest)
                swept = remove_retired(self._place, self._manifest, self.now_ms())
                if swept != self._manifest:
                    self._replace(swept)
        except BaseException:
            self._place.end()
            raise
        self._next_offset = self._manifest.end_offset
        self._last_batch: bytes | None = None
        self._held: Iterator[Headed] | None = None
        """Batches of the export that have not been passed over yet, or None."""
        self._log_hash = log_hash_of(self._manifest)
        last = self._manifest.segments[-1:]
        self._last_epoch = last[0].last_epoch if last else 0
        self._lineage = Lineage()
        self._lineage.reset(self._manifest.generations)

    @property
    def manifest(self) -> Manifest:
        """The published manifest."""
        return self._manifest

    @property
    def next_offset(self) -> int:
        """Offset at which the next chunk must begin."""
        return self._next_offset

    @property
    def log_hash(self) -> LogHash:
        """Log hash up to ``next_offset``, computed from the appended bytes."""
        return self._log_hash

    @property
    def unpublished(self) -> int:
        """Number of records appended since the last publish."""
        return self._next_offset - self._manifest.end_offset

    @property
    def not_folded(self) -> str:
        """Why no more checkpoints are made, or empty if no obstacle is known."""
        return "" if self._maker is None else self._maker.not_folded

    def _begin(self, cluster_id: str, generation: int, start_offset: int) -> Manifest:
        """Return the existing manifest, or write one, which marks the place as an export."""
        top = self._place.names("")
        if MANIFEST_NAME in top:
            manifest, message = read_signed(self._place)
            self._require_signed(manifest, message)
            if (manifest.cluster_id, manifest.generation) != (cluster_id, generation):
                raise ExportMismatchError(
                    f"{self._place} belongs to cluster {manifest.cluster_id} generation"
                    f" {manifest.generation}, not to cluster {cluster_id} generation {generation}"
                )
            return manifest
        foreign = [name for name in top if not name.startswith(".")]
        if foreign:
            raise ExportError(
                f"{self._place} is not an export: it is not empty ({foreign[0]}) and contains no"
                f" {MANIFEST_NAME}"
            )
        manifest = Manifest(
            cluster_id=cluster_id,
            generation=generation,
            generations=self._beginning.generations if start_offset and self._beginning else (),
            history_begin=start_offset,
            high_watermark=start_offset,
            exported_at=self._now(),
            features={} if start_offset == 0 else None,
        )
        self._place.replace(MANIFEST_NAME, encode(manifest, self._signer))
        return manifest

    def _require_signed(self, manifest: Manifest, message: bytes) -> None:
        """Require that an earlier signature is this signer's, as a signature with another key must
        be neither replaced nor dropped.
        """
        if manifest.signature is None:
            return
        if self._signer is None:
            raise ExportError(
                f"{self._place} is signed with the key {manifest.signature.public_key}: pass the"
                " private key with --sign"
            )
        from raftlog.segments.signing import why_not_signed

        if why := why_not_signed(message, manifest.signature, self._signer.public_key):
            raise ExportMismatchError(
                f"{self._place}: {why}. Nothing was added; export into an empty directory"
            )

    def append_chunk(self, chunk: bytes) -> None:
        """Append whole committed batches, from ``next_offset`` onwards, after verifying their
        checksums and offsets.

        Raises ExportGapError, CorruptLogError, UnknownRecordError, ExportError.
        """
        with self._guarded():
            headers = list(batch.headers(chunk))
            maker = self._folding()
            for header in headers:
                self._check_order(header)
                pair = self._pair()
                pair.append(chunk, header)
                if header.control:
                    self._lineage.append(generations_in(chunk, (header.position,)))
                self._last_batch = chunk[header.position : header.position + header.size]
                self._log_hash = extended(self._log_hash, self._last_batch)
                if maker is not None:
                    self._made(maker.take(chunk, header, self._log_hash))
                self._next_offset, self._last_epoch = header.end_offset, header.epoch
                if pair.records >= self.max_records or pair.raw_bytes >= self.max_bytes:
                    self._publish(self._next_offset)

    def last_batch(self) -> bytes | None:
        """Return the last batch of the export, or None if it has none."""
        if self._last_batch is None and self._manifest.segments:
            begin = self._manifest.of_kind(RAW)[-1].base_offset
            found = deque(batches_from(self._place, self._manifest, begin), maxlen=1)
            self._last_batch = batch_bytes(*found.pop())
        return self._last_batch

    def pass_over(self, data: bytes, header: batch.BatchHeader) -> None:
        """Skip a batch that is already in the export, and was folded into the ``draft``. Called in
        order, from the beginning of the export.

        Raises ExportMismatchError if the export has another batch there, CorruptExportError.
        """
        if self._held is None:
            self._held = batches_from(self._place, self._manifest, header.base_offset)
        chunk, there = next(self._held)
        if batch_bytes(chunk, there) != data:
            raise ExportMismatchError(
                f"{self._place} has a batch of epoch {there.epoch} at offset {there.base_offset},"
                f" but the log has a different batch of epoch {header.epoch} at offset"
                f" {header.base_offset}"
            )
        maker = self._folding()
        if maker is not None:
            maker.pass_over(header)

    def _folding(self) -> CheckpointMaker | None:
        """Return the checkpoint maker, caught up with the export, or None if no checkpoints are
        made.
        """
        if self._maker is None and self._checkpoint_records:
            base = None
            if not can_fold(self._manifest):
                if self._beginning is None:
                    return None
                base = self._beginning.state()
                if base is None:
                    return None
            maker = CheckpointMaker(
                self._place, self._manifest, self._checkpoint_records, self._draft, base
            )
            if self._draft is None:
                for one in maker.catch_up():
                    self._made(one)
            self._maker = maker
        return self._maker

    def _made(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            self._checkpoints.append(checkpoint)
            self.added = self.added._replace(checkpoints=self.added.checkpoints + 1)

    def make_checkpoints(self) -> None:
        """Make the missing checkpoints of an export that was written without them; the next publish
        includes them.
        """
        with self._guarded():
            known = self._manifest.checkpoints
            last = known[-1].offset if known else self._manifest.history_begin - 1
            if self._manifest.end_offset - 1 - last >= self._checkpoint_records:
                self._folding()

    def _check_order(self, header: batch.BatchHeader) -> None:
        base, expected = header.base_offset, self._next_offset
        if base != expected:
            what = "a gap" if base > expected else "an overlap"
            raise ExportGapError(
                f"{what}: the export in {self._place} ends before offset {expected}, but the next"
                f" batch is at offset {base}"
            )
        if header.epoch < self._last_epoch:
            raise ExportMismatchError(
                f"the batch at offset {base} (epoch {header.epoch}) has a lower epoch than the"
                f" previous batch (epoch {self._last_epoch}): it is from another log"
            )

    def _pair(self) -> OpenPair:
        if self._open is None:
            header = RawHeader(
                self._manifest.cluster_id, self._manifest.generation, self._next_offset
            )
            self._open = OpenPair(self._place, header)
        return self._open

    def record(self, said: Iterable[StateHash]) -> None:
        """Record the nodes' state reports; each is published with its offset."""
        self._said += said

    def commit(self, high_watermark: int) -> Manifest:
        """Publish the appended records. ``high_watermark`` (exclusive): the log's; every published
        record lies below it.
        """
        with self._guarded():
            if high_watermark < self._next_offset:
                raise ExportError(
                    f"offset {self._next_offset - 1} was exported above the high watermark"
                    f" {high_watermark}"
                )
            self._publish(high_watermark)
        return self._manifest

    def _publish(self, high_watermark: int) -> None:
        pair = self._open
        self._place.renew()
        manifest = remove_retired(self._place, self._manifest, self.now_ms())
        segments, version, features = (
            manifest.segments,
            manifest.metadata_version,
            manifest.features,
        )
        if pair is not None:
            new = pair.finish()
            segments = (*segments, *new)
            self.added = self.added.with_pair(*new)
            version = pair.features.get(METADATA_VERSION, version) or None
            features = (
                None
                if features is None
                else {k: v for k, v in (features | pair.features).items() if v}
            )
        self._open = None
        grown = replace(
            manifest,
            segments=segments,
            metadata_version=version,
            features=features,
            # A log whose beginning was dropped repeats the last generation of the manifest.
            generations=tuple(dict.fromkeys(self._lineage.below(self._next_offset))),
            high_watermark=max(high_watermark, manifest.high_watermark),
            **log_hash_fields(self._log_hash),
        )
        grown = replace(
            grown, state_hashes=merged_state_hashes(manifest.state_hashes, self._said, grown)
        )
        if self._checkpoints:
            grown = self._with_checkpoints(grown)
        self._said = [one for one in self._said if one.offset >= grown.end_offset]
        if grown == self._manifest:
            return
        self._replace(replace(grown, exported_at=self._now()))
        if self._published is not None:
            self._published(self._manifest)

    def _with_checkpoints(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the new checkpoints; the files of those above the limit are
        retired.
        """
        known = (*manifest.checkpoints, *self._checkpoints)
        self._checkpoints = []
        kept = thinned(known)
        counted = {one.file for one in kept}
        retired = [
            Retired(file=one.file, since_ms=self.now_ms())
            for one in known
            if one.file not in counted
        ]
        return replace(manifest, checkpoints=kept, retired=(*manifest.retired, *retired))

    def amend(self, **fields: Any) -> None:
        """Publish a manifest with other fields, for the same offsets. Every appended record must
        have been published.
        """
        with self._guarded():
            if self.unpublished:
                raise ValueError(f"{self.unpublished} appended records are not published yet")
            self._replace(replace(self._manifest, **fields))

    def _replace(self, manifest: Manifest) -> None:
        self._place.renew()
        self._place.replace(MANIFEST_NAME, encode(manifest, self._signer))
        self._manifest = manifest

    def now_ms(self) -> int:
        """Return the time, in ms since 1970."""
        return round(self._clock() * 1000)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Close the writer and drop its unfinished files after an error, as they may contain half a
        batch.
        """
        if self._broken:
            raise ExportError(
                f"the export to {self._place} failed earlier or is closed: open it again"
            )
        try:
            with files.named_errors("write to", self._place):
                yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop unpublished files and release the place for the next writer. May be called twice."""
        self._broken = True
        pair, self._open = self._open, None
        try:
            if pair is not None:
                pair.abandon()
        finally:
            self._place.end()

    def __enter__(self) -> ExportWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
