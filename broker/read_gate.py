"""Which image answers a read, and how long a read may wait for it. Pure.

*repeatable*: the image at the LAO told. *latest*: the tip. With a token T: for *repeatable* the oldest kept image at
max(T, told) or later, for *latest* the tip once it has reached T. A read that cannot be answered yet is parked until the view
moves or its deadline comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sortedcontainers import SortedDict

from broker.view import UNKNOWN, View
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.image import Image
from raftlog.wire.broker.v1 import broker_pb2

R = TypeVar("R")
_FIRST = 0


@dataclass(frozen=True, slots=True)
class _Parked(Generic[R]):
    request: R
    repeatable: bool
    offset: int
    deadline: float


class ReadGate(Generic[R]):
    """The reads that wait, at most ``max_parked``; ``R`` is whatever the shell wants back with the answer."""

    def __init__(self, view: View, *, max_parked: int, default_timeout_ms: int) -> None:
        self._view = view
        self._max_parked = max_parked
        self._default_timeout_ms = default_timeout_ms
        self._ids = 0
        # By (offset needed, arrival): those of a kind that can be answered now are at the front.
        self._waiting: dict[bool, SortedDict] = {True: SortedDict(), False: SortedDict()}
        # (deadline, arrival) -> the key in the above.
        self._deadlines: SortedDict = SortedDict()

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def next_deadline(self) -> float:
        """When to call :meth:`expire`."""
        return self._deadlines.peekitem(_FIRST)[0][0] if self._deadlines else float("inf")

    def admit(self, request: R, options: broker_pb2.ReadOptions, now: float, *, why_fenced: str) -> Image | None:
        """The image that answers a new read; None: it is parked. Raises ApiError.

        ``why_fenced``: not empty if this broker is fenced or has to take itself for it: then it takes nothing new.
        """
        if why_fenced:
            raise ApiError(ErrorCode.BROKER_FENCED, f"this broker is fenced: {why_fenced}")
        repeatable, offset = self._wanted(options)
        image = self._find(repeatable, offset)
        if image is None:
            timeout_ms = options.timeout_ms or self._default_timeout_ms
            self._park(_Parked(request, repeatable, offset, now + timeout_ms / 1000))
        return image

    def release(self) -> list[tuple[R, Image]]:
        """The parked reads that the view can answer now. Call it whenever the view has moved."""
        released: list[tuple[R, Image]] = []
        for repeatable, waiting in self._waiting.items():
            while waiting:
                key, parked = waiting.peekitem(_FIRST)
                image = self._find(repeatable, parked.offset)
                if image is None:
                    break
                self._forget(key, parked)
                released.append((parked.request, image))
        return released

    def expire(self, now: float) -> list[tuple[R, ApiError]]:
        """The parked reads whose deadline has come, and what to tell them."""
        expired: list[tuple[R, ApiError]] = []
        while self._deadlines and self._deadlines.peekitem(_FIRST)[0][0] <= now:
            expired.append(self._end_first(self._too_late))
        return expired

    def refuse_all(self, error: ApiError) -> list[tuple[R, ApiError]]:
        """Empty the gate, as when the log's generation changes or the broker ends."""
        return [self._end_first(lambda _: error) for _ in range(len(self))]

    def _wanted(self, options: broker_pb2.ReadOptions) -> tuple[bool, int]:
        if options.timeout_ms < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a timeout can't be negative", field="read.timeout_ms")
        if options.mode not in (broker_pb2.REPEATABLE, broker_pb2.LATEST):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown mode {options.mode}", field="read.mode")
        repeatable = options.mode == broker_pb2.REPEATABLE
        if not options.HasField("at_least"):
            return repeatable, UNKNOWN
        if options.at_least.generation != self._view.generation:
            message = (
                f"the token is of generation {options.at_least.generation} of the log, this broker has "
                f"{self._view.generation}: the log was restored, what was seen before may be gone"
            )
            raise ApiError(ErrorCode.INCONSISTENT_GENERATION, message, field="read.at_least.generation")
        return repeatable, options.at_least.offset

    def _find(self, repeatable: bool, offset: int) -> Image | None:
        view = self._view
        if not repeatable:
            return view.tip if view.applied >= offset else None
        at_lao = view.repeatable
        if at_lao is None or offset <= at_lao.offset:
            return at_lao
        return view.at_least(offset)

    def _park(self, parked: _Parked[R]) -> None:
        if len(self) >= self._max_parked:
            message = f"{self._max_parked} reads are waiting already"
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)
        self._ids += 1
        key = (parked.offset, self._ids)
        self._waiting[parked.repeatable][key] = parked
        self._deadlines[parked.deadline, self._ids] = (key, parked)

    def _forget(self, key: tuple[int, int], parked: _Parked[R]) -> None:
        del self._waiting[parked.repeatable][key]
        del self._deadlines[parked.deadline, key[1]]

    def _end_first(self, why: Callable[[_Parked[R]], ApiError]) -> tuple[R, ApiError]:
        key, parked = self._deadlines.peekitem(_FIRST)[1]
        self._forget(key, parked)
        return parked.request, why(parked)

    def _too_late(self, parked: _Parked[R]) -> ApiError:
        if parked.repeatable and self._view.repeatable is None:
            return ApiError(
                ErrorCode.LAO_UNKNOWN, "the lowest acknowledged offset is not known here; mode LATEST needs none"
            )
        return ApiError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"offset {parked.offset} is not applied here in time; this broker is at {self._view.applied}",
            field="read.at_least.offset",
        )
