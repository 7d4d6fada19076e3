"""The images that this broker can show: the image at the LAO it received, the tip, and those
between as memory allows. Pure.

Images are made from committed chunks of the log, in order; ``kept_images.py`` keeps them. When the
chunks that are still needed exceed the bound, ``backpressure`` says: stop reading the stream.

Offsets are inclusive, -1 for none. LAO is the smallest offset some broker has applied, so it is the
end of a log batch like every image; should one fall inside a batch, the newest image below it
stands for it.

Why: docs/decisions/010-lao-survives-failover.md
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from broker.metadata.kept_images import Batch, KeptImages
from broker.replication.changes import ChangeCollector
from raftlog import batch
from raftlog.config_writes import codec
from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.metadata import pmap
from raftlog.metadata.entities import Broker, Voters
from raftlog.metadata.image import Image
from raftlog.metadata.log_generation import NO_GENERATION
from raftlog.metadata.records import decoded
from raftlog.metadata.versions import heartbeats_in_force
from raftlog.quorum.admission import MAX_EPOCH

UNKNOWN = -1


class AppliedBatch(NamedTuple):
    """A batch of the log, for the controller's comparison with its own.

    ``base_offset``: UNKNOWN for a batch from a snapshot.
    """

    base_offset: int
    epoch: int
    crc: int


class Onlooker(Protocol):
    """A listener for changes of the tip: called while they happen, it may only take notes."""

    def needs_image(self, chunk_bytes: int) -> bool:
        """Return whether it wants the image before the next chunk, which has ``chunk_bytes``."""

    def applied(self, before: Image | None, chunk: bytes, last_offset: int, epoch: int) -> None:
        """Note that a chunk up to an offset (inclusive) was applied. ``before``: the image before
        it, if that is needed, or at hand.
        """

    def replaced(self, image: Image) -> None:
        """Note that the tip is another image, not made from the one before."""


class View:
    """The images of one broker.

    ``max_bytes`` bounds chunks and (estimated) images kept above the oldest one.
    """

    def __init__(
        self,
        broker_id: int,
        *,
        max_bytes: int,
        generation: int = NO_GENERATION,
        on_moved: Callable[[], None] | None = None,
    ) -> None:
        """``generation``: of the log that the broker's directory belongs to. ``on_moved``: called
        after every change.
        """
        self._broker_id = broker_id
        self._on_moved = on_moved
        self._images = KeptImages(max_bytes)
        self.controller_epoch = 0
        self.hears_controller = False
        """Whether the last controller contacted has answered with this log."""
        self.onlooker: Onlooker | None = None
        self.changes = ChangeCollector()
        """Changes since they were last taken, for parts that read the tip only."""
        self.moves = 0
        """Number of changes of the newest image."""
        self.other_moves = 0
        """Number of those moves that changed more than config values."""
        self._clear(generation)

    def _clear(self, generation: int) -> None:
        self.generation = generation
        """The generation of the log; NO_GENERATION: not known yet."""
        self.last_batch: AppliedBatch | None = None
        """The batch that ends at ``applied``; None: nothing is applied."""
        self._epochs: list[tuple[int, int]] = []
        """(first offset, epoch) of each applied epoch."""
        self.high_watermark = UNKNOWN
        self._images.begin(Image())
        self._replaced()
        self._known_lao = self._known_lao_epoch = self._received_lao = UNKNOWN
        self._received_lao_epoch = UNKNOWN
        self._unfenced_epoch: int | None = None
        self.heartbeats = True
        """Whether heartbeats are in force in the newest image (KIP-343)."""
        self._heartbeats_from = UNKNOWN
        """Offset from which heartbeats are in force again; a LAO received before may be too low."""

    # --- state -----------------------------------------------------------------------------------

    @property
    def tip(self) -> Image:
        """The newest image."""
        return self._images.tip

    @property
    def applied(self) -> int:
        """The offset of the newest image: applied and readable."""
        return self._images.applied

    @property
    def features(self) -> pmap.Map[str, int]:
        """The feature levels of the newest image: another object after each change."""
        return self._images.folded.features

    @property
    def known_lao(self) -> int:
        """The highest LAO that this broker received and its readers have: the one it reports.

        Never moves back within a generation.
        """
        return self._known_lao

    @property
    def known_lao_epoch(self) -> int:
        """The epoch of the controller that sent the known LAO."""
        return self._known_lao_epoch

    @property
    def lao_above_applied(self) -> bool:
        """Whether this broker received a LAO above what it has applied: the controller does not
        count it, and it must not serve reads as a counted one.
        """
        return self._received_lao > self.applied

    @property
    def registration(self) -> Broker | None:
        """This broker's registration in its own newest image."""
        return self._images.folded.brokers.get(self._broker_id)

    @property
    def voters(self) -> Voters | None:
        """The voters of the quorum in its own newest image; None: the image has none."""
        return self._images.folded.voters

    @property
    def repeatable(self) -> Image | None:
        """The image at LAO; None if LAO is unknown."""
        return self._images.oldest if self._shows_lao else None

    @property
    def repeatable_from(self) -> int:
        """An offset at or below the image at LAO (unknown: the newest). Makes no image."""
        return self._images.oldest_from if self._shows_lao else self._images.applied

    @property
    def _shows_lao(self) -> bool:
        """Return whether the image at LAO may be shown.

        Only a LAO from the controller epoch that unfenced this broker, or a later one, counts:
        after a failover, an earlier one may be below what was answered ``visible`` while this
        broker was fenced. The same holds for one from before heartbeats came into force: without
        them LAO is unknown, and brokers are unfenced whatever LAO they know.
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
        """Size in bytes of the chunks and images above the oldest image; images are estimated."""
        return self._images.bytes

    @property
    def backpressure(self) -> bool:
        """Whether nothing more can be dropped: stop reading the stream."""
        return self._images.full

    def at_least(self, offset: int) -> Image | None:
        """The oldest kept image at ``offset`` or later; None if nothing that new was applied."""
        return self._images.at_least(offset)

    def check_position(self, generation: int, epoch: int, offset: int, field: str) -> None:
        """Check that a token, from ``field``, names a position of this log, as far as is known.
        ``epoch`` 0: the token has none.

        Raises ApiError: INCONSISTENT_GENERATION if it is of another log, BROKER_NOT_AVAILABLE if it
        may be of one that this broker has yet to learn of.
        """
        if generation != self.generation:
            message = f"the token is of generation {generation} of the log, this broker has"
            if not self.hears_controller:
                raise ApiError(
                    ErrorCode.BROKER_NOT_AVAILABLE,
                    f"{message} {self.generation}, and hears no controller now",
                    field=f"{field}.generation",
                )
            raise ApiError(
                ErrorCode.INCONSISTENT_GENERATION,
                f"{message} {self.generation}: the log was recovered or restored, what was seen"
                " before may be gone",
                field=f"{field}.generation",
            )
        at = bisect_right(self._epochs, (offset, MAX_EPOCH)) - 1
        known = epoch > 0 and at >= 0 and offset <= self.applied
        if known and epoch != self._epochs[at][1]:
            raise ApiError(
                ErrorCode.INCONSISTENT_GENERATION,
                f"the token names offset {offset} of epoch {epoch}, which is of epoch"
                f" {self._epochs[at][1]} in this log: what was seen there is lost",
                field=f"{field}.epoch",
            )

    # --- input -----------------------------------------------------------------------------------

    def reset(self, generation: int) -> None:
        """Begin anew with a log of this generation. The controller epoch seen is kept."""
        self._clear(generation)
        self._moved()

    def hear(
        self, controller_epoch: int, lowest_acknowledged_offset: int, high_watermark: int = UNKNOWN
    ) -> bool:
        """Accept a controller's announcement, unless a higher epoch was seen; return whether it was
        accepted.

        [A deposed controller's LAO would rise above what the new one has announced.]
        """
        if controller_epoch < self.controller_epoch:
            return False
        self.controller_epoch = controller_epoch
        self.high_watermark = max(self.high_watermark, high_watermark)
        if lowest_acknowledged_offset >= max(self._received_lao, 0):
            received = (lowest_acknowledged_offset, controller_epoch)
            # Often it is repeated, with records: ``apply`` has adopted it.
            if received != (self._received_lao, self._received_lao_epoch):
                self._received_lao, self._received_lao_epoch = received
                self._adopt()
        self._moved()
        return True

    def _replaced(self) -> None:
        """Note that the newest image was not made from the one before."""
        self.moves += 1
        self.other_moves += 1
        self.changes.everything()
        if self.onlooker is not None:
            self.onlooker.replaced(self._images.folded)

    def apply(self, chunk: bytes, *, high_watermark: int) -> None:
        """Fold a chunk that follows the tip and ends at or below the high watermark.

        Raises CorruptLogError if it is not intact, does not follow or is not committed: then
        nothing has changed. Raises UnknownRecordError and FoldError if it cannot be folded: then
        the view must not be used any more.
        """
        batches, images = self._decode(chunk, high_watermark), self._images
        only_configs = True
        for one in batches:
            if one.configs is None:
                only_configs = False
            else:
                self.changes.note_configs(one.configs)
        before = None
        onlooker = self.onlooker
        needed = onlooker is not None and onlooker.needs_image(len(chunk))
        if only_configs and not needed:
            images.add_later(chunk, batches)
        else:
            before = images.tip
            self._fold(batches)
            images.add(chunk, only_configs=only_configs)
        self.moves += 1
        self.other_moves += not only_configs
        last = batches[-1].header
        if not self._epochs or last.epoch != self._epochs[-1][1]:
            self._note_epochs(one.header for one in batches)
        self.last_batch = AppliedBatch(
            last.base_offset, last.epoch, batch.crc_at(chunk, last.position)
        )
        if onlooker is not None:
            onlooker.applied(before, chunk, images.applied, batches[-1].header.epoch)
        # A broker that keeps up has adopted the announced LAO.
        if self._received_lao != self._known_lao:
            self._adopt()
        if images.full:
            self._shrink()
        self._moved()

    def install(self, image: Image) -> bool:
        """Continue from a snapshot's image, which is committed; False, and nothing has changed, if
        it is not newer than the tip.

        The offsets in between cannot be shown any more: repeatable reads wait until LAO has reached
        it. The epoch that unfenced this broker, if it is unfenced there, is unknown; it is not
        above the image's.
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
        """Fold the batches of a chunk behind the tip."""
        builder = self._images.builder
        for header, configs, records in batches:
            if configs is None:
                builder.apply_decoded(header, records)
                self.changes.note(records)
                self._note_membership(header.epoch)
            else:
                builder.apply_configs(
                    configs,
                    base_offset=header.base_offset,
                    epoch=header.epoch,
                    timestamp_ms=header.timestamp_ms,
                )

    def _note_epochs(self, headers: Iterable[batch.BatchHeader]) -> None:
        for header in headers:
            if not self._epochs or header.epoch != self._epochs[-1][1]:
                self._epochs.append((header.base_offset, header.epoch))

    def _decode(self, chunk: bytes, high_watermark: int) -> list[Batch]:
        """Decode a whole chunk, and check all of it before any of it is folded."""
        following = self.applied + 1
        headers = list(batch.headers(chunk, verify=True, expect_offset=following))
        if not headers:
            raise CorruptLogError("an empty chunk", offset=following)
        if headers[-1].end_offset > high_watermark:
            message = (
                f"a chunk up to {headers[-1].end_offset} with a high watermark of {high_watermark}:"
                " not committed"
            )
            raise CorruptLogError(message, offset=following)
        batches = []
        for header in headers:
            # A numbered write changes more than its records.
            configs = None if header.client_id else codec.decoded(chunk, header)
            records = []
            if configs is None:
                records = [decoded(data) for data in batch.records(chunk, header)]
            batches.append(Batch(header, configs, records))
        return batches

    def _note_membership(self, epoch: int) -> None:
        """Note after each batch whether this broker is a LAO member: fenced and unfenced again
        within one chunk must not look like no change.
        """
        builder = self._images.builder
        mine = builder.brokers.get(self._broker_id)
        if mine is None or mine.fenced:
            self._unfenced_epoch = None
        elif self._unfenced_epoch is None:
            self._unfenced_epoch = epoch
        if heartbeats_in_force(builder.features) != self.heartbeats:
            self.heartbeats = not self.heartbeats
            self._heartbeats_from = builder.offset

    # --- storage ---------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Move the oldest image up to the LAO announced; it counts as known once applied here."""
        if self._received_lao == UNKNOWN:
            return
        if not self.lao_above_applied:
            self._known_lao, self._known_lao_epoch = self._received_lao, self._received_lao_epoch
        self._images.raise_oldest(self._received_lao)

    def _shrink(self) -> None:
        """Drop old images altogether if this broker is not counted, rather than stop reading before
        it has caught up: it need not be able to show every LAO to come.
        """
        images = self._images
        images.make_room()
        if images.full and self._unfenced_epoch is None:
            images.raise_oldest(images.applied)
