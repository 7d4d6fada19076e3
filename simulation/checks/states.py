"""States of nodes (I9, I10, I11).

I10: the same offset is the same state on every node. I11: a snapshot and the log after it equal the
fold from 0. I9: where one node's offsets may lie. The committed log is folded once; every image
must have that fold's hash at its offset, and sometimes and at the end its contents, entity by
entity and index by index [a field or index outside the hash is lost when a snapshot is loaded]. A
snapshot must name that hash; some are loaded at once, at the end all on disk with the log after
them.
"""

from collections.abc import Sequence
from typing import Any

from raftlog.errors import FatalError
from raftlog.metadata import snapshot
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image, Replicas
from raftlog.metadata.snapshot_file import SnapshotVerifier
from raftlog.metadata.sorted_keys import SortedKeys
from raftlog.node.storage.api import SnapshotId
from raftlog.quorum import events as ev
from raftlog.quorum.events import Effect, Event
from simulation.checks.api import (
    BrokerView,
    Checker,
    CheckFailedError,
    ControllerView,
    fail,
    present,
)
from simulation.checks.ledger import Ledger

_FIELDS = Image.__struct_fields__
_ABSENT = object()


def difference(found: Image, expected: Image) -> str:
    """Return the first difference between two images; empty if there is none. Missing and empty
    maps are equal.
    """
    for name in _FIELDS:
        mine, right = getattr(found, name), getattr(expected, name)
        if mine is right:
            continue
        if hasattr(right, "items"):
            if why := _in_map(_plain(mine), _plain(right)):
                return f"{name}{why}"
        elif mine != right and not (type(right) is SortedKeys and [*mine] == [*right]):
            return f"{name} is {mine!r}, not {right!r}"
    return ""


def _plain(held: Any) -> dict[Any, Any]:
    """Return a map as a dict, with its inner maps and sets as plain ones, without empty ones."""
    plain = {key: _inner(value) for key, value in held.items()}
    return {key: value for key, value in plain.items() if value not in ({}, frozenset())}


def _inner(value: Any) -> Any:
    if hasattr(value, "items"):
        return dict(value.items())
    return frozenset(value) if isinstance(value, Replicas) else value


def _in_map(mine: dict[Any, Any], right: dict[Any, Any]) -> str:
    if mine == right:
        return ""
    keys = [*right, *(key for key in mine if key not in right)]
    for key in keys:
        one, other = mine.get(key, _ABSENT), right.get(key, _ABSENT)
        if one is not other and one != other:
            return f"[{key!r}] is {_shown(one)}, not {_shown(other)}"
    return ""


def _shown(value: Any) -> str:
    return "missing" if value is _ABSENT else repr(value)[:300]


SNAPSHOT_BYTES = 1 << 20
SAMPLES = 4
"""Number of samples per comparison of one host's contents; each sample compares all hashes."""
LOADED = 4
"""Number of frozen or stored snapshots of which one is loaded."""


class States(Checker):
    """Checker of I9, I10 and I11."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._golden = ledger.golden
        self.compared = self.contents = 0
        """Numbers of compared hashes, and of compared contents, of images."""
        self.snapshots = self.loaded = self.folded = 0
        """Numbers of snapshots checked, loaded, and loaded with the log after them applied."""
        self._samples = 0

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        core = present(host.core)
        start, end, high_watermark = core.log_start_offset, core.log_end_offset, core.high_watermark
        if (
            not (start <= core.flushed_end_offset <= end and high_watermark <= end)
            or -1 < high_watermark < start
        ):
            fail(
                f"I9: {host.name} has its log start at {start}, high watermark {high_watermark},"
                f" durable end {core.flushed_end_offset}, end {end}"
            )
        kind = type(event)
        if kind is ev.SnapshotFrozen:
            self._check_snapshot(host, event.snapshot_id)  # type: ignore[union-attr]
        elif kind is ev.SnapshotStored:
            if not event.error:  # type: ignore[union-attr]
                self._check_snapshot(host, event.snapshot_id)  # type: ignore[union-attr]
        elif kind is ev.LogStartAdvanced and event.snapshot_id.end_offset > high_watermark:  # type: ignore[union-attr]
            fail(f"I9: {host.name} drops all up to {event}, its high watermark is {high_watermark}")

    def _check_snapshot(self, host: ControllerView, snapshot_id: SnapshotId) -> None:
        snapshots = present(host.service).replica.snapshots
        verifier, pieces, position = SnapshotVerifier(), [], 0
        try:
            while piece := snapshots.read(snapshot_id, position, SNAPSHOT_BYTES):
                verifier.feed(piece)
                pieces.append(piece)
                position += len(piece)
            header = verifier.finish()
        except (FatalError, LookupError) as error:
            raise CheckFailedError(
                f"I11: {snapshot_id} of {host.name} is not sound: {error}"
            ) from error
        self.snapshots += 1
        claimed = (header.epoch, verifier.state_hash)
        committed = self._golden.hashes.get(snapshot_id.end_offset - 1)
        named = SnapshotId(header.end_offset, header.epoch)
        if claimed != committed or named != snapshot_id:
            fail(
                f"I11: {snapshot_id} of {host.name} says end {header.end_offset} and (epoch, hash)"
                f" {claimed}; the committed log up to there gives {committed}"
            )
        self._golden.log_hashes.require(f"I11: {snapshot_id} of {host.name}", verifier.log_hash())
        voters = self._golden.voters_at(snapshot_id.end_offset) or ()
        if header.voters != voters:
            fail(f"I11: {snapshot_id} of {host.name} names voters {header.voters}, not {voters}")
        if self.snapshots % LOADED == 1:
            self._load(host.name, snapshot_id, pieces)

    def _load(self, who: str, snapshot_id: SnapshotId, pieces: list[bytes]) -> Image:
        """Load a snapshot, and require that its state is that of the log below its end."""
        self.loaded += 1
        try:
            _, image = snapshot.load(pieces)
        except FatalError as error:
            raise CheckFailedError(
                f"I11: {snapshot_id} of {who} cannot be loaded: {error}"
            ) from error
        if why := difference(image, self._golden.images[snapshot_id.end_offset - 1]):
            fail(f"I11: {snapshot_id} of {who} is not the fold from 0 up to there: {why}")
        return image

    def _fold_on(self, who: str, snapshot_id: SnapshotId, content: bytes) -> None:
        builder = ImageBuilder(self._load(who, snapshot_id, [content]))
        for logged in self._golden.behind(snapshot_id.end_offset):
            builder.apply_chunk(logged.data)
        self.folded += 1
        if why := difference(builder.snapshot(), self._golden.image()):
            fail(f"I11: {snapshot_id} of {who} and the log after it are not the fold from 0: {why}")

    def broker_moved(self, host: BrokerView) -> None:
        tip = present(host.service).image
        self._compare(host.name, tip.offset, tip.epoch, tip.state_hash)

    def sample(self) -> None:
        for host in self.world.controllers:
            service = host.service
            if service is None or host.core is None:
                continue
            # An image that nobody asked for is not made for this check.
            found = service.describe()
            if found.applied_offset >= max(host.core.high_watermark, 0):
                fail(f"I9: {host.name} has applied {found.applied_offset}, which is not committed")
            self._compare(host.name, found.applied_offset, found.applied_epoch, found.state_hash)
            if found.log_hash.end_offset != found.applied_offset + 1:
                fail(f"I10: {host.name} is at {found.applied_offset}, its hash is {found.log_hash}")
            self._golden.log_hashes.require(f"I10: {host.name}", found.log_hash)
        self._samples += 1
        if self._samples % SAMPLES == 0:
            hosts = self._hosts()
            self._compare_contents(hosts[self._samples // SAMPLES % len(hosts)])

    def end(self) -> None:
        for host in self._hosts():
            self._compare_contents(host)
        for controller in self.world.controllers:
            for snapshot_id, content in sorted(controller.disk.sound_snapshots().items()):
                self._fold_on(controller.name, snapshot_id, content)

    def _hosts(self) -> list[ControllerView | BrokerView]:
        return [*self.world.controllers, *self.world.brokers]

    def _compare_contents(self, host: ControllerView | BrokerView) -> None:
        service = host.service
        if service is None:
            return
        image = service.image
        expected = self._golden.images.get(image.offset)
        if expected is None:
            fail(f"I10: {host.name} shows offset {image.offset}, where no committed batch ends")
        self.contents += 1
        if why := difference(image, expected):
            fail(f"I10: the state of {host.name} at {image.offset} is not the fold from 0: {why}")

    def _compare(self, who: str, offset: int, epoch: int, state_hash: int) -> None:
        self.compared += 1
        committed = self._golden.hashes.get(offset)
        if committed is None:
            fail(f"I10: {who} shows offset {offset}, where no committed batch ends")
        if offset >= 0 and committed != (epoch, state_hash):
            fail(
                f"I10: the state of {who} at {offset} is {state_hash:032x} of epoch {epoch},"
                f" it must be {committed[1]:032x} of {committed[0]}"
            )
