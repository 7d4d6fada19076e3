"""The images that this broker can show: the image at the LAO it received, the tip, and, as memory
allows, images in between. Pure.

Images are made from committed chunks of the log, in order. All chunks above the oldest image are
kept, so that the image at any later offset can be made; images in between only save time, and are
thinned out when memory runs short. When the chunks that are still needed exceed the bound,
``backpressure`` tells the caller to stop reading the stream.

A *plain* batch changes config values, or nothing, as progress records do. Chunks of plain batches
are folded at the next read, or when ``WAITING_BYTES`` of them wait: folding many at once costs less
than folding each alone. Likewise the image at LAO is not made before it is read: when many writes
arrive at once, the broker's images are at offsets other than future LAOs.

Offsets are inclusive; -1 means none. LAO is the lowest offset that some broker has applied, so it
is the end of a log batch, as every image is; should one be inside a batch, the newest image below
it is used instead.

Why: docs/decisions/010-lao-survives-failover.md
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from broker.partition.events import Changes
from raftlog import batch
from raftlog.config_writes import records as config_records
from raftlog.config_writes.records import Change
from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.metadata import pmap
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.entities import Broker, Voters
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import ConfigKey, Image
from raftlog.metadata.records import CHANGES_NOTHING, Record, RecordType, decoded
from raftlog.metadata.versions import heartbeats_enabled
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.quorum.admission import MAX_EPOCH

WAITING_BYTES = 4 << 10
"""Maximum number of bytes of chunks that wait to be folded. All brokers fold them at the same
write, which delays its acknowledgement by 0.1 ms per broker on one machine. A batch costs 3.4 us
alone, 2.2 us with 15 others, and no less with more.
"""
_IMAGE_FACTOR = 8
_IMAGE_BYTES = 4096
"""Estimated size in bytes that an image adds to its neighbour, as a persistent map copies the path
to each changed key; a high estimate.
"""


class Batch(NamedTuple):
    """A decoded batch of a chunk. ``configs``: the changes of a plain batch, else None."""

    header: batch.BatchHeader
    configs: Sequence[Change] | None
    records: list[Record]


class _Chunk(NamedTuple):
    last_offset: int
    data: bytes


class _Between(NamedTuple):
    """An image that was made between the oldest and the newest."""

    image: Image
    bytes: int


_image_offset = attrgetter("image.offset")
_last_offset = attrgetter("last_offset")
_batch_end = attrgetter("header.last_offset")


class KeptImages:
    """The oldest image, the tip, and the images between.

    ``max_bytes``: bound of the chunks and (estimated) images kept above the oldest image.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.begin(Image())

    def begin(self, image: Image) -> None:
        """Start over at this image, and drop all earlier ones."""
        self.applied = image.offset
        """Offset of the newest image, even if that has not been made yet."""
        self.folded = image
        """The newest image that was made. It differs from the tip at most in config values."""
        self._oldest = image
        self._until = image.offset
        """Upper bound of the oldest image to be shown, which is the image at this offset or the
        newest below it: ``_oldest``, or one made from it and the chunks after it.
        """
        self.builder = ImageBuilder(image)
        """Builder for the batches of the next chunk, before ``add``."""
        self._waiting: list[Batch] = []
        """Batches after ``folded`` that have not been folded yet."""
        self._waiting_bytes = 0
        self._folded_bytes = 0
        """Size in bytes of the chunks between ``folded`` and the previous image."""
        self._chunks: list[_Chunk] = []
        """Chunks from the first that is not in ``_oldest`` to the one that ends at ``applied``."""
        self._between: list[_Between] = []
        self.bytes = 0
        """Size in bytes of the chunks and images above the oldest image; images are estimated."""

    # --- queries ---------------------------------------------------------------------------------

    @property
    def tip(self) -> Image:
        """The image at ``applied``; folds waiting chunks."""
        if self._waiting:
            self._fold(len(self._waiting))
        return self.folded

    @property
    def oldest_from(self) -> int:
        """An offset at or below the oldest image's. Makes no image."""
        return self._oldest.offset

    @property
    def oldest(self) -> Image:
        """The oldest image to be shown, made now if it does not exist yet."""
        if self._oldest.offset < self._until:
            self._settle()
        return self._oldest

    @property
    def full(self) -> bool:
        """Whether the bound is exceeded."""
        return self.bytes > self._max_bytes

    def at_least(self, offset: int) -> Image | None:
        """Return the oldest kept image at ``offset`` or later, or None if that offset is not
        applied.
        """
        if offset > self.applied:
            return None
        if offset <= self._until and offset <= self.oldest.offset:
            return self._oldest
        index = bisect_left(self._between, offset, key=_image_offset)
        if index < len(self._between):
            return self._between[index].image
        if offset > self.folded.offset:
            self._fold(1 + bisect_left(self._waiting, offset, key=_batch_end))
        return self.folded

    # --- input -----------------------------------------------------------------------------------

    def add_later(self, chunk: bytes, batches: Sequence[Batch]) -> None:
        """Add a chunk of plain batches after the tip."""
        self._waiting += batches
        self._waiting_bytes += len(chunk)
        self._append(chunk, batches[-1].header.last_offset)
        if self._waiting_bytes > WAITING_BYTES:
            self._fold(len(self._waiting))

    def add(self, chunk: bytes, *, plain: bool) -> None:
        """Add a chunk whose batches ``builder`` has folded after the ``tip``."""
        builder = self.builder
        image = builder.snapshot_of_configs() if plain else builder.snapshot()
        self._append(chunk, image.offset)
        self._replace(image, len(chunk))

    def raise_oldest(self, offset: int) -> None:
        """Make the image at or just below ``offset`` the oldest, and drop earlier ones."""
        if offset <= self._until:
            return
        self._until = min(offset, self.applied)
        if self._until >= self.folded.offset:
            if self._oldest is not self.folded or self.folded.offset == self.applied:
                self._give_up_below(self.folded)
        else:
            passed = bisect_right(self._between, offset, key=_image_offset)
            if passed:
                self._give_up_below(self._between[passed - 1].image)
        if self.bytes > self._max_bytes:
            self.make_room()

    def make_room(self) -> None:
        """When the bound is exceeded, drop the chunks that an image can replace, then images."""
        self._settle()
        self._thin_out()

    # --- storage ---------------------------------------------------------------------------------

    def _append(self, chunk: bytes, last_offset: int) -> None:
        self._chunks.append(_Chunk(last_offset, chunk))
        self.bytes += len(chunk)
        self.applied = last_offset

    def _fold(self, count: int) -> None:
        """Fold the first ``count`` waiting batches."""
        builder, waiting, size = self.builder, self._waiting, 0
        if not count:
            return
        for header, configs, _ in waiting[:count]:
            size += header.size
            builder.apply_plain(header, configs or ())
        del waiting[:count]
        self._waiting_bytes -= size
        self._replace(builder.snapshot_of_configs(), size)

    def _replace(self, image: Image, size: int) -> None:
        """Replace the newest image that was made.

        ``size``: bytes of the chunks between the two images.
        """
        before, before_size = self.folded, self._folded_bytes
        self.folded, self._folded_bytes = image, size
        if self._until >= image.offset:
            self._give_up_below(image)
        elif before.offset > self._oldest.offset:
            kept = _Between(before, _IMAGE_BYTES + _IMAGE_FACTOR * before_size)
            self._between.append(kept)
            self.bytes += kept.bytes
            self._thin_out()

    def _thin_out(self) -> None:
        """Drop every second image until the bound is met, but never the oldest image or the tip."""
        while self.full and self._between:
            self.bytes -= sum(kept.bytes for kept in self._between[::2])
            del self._between[::2]

    def _give_up_below(self, image: Image) -> None:
        """Make ``image`` the oldest, if it is at or below ``_until``."""
        self._oldest = image
        if image.offset == self.applied:
            # All kept chunks are below: the usual case of a broker that keeps up.
            self._chunks, self._between, self.bytes = [], [], 0
            return
        passed = bisect_right(self._between, image.offset, key=_image_offset)
        self.bytes -= sum(kept.bytes for kept in self._between[:passed])
        del self._between[:passed]
        done = bisect_right(self._chunks, image.offset, key=_last_offset)
        self.bytes -= sum(len(chunk.data) for chunk in self._chunks[:done])
        del self._chunks[:done]

    def _settle(self) -> None:
        """Make the oldest image that is to be shown."""
        if self._until > self.folded.offset:
            self._fold(bisect_right(self._waiting, self._until, key=_batch_end))
        elif self._oldest.offset < self._until:
            self._give_up_below(self._image_at(self._oldest, self._until))
        # Perhaps no batch ends at this offset: do not repeat the search.
        self._until = self._oldest.offset

    def _image_at(self, base: Image, offset: int) -> Image:
        """Return the image at ``offset``, or the newest below it, made from the oldest image."""
        builder = ImageBuilder(base)
        for chunk in self._chunks:
            builder.apply_chunk(chunk.data, until=offset + 1)
            if chunk.last_offset >= offset:
                break
        return base if builder.offset == base.offset else builder.snapshot()


KEPT_MAX = 200_000
"""Number of touched partitions above which scanning everything costs no more."""
_PARTITION = frozenset({RecordType.PARTITION, RecordType.PARTITION_CHANGE})
_BROKER = frozenset(
    {
        RecordType.REGISTER_BROKER,
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.UNREGISTER_BROKER,
    }
)


class ChangeCollector:
    """Collects the changes between calls of ``take``, which returns None if anything may have
    changed.
    """

    def __init__(self) -> None:
        self._all = True
        self._clear()

    def _clear(self) -> None:
        self._partitions: dict[PartitionKey, None] = {}
        self._topics: dict[bytes, None] = {}
        self._brokers: dict[int, None] = {}
        self._configs: dict[ConfigKey, None] = {}

    def note(self, records: Iterable[Record]) -> None:
        """Record the changes of an applied batch."""
        if self._all:
            return
        for record in records:
            message, kind = record.message, record.type
            if kind in _PARTITION:
                self._partitions[message.topic_id, message.partition_id] = None
            elif kind in _BROKER:
                self._brokers[message.broker_id] = None
            elif kind == RecordType.CONFIG:
                self._configs[message.resource_type, message.resource_name] = None
            elif kind == RecordType.REMOVE_TOPIC:
                self._topics[message.topic_id] = None
        if len(self._partitions) > KEPT_MAX:
            self.everything()

    def note_configs(self, changes: Iterable[Change]) -> None:
        """Record the changes of a plain batch."""
        if not self._all:
            for resource_type, resource_name, _, _ in changes:
                self._configs[resource_type, resource_name] = None

    def everything(self) -> None:
        """Record that the image was replaced: anything may differ."""
        self._all = True
        self._clear()

    def take(self) -> Changes | None:
        """Return the entities touched since the last call, or None if anything may have changed."""
        if self._all:
            self._all = False
            return None
        taken = Changes(
            tuple(self._partitions), tuple(self._topics), tuple(self._brokers), tuple(self._configs)
        )
        self._clear()
        return taken


UNKNOWN = -1


class AppliedBatch(NamedTuple):
    """A batch of the log, for the controller to compare with its own.

    ``base_offset``: UNKNOWN for a batch from a snapshot.
    """

    base_offset: int
    epoch: int
    crc: int


class TipListener(Protocol):
    """A listener for changes to the tip. It is called during a change, and may only record it."""

    def needs_image(self, chunk_bytes: int) -> bool:
        """Return whether the listener needs the image as it was before the next chunk, of
        ``chunk_bytes``.
        """

    def applied(self, before: Image | None, chunk: bytes, last_offset: int, epoch: int) -> None:
        """Record that a chunk that ends at ``last_offset`` (inclusive) was applied.

        ``before``: the image before the chunk, if it is needed or available, else None.
        """

    def replaced(self, image: Image) -> None:
        """Record that the tip was replaced by an image not made from the previous one."""


class View:
    """The images of one broker.

    ``max_bytes``: bound of the chunks and (estimated) images kept above the oldest image.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        max_bytes: int,
        generation: int = NO_GENERATION,
        on_moved: Callable[[], None] | None = None,
    ) -> None:
        """``generation``: generation of the log to which the broker's directory belongs.
        ``on_moved``: called after every change.
        """
        self._broker_id = broker_id
        self._on_moved = on_moved
        self._images = KeptImages(max_bytes)
        self.controller_epoch = 0
        self.hears_controller = False
        """Whether the last controller contacted has answered with this log."""
        self.tip_listener: TipListener | None = None
        self.changes = ChangeCollector()
        """Changes since they were last taken, for components that read only the tip."""
        self.moves = 0
        """Number of changes to the newest image."""
        self.other_moves = 0
        """Number of those changes that affected more than config values."""
        self._clear(generation)

    def _clear(self, generation: int) -> None:
        self.generation = generation
        """Generation of the log; NO_GENERATION if not known yet."""
        self.last_batch: AppliedBatch | None = None
        """The batch that ends at ``applied``; None if nothing is applied."""
        self._epochs: list[tuple[int, int]] = []
        """(first offset, epoch) of each applied epoch."""
        self.high_watermark = UNKNOWN
        self._images.begin(Image())
        self._replaced()
        self._known_lao = self._known_lao_epoch = self._received_lao = UNKNOWN
        self._received_lao_epoch = UNKNOWN
        self._unfenced_epoch: int | None = None
        self.heartbeats = True
        """Whether heartbeats are enabled in the newest image (KIP-343)."""
        self._heartbeats_from = UNKNOWN
        """Offset from which heartbeats are enabled again; an LAO received before may be too low."""

    # --- state -----------------------------------------------------------------------------------

    @property
    def tip(self) -> Image:
        """The newest image."""
        return self._images.tip

    @property
    def applied(self) -> int:
        """Offset of the newest image: applied and readable."""
        return self._images.applied

    @property
    def features(self) -> pmap.Map[str, int]:
        """Feature levels of the newest image; the same object until a level changes."""
        return self._images.folded.features

    @property
    def known_lao(self) -> int:
        """The highest LAO that this broker has received and its readers can use; it reports this
        one.

        Never decreases within a generation.
        """
        return self._known_lao

    @property
    def known_lao_epoch(self) -> int:
        """Epoch of the controller that sent the known LAO."""
        return self._known_lao_epoch

    @property
    def lao_above_applied(self) -> bool:
        """Whether this broker received an LAO above what it has applied: the controller does not
        count this broker, so it must not serve reads as if it were counted.
        """
        return self._received_lao > self.applied

    @property
    def registration(self) -> Broker | None:
        """This broker's registration in its own newest image, or None."""
        return self._images.folded.brokers.get(self._broker_id)

    @property
    def voters(self) -> Voters | None:
        """The voters of the quorum in the newest image; None if the image has none."""
        return self._images.folded.voters

    @property
    def repeatable(self) -> Image | None:
        """The image at LAO; None if LAO is unknown."""
        return self._images.oldest if self._shows_lao else None

    @property
    def repeatable_from(self) -> int:
        """An offset at or below the image at LAO, or that of the newest image if LAO is unknown.
        Makes no image.
        """
        return self._images.oldest_from if self._shows_lao else self._images.applied

    @property
    def _shows_lao(self) -> bool:
        """Whether the image at LAO may be shown.

        Only an LAO from the controller epoch that unfenced this broker, or a later one, counts:
        after a failover, an earlier LAO may be below writes that were answered ``visible`` while
        this broker was fenced. An LAO from before heartbeats were enabled does not count either:
        without heartbeats LAO is unknown, and brokers are unfenced whatever LAO they know.
        """
        if (
            self._unfenced_epoch is None
            or self._known_lao_epoch < self._unfenced_epoch
            or self.lao_above_applied
        ):
            return False
        if not self.heartbeats or self._known_lao < self._heartbeats_from:
            return False
        return self._images.oldest_from <= self._known_lao

    @property
    def bytes_kept(self) -> int:
        """See ``KeptImages.bytes``."""
        return self._images.bytes

    @property
    def backpressure(self) -> bool:
        """True if nothing more can be dropped, so the caller must stop reading the stream."""
        return self._images.full

    def at_least(self, offset: int) -> Image | None:
        """See ``KeptImages``."""
        return self._images.at_least(offset)

    def check_position(self, generation: int, epoch: int, offset: int, field: str) -> None:
        """Check that the token in ``field`` names a position in this log, as far as this broker
        knows.

        ``epoch``: 0 if the token has none. Raises ApiError: INCONSISTENT_GENERATION if the token
        belongs to another log, BROKER_NOT_AVAILABLE if it may belong to one that this broker has
        not heard of yet.
        """
        if generation != self.generation:
            message = (
                f"the token belongs to generation {generation} of the log, but this broker has"
            )
            if not self.hears_controller:
                raise ApiError(
                    ErrorCode.BROKER_NOT_AVAILABLE,
                    f"{message} {self.generation}, and hears no controller now",
                    field=f"{field}.generation",
                )
            raise ApiError(
                ErrorCode.INCONSISTENT_GENERATION,
                f"{message} {self.generation}: the log was recovered or restored, and changes"
                " seen before may be lost",
                field=f"{field}.generation",
            )
        at = bisect_right(self._epochs, (offset, MAX_EPOCH)) - 1
        known = epoch > 0 and at >= 0 and offset <= self.applied
        if known and epoch != self._epochs[at][1]:
            raise ApiError(
                ErrorCode.INCONSISTENT_GENERATION,
                f"the token names offset {offset} of epoch {epoch}, but in this log it has epoch"
                f" {self._epochs[at][1]}: the state seen at the token is lost",
                field=f"{field}.epoch",
            )

    # --- input -----------------------------------------------------------------------------------

    def reset(self, generation: int) -> None:
        """Start over with a log of this generation.

        The highest controller epoch seen is kept.
        """
        self._clear(generation)
        self._moved()

    def hear(
        self, controller_epoch: int, lowest_acknowledged_offset: int, high_watermark: int = UNKNOWN
    ) -> bool:
        """Accept a controller's announcement, unless a higher epoch was seen; return whether it was
        accepted.

        Otherwise a deposed controller's LAO could rise above what the new one has announced.
        """
        if controller_epoch < self.controller_epoch:
            return False
        self.controller_epoch = controller_epoch
        self.high_watermark = max(self.high_watermark, high_watermark)
        if lowest_acknowledged_offset >= max(self._received_lao, 0):
            received = (lowest_acknowledged_offset, controller_epoch)
            # It is often repeated, with records, and ``apply`` has already adopted it.
            if received != (self._received_lao, self._received_lao_epoch):
                self._received_lao, self._received_lao_epoch = received
                self._adopt()
        self._moved()
        return True

    def _replaced(self) -> None:
        """Report a newest image that was not made from the previous one."""
        self.moves += 1
        self.other_moves += 1
        self.changes.everything()
        if self.tip_listener is not None:
            self.tip_listener.replaced(self._images.folded)

    def apply(self, chunk: bytes, *, high_watermark: int) -> None:
        """Add a chunk that follows the tip and ends at or below the high watermark; readers then
        see it.

        Plain batches are folded when a reader needs them. Raises CorruptLogError, and changes
        nothing, if the chunk is corrupt, does not follow the tip, or is not committed. Raises
        UnknownRecordError or FoldError if it cannot be folded; the view must not be used after
        that.
        """
        batches, images = self._decode(chunk, high_watermark), self._images
        plain = True
        for one in batches:
            if one.configs is None:
                plain = False
            else:
                self.changes.note_configs(one.configs)
        before = None
        tip_listener = self.tip_listener
        needed = tip_listener is not None and tip_listener.needs_image(len(chunk))
        if plain and not needed:
            images.add_later(chunk, batches)
        else:
            before = images.tip
            self._fold(batches)
            images.add(chunk, plain=plain)
        self.moves += 1
        self.other_moves += not plain
        last = batches[-1].header
        if not self._epochs or last.epoch != self._epochs[-1][1]:
            self._note_epochs(one.header for one in batches)
        self.last_batch = AppliedBatch(
            last.base_offset, last.epoch, batch.crc_at(chunk, last.position)
        )
        if tip_listener is not None:
            tip_listener.applied(before, chunk, images.applied, batches[-1].header.epoch)
        # A broker that keeps up has already adopted the announced LAO.
        if self._received_lao != self._known_lao:
            self._adopt()
        if images.full:
            self._shrink()
        self._moved()

    def install(self, image: Image) -> bool:
        """Continue from a snapshot's image, which is committed.

        Returns False, and changes nothing, if the image is not newer than the tip. The offsets in
        between can no longer be shown, so repeatable reads wait until LAO has reached the image. If
        the image shows this broker unfenced, the epoch that unfenced it is unknown, but not above
        the image's.
        """
        if image.offset <= self._images.applied:
            return False
        self._images.begin(image)
        self._replaced()
        self.last_batch = AppliedBatch(UNKNOWN, image.epoch, 0)
        self._epochs = [(image.offset, image.epoch)]
        self.high_watermark = max(self.high_watermark, image.offset + 1)
        self._unfenced_epoch = None
        self._note_membership(image.epoch)
        self._adopt()
        self._moved()
        return True

    def _moved(self) -> None:
        if self._on_moved is not None:
            self._on_moved()

    def _fold(self, batches: Sequence[Batch]) -> None:
        """Fold the batches of a chunk after the tip."""
        builder = self._images.builder
        for header, configs, records in batches:
            if configs is None:
                builder.apply_decoded(header, records)
                self.changes.note(records)
                self._note_membership(header.epoch)
            else:
                builder.apply_plain(header, configs)

    def _note_epochs(self, headers: Iterable[batch.BatchHeader]) -> None:
        for header in headers:
            if not self._epochs or header.epoch != self._epochs[-1][1]:
                self._epochs.append((header.base_offset, header.epoch))

    def _decode(self, chunk: bytes, high_watermark: int) -> list[Batch]:
        """Decode a whole chunk, and check all of it before any of it is folded."""
        following = self.applied + 1
        headers = list(batch.headers(chunk, verify=True, expect_offset=following))
        if not headers:
            raise CorruptLogError("the chunk is empty", offset=following)
        if headers[-1].end_offset > high_watermark:
            message = (
                f"the chunk ends at {headers[-1].end_offset}, above the high watermark"
                f" {high_watermark}: it is not committed"
            )
            raise CorruptLogError(message, offset=following)
        batches = []
        for header in headers:
            # A numbered write changes more than its records.
            configs = None if header.client_id else config_records.decoded(chunk, header)
            records = []
            if configs is None:
                records = [decoded(data) for data in batch.records(chunk, header)]
                if not header.client_id and all(one.type in CHANGES_NOTHING for one in records):
                    configs, records = [], []
            batches.append(Batch(header, configs, records))
        return batches

    def _note_membership(self, epoch: int) -> None:
        """Record after each batch whether this broker is an LAO member: a chunk that both fences
        and unfences it must not look like no change.
        """
        builder = self._images.builder
        mine = builder.brokers.get(self._broker_id)
        if mine is None or mine.fenced:
            self._unfenced_epoch = None
        elif self._unfenced_epoch is None:
            self._unfenced_epoch = epoch
        if heartbeats_enabled(builder.features) != self.heartbeats:
            self.heartbeats = not self.heartbeats
            self._heartbeats_from = builder.offset

    # --- storage ---------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Move the oldest image up to the announced LAO, which counts as known once it is applied
        here.
        """
        if self._received_lao == UNKNOWN:
            return
        if not self.lao_above_applied:
            self._known_lao, self._known_lao_epoch = self._received_lao, self._received_lao_epoch
        self._images.raise_oldest(self._received_lao)

    def _shrink(self) -> None:
        """If this broker is not counted for LAO, drop all old images rather than stop reading
        before it has caught up, as it need not be able to show every later LAO.
        """
        images = self._images
        images.make_room()
        if images.full and self._unfenced_epoch is None:
            images.raise_oldest(images.applied)
