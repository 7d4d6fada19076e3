"""What this broker can show: the image at the LAO it was told, the tip, and those between as memory
allows. Pure.

Images are made from committed chunks of the log, in order. All chunks above the oldest image are
kept, so that the image at any new LAO can be made; images between are only a convenience and
thinned out when memory runs short. When even the chunks alone exceed the bound, ``backpressure``
says: stop reading the stream until LAO moves.

Offsets are inclusive, -1 for none. LAO is the smallest offset some broker has applied, so it is the
end of a log batch like every image; should one fall inside a batch, the newest image below it
stands for it.

Why: docs/decisions/010-lao-survives-failover.md
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from broker.replication.changes import ChangeCollector
from raftlog import batch
from raftlog.config_writes import codec
from raftlog.config_writes.messages import Change
from raftlog.errors import CorruptLogError
from raftlog.metadata.entities import Broker
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, decoded
from raftlog.metadata.versions import heartbeats_in_force

UNKNOWN = -1

_IMAGE_FACTOR = 8
_IMAGE_BYTES = 4096
"""What an image costs beyond its neighbour: a persistent map copies the path to each changed key.

An estimate, on the high side.
"""


class _Chunk(NamedTuple):
    last_offset: int
    data: bytes


class _Between(NamedTuple):
    """An image between the oldest and the tip."""

    image: Image
    bytes: int


class _Batch(NamedTuple):
    """One of a chunk, taken apart: ``configs`` if it sets config values and does nothing else."""

    header: batch.BatchHeader
    configs: Sequence[Change] | None
    records: list[Record]


_image_offset = attrgetter("image.offset")
_last_offset = attrgetter("last_offset")


class Onlooker(Protocol):
    """Hears what becomes of the tip, as it happens: it only takes note."""

    def applied(self, before: Image, chunk: bytes, after: Image) -> None:
        """A chunk that follows an image was folded, which made the other one."""

    def replaced(self, image: Image) -> None:
        """The tip is another image, which was not made of the one before."""


class View:
    """The images of one broker.

    ``max_bytes`` bounds chunks and (estimated) images kept above the oldest one.
    """

    def __init__(
        self, broker_id: int, *, max_bytes: int, on_moved: Callable[[], None] | None = None
    ) -> None:
        """``on_moved``: called after every change, for whoever looks on."""
        self._broker_id = broker_id
        self._on_moved = on_moved
        self._max_bytes = max_bytes
        self.controller_epoch = 0
        self.onlooker: Onlooker | None = None
        self.changes = ChangeCollector()
        """What was touched since it was last taken: for who looks at the tip only."""
        self._clear(generation=-1)

    def _clear(self, generation: int) -> None:
        self.generation = generation
        self.high_watermark = UNKNOWN
        self._tip = self._oldest = Image()
        self._builder = ImageBuilder(self._tip)
        self.changes.everything()
        if self.onlooker is not None:
            self.onlooker.replaced(self._tip)
        self._chunks: list[_Chunk] = []
        self._between: list[_Between] = []
        self._bytes = 0
        self._known_lao = self._known_lao_epoch = self._received_lao = UNKNOWN
        self._received_lao_epoch = UNKNOWN
        self._unfenced_epoch: int | None = None
        self.heartbeats = True
        """Whether the newest image says that brokers heartbeat (KIP-343)."""
        self._heartbeats_from = UNKNOWN
        """Where it began to say so again, after it had not; a LAO received before may be below what
        others know.
        """

    # --- what is known ---------------------------------------------------------------------------

    @property
    def tip(self) -> Image:
        """The newest image."""
        return self._tip

    @property
    def applied(self) -> int:
        """The offset of the newest image: applied and readable."""
        return self._tip.offset

    @property
    def known_lao(self) -> int:
        """The highest LAO that this broker received and its readers have: what it reports.

        Never goes back within a generation.
        """
        return self._known_lao

    @property
    def known_lao_epoch(self) -> int:
        """The epoch of the controller that told it."""
        return self._known_lao_epoch

    @property
    def lao_above_applied(self) -> bool:
        """This broker received a LAO above what it has applied: the controller does not count it,
        and it serves no reads as if it did.
        """
        return self._received_lao > self._tip.offset

    @property
    def registration(self) -> Broker | None:
        """This broker's registration in its own newest image."""
        return self._tip.brokers.get(self._broker_id)

    @property
    def repeatable(self) -> Image | None:
        """The image at LAO; None if LAO is unknown.

        Only a LAO from the controller epoch that unfenced this broker, or a later one, counts:
        after a failover, an earlier one may be below what was answered ``visible`` while this
        broker was fenced. The same goes for one from before heartbeats came into force: without
        them LAO is unknown, and brokers are unfenced whatever LAO they know.
        """
        if (
            self._unfenced_epoch is None
            or self._known_lao_epoch < self._unfenced_epoch
            or self.lao_above_applied
        ):
            return None
        if not self.heartbeats or self._known_lao < self._heartbeats_from:
            return None
        return self._oldest if self._oldest.offset <= self._known_lao else None

    @property
    def bytes_kept(self) -> int:
        """Of the chunks and images above the oldest image; images are estimated."""
        return self._bytes

    @property
    def backpressure(self) -> bool:
        """Nothing more can be given up: stop reading the stream."""
        return self._bytes > self._max_bytes

    def at_least(self, offset: int) -> Image | None:
        """The oldest kept image at ``offset`` or later; None if nothing that new was applied."""
        if offset > self._tip.offset:
            return None
        if offset <= self._oldest.offset:
            return self._oldest
        index = bisect_left(self._between, offset, key=_image_offset)
        return self._between[index].image if index < len(self._between) else self._tip

    # --- what comes in ---------------------------------------------------------------------------

    def reset(self, generation: int) -> None:
        """Another log generation: everything known is void. The controller epoch seen is kept."""
        self._clear(generation)
        self._moved()

    def hear(
        self, controller_epoch: int, lowest_acknowledged_offset: int, high_watermark: int = UNKNOWN
    ) -> bool:
        """Take a controller's announcement, unless a higher epoch has been seen; whether it was
        taken.

        [A deposed controller's LAO would rise above what the new one has announced.]
        """
        if controller_epoch < self.controller_epoch:
            return False
        self.controller_epoch = controller_epoch
        self.high_watermark = max(self.high_watermark, high_watermark)
        if lowest_acknowledged_offset >= max(self._received_lao, 0):
            received = (lowest_acknowledged_offset, controller_epoch)
            # Often it comes again, with records: ``apply`` has adopted it.
            if received != (self._received_lao, self._received_lao_epoch):
                self._received_lao, self._received_lao_epoch = received
                self._adopt()
        self._moved()
        return True

    def apply(self, chunk: bytes, *, high_watermark: int) -> None:
        """Fold a chunk that follows the tip and ends at or below the high watermark.

        Raises CorruptLogError if it is not intact, does not follow or is not committed: then
        nothing has changed. Raises UnknownRecordError and FoldError if it cannot be folded: then
        the view must not be used any more.
        """
        for header, configs, records in self._decode(chunk, high_watermark):
            if configs is None:
                self._builder.apply_decoded(header, records)
                self.changes.note(records)
                self._note_membership(header.epoch)
            else:
                # The plain case: nobody's membership.
                self._builder.apply_configs(
                    configs,
                    base_offset=header.base_offset,
                    epoch=header.epoch,
                    timestamp_ms=header.timestamp_ms,
                )
                self.changes.note_configs(configs)
        if self._chunks:
            kept = _Between(self._tip, _IMAGE_BYTES + _IMAGE_FACTOR * len(self._chunks[-1].data))
            self._between.append(kept)
            self._bytes += kept.bytes
        before, self._tip = self._tip, self._builder.snapshot()
        if self.onlooker is not None:
            self.onlooker.applied(before, chunk, self._tip)
        self._chunks.append(_Chunk(self._tip.offset, chunk))
        self._bytes += len(chunk)
        self._adopt()
        self._shrink()
        self._moved()

    def install(self, image: Image) -> bool:
        """Go on from a snapshot's image, which is committed; False, and nothing has changed, if it
        is not newer than the tip.

        What lies between cannot be shown any more: repeatable reads wait until LAO has come up to
        it. The epoch that unfenced this broker, if it is unfenced there, is not known; it is not
        above the image's.
        """
        if image.offset <= self._tip.offset:
            return False
        self._tip = self._oldest = image
        self._builder = ImageBuilder(image)
        self.changes.everything()
        if self.onlooker is not None:
            self.onlooker.replaced(image)
        self._chunks, self._between, self._bytes = [], [], 0
        self.high_watermark = max(self.high_watermark, image.offset + 1)
        self._unfenced_epoch = None
        self._note_membership(image.epoch)
        self._adopt()
        self._moved()
        return True

    def _moved(self) -> None:
        if self._on_moved is not None:
            self._on_moved()

    def _decode(self, chunk: bytes, high_watermark: int) -> list[_Batch]:
        """All of a chunk, checked before any of it is folded."""
        following = self._tip.offset + 1
        headers = list(batch.headers(chunk, verify=True, expect_offset=following))
        if not headers:
            raise CorruptLogError("an empty chunk", offset=following)
        if headers[-1].end_offset > high_watermark:
            message = (
                f"a chunk up to {headers[-1].end_offset} with a high watermark of {high_watermark}:"
                " not committed"
            )
            raise CorruptLogError(message, offset=following)
        framed = []
        for header in headers:
            # A numbered write leaves more behind than its records.
            configs = None if header.client_id else codec.decoded(chunk, header)
            found = batch.records(chunk, header) if configs is None else []
            framed.append((header, configs, found))
        return [
            _Batch(header, configs, [decoded(data) for data in found])
            for header, configs, found in framed
        ]

    def _note_membership(self, epoch: int) -> None:
        """After each batch: fenced and unfenced again within one chunk must not look like
        nothing.
        """
        mine = self._builder.brokers.get(self._broker_id)
        if mine is None or mine.fenced:
            self._unfenced_epoch = None
        elif self._unfenced_epoch is None:
            self._unfenced_epoch = epoch
        if heartbeats_in_force(self._builder.features) != self.heartbeats:
            self.heartbeats = not self.heartbeats
            self._heartbeats_from = self._builder.offset

    # --- what is kept ----------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Move the oldest image up to the LAO announced, which counts as told once it is applied
        here.
        """
        if self._received_lao == UNKNOWN:
            return
        if not self.lao_above_applied:
            self._known_lao, self._known_lao_epoch = self._received_lao, self._received_lao_epoch
        self._raise_oldest(self._received_lao)

    def _raise_oldest(self, offset: int) -> None:
        """Make the image at ``offset``, or the newest below it, the oldest; drop what it makes
        superfluous.
        """
        if offset <= self._oldest.offset:
            return
        if offset >= self._tip.offset:
            # All that is kept is passed: what a broker that keeps up is told.
            self._oldest = self._tip
            self._chunks, self._between, self._bytes = [], [], 0
            return
        passed = bisect_right(self._between, offset, key=_image_offset)
        base = self._between[passed - 1].image if passed else self._oldest
        self._oldest = base if base.offset == offset else self._image_at(base, offset)
        self._bytes -= sum(kept.bytes for kept in self._between[:passed])
        del self._between[:passed]
        done = bisect_right(self._chunks, self._oldest.offset, key=_last_offset)
        self._bytes -= sum(len(chunk.data) for chunk in self._chunks[:done])
        del self._chunks[:done]

    def _image_at(self, base: Image, offset: int) -> Image:
        """The image at ``offset``, or the newest below it, made from one before it."""
        builder = ImageBuilder(base)
        for chunk in self._chunks[bisect_right(self._chunks, base.offset, key=_last_offset) :]:
            if builder.offset >= offset:
                break
            builder.apply_chunk(chunk.data, until=offset + 1)
            if chunk.last_offset > offset:
                break
        return base if builder.offset == base.offset else builder.snapshot()

    def _shrink(self) -> None:
        """Give up every second image between until the bound is kept; never the oldest nor the tip.

        A broker that is not counted need not be able to show every LAO to come: it gives up old
        images altogether, rather than stop reading before it has caught up.
        """
        while self._bytes > self._max_bytes and self._between:
            self._bytes -= sum(kept.bytes for kept in self._between[::2])
            del self._between[::2]
        if self.backpressure and self._unfenced_epoch is None:
            self._raise_oldest(self._tip.offset)
