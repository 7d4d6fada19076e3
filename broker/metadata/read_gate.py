"""The gate for reads: which image answers a read, and how long the read may wait for it. Pure.

*repeatable*: the image at the known LAO. *latest*: the tip. With a token T: for *repeatable* the
oldest kept image at max(T, known LAO) or later, for *latest* the tip once it has reached T. A read
that cannot be answered yet is parked until the view moves or its deadline passes.

*strict*: the image at the known LAO, once that has reached T and everything that had been applied
here at some moment during the read at which this broker held its lease. While a broker holds a
lease it counts for LAO. So it has applied every LAO ever announced, and with it every write that
was answered ``acknowledged`` and every image that a strict read has shown, as each was at an LAO.
The image shown is also at an LAO, so the broker that serves any later strict read has applied it.
(Without the wait, A, which knows 10, could show 10, and then B, which knows 8, could show 8 to the
next reader.)

The lease (``controller.state.leases`` has the controller's side) runs from the *sending* of the
heartbeat that obtained it, by this broker's clock: the reply may be late, and describes the moment
when the heartbeat arrived. (Counted from the arrival of a reply delayed by more than the margin,
the lease would outlive the session.) A lease belongs to one broker epoch. A controller that is
elected later respects it without knowing of it, so it survives failovers. It is requested only
while there are strict readers; heartbeats are then at most a third of a lease apart.

Why: docs/decisions/011-read-leases.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from sortedcontainers import SortedDict

from broker.metadata.view import UNKNOWN, View
from raftlog.bounds import RETRY_AFTER_MS, Shares, bounded_timeout_ms
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.image import Image
from raftlog.wire.broker.v1 import broker_pb2

WANTED_FOR_S = 30.0
"""Time in seconds for which the lease is still renewed after the last strict read."""
RENEWALS_PER_LEASE = 3
RETRY_S = 0.25
"""Shortest interval in seconds between heartbeats sent for a waiting strict read."""


class ReadLease:
    """The lease that lets this broker answer strict reads.

    ``broker_epoch``: returns the broker epoch of its current registration, or -1 if none.
    """

    def __init__(self, broker_epoch: Callable[[], int], on_wanted: Callable[[], None]) -> None:
        """``on_wanted``: called when a read waits for a lease; a heartbeat should be sent at
        once.
        """
        self._broker_epoch = broker_epoch
        self._on_wanted = on_wanted
        self._last_reader_at = self._hastened_at = -math.inf
        self._ends_at = -math.inf
        self._of_epoch = -1
        self._renounced = False
        self._refusal = ""

    def reader(self, now: float) -> None:
        """See ``Lease``."""
        if self._renounced:
            raise ApiError(
                ErrorCode.NO_READ_LEASE, "this broker is shutting down", field="read.mode"
            )
        self._last_reader_at = now
        if not self.held(now) and now - self._hastened_at >= RETRY_S:
            self._hastened_at = now
            self._on_wanted()

    def wanted(self, now: float) -> bool:
        """Return whether heartbeats should request the lease."""
        return not self._renounced and now - self._last_reader_at < WANTED_FOR_S

    def held(self, now: float) -> bool:
        """See ``Lease``."""
        return (
            now < self._ends_at and self._of_epoch == self._broker_epoch() and not self._renounced
        )

    def answered(self, sent_at: float, lease_ms: int, refusal: str) -> None:
        """Process the controller's answer to a heartbeat that was sent at ``sent_at``.

        A ``lease_ms`` of 0 grants no lease, and revokes no earlier one.
        """
        self._refusal = refusal
        epoch = self._broker_epoch()
        if lease_ms <= 0 or epoch < 0 or self._renounced:
            return
        if epoch != self._of_epoch:
            self._of_epoch, self._ends_at = epoch, -math.inf
        self._ends_at = max(self._ends_at, sent_at + lease_ms / 1000)

    def refusal(self) -> str:
        """Return why the controller last refused the lease, or "" if it did not."""
        return self._refusal

    def next_heartbeat_s(self, now: float, lease_ms: int) -> float:
        """Return the time in seconds until the next heartbeat is due for the lease.

        ``lease_ms``: length of the lease just received.
        """
        if not self.wanted(now):
            return math.inf
        return lease_ms / 1000 / RENEWALS_PER_LEASE if lease_ms > 0 else RETRY_S

    def remaining_ms(self, now: float) -> int:
        """Return for how many ms the lease is still held; 0 if it is not held."""
        return max(0, int((self._ends_at - now) * 1000)) if self.held(now) else 0

    def renounce(self) -> None:
        """Give up the lease, as this process is stopping and may be fenced at any time."""
        self._renounced = True


R = TypeVar("R")
_FIRST = 0
_REPEATABLE, _LATEST, _STRICT = broker_pb2.REPEATABLE, broker_pb2.LATEST, broker_pb2.STRICT
_LEASELESS = -1
"""The queue of strict reads during which no lease has been held yet, so the offset that they need
is unknown.
"""


class Lease(Protocol):
    """This broker's read lease, as the gate uses it."""

    def reader(self, now: float) -> None:
        """Record that a strict read needs the lease.

        Raises NO_READ_LEASE if this broker is shutting down.
        """

    def held(self, now: float) -> bool:
        """Return whether this broker holds the lease."""

    def refusal(self) -> str:
        """Return why the lease was last refused, or ""."""


@dataclass(frozen=True, slots=True)
class _Parked(Generic[R]):
    request: R
    queue: int
    """A ReadMode, or _LEASELESS."""
    offset: int
    deadline: float
    reader: Hashable


class ReadGate(Generic[R]):
    """The parked reads, at most ``max_parked``.

    ``R``: the shell's own object for a read, returned with the answer. No reader has more parked
    reads than the others may still add. A timeout above ``max_timeout_ms`` is lowered to it.
    """

    def __init__(
        self,
        view: View,
        lease: Lease,
        *,
        max_parked: int,
        default_timeout_ms: int,
        max_timeout_ms: int = 2**31 - 1,
    ) -> None:
        self._view = view
        self._lease = lease
        self._max_parked = max_parked
        self._default_timeout_ms = default_timeout_ms
        self._max_timeout_ms = max_timeout_ms
        self._shares = Shares(max_parked)
        self._of_reader: dict[Hashable, dict[int, tuple[tuple[int, int], _Parked[R]]]] = {}
        """Parked reads by reader and number, each with its key in its queue."""
        self._ids = 0
        # By (offset needed, arrival): the reads that can be answered now are first.
        self._waiting: dict[int, SortedDict[tuple[int, int], _Parked[R]]] = {
            queue: SortedDict() for queue in (_REPEATABLE, _LATEST, _STRICT, _LEASELESS)
        }
        # (deadline, arrival) -> the key in the queue above.
        self.deadlines: SortedDict[tuple[float, int], tuple[tuple[int, int], _Parked[R]]] = (
            SortedDict()
        )

    def __len__(self) -> int:
        return len(self.deadlines)

    @property
    def next_deadline(self) -> float:
        """Time at which to call :meth:`expire`."""
        return self.deadlines.peekitem(_FIRST)[0][0] if self.deadlines else float("inf")

    def admit(
        self,
        request: R,
        options: broker_pb2.ReadOptions,
        now: float,
        *,
        why_fenced: str,
        reader: Hashable = None,
    ) -> Image | None:
        """Return the image that answers a new read, or None if the read is parked.

        Raises ApiError. ``reader``: the sender, for its share and for :meth:`abandon`; None for a
        read without a share. ``why_fenced``: nonempty if this broker is fenced, or must consider
        itself fenced, and so refuses new reads.
        """
        if why_fenced:
            raise ApiError(ErrorCode.BROKER_FENCED, f"this broker is fenced: {why_fenced}")
        timeout_ms = bounded_timeout_ms(
            options.timeout_ms,
            "read.timeout_ms",
            default_ms=self._default_timeout_ms,
            max_ms=self._max_timeout_ms,
        )
        queue, offset = self._wanted(options)
        if queue == _STRICT:
            self._lease.reader(now)
            if self._lease.held(now):
                offset = max(offset, self._view.applied)
            else:
                queue = _LEASELESS
        image = self._find(queue, offset)
        if image is None:
            self._park(_Parked(request, queue, offset, now + timeout_ms / 1000, reader))
        return image

    def release(self, now: float, limit: int = 2**31) -> list[tuple[R, Image]]:
        """Return parked reads that can be answered now, at most ``limit``.

        Call this whenever the view has moved, or a lease may have been granted.
        """
        if self._waiting[_LEASELESS] and self._lease.held(now):
            self._set_floor()
        released: list[tuple[R, Image]] = []
        for queue, waiting in self._waiting.items():
            while waiting and len(released) < limit:
                key, parked = waiting.peekitem(_FIRST)
                image = self._find(queue, parked.offset)
                if image is None:
                    break
                self._forget(key, parked)
                released.append((parked.request, image))
        return released

    def expire(self, now: float) -> list[tuple[R, ApiError]]:
        """Return the parked reads whose deadline has passed, each with its error."""
        expired: list[tuple[R, ApiError]] = []
        while self.deadlines and self.deadlines.peekitem(_FIRST)[0][0] <= now:
            expired.append(self._end_first(self._too_late))
        return expired

    def refuse_all(self, error: ApiError) -> list[tuple[R, ApiError]]:
        """Empty the gate, e.g. when the log's generation changes or the broker stops."""
        return [self._end_first(lambda _: error) for _ in range(len(self))]

    def abandon(self, reader: Hashable, unwanted: Callable[[R], bool]) -> None:
        """Drop a reader's unwanted reads, as their link has closed."""
        for key, parked in list(self._of_reader.get(reader, {}).values()):
            if unwanted(parked.request):
                self._forget(key, parked)

    def _set_floor(self) -> None:
        """Now that a lease is held, set the offset needed by strict reads that have none to the
        applied offset.
        """
        applied = self._view.applied
        for key, parked in list(self._waiting[_LEASELESS].items()):
            self._forget(key, parked)
            self._keep(replace(parked, queue=_STRICT, offset=max(parked.offset, applied)), key[1])

    def _wanted(self, options: broker_pb2.ReadOptions) -> tuple[int, int]:
        if options.mode not in (_REPEATABLE, _LATEST, _STRICT):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"mode is {options.mode}; it must be REPEATABLE (0), LATEST (1) or STRICT (2)",
                field="read.mode",
            )
        queue = int(options.mode)
        if not options.HasField("at_least"):
            return queue, UNKNOWN
        token = options.at_least
        self._view.check_position(token.generation, token.epoch, token.offset, "read.at_least")
        return queue, token.offset

    def _find(self, queue: int, offset: int) -> Image | None:
        view = self._view
        if queue == _LATEST:
            return view.tip if view.applied >= offset else None
        if queue == _LEASELESS:
            return None
        at_lao = view.repeatable
        if at_lao is None or offset <= at_lao.offset:
            return at_lao
        return None if queue == _STRICT else view.at_least(offset)

    def _park(self, parked: _Parked[R]) -> None:
        if len(self) >= self._max_parked:
            message = f"{self._max_parked} reads are waiting already"
            raise ApiError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, throttle_time_ms=RETRY_AFTER_MS
            )
        if parked.reader is not None and not self._shares.has_room(parked.reader):
            message = (
                f"{self._shares.held(parked.reader)} reads of this connection are waiting already"
            )
            raise ApiError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, throttle_time_ms=RETRY_AFTER_MS
            )
        self._ids += 1
        self._keep(parked, self._ids)

    def _keep(self, parked: _Parked[R], number: int) -> None:
        key = (parked.offset, number)
        self._waiting[parked.queue][key] = parked
        self.deadlines[parked.deadline, number] = (key, parked)
        if parked.reader is not None:
            self._shares.take(parked.reader)
            self._of_reader.setdefault(parked.reader, {})[number] = (key, parked)

    def _forget(self, key: tuple[int, int], parked: _Parked[R]) -> None:
        del self._waiting[parked.queue][key]
        del self.deadlines[parked.deadline, key[1]]
        if parked.reader is not None:
            self._shares.give_back(parked.reader)
            own = self._of_reader[parked.reader]
            del own[key[1]]
            if not own:
                del self._of_reader[parked.reader]

    def _end_first(self, why: Callable[[_Parked[R]], ApiError]) -> tuple[R, ApiError]:
        key, parked = self.deadlines.peekitem(_FIRST)[1]
        self._forget(key, parked)
        return parked.request, why(parked)

    def _too_late(self, parked: _Parked[R]) -> ApiError:
        if parked.queue == _LEASELESS:
            why = self._lease.refusal() or "no controller has granted one in time"
            return ApiError(
                ErrorCode.NO_READ_LEASE,
                f"this broker has no lease for strict reads: {why}",
                field="read.mode",
            )
        if parked.queue != _LATEST and self._view.repeatable is None:
            return ApiError(
                ErrorCode.LAO_UNKNOWN,
                "this broker does not know the lowest acknowledged offset; mode LATEST does not"
                " need it",
            )
        if parked.queue == _STRICT and parked.offset <= self._view.applied:
            message = (
                f"offset {parked.offset} was not acknowledged by all brokers in time; the lowest"
                f" acknowledged offset is {self._view.known_lao}"
            )
            return ApiError(ErrorCode.REQUEST_TIMED_OUT, message, field="read.mode")
        return ApiError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"offset {parked.offset} was not applied here in time; this broker is at"
            f" {self._view.applied}",
            field="read.at_least.offset",
        )
