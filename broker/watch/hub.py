"""The watchers of one broker, and the next response to each. Pure.

Watchers with the same selection, level and rights form a *group*: a change is evaluated once per
group, and all members get the same bytes. Each level (at LAO, or at the tip) has a *head*, the
position up to which its groups were sent the changes. A member at the head is *live*: a change
costs work only for the groups that it concerns (``SelectorIndex``), and none for other watchers.

Any other watcher catches up from the history, at its own position: a new one, one that reads too
slowly, or one that has seen more on another broker than this broker knows. Nothing is queued for
it, so a slow watcher uses no memory; when the changes that it needs have left the history, its
watch ends with an error.

``WatchHub.work`` does one bounded piece at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broker.watch.history import History, Kept
from broker.watch.responses import (
    Listed,
    ending,
    initial_field,
    listing,
    position_of,
    response,
    token,
)
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.changes import Position
from raftlog.metadata.image import Image
from raftlog.metadata.selectors import Selection
from raftlog.wire.broker.v1 import broker_pb2 as pb


class SelectorIndex:
    """Groups of watchers by their selectors.

    A look-up takes one step per distinct prefix length, and one per group found.
    """

    def __init__(self) -> None:
        # Dicts keep their order: nothing here may depend on hashes.
        self._exact: dict[str, dict[Group, None]] = {}
        self._prefixes: dict[str, dict[Group, None]] = {}
        self._lengths: dict[int, int] = {}
        """Length -> number of prefixes of that length."""

    def add(self, group: Group) -> None:
        """Index a group by the paths and prefixes of its selection."""
        selection = group.selection
        for path in selection.exact:
            self._exact.setdefault(path, {})[group] = None
        for prefix in selection.prefixes:
            groups = self._prefixes.get(prefix)
            if groups is None:
                groups = self._prefixes[prefix] = {}
                self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
            groups[group] = None

    def remove(self, group: Group) -> None:
        """Remove a group that was added before."""
        selection = group.selection
        for path in selection.exact:
            groups = self._exact[path]
            del groups[group]
            if not groups:
                del self._exact[path]
        for prefix in selection.prefixes:
            groups = self._prefixes[prefix]
            del groups[group]
            if groups:
                continue
            del self._prefixes[prefix]
            self._lengths[len(prefix)] -= 1
            if not self._lengths[len(prefix)]:
                del self._lengths[len(prefix)]

    def groups(self, path: str) -> dict[Group, None]:
        """Return the groups that select the entity at ``path``, each once."""
        found = dict(self._exact.get(path, _NONE))
        size = len(path)
        for length in self._lengths:
            if length <= size and (groups := self._prefixes.get(path[:length])):
                found.update(groups)
        return found


_NONE: dict[Group, None] = {}


LEAST_MS = 100
"""Shortest interval between two progress responses, in milliseconds."""
EARLY_S = 1.0
"""Shortest interval in seconds for a watcher whose last token is about to leave the history."""


class ProgressClock:
    """The times of the watchers' last responses.

    Intervals are rounded up to a power of two times LEAST_MS; watchers with the same interval share
    a queue, so that only its front is examined.
    """

    def __init__(self) -> None:
        self._queues: dict[int, dict[Watcher, float]] = {}
        """Time of each watcher's last response, by interval, oldest first."""
        self._interval_of: dict[Watcher, int] = {}
        self._last = (b"", b"")

    def add(self, watcher: Watcher, interval_ms: int, now: float) -> None:
        """Add a watcher that received a response now."""
        interval = LEAST_MS
        while interval < interval_ms:
            interval *= 2
        self._interval_of[watcher] = interval
        self._queues.setdefault(interval, {})[watcher] = now

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher."""
        interval = self._interval_of.pop(watcher)
        queue = self._queues[interval]
        del queue[watcher]
        if not queue:
            del self._queues[interval]

    def sent(self, watcher: Watcher, now: float) -> None:
        """Record a response to a watcher; one that is already removed is ignored."""
        interval = self._interval_of.get(watcher)
        if interval is not None:
            queue = self._queues[interval]
            del queue[watcher]
            queue[watcher] = now

    def due(self, now: float, stale_offset: int) -> Watcher | None:
        """Return a watcher that should get a response, or None if none is due.

        ``stale_offset``: a watcher that has received nothing above this offset is due sooner.
        """
        for interval, queue in self._queues.items():
            watcher, sent_at = next(iter(queue.items()))
            silent_s = now - sent_at
            if silent_s * 1000 >= interval:
                return watcher
            position = watcher.position
            if position is not None and position.offset < stale_offset and silent_s >= EARLY_S:
                return watcher
        return None

    def bytes_of(self, token: pb.WatchToken) -> bytes:
        """Return a response with only a token; many watchers get the same one."""
        key = token.SerializeToString()
        if self._last[0] != key:
            self._last = (key, response(token))
        return self._last[1]


STEP_CHANGES = 256
"""Maximum number of changes that one piece of work examines."""
STEP_SENDS = 64
"""Maximum number of watchers to which one piece of work sends a response."""
RESPONSE_BYTES = 256 << 10
"""Size in bytes at which a response is full: no further change is added."""

Handle = Any
"""The shell's identifier of a watcher."""


class Sending(NamedTuple):
    """A response for a watcher.

    ``ends``: this is the last response, and the watcher was removed.
    """

    handle: Handle
    data: bytes
    ends: bool = False


@dataclass(eq=False, slots=True)
class Group:
    """Watchers with the same selection.

    ``mode``: REPEATABLE or LATEST. ``asker``: the client whose rights apply, or None if all have
    the same rights.
    """

    mode: int
    selection: Selection
    asker: Any
    live: dict[Watcher, None] = field(default_factory=dict)
    members: int = 0


@dataclass(eq=False, slots=True)
class Watcher:
    """One watch of a client, and the position up to which it was sent the changes."""

    handle: Handle
    group: Group
    position: Position | None
    """Position up to which the watcher was sent the changes, or from which it will be sent them;
    None to begin at the next image.
    """
    listing: Iterator[Listed | None] | None = None
    listed: Image | None = None
    """The image of the initial list while that is being sent, else None."""
    initial: bool = False
    started: bool = False
    """Whether the watcher was sent its starting position."""
    fell_behind: bool = False
    """Whether the watcher has read too slowly to be live."""
    epoch: int = 0
    """Epoch of its last token."""


class _Delivery(NamedTuple):
    """A response for the live members of a group: the changes after ``after`` up to ``to``."""

    group: Group
    members: Iterator[Watcher]
    data: bytes
    changes: int
    after: Position
    to: Position
    epoch: int


class WatchHub:
    """All watches of one broker.

    ``image_of``: returns the newest image that a mode shows, or None if it is unknown now.
    ``permits``: returns whether an asker may see an entity, by its kind and key. ``has_room``:
    returns whether a handle can accept more data.
    """

    def __init__(
        self,
        *,
        history_max_bytes: int,
        generation: Callable[[], int],
        image_of: Callable[[int], Image | None],
        permits: Callable[[Any, str, str], bool],
        has_room: Callable[[Handle], bool],
    ) -> None:
        self.history = History(history_max_bytes)
        self._generation, self._image_of = generation, image_of
        self._permits, self._has_room = permits, has_room
        self._watchers: dict[Handle, Watcher] = {}
        self._groups: dict[tuple[int, Selection, Any], Group] = {}
        self._index: dict[int, SelectorIndex] = {
            pb.REPEATABLE: SelectorIndex(),
            pb.LATEST: SelectorIndex(),
        }
        self._heads: dict[int, Position] = {}
        self._head_epochs: dict[int, int] = {}
        self._live: dict[int, int] = {pb.REPEATABLE: 0, pb.LATEST: 0}
        self._deliveries: deque[_Delivery] = deque()
        self._behind: dict[Watcher, None] = {}
        self._blocked: dict[Watcher, None] = {}
        """Watchers that need nothing before the next change."""
        self._clock = ProgressClock()
        self._jobs = (self._deliver, self._advance, self._catch_up, self._progress)
        self._next_job = 0
        self.changes_sent = 0
        """Number of changes sent to watchers, counted for each watcher."""
        self.compacted = 0
        """Number of watches that ended because changes that they needed had left the history."""
        self.too_slow = 0
        """Number of those watches whose client had not read fast enough."""

    def __len__(self) -> int:
        return len(self._watchers)

    @property
    def live(self) -> int:
        """Number of watchers at the head."""
        return sum(self._live.values())

    # --- input -----------------------------------------------------------------------------------

    def needs_image(self, chunk_bytes: int) -> bool:
        """Return whether the image before the next chunk, of ``chunk_bytes``, is needed."""
        return bool(self._watchers) or self.history.needs_image(chunk_bytes)

    def applied(self, before: Image | None, chunk: bytes, last_offset: int, epoch: int) -> None:
        """Add the changes of a chunk that the broker has applied after an image."""
        self.history.add(before, chunk, last_offset, epoch, wanted=bool(self._watchers))

    def replaced(self, image: Image) -> None:
        """Continue from another image; the changes in between are unknown."""
        for delivery in self._deliveries:
            self._set_back(delivery.group, delivery.after)
        self._deliveries.clear()
        for group in self._groups.values():
            if group.live:
                self._set_back(group, self._heads[group.mode])
        self._heads.clear()
        self.history.clear(image)

    @property
    def is_idle(self) -> bool:
        """Whether ``moved`` would do nothing: there are no watchers, and there is nothing
        to drop.
        """
        history = self.history
        return not self._watchers and history.bytes <= history.max_bytes

    def moved(self, floor: int) -> None:
        """Wake the watchers, as an image that shows more may have become available.

        ``floor``: changes above it are still needed.
        """
        self.history.trim(floor)
        self._unblock()

    def watch(
        self,
        handle: Handle,
        selection: Selection,
        *,
        mode: int,
        asker: Any,
        since: pb.WatchToken | None,
        initial: bool,
        progress_ms: int,
        now: float,
    ) -> None:
        """Begin a watch; ``work`` sends it its starting position."""
        key = (mode, selection, asker)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(mode, selection, asker)
            self._index[mode].add(group)
        group.members += 1
        position = None if since is None else position_of(since)
        epoch = 0 if since is None else since.epoch
        watcher = Watcher(handle, group, position, initial=initial, epoch=epoch)
        self._watchers[handle] = watcher
        self._behind[watcher] = None
        self._clock.add(watcher, progress_ms, now)

    def forget(self, handle: Handle) -> None:
        """Remove a watcher. Idempotent."""
        watcher = self._watchers.pop(handle, None)
        if watcher is None:
            return
        self._behind.pop(watcher, None)
        self._blocked.pop(watcher, None)
        self._clock.remove(watcher)
        group = watcher.group
        if watcher in group.live:
            del group.live[watcher]
            self._live[group.mode] -= 1
        group.members -= 1
        if not group.members:
            self._index[group.mode].remove(group)
            del self._groups[group.mode, group.selection, group.asker]

    def end_all(self, error: ApiError, *, resumable: bool = True) -> list[Sending]:
        """End all watches, each with the last token, if any, from which it can continue elsewhere.

        ``resumable``: False if the log was replaced, so that no position in the previous log is
        valid. (Such a position would be sent with the new generation, every broker would accept it,
        and the client would get parts of both logs.)
        """
        self._deliveries.clear()
        return [
            self._end(watcher, error, resumable=resumable)
            for watcher in list(self._watchers.values())
        ]

    def end(self, handle: Handle, error: ApiError) -> list[Sending]:
        """End a watch with an error, unless it has ended."""
        watcher = self._watchers.get(handle)
        return [] if watcher is None else [self._end(watcher, error)]

    # --- output ----------------------------------------------------------------------------------

    def work(self, now: float) -> list[Sending] | None:
        """Do the next piece of work and return its responses, or None if there is no work."""
        for _ in self._jobs:
            job = self._jobs[self._next_job]
            self._next_job = (self._next_job + 1) % len(self._jobs)
            sendings = job(now)
            if sendings is not None:
                return sendings
        return None

    def _token(self, epoch: int, position: Position) -> pb.WatchToken:
        return token(self._generation(), epoch, position)

    # --- live watchers ---------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Sending] | None:
        """Evaluate the next changes for the groups of a mode."""
        if self._deliveries:
            return None
        for mode in self._heads:
            image = self._image_of(mode)
            if image is not None and Position(image.offset) > self._heads[mode]:
                self._advance_to(mode, image)
                return []
        return None

    def _advance_to(self, mode: int, image: Image) -> None:
        head, until = self._heads[mode], Position(image.offset)
        if not self._live[mode] or head < Position(self.history.start):
            # No watcher is up to date; or the history in between is lost, and those that were get
            # an error.
            if self._live[mode]:
                for group in self._groups.values():
                    if group.mode == mode:
                        self._set_back(group, head)
            self._heads[mode], self._head_epochs[mode] = until, image.epoch
            self._unblock()
            return
        batch = _Batch(head)
        to = until
        epoch = image.epoch
        for count, kept in enumerate(self.history.after(head, image.offset), 1):
            for group in self._index[mode].groups(kept.path):
                if group.live and self._may_see(group, kept):
                    batch.add(group, kept)
            if count >= STEP_CHANGES and kept.change.position < until:
                to, epoch = kept.change.position, kept.change.epoch
                break
        self._heads[mode], self._head_epochs[mode] = to, epoch
        for group, full, after in batch.full:
            last = full[-1].change
            self._put(group, full, after, last.position, last.epoch)
        for group, (after, rest) in batch.open.items():
            if rest:
                self._put(group, rest, after, to, epoch)
        self._unblock()

    def _put(
        self, group: Group, changes: list[Kept], after: Position, to: Position, epoch: int
    ) -> None:
        data = response(self._token(epoch, to), [one.field for one in changes])
        members = iter(list(group.live))
        self._deliveries.append(_Delivery(group, members, data, len(changes), after, to, epoch))

    def _may_see(self, group: Group, kept: Kept) -> bool:
        change = kept.change
        return group.asker is None or self._permits(group.asker, change.kind, change.key)

    def _deliver(self, now: float) -> list[Sending] | None:
        """Return responses for the live members of a group."""
        if not self._deliveries:
            return None
        delivery = self._deliveries[0]
        sendings: list[Sending] = []
        for watcher in delivery.members:
            position = watcher.position
            # A watcher that has reached the head since the evaluation has the changes already.
            if watcher not in delivery.group.live or (
                position is not None and position >= delivery.to
            ):
                continue
            if not self._has_room(watcher.handle):
                self._leave(watcher, delivery.after)
                continue
            watcher.position, watcher.epoch = delivery.to, delivery.epoch
            self._clock.sent(watcher, now)
            self.changes_sent += delivery.changes
            sendings.append(Sending(watcher.handle, delivery.data))
            if len(sendings) >= STEP_SENDS:
                return sendings
        self._deliveries.popleft()
        return sendings

    def _leave(self, watcher: Watcher, position: Position) -> None:
        """Let a live watcher catch up separately, from ``position``."""
        del watcher.group.live[watcher]
        self._live[watcher.group.mode] -= 1
        if watcher.position is None or watcher.position < position:
            watcher.position = position
        watcher.fell_behind = True
        self._blocked[watcher] = None

    def _set_back(self, group: Group, position: Position) -> None:
        for watcher in list(group.live):
            self._leave(watcher, position)
            watcher.fell_behind = False

    # --- watchers that catch up ------------------------------------------------------------------

    def _unblock(self) -> None:
        if self._blocked:
            self._behind.update(self._blocked)
            self._blocked = {}

    def _catch_up(self, now: float) -> list[Sending] | None:
        """Do the next step of the watcher that has waited longest."""
        if not self._behind:
            return None
        watcher = next(iter(self._behind))
        del self._behind[watcher]
        sendings = self._step(watcher)
        for _ in sendings:
            self._clock.sent(watcher, now)
        return sendings

    def _step(self, watcher: Watcher) -> list[Sending]:
        """Do one step for a watcher that was removed from those that are behind, and put it where
        it now belongs.
        """
        image, start = self._image_of(watcher.group.mode), self.history.start
        if image is None:
            self._blocked[watcher] = None
            return []
        known = watcher.position
        if watcher.listed is not None:
            known = Position(watcher.listed.offset)
        if known is not None and known < Position(start):
            return [self._end(watcher, self._compacted(watcher, known), self._oldest())]
        if not self._has_room(watcher.handle):
            self._blocked[watcher] = None
            return []
        if watcher.position is None:
            if watcher.initial:
                return self._list(watcher, image)
            watcher.position = Position(image.offset)
        if watcher.position.offset > image.offset:
            # The watcher has seen more elsewhere.
            self._blocked[watcher] = None
            return [] if watcher.started else [self._sending(watcher, [])]
        found, watcher.position, watcher.epoch = self._scan(watcher, watcher.position, image)
        self._settle(watcher, image)
        return [self._sending(watcher, found)] if found or not watcher.started else []

    def _sending(self, watcher: Watcher, changes: list[bytes]) -> Sending:
        """Return the response with the changes up to a watcher's position."""
        assert watcher.position is not None
        watcher.started = True
        self.changes_sent += len(changes)
        at = self._token(watcher.epoch, watcher.position)
        return Sending(watcher.handle, response(at, changes))

    def _scan(
        self, watcher: Watcher, position: Position, image: Image
    ) -> tuple[list[bytes], Position, int]:
        """Return the next changes for a watcher, the position that they reach, and the epoch
        there.
        """
        group = watcher.group
        found: list[bytes] = []
        size = 0
        for count, kept in enumerate(self.history.after(position, image.offset), 1):
            if group.selection.matches(kept.path) and self._may_see(group, kept):
                found.append(kept.field)
                size += len(kept.field)
            if count >= STEP_CHANGES or size >= RESPONSE_BYTES:
                return found, kept.change.position, kept.change.epoch
        return found, Position(image.offset), image.epoch

    def _settle(self, watcher: Watcher, image: Image) -> None:
        """Put a watcher where its position belongs: at the head it is live, else it catches up."""
        mode, position = watcher.group.mode, watcher.position
        assert position is not None
        if position < Position(image.offset):
            self._behind[watcher] = None
            return
        if not self._live[mode]:
            self._heads[mode], self._head_epochs[mode] = position, watcher.epoch
        if self._heads[mode] != position:
            # The head will move in the next piece of work, or has passed this position.
            target = self._behind if self._heads[mode] > position else self._blocked
            target[watcher] = None
            return
        watcher.group.live[watcher] = None
        watcher.fell_behind = False
        self._live[mode] += 1

    def _list(self, watcher: Watcher, image: Image) -> list[Sending]:
        """Return the next part of the initial list."""
        if watcher.listing is None:
            watcher.listed = image
            watcher.listing = listing(image, watcher.group.selection)
        listed, group = watcher.listed, watcher.group
        assert listed is not None
        fields: list[bytes] = []
        size = 0
        self._behind[watcher] = None
        for looked, entity in enumerate(watcher.listing, 1):
            if entity is not None and (
                group.asker is None or self._permits(group.asker, entity.kind, entity.key)
            ):
                fields.append(initial_field(*entity, listed))
                size += len(fields[-1])
            if entity is None or looked >= STEP_CHANGES or size >= RESPONSE_BYTES:
                self.changes_sent += len(fields)
                return [Sending(watcher.handle, response(None, fields))] if fields else []
        watcher.position, watcher.epoch = Position(listed.offset), listed.epoch
        watcher.listing = watcher.listed = None
        return [self._sending(watcher, fields)]

    # --- other responses -------------------------------------------------------------------------

    def _progress(self, now: float) -> list[Sending] | None:
        """Send a watcher that has received nothing for a while its position."""
        if self._deliveries:
            return None
        watcher = self._clock.due(now, self.history.middle)
        if watcher is None:
            return None
        self._clock.sent(watcher, now)
        mode = watcher.group.mode
        if watcher in watcher.group.live:
            watcher.position, watcher.epoch = self._heads[mode], self._head_epochs[mode]
        position = watcher.position
        if position is None or not watcher.started or not self._has_room(watcher.handle):
            return []
        at = self._token(watcher.epoch, position)
        return [Sending(watcher.handle, self._clock.bytes_of(at))]

    def _compacted(self, watcher: Watcher, position: Position) -> ApiError:
        message = (
            f"offset {position.offset} was compacted: this broker keeps only the changes after"
            f" offset {self.history.start}"
        )
        self.compacted += 1
        if watcher.fell_behind or watcher.listed is not None:
            self.too_slow += 1
            message += ", and this watcher did not read fast enough"
        return ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, message, field="since.offset")

    def _oldest(self) -> pb.WatchToken:
        """Return the oldest token from which a late watcher can continue."""
        return self._token(self.history.start_epoch, Position(self.history.start))

    def _end(
        self,
        watcher: Watcher,
        error: ApiError,
        oldest: pb.WatchToken | None = None,
        *,
        resumable: bool = True,
    ) -> Sending:
        """Remove a watcher; return its last response."""
        self.forget(watcher.handle)
        at = None
        if resumable and watcher.started and watcher.position is not None:
            at = self._token(watcher.epoch, watcher.position)
        return Sending(watcher.handle, ending(error, at, oldest), ends=True)


class _Batch:
    """The changes of one step for each group, split into responses."""

    def __init__(self, head: Position) -> None:
        self._head = head
        self.open: dict[Group, tuple[Position, list[Kept]]] = {}
        """The position after which a group's open response begins, and the response's changes."""
        self.full: list[tuple[Group, list[Kept], Position]] = []
        self._sizes: dict[Group, int] = {}

    def add(self, group: Group, kept: Kept) -> None:
        """Add a change for a group."""
        after, changes = self.open.setdefault(group, (self._head, []))
        changes.append(kept)
        size = self._sizes.get(group, 0) + len(kept.field)
        if size >= RESPONSE_BYTES:
            self.full.append((group, changes, after))
            self.open[group] = (kept.change.position, [])
            size = 0
        self._sizes[group] = size
