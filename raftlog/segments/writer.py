"""Writes an export: chunks of the log in, segments and a manifest out.

The order is temporary file → sync → hash → rename → manifest. A crash at any point leaves the export as the manifest last said; what
it left behind beyond that is removed by the next writer. An export is append-only: its next chunk begins where it ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from raftlog import batch
from raftlog.segments import files
from raftlog.segments.errors import ExportError, ExportGapError, ExportMismatchError
from raftlog.segments.manifest import KINDS, MANIFEST_NAME, Manifest, encode, read_manifest
from raftlog.segments.pair import OpenPair
from raftlog.segments.raw import RawHeader

MAX_SEGMENT_RECORDS = 1_000_000
MAX_SEGMENT_BYTES = 256 << 20
"""Bounds of one segment (bytes: of the log); the last batch may pass them."""
_OURS = re.compile(r"(\d{20})(-\d{20})?\.(rls|parquet)")


class ExportWriter:
    """The one writer of an export. Blocking; one thread; after an error nothing more can be appended.

    ``start_offset`` is where a new export begins; one that is there goes on where it ends (``next_offset``). Raises ExportError
    and its kinds when the directory is no export, belongs to another log, or is being written.
    """

    def __init__(
        self,
        directory: Path | str,
        cluster_id: str,
        generation: int,
        *,
        start_offset: int = 0,
        max_segment_records: int = MAX_SEGMENT_RECORDS,
        max_segment_bytes: int = MAX_SEGMENT_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = Path(directory)
        self._max_records, self._max_bytes, self._clock = max_segment_records, max_segment_bytes, clock
        self._open: OpenPair | None = None
        self._broken = False
        with files.named_errors("write to", self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock = files.DirectoryLock(self._directory)
        try:
            with files.named_errors("write to", self._directory):
                self._manifest = self._begin(cluster_id, generation, start_offset)
                self._sweep()
        except BaseException:
            self._lock.release()
            raise
        self._next_offset = self._manifest.end_offset
        last = self._manifest.segments[-1:]
        self._last_epoch = last[0].last_epoch if last else 0
        self._last_timestamp_ms = last[0].max_timestamp_ms if last else 0

    @property
    def manifest(self) -> Manifest:
        """What is published."""
        return self._manifest

    @property
    def next_offset(self) -> int:
        """Where the next chunk must begin."""
        return self._next_offset

    def _begin(self, cluster_id: str, generation: int, start_offset: int) -> Manifest:
        """The manifest that is there, or a first one: from then on the directory is known to be an export."""
        if (self._directory / MANIFEST_NAME).exists():
            manifest = read_manifest(self._directory)
            if (manifest.cluster_id, manifest.generation) != (cluster_id, generation):
                raise ExportMismatchError(
                    f"{self._directory} holds cluster {manifest.cluster_id} generation {manifest.generation}, "
                    f"not cluster {cluster_id} generation {generation}"
                )
            return manifest
        foreign = sorted(path.name for path in self._directory.iterdir() if not path.name.startswith("."))
        if foreign:
            raise ExportError(
                f"{self._directory} is not empty ({foreign[0]}) and has no {MANIFEST_NAME}: not an export"
            )
        manifest = Manifest(
            cluster_id=cluster_id,
            generation=generation,
            history_begin=start_offset,
            high_watermark=start_offset,
            exported_at=self._now(),
        )
        files.write_atomically(self._directory / MANIFEST_NAME, encode(manifest))
        return manifest

    def _sweep(self) -> None:
        """Remove what a writer that crashed left behind; refuse files that are not ours."""
        known = {segment.file for segment in self._manifest.segments}
        for kind in KINDS:
            folder = self._directory / kind
            folder.mkdir(exist_ok=True)
            for path in sorted(folder.iterdir()):
                if f"{kind}/{path.name}" in known:
                    continue
                ours = _OURS.fullmatch(path.name.removeprefix(files.TEMP_PREFIX))
                if ours and int(ours[1]) >= self._manifest.end_offset:
                    path.unlink()
                elif not path.name.startswith("."):
                    raise ExportError(f"{path} is not part of this export: move it away")

    def append_chunk(self, chunk: bytes) -> None:
        """Add whole committed batches, from ``next_offset`` on, after verifying their checksums and offsets.

        Raises ExportGapError, CorruptLogError, UnknownRecordError, ExportError.
        """
        with self._guarded():
            headers = list(batch.headers(chunk))
            for header in headers:
                self._check_order(header)
                pair = self._pair()
                pair.append(chunk, header)
                self._next_offset, self._last_epoch = header.end_offset, header.epoch
                self._last_timestamp_ms = header.timestamp_ms
                if pair.records >= self._max_records or pair.raw_bytes >= self._max_bytes:
                    self._publish(self._next_offset)

    def _check_order(self, header: batch.BatchHeader) -> None:
        base, expected = header.base_offset, self._next_offset
        if base != expected:
            what = "a gap" if base > expected else "an overlap"
            raise ExportGapError(
                f"{what}: the export in {self._directory} ends before offset {expected}, and the next batch is at offset {base}"
            )
        if header.epoch < self._last_epoch or header.timestamp_ms < self._last_timestamp_ms:
            raise ExportMismatchError(
                f"the batch at offset {base} (epoch {header.epoch}, {header.timestamp_ms} ms) goes back behind the one before "
                f"(epoch {self._last_epoch}, {self._last_timestamp_ms} ms): it is from another log"
            )

    def _pair(self) -> OpenPair:
        if self._open is None:
            header = RawHeader(self._manifest.cluster_id, self._manifest.generation, self._next_offset)
            self._open = OpenPair(self._directory, header)
        return self._open

    def commit(self, high_watermark: int) -> Manifest:
        """Publish what was appended. ``high_watermark`` (exclusive) is the log's; what is published lies below it."""
        with self._guarded():
            if high_watermark < self._next_offset:
                raise ExportError(
                    f"offset {self._next_offset - 1} was exported above the high watermark {high_watermark}"
                )
            self._publish(high_watermark)
        return self._manifest

    def _publish(self, high_watermark: int) -> None:
        manifest, pair = self._manifest, self._open
        segments, version = manifest.segments, manifest.metadata_version
        if pair is not None:
            segments = (*segments, *pair.finish())
            version = version if pair.metadata_version is None else pair.metadata_version or None
        high_watermark = max(high_watermark, manifest.high_watermark)
        self._open = None
        if pair is None and high_watermark == manifest.high_watermark:
            return
        manifest = replace(
            manifest,
            segments=segments,
            metadata_version=version,
            high_watermark=high_watermark,
            exported_at=self._now(),
        )
        files.write_atomically(self._directory / MANIFEST_NAME, encode(manifest))
        self._manifest = manifest

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="seconds")

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """After an error the files in the making may hold half a batch: they are dropped, and the writer with them."""
        if self._broken:
            raise ExportError(f"the export to {self._directory} failed earlier or is closed: open it again")
        try:
            with files.named_errors("write to", self._directory):
                yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop what was not published and let the next writer in. May be called twice."""
        self._broken = True
        if self._open is not None:
            self._open.abandon()
            self._open = None
        self._lock.release()

    def __enter__(self) -> ExportWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
