"""The committed image of a node, kept by folding the log as the high watermark advances, in slices
that never block long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from raftlog.metadata import flat_map
from raftlog.metadata.entities import HASH_MASK
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import EMPTY, LogHash, extended
from raftlog.metadata.versions import Features
from raftlog.replica.replica import Replica

RECENT_HASHES = 256
SLICE_BYTES = 64 << 10
"""About a millisecond of folding: what it may take of the loop at a time, from fetches and
votes.
"""


class CommittedImage:
    """What is committed here, and nothing else: the image that reads, export and claims start from.

    ``applied`` is called with the bytes of the log that were folded.
    """

    def __init__(self, applied: Callable[[int], None]) -> None:
        self._applied = applied
        self._image = Image(configs=flat_map.empty())
        self._builder: ImageBuilder | None = None
        """What has folded beyond the image; None: nothing."""
        self.log_hash = EMPTY
        """Of the log up to ``offset``."""
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_HASHES)

    @property
    def offset(self) -> int:
        """Of the image; asking for this costs nothing."""
        return self._newest.offset

    @property
    def image(self) -> Image:
        """The image, made when somebody asks: between two of them the fold writes in place, and
        copies no nodes of its maps.
        """
        builder = self._builder
        if builder is not None and builder.offset != self._image.offset:
            self._image = builder.snapshot()
        return self._image

    @property
    def features(self) -> Features:
        """Of the image, without making it."""
        return self._newest.features

    @property
    def epoch(self) -> int:
        """Of the record at ``offset``."""
        return self._newest.epoch

    @property
    def state_hash(self) -> int:
        """Of the image, without making it."""
        return self._newest.state_hash & HASH_MASK

    def recent_state_hash(self, offset: int) -> int | None:
        """The state hash at an offset that was committed lately; None: it is not known."""
        return next((found for at, found in reversed(self._recent) if at == offset), None)

    @property
    def state_bytes(self) -> int:
        """Of the image, without making it."""
        return self._newest.state_bytes

    @property
    def _newest(self) -> Image | ImageBuilder:
        return self._image if self._builder is None else self._builder

    def replace(self, image: Image, log_hash: LogHash) -> None:
        """Take over an image: that of a snapshot, or one that a leader had folded when it proposed
        and that is committed now.

        ``log_hash``: of the log up to its offset.
        """
        # A leader does so with each commit, and folds nothing here.
        self._image, self._builder, self.log_hash = image, None, log_hash
        self._recent.append((image.offset, self.state_hash))

    def advance(self, replica: Replica, high_watermark: int) -> bool:
        """Fold one slice towards the high watermark. True when the image is there."""
        builder = self._builder
        if builder is None:
            builder = self._builder = ImageBuilder(self._image)
        offset = builder.offset + 1
        if offset < high_watermark:
            chunk = replica.read(offset, high_watermark, SLICE_BYTES)
            self._applied(len(chunk))
            builder.apply_chunk(chunk)
            self.log_hash = extended(self.log_hash, chunk)
            self._recent.append((builder.offset, self.state_hash))
        return builder.offset + 1 >= high_watermark
