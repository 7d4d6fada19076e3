"""Request quotas per principal and per address: token buckets.

Without them, each connection of a client is limited to its share of each queue, but a client may
open many connections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from raftlog.errors import ApiError, ErrorCode
from raftlog.node.security.authorizer import Caller

REMEMBERED = 10_000
"""Maximum number of buckets of each kind; the least recently used are dropped. A dropped bucket
starts full again.
"""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class Rates:
    """The buckets of one kind, each with the tokens of one second."""

    def __init__(self, per_s: int) -> None:
        self.per_s = per_s
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, key: str, count: int, now: float) -> float:
        """Take ``count`` tokens and return 0, or take none and return the seconds until they are
        available.
        """
        if not self.per_s:
            return 0.0
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(float(self.per_s), now)
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
            refill = (now - bucket.filled_at) * self.per_s
            bucket.tokens = min(float(self.per_s), bucket.tokens + refill)
            bucket.filled_at = now
        if bucket.tokens >= count:
            bucket.tokens -= count
            return 0.0
        return (count - bucket.tokens) / self.per_s


class Quotas:
    """The quotas of one node; ``clock`` returns monotonic seconds."""

    def __init__(self, *, per_principal: int, per_address: int, clock: Callable[[], float]) -> None:
        """Set the limits, in requests per second; 0 for no limit."""
        self._principals, self._addresses = Rates(per_principal), Rates(per_address)
        self._clock = clock

    def check(self, caller: Caller) -> None:
        """Raise THROTTLING_QUOTA_EXCEEDED if a request exceeds a quota, with the time to wait."""
        now = self._clock()
        for rates, key, what in (
            (self._principals, caller.principal, "principal"),
            (self._addresses, caller.host, "address"),
        ):
            wait_s = rates.wait_s(key, 1, now)
            if wait_s:
                raise ApiError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"{key} makes more than {rates.per_s} requests a second, the limit for one"
                    f" {what}",
                    throttle_time_ms=max(1, round(wait_s * 1000)),
                )
