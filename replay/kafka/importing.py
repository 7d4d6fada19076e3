"""Import of a Kafka cluster's metadata log into an export.

An existing export is continued at its end. The log is still read from the beginning, because the
meaning of a record may depend on earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType

import msgspec

from raftlog import batch
from raftlog.metadata.entities import HASH_MASK, format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import FoldError, Image
from raftlog.segments.checkpoints import CHECKPOINT_RECORDS
from raftlog.segments.errors import ExportMismatchError
from raftlog.segments.manifest import KAFKA, ManifestSigner, StateHash
from raftlog.segments.writer import ExportWriter
from replay.kafka.checkpoints import (
    differences,
    first_in_words,
    image_of,
    state_of,
    summarize,
)
from replay.kafka.conversion import Conversion, Converted
from replay.kafka.copies import Checkpoint, Copy, Place, PlaceReader
from replay.kafka.log_format import KafkaLogError, NoKafkaLogError

UNKNOWN = "unknown"
"""Id of a cluster whose files do not contain it."""


class Compared(msgspec.Struct, frozen=True):
    """Result of comparing the fold with one of Kafka's snapshots.

    ``end_offset``: exclusive. ``differences``: texts about the first differing entities; empty if
    the states are equal. ``summary``: all differences, in Kafka's terms.
    """

    node: str
    file: str
    end_offset: int
    differences: list[str]
    summary: str = ""


class Imported(msgspec.Struct, frozen=True):
    """Result of an import; all offsets but the first are exclusive.

    ``state_from``: records before it are the state of a snapshot, not history; null if the history
    is complete. ``new_records``: number of records that the export did not have before.
    ``copies_end``: end of the copies. ``agreed_offset``: end of the part on which a majority of the
    copies agrees. ``stopped``: why the import stopped before the end, or "". ``no_log``: the copies
    contain only snapshots. ``cut_off``: files that end within a batch, like one that is being
    written. ``missing``: descriptions of parts of the log that must have existed. ``voters``: the
    latest voters in the log.
    """

    cluster_id: str
    nodes: list[str]
    first_offset: int
    state_from: int | None
    end_offset: int
    new_records: int
    copies_end: int
    agreed_offset: int
    records: dict[str, int]
    unknown: dict[str, int]
    aborted: int
    open_transaction: int | None
    later_ms: int
    reordered: int
    damages: list[str]
    differences: list[str]
    snapshots: list[Compared]
    stopped: str
    no_log: bool
    cut_off: list[str]
    missing: list[str]
    voters: list[int]

    @property
    def sound(self) -> bool:
        """True if nothing wrong was found."""
        wrong = self.damages or self.differences or self.stopped or self.missing
        return not wrong and not any(one.differences for one in self.snapshots)


class Importer:
    """Imports the log of some copies into one export. Its methods block; close it after use."""

    def __init__(
        self,
        copies: Sequence[Copy],
        target: str,
        *,
        cluster_id: str = "",
        checkpoint_records: int = CHECKPOINT_RECORDS,
        signer: ManifestSigner | None = None,
    ) -> None:
        """``checkpoint_records``, ``signer``: see ExportWriter.

        Raises KafkaLogError, and ExportError and its subclasses.
        """
        self._copies = list(copies)
        self.cluster_id = _cluster_id(copies, cluster_id)
        self._conversion = Conversion()
        self._differences: list[str] = []
        self._compared: list[Compared] = []
        self._differs: tuple[int, str] | None = None
        """Offset of the first snapshot that differs from the log, and the differences."""
        self._snapshots: dict[int, list[tuple[Copy, Checkpoint]]] = {}
        """End offset -> snapshots to compare the fold with."""
        self._agreed, self._together, self._stopped = 0, True, ""
        self.broken = ""
        """Why nothing more can be imported, or ""."""
        self._reader = PlaceReader()
        self._last: Place | None = None
        """Place of the last imported batch."""
        self._new = 0
        self._no_log = not any(copy.places for copy in self._copies)
        self._next, begin = self._begin()
        state: Converted | None = None
        self._first = self._next
        if begin is not None:
            state, self._conversion = state_of(begin)
            self._first = state.header.base_offset
        self._state_from = None if begin is None else self._next
        self._fold = ImageBuilder(Image())
        self._fold.offset = self._first - 1
        self._writer = ExportWriter(
            target,
            self.cluster_id,
            0,
            start_offset=self._first,
            checkpoint_records=checkpoint_records,
            draft=self._fold,
            signer=signer,
        )
        try:
            self._claim(target)
            if begin is not None and state is not None:
                self._append_state(state, begin)
        except BaseException:
            self.close()
            raise

    def _begin(self) -> tuple[int, Checkpoint | None]:
        """Return the offset at which the history begins and, unless that is 0, the snapshot to
        start from.

        The snapshot is the first one that the log continues or, without a log, the last one.
        """
        starts = [copy.places[0].base_offset for copy in self._copies if copy.places]
        if starts and min(starts) == 0:
            return 0, None
        usable = sorted(
            (
                one
                for copy in self._copies
                for one in copy.checkpoints
                if one.end_offset and (not starts or one.end_offset >= min(starts))
            ),
            key=lambda one: one.end_offset,
            reverse=not starts,
        )
        if usable:
            return usable[0].end_offset, usable[0]
        damaged = [one for copy in self._copies for one in copy.damages]
        if not starts and damaged:
            raise KafkaLogError(f"{'; '.join(damaged)}. Nothing before that can be imported")
        first = any(not one.end_offset for copy in self._copies for one in copy.checkpoints)
        empty = ": Kafka writes the snapshot at offset 0 before any metadata" if first else ""
        raise NoKafkaLogError(
            f"the log begins at offset {min(starts)}, but there is no snapshot at or after that"
            " offset: copy the .checkpoint files, too"
            if starts
            else "there is neither a batch nor a snapshot with a state in"
            f" {', '.join(str(copy.directory) for copy in self._copies)}{empty}"
        )

    def _claim(self, target: str) -> None:
        manifest = self._writer.manifest
        if manifest.segments and manifest.origin != KAFKA:
            raise NoKafkaLogError(
                f"{target} is the export of a raftlog cluster: import into an empty directory"
            )
        if manifest.history_begin != self._first:
            raise NoKafkaLogError(
                f"{target} begins at offset {manifest.history_begin}, but the log now begins at"
                f" {self._first}: import into an empty directory"
            )
        if not manifest.segments:
            self._writer.amend(origin=KAFKA, state_from=self._state_from)

    def run(self) -> Imported:
        """Import and publish all available records. May be called again for later ones."""
        self._snapshots.clear()
        for copy in self._copies:
            copy.refresh()
            for snapshot in copy.checkpoints:
                copy.check_snapshot(snapshot)
                self._snapshots.setdefault(snapshot.end_offset, []).append((copy, snapshot))
        self._reader.forget()
        self._require_same()
        while not self.broken and (found := self._place()) is not None:
            self._take(*found)
        self._writer.commit(self._writer.next_offset)
        known = self._writer.manifest.differs_from
        if self._differs is not None and (known is None or self._differs[0] < known):
            offset, summary = self._differs
            self._writer.amend(differs_from=offset, differs_in=summary)
        return self._imported()

    def _take(self, copy: Copy, place: Place) -> None:
        """Import the batch at a place, or record why it cannot be imported."""
        try:
            batches = self._converted(place)
        except KafkaLogError as error:
            copy.mark_damaged(place, str(error))
            return
        try:
            for one in batches:
                self._append(one)
        except KafkaLogError as error:
            self.broken = self._stopped = f"{place.path}: at byte {place.position}: {error}"
            return
        self._agree(place)
        self._next, self._last = place.last_offset + 1, place

    def _require_same(self) -> None:
        """Check that the last imported batch is still in the authoritative copy."""
        if self._last is None or self.broken:
            return
        copy = max(self._copies, key=lambda one: one.ends_with)
        there = copy.over(self._last.last_offset)
        if there is None or there.is_like(self._last):
            return
        self.broken = self._stopped = (
            f"{there.path}: at byte {there.position}: the batch that was imported at offset"
            f" {self._last.base_offset} has been replaced: the log was truncated and rewritten, so"
            " that batch, and perhaps earlier ones, was never committed; import into an empty"
            " directory"
        )

    def _converted(self, place: Place) -> Iterator[Converted]:
        source = self._reader.read(place)
        try:
            return self._conversion.convert(source)
        except KafkaLogError as error:
            raise KafkaLogError(f"at byte {place.position}: {error}") from None

    def _place(self) -> tuple[Copy, Place] | None:
        """Return the next batch, from the copy that is authoritative for it."""
        held = [
            (copy, place) for copy in self._copies if (place := copy.at(self._next)) is not None
        ]
        if not held:
            later = [
                place.base_offset
                for copy in self._copies
                for place in copy.places[-1:]
                if place.last_offset > self._next
            ]
            self._stopped = f"no copy has an intact batch at offset {self._next}" if later else ""
            return None
        self._stopped = ""
        return max(held, key=lambda one: one[0].ends_with)

    def _agree(self, best: Place) -> None:
        """Compare the other copies with the imported batch."""
        held = [
            (copy, place) for copy in self._copies if (place := copy.at(self._next)) is not None
        ]
        others = [copy.name for copy, place in held if place.fingerprint != best.fingerprint]
        same = {copy.name for copy, place in held if place.fingerprint == best.fingerprint}
        if others:
            self._differences.append(
                f"the batch at offset {best.base_offset} differs at {', '.join(others)}"
            )
        # A node counts once, even if its directory is given several times.
        nodes = {copy.name for copy in self._copies}
        self._together = self._together and len(same) * 2 > len(nodes)
        if self._together:
            self._agreed = best.last_offset + 1

    def _append_state(self, state: Converted, begin: Checkpoint) -> None:
        try:
            self._append(state)
        except KafkaLogError as error:
            raise KafkaLogError(f"{begin.path}: {error}") from None

    def _append(self, one: Converted) -> None:
        """Fold a batch, and write it unless the export already contains it."""
        header = one.header
        try:
            self._fold.apply_decoded(header, one.records)
        except FoldError as error:
            raise KafkaLogError(f"the log contradicts itself: {error}") from None
        if header.base_offset >= self._writer.next_offset:
            self._writer.append_chunk(one.chunk)
            self._new += header.record_count
        else:
            self._pass_over(one)
        self._compare(header)

    def _pass_over(self, one: Converted) -> None:
        try:
            self._writer.pass_over(one.chunk, one.header)
        except ExportMismatchError as error:
            raise KafkaLogError(
                f"{error}: the log was truncated and rewritten after the import, or belongs to"
                " another cluster; import into an empty directory"
            ) from None

    def _compare(self, header: batch.BatchHeader) -> None:
        """Compare the fold with the snapshots that end here."""
        if header.end_offset == self._state_from:
            return
        for copy, one in self._snapshots.get(header.end_offset, ()):
            try:
                said, _ = state_of(one)
                found = differences(self._fold.snapshot(), image_of(said))
                summary = summarize(found)
            except KafkaLogError as error:
                copy.damages.append(str(error))
                continue
            except FoldError as error:
                copy.damages.append(f"{one.path} contradicts itself: {error}")
                continue
            self._compared.append(
                Compared(copy.name, one.path.name, one.end_offset, first_in_words(found), summary)
            )
            if not found:
                self._writer.record([self._state_hash(copy, header)])
            elif self._differs is None:
                self._differs = header.last_offset, summary

    def _state_hash(self, copy: Copy, header: batch.BatchHeader) -> StateHash:
        return StateHash(
            offset=header.last_offset,
            epoch=header.epoch,
            state_hash=format_hash(self._fold.state_hash & HASH_MASK),
            node_id=copy.node_id,
            source="snapshot",
        )

    def _imported(self) -> Imported:
        counts = self._conversion.counts
        return Imported(
            cluster_id=self.cluster_id,
            nodes=list(dict.fromkeys(copy.name for copy in self._copies)),
            first_offset=self._first,
            state_from=self._state_from,
            end_offset=self._writer.manifest.end_offset,
            new_records=self._new,
            copies_end=self._next,
            agreed_offset=self._agreed,
            records=dict(counts.records.most_common()),
            unknown=dict(counts.unknown.most_common()),
            aborted=counts.aborted,
            open_transaction=self._conversion.open_transaction,
            later_ms=counts.later_ms,
            reordered=counts.reordered,
            damages=[one for copy in self._copies for one in copy.damages],
            differences=self._differences,
            snapshots=self._compared,
            stopped=self._stopped,
            no_log=self._no_log,
            cut_off=[one for copy in self._copies for one in copy.cut_off],
            missing=self._missing(),
            voters=self._conversion.voters,
        )

    def _missing(self) -> list[str]:
        """Return a description of the last snapshot if it is beyond the log end, which never
        happens in Kafka; empty if damage explains it.
        """
        if self._stopped or any(copy.damages for copy in self._copies):
            return []
        later = [one for copy in self._copies for one in copy.checkpoints]
        last = max(later, key=lambda one: one.end_offset, default=None)
        end = self._next
        if self._no_log:
            # A node that started from a snapshot has an empty file named after the snapshot's end.
            end = max(copy.end_offset for copy in self._copies)
        if last is None or end < 0 or last.end_offset <= end:
            return []
        where = f"ends at offset {end - 1}" if end else "is empty"
        return [f"the log {where}, but {last.path} is the state at offset {last.end_offset - 1}"]

    def close(self) -> None:
        """Close the export and release it for other writers."""
        self._writer.close()

    def __enter__(self) -> Importer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _cluster_id(copies: Sequence[Copy], wanted: str) -> str:
    stored = next((copy.cluster_id for copy in copies if copy.cluster_id), "")
    if wanted and stored and wanted != stored:
        raise NoKafkaLogError(f"the log belongs to cluster {stored}, not {wanted}")
    return wanted or stored or UNKNOWN
