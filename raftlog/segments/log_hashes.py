"""The log hash of an export, computed from its raw segments, and the claims about it.

Claims have three sources: nodes (the manifest records their responses and snapshots), the log
itself (progress records), and the manifest (the hash that the export computed from the received
bytes).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from raftlog import batch
from raftlog.metadata.log_hash import EMPTY, LogHash, extended, unknown
from raftlog.metadata.records import RecordType, parse
from raftlog.segments.files import Place
from raftlog.segments.manifest import RAW, Manifest, StateHash
from raftlog.segments.raw import Headed, batch_bytes, read_headed

CLAIM_BATCHES = 16_384
"""Maximum number of batches between a progress record and the position of the hash in it, as a
leader has no more in flight.
"""


def log_hash_fields(known: LogHash) -> dict[str, Any]:
    """Return the manifest fields for the log hash at the export's end."""
    return {
        "log_hash": known.digest.hex(),
        "log_hash_begin_offset": known.begin_offset if known.digest else -1,
    }


def log_hash_of(manifest: Manifest) -> LogHash:
    """Return the manifest's log hash at the export's end, for a writer that continues there. Raises
    CorruptExportError.
    """
    if manifest.log_hash:
        digest = bytes.fromhex(manifest.log_hash)
        return LogHash(manifest.log_hash_begin_offset, manifest.end_offset, digest)
    if manifest.segments or manifest.history_begin:
        return unknown(manifest.end_offset if manifest.segments else manifest.history_begin)
    return EMPTY


def _batches(place: Place, manifest: Manifest, last_offset: int) -> Iterator[Headed]:
    for segment in manifest.of_kind(RAW):
        if segment.base_offset <= last_offset:
            yield from read_headed(place, segment, owner=manifest.owner, checked=True)


class Claim(NamedTuple):
    """A claim about the log hash before ``end_offset``, and the hash computed from the export.

    ``who``: the claimant, as text. ``asked``: whether a node has just answered, False if the claim
    is from the manifest or the log.
    """

    end_offset: int
    begin_offset: int
    digest: str
    who: str
    agrees: bool
    found: str
    asked: bool = False


class Vouched(NamedTuple):
    """The computed log hash, and the claims about it.

    ``end``: the hash at the end of the checked part of the export. ``first_known``: the offset from
    which the chain is known, or -1. ``adopted``: the source of its beginning, if that is not in the
    export. ``claims``: the nodes' claims, by offset. ``recorded``: number of progress records up to
    ``recorded_end`` (exclusive) that contain a hash; ``wrong``: those whose hash differs;
    ``unnamed``: offset of the first progress record without a hash after one with a hash, or -1.
    ``at_checkpoints``: the hash at the offset of each checkpoint.
    """

    end: LogHash
    first_known: int
    adopted: str
    claims: tuple[Claim, ...]
    recorded: int
    recorded_end: int
    wrong: tuple[Claim, ...]
    unnamed: int
    manifest_agrees: bool | None
    at_checkpoints: dict[int, LogHash]


def vouched(
    place: Place,
    manifest: Manifest,
    last_offset: int | None = None,
    asked: Iterable[StateHash] = (),
) -> Vouched:
    """Recompute the chain from the raw segments up to ``last_offset``, and compare it with all
    claims. ``asked``: new responses of nodes.

    One pass in one process over files whose bytes were verified before. Raises CorruptExportError,
    ExportMismatchError, ExportError.
    """
    last = manifest.end_offset - 1 if last_offset is None else last_offset
    making = _Chain(manifest, asked)
    for chunk, header in _batches(place, manifest, last):
        if header.last_offset > last:
            break
        making.take(chunk, header)
    return making.result(complete=last == manifest.end_offset - 1)


class _Chain:
    def __init__(self, manifest: Manifest, asked: Iterable[StateHash]) -> None:
        self._manifest = manifest
        begin = manifest.history_begin
        self.known = EMPTY if begin == 0 else unknown(begin)
        self._said: dict[int, list[tuple[StateHash, bool]]] = {}
        for now, words in ((True, asked), (False, manifest.state_hashes)):
            for one in words:
                if one.log_hash:
                    self._said.setdefault(one.offset + 1, []).append((one, now))
        self._first_known, self._adopted = 0 if begin == 0 else -1, ""
        self._claims: list[Claim] = []
        self._recent: deque[LogHash] = deque(maxlen=CLAIM_BATCHES)
        self._recorded, self._wrong, self._unnamed = 0, list[Claim](), -1
        self._recorded_end = 0
        self._naming = False
        self._checkpoints = {one.offset for one in manifest.checkpoints}
        self._at_checkpoints: dict[int, LogHash] = {}
        self._compare()

    def take(self, chunk: bytes, header: batch.BatchHeader) -> None:
        """Add the next batch."""
        was = self.known
        if not header.control:
            self._look_at_progress(chunk, header)
        self._recent.append(was)
        self.known = extended(self.known, batch_bytes(chunk, header))
        if self.known.begin_offset != was.begin_offset:
            self._naming = False
        if (self.known.begin_offset, bool(self.known.digest)) != (
            was.begin_offset,
            bool(was.digest),
        ):
            self._first_known = self.known.begin_offset if self.known.digest else -1
        self._compare()

    def _compare(self) -> None:
        """Compare the hash with the nodes' claims about this offset."""
        said = self._said.get(self.known.end_offset, ())
        if said and not self.known.digest:
            # The earlier log is not in the export: adopt the first claim as the beginning.
            one, _ = said[0]
            self.known = LogHash(
                one.log_hash_begin_offset,
                self.known.end_offset,
                bytes.fromhex(one.log_hash),
            )
            self._first_known, self._adopted = self.known.end_offset, one.describe()
        offset = self.known.end_offset - 1
        if offset in self._checkpoints:
            self._at_checkpoints[offset] = self.known
        if not said:
            return
        digest = self.known.digest.hex()
        for one, asked in said:
            agrees = (one.log_hash_begin_offset, one.log_hash) == (self.known.begin_offset, digest)
            self._claims.append(
                Claim(
                    one.offset + 1,
                    one.log_hash_begin_offset,
                    one.log_hash,
                    one.describe(),
                    agrees,
                    digest,
                    asked,
                )
            )

    def _look_at_progress(self, data: bytes, header: batch.BatchHeader) -> None:
        position = batch.records_position(data, header)
        if int.from_bytes(data[position : position + 2], "big") != RecordType.PROGRESS:
            return
        for found in batch.records(data, header):
            if found.type == RecordType.PROGRESS:
                self._claimed(parse(found), header.base_offset)

    def _claimed(self, message: Any, offset: int) -> None:
        if not message.log_hash:
            if self._naming and self._unnamed < 0:
                self._unnamed = offset
            return
        self._naming = True
        end = message.log_hash_end_offset
        known = chain((self.known,), reversed(self._recent))
        there = next((one for one in known if one.end_offset <= end), None)
        there = None if there is None or there.end_offset != end else there
        if not self.known.digest or (there is not None and not there.digest):
            return
        if there is None and end <= self._first_known:
            return
        self._recorded, self._recorded_end = self._recorded + 1, end
        # If no batch ends there, records before it are missing or superfluous.
        here = (-1, b"") if there is None else (there.begin_offset, there.digest)
        if here != (message.log_hash_begin_offset, message.log_hash):
            self._wrong.append(
                Claim(
                    end,
                    message.log_hash_begin_offset,
                    message.log_hash.hex(),
                    f"the progress record at offset {offset}",
                    False,
                    here[1].hex(),
                )
            )

    def result(self, *, complete: bool) -> Vouched:
        """Return the result after the last batch. ``complete``: whether every batch in the manifest
        was added.
        """
        manifest, known = self._manifest, self.known
        agrees = None
        if complete and manifest.log_hash and known.digest and not self._adopted:
            agrees = (manifest.log_hash, manifest.log_hash_begin_offset) == (
                known.digest.hex(),
                known.begin_offset,
            )
        return Vouched(
            known,
            self._first_known,
            self._adopted,
            tuple(self._claims),
            self._recorded,
            self._recorded_end,
            tuple(self._wrong),
            self._unnamed,
            agrees,
            self._at_checkpoints,
        )
