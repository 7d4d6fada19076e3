"""The active controller's knowledge of which brokers are alive.

Soft state of one controller epoch; ``now`` is a monotonic clock in seconds.

Sessions: the brokers that have been in contact recently.

Gone processes: a broker whose process seems to have exited is fenced before its session expires.
The evidence (``BrokerProbes``): the connection that carried its heartbeats broke, and its listener,
which had accepted a connection from this node before, now refuses connections, more than once. The
kernel responds like this once a process has exited. That is no proof: a proxy or a firewall in
front of a live broker may respond in the same way. So the effect is no more than that of an expired
session: the broker is fenced, which is safe at any time except during a read lease, whose end is
awaited; its session continues, so that no other process gets its id sooner; and a heartbeat undoes
it. If more than half of the brokers seem gone, the fault may be on this side, and sessions decide.

Lag: brokers that heartbeat but do not apply the log, or whose disk hangs, are kept fenced for a
while. A broker is stuck if it has not applied the records committed ``lag_max_s`` ago. Offsets
alone do not show this (a thousand records are nothing after a burst but a lot on a quiet cluster),
hence a short queue of (time, committed offset) marks.

Absences: a broker id that is absent for long enough is *missing* (KIP-426).

Waits: the last answer to each broker without an id that has to wait, for operators.

Why: docs/decisions/012-sessions-and-fencing.md, docs/decisions/009-lao-membership.md,
docs/decisions/019-broker-ids.md
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from controller.state.leases import ReadLeases
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Broker
from raftlog.metadata.image import Image

LOOP_GAP_TOLERATED_S = 0.1
"""Longest pause of the controller's event loop, in seconds, for which sessions are not extended;
such pauses come from garbage collection or swapping.
"""


class _Session(NamedTuple):
    epoch: int
    last_contact: float
    key: float
    """Time of the last contact minus the extensions granted until then, in seconds. Sessions are
    ordered by it and expire by it.
    """


class SessionTracker:
    """Sessions of the registered brokers.

    O(1) per contact. Contact times never decrease.
    """

    def __init__(self, session_timeout_s: float) -> None:
        self.timeout_s: Final = session_timeout_s
        self._extended_s = 0.0
        self._sessions: dict[int, _Session] = {}
        """Broker id -> session, ascending by key: the newest contact is the last item."""

    def start(self, entries: Iterable[tuple[int, int]], now: float) -> None:
        """Start over with (broker id, broker epoch) of every unfenced broker, as if all were in
        contact now.

        A new controller does not know earlier contacts and leases; a whole session from now on
        covers them.
        """
        self._sessions.clear()
        for broker_id, epoch in sorted(entries):
            self.touch(broker_id, epoch, now)

    def touch(self, broker_id: int, epoch: int, now: float) -> None:
        """Record a contact with a broker.

        Begins a session if the broker has none. A contact under an older broker epoch changes
        nothing.
        """
        sessions, key = self._sessions, now - self._extended_s
        old = sessions.get(broker_id)
        if old is not None:
            if epoch < old.epoch:
                return
            if epoch == old.epoch and key <= old.key:
                sessions[broker_id] = old._replace(last_contact=max(now, old.last_contact))
                return
            del sessions[broker_id]
        sessions[broker_id] = _Session(epoch, now, key)

    def end(self, broker_id: int) -> None:
        """Drop a broker's session, if any: the broker is fenced, replaced or unregistered."""
        self._sessions.pop(broker_id, None)

    def is_alive(self, broker_id: int, now: float) -> bool:
        """Return whether a broker has an unexpired session."""
        session = self._sessions.get(broker_id)
        return session is not None and now < self._expiry(session.key)

    def last_contact(self, broker_id: int) -> float | None:
        """Return the time of the last contact in a broker's session, or None without a session."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.last_contact

    def next_expiry(self) -> tuple[float, int] | None:
        """Return (time, broker id) of the session that expires first, or None."""
        for broker_id, session in self._sessions.items():
            return self._expiry(session.key), broker_id
        return None

    def expired(self, now: float) -> int | None:
        """Return the broker whose session expired the longest ago, or None if none has expired.

        One at a time, so that each fencing sees the effect of the previous one.
        """
        first = self.next_expiry()
        return first[1] if first is not None and first[0] <= now else None

    def extend_all(self, gap_s: float, now: float) -> None:
        """Extend all sessions by ``gap_s``, the time for which the event loop has been blocked
        until now, if it exceeds LOOP_GAP_TOLERATED_S.

        Otherwise a controller that was paused would fence every broker whose heartbeats wait in its
        own queue. No session is extended beyond the end of one that begins now, as waiting
        heartbeats may have been processed before this call.
        """
        if gap_s <= LOOP_GAP_TOLERATED_S:
            return
        self._extended_s += gap_s
        newest = now - self._extended_s
        for broker_id, session in reversed(self._sessions.items()):
            if session.key <= newest:
                break
            self._sessions[broker_id] = session._replace(key=newest)

    def _expiry(self, key: float) -> float:
        return key + self._extended_s + self.timeout_s


class Gone:
    """The brokers to fence because their process seems to have exited."""

    def __init__(self, session_timeout_s: float) -> None:
        self._session_s = session_timeout_s
        self._gone: dict[int, int] = {}
        """Broker id -> broker epoch."""
        self._fenced_at: dict[int, float] = {}
        self.next_check = math.inf

    def found(self, broker_id: int, broker_epoch: int, now: float) -> None:
        """Record evidence that a broker's process has exited."""
        self._gone[broker_id] = broker_epoch
        self.next_check = now

    def heard(self, broker_id: int) -> None:
        """Drop the evidence against a broker's process: a heartbeat outweighs it.

        O(1).
        """
        if self._gone or self._fenced_at:
            self._gone.pop(broker_id, None)
            self._fenced_at.pop(broker_id, None)

    def fenced(self, broker_id: int, now: float) -> None:
        """Record that a broker was fenced because its process seems to have exited."""
        self._gone.pop(broker_id, None)
        self._fenced_at[broker_id] = now

    def due(self, image: Image, leases: ReadLeases, now: float) -> Broker | None:
        """Return a broker to fence now, or None.

        O(brokers), and only while there is evidence against a broker.
        """
        if now < self.next_check:
            return None
        self.next_check = math.inf
        self._fenced_at = {
            one: at for one, at in self._fenced_at.items() if now - at < self._session_s
        }
        for broker_id, epoch in sorted(self._gone.items()):
            broker = image.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch or broker.fenced:
                del self._gone[broker_id]
        if not self._gone:
            return None
        unfenced = sum(1 for broker in image.brokers.values() if not broker.fenced)
        out = len(self._gone.keys() | self._fenced_at.keys())
        if out * 2 > unfenced + len(self._fenced_at.keys() - self._gone.keys()):
            # Most brokers seem gone: check again with new evidence, or when sessions have ended.
            self.next_check = now + self._session_s / 8
            return None
        for broker_id in sorted(self._gone):
            if leases.ends_at(broker_id) <= now:
                self.next_check = now
                return image.brokers[broker_id]
            leases.stop(broker_id)
            self.next_check = min(self.next_check, leases.ends_at(broker_id))
        return None


_CHECKS_PER_LAG = 8


@dataclass(frozen=True, slots=True)
class _Probation:
    until: float
    length_s: float


class LagWatch:
    """Detects brokers that lag or whose disk hangs, and keeps them fenced for a probation.

    Soft state: a new controller starts without marks, reports and probations.
    """

    def __init__(
        self,
        *,
        lag_max_s: float,
        probation_s: float,
        probation_max_s: float,
        session_timeout_s: float,
        now: float,
    ) -> None:
        self._lag_max_s = lag_max_s
        self._session_timeout_s = session_timeout_s
        self._probation_s = probation_s
        self._probation_max_s = probation_max_s
        self._marks: deque[tuple[float, int]] = deque()
        self._probations: dict[int, _Probation] = {}
        self._joined_at: dict[int, float] = {}
        self._disk_hangs: dict[int, float] = {}
        """Broker id -> time of its last report that its disk hangs."""
        self._low_on_space: dict[int, float] = {}
        """Broker id -> time of its last report that its disk is below its reserve."""
        self.next_check = now

    def mark(self, now: float, committed_offset: int) -> None:
        """Record the committed offset (inclusive), and schedule the next check."""
        self._marks.append((now, committed_offset))
        while len(self._marks) > 1 and self._marks[1][0] <= now - self._lag_max_s:
            self._marks.popleft()
        self.next_check = now + self._lag_max_s / _CHECKS_PER_LAG

    def look_again(self, now: float, at: float) -> None:
        """Check again at ``at``, before which a stuck broker cannot be fenced, or at the scheduled
        time if that is earlier.
        """
        self.next_check = min(at, now + self._lag_max_s / _CHECKS_PER_LAG)

    def stuck(
        self, now: float, unfenced: Iterable[int], applied_of: Callable[[int], int]
    ) -> int | None:
        """Return the stuck broker with the lowest applied offset, or None if no broker or most
        brokers are stuck.

        If most brokers lag, the fault is elsewhere, and fencing them would end the service. Brokers
        on probation also count as lagging; otherwise all brokers would be fenced one by one.
        """
        old_enough = [offset for at, offset in self._marks if at <= now - self._lag_max_s]
        if not old_enough:
            return None
        target = old_enough[-1]
        brokers = sorted(unfenced)
        lagging = [
            (applied_of(broker_id), broker_id)
            for broker_id in brokers
            if applied_of(broker_id) < target
            and now - self._joined_at.get(broker_id, -math.inf) >= self._lag_max_s
        ]
        if not lagging or self._most(brokers, {one for _, one in lagging}, now):
            return None
        return min(lagging)[1]

    def disk_reported(self, broker_id: int, now: float, *, hangs: bool, low: bool) -> None:
        """Record the disk state that a broker's heartbeat reports."""
        for reported, is_so in ((self._disk_hangs, hangs), (self._low_on_space, low)):
            if is_so:
                reported[broker_id] = now
            else:
                reported.pop(broker_id, None)

    def _since(self, reported: dict[int, float], now: float) -> set[int]:
        """Return the brokers whose last such report is not older than a session timeout, as a dead
        broker does not report.
        """
        since = now - self._session_timeout_s
        return {broker_id for broker_id, at in reported.items() if at >= since}

    def _with_hung_disks(self, now: float) -> set[int]:
        return self._since(self._disk_hangs, now)

    def low_on_space(self, now: float) -> set[int]:
        """Return the brokers whose disk is below its reserve."""
        return self._since(self._low_on_space, now)

    def most_failing(self, unfenced: Iterable[int], now: float) -> bool:
        """Return whether most brokers have a hanging disk or are on probation; then none is fenced
        for its disk.
        """
        brokers = list(unfenced)
        return self._most(brokers, self._with_hung_disks(now).intersection(brokers), now)

    def _most(self, unfenced: Collection[int], failing: Collection[int], now: float) -> bool:
        """Return whether more than half of the brokers are failing, on probation or fenced with a
        hanging disk.
        """
        hung = self._with_hung_disks(now)
        out = sum(
            1
            for broker_id in self._probations.keys() | hung
            if broker_id not in unfenced
            and (broker_id in hung or self.on_probation(broker_id, now))
        )
        return (len(failing) + out) * 2 > len(unfenced) + out

    def fenced(self, broker_id: int, now: float) -> None:
        """Record that a broker was fenced for its lag or its disk.

        Its probation begins, twice as long as a recent previous one.
        """
        last = self._probations.get(broker_id)
        length_s = self._probation_s
        if last is not None and now - last.until < self._probation_max_s:
            length_s = min(last.length_s * 2, self._probation_max_s)
        self._probations[broker_id] = _Probation(now + length_s, length_s)

    def unfenced(self, broker_id: int, now: float) -> None:
        """Record that a broker was unfenced: it cannot be stuck before ``lag_max_s`` has passed."""
        self._joined_at[broker_id] = now

    def forget(self, broker_id: int) -> None:
        """Drop a broker that is unregistered or whose id belongs to another process now."""
        self._probations.pop(broker_id, None)
        self._joined_at.pop(broker_id, None)
        self._disk_hangs.pop(broker_id, None)
        self._low_on_space.pop(broker_id, None)

    def on_probation(self, broker_id: int, now: float) -> bool:
        """Return whether a broker must stay fenced for now."""
        probation = self._probations.get(broker_id)
        return probation is not None and now < probation.until


CHECKS_PER_PERIOD = 20
"""Number of checks within the time after which an id is missing.

An absence is underestimated, which is safe, by at most one interval between checks.
"""
CHECK_MAX_S = 10.0


class Absent(NamedTuple):
    """An absent broker id that holds replicas.

    ``missing_in_s``: seconds until the id is missing and may be assigned to another broker; 0 if it
    is missing.
    """

    broker_id: int
    absent_for_s: float
    replica_count: int
    missing_in_s: float

    @property
    def missing(self) -> bool:
        """Whether the id may be assigned to another broker."""
        return self.missing_in_s <= 0


class AbsentIds:
    """When the absence of each absent broker began, as far as this controller has observed it."""

    def __init__(self, adopt_after_s: float, session_timeout_s: float, now: float) -> None:
        self._adopt_after_s = adopt_after_s
        self._first_session_ends = now + session_timeout_s
        self._since: dict[int, float] = {}
        self.next_check = now

    def first_session(self, now: float) -> bool:
        """Return whether this controller's first session timeout has not passed: live brokers may
        not have reached it yet.
        """
        return now < self._first_session_ends

    def counts_as_absent(self, broker_id: int) -> bool:
        """Return whether a broker counts as absent.

        O(1).
        """
        return broker_id in self._since

    def present(self, broker_id: int) -> None:
        """Record that a broker is in contact or has registered, which ends its absence.

        O(1).
        """
        self._since.pop(broker_id, None)

    def extend_all(self, gap_s: float) -> None:
        """Exclude the last ``gap_s``, in which the controller itself was paused and could not hear
        any broker.
        """
        self._first_session_ends += gap_s
        for broker_id in self._since:
            self._since[broker_id] += gap_s

    def update(self, image: Image, is_alive: Callable[[int, float], bool], now: float) -> None:
        """Record which brokers are absent: unregistered or fenced, and without a session.

        O(brokers).
        """
        self.next_check = now + min(CHECK_MAX_S, self._adopt_after_s / CHECKS_PER_PERIOD)
        self._since = {
            broker_id: self._begun(broker_id, now)
            for broker_id in sorted({*image.brokers, *image.replicas_of})
            if _is_absent(image, broker_id, is_alive, now)
        }

    def absent(
        self, image: Image, is_alive: Callable[[int, float], bool], now: float
    ) -> list[Absent]:
        """Return the absent brokers that hold replicas, sorted by id, including those that
        ``update`` has not recorded yet.

        Changes nothing. O(brokers).
        """
        found = []
        for broker_id in sorted(image.replicas_of):
            count = len(image.replicas_of.get(broker_id) or ())
            if count and _is_absent(image, broker_id, is_alive, now):
                absent_for_s = now - self._begun(broker_id, now)
                missing_in_s = max(0.0, self._adopt_after_s - absent_for_s)
                found.append(Absent(broker_id, max(0.0, absent_for_s), count, missing_in_s))
        return found

    def _begun(self, broker_id: int, now: float) -> float:
        """Return when an absence begins to count: at the end of this controller's first session
        timeout, or later.
        """
        return self._since.get(broker_id, max(now, self._first_session_ends))


def _is_absent(
    image: Image, broker_id: int, is_alive: Callable[[int, float], bool], now: float
) -> bool:
    """Return whether a broker is unregistered or fenced, and has no session.

    A fenced broker that still sends heartbeats is not absent.
    """
    broker = image.brokers.get(broker_id)
    return (broker is None or broker.fenced) and not is_alive(broker_id, now)


FORGOTTEN_AFTER_S = 10.0
"""Time in seconds after its last request until a waiting broker is dropped; a waiting broker asks
every second.
"""
MAX_WAITS = 100
"""Maximum number of waiting brokers that are listed; others are answered, but not listed."""


class AwaitedIdError(ApiError):
    """A broker without an id must wait for another broker's return or absence, and ask again."""

    def __init__(self, broker_id: int, remaining_s: float, message: str) -> None:
        super().__init__(ErrorCode.BROKER_NOT_AVAILABLE, message, field="broker_id")
        self.broker_id = broker_id
        self.remaining_ms = max(0, round(remaining_s * 1000))
        self.place = ""
        self.is_news = False
        """Whether this answer differs from the previous one to the same broker; it is then
        logged.
        """


class IdWait(NamedTuple):
    """A broker, at the address ``place`` (host:port), that waits for an id."""

    place: str
    since: float
    asked_at: float
    broker_id: int
    until: float


class IdWaits:
    """The latest answer to each broker that waits for an id, by its address."""

    def __init__(self) -> None:
        self._waits: dict[str, IdWait] = {}

    def record(self, place: str, error: AwaitedIdError, now: float) -> None:
        """Record that a broker has to wait."""
        self._forget(now)
        old = self._waits.get(place)
        error.place = place
        if old is not None or len(self._waits) < MAX_WAITS:
            error.is_news = old is None or old.broker_id != error.broker_id
            since = now if old is None else old.since
            self._waits[place] = IdWait(
                place, since, now, error.broker_id, now + error.remaining_ms / 1000
            )

    def remove(self, place: str) -> None:
        """Drop a broker that has received an id."""
        self._waits.pop(place, None)

    def listed(self, now: float) -> list[IdWait]:
        """Return the brokers that asked recently, by address."""
        self._forget(now)
        return [self._waits[place] for place in sorted(self._waits)]

    def _forget(self, now: float) -> None:
        for place in [
            place for place, one in self._waits.items() if now - one.asked_at > FORGOTTEN_AFTER_S
        ]:
            del self._waits[place]
