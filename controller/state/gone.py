"""Brokers whose process seems to be gone, though their session lasts: fenced without waiting for
its end.

The evidence (``BrokerProbes``): the connection that carried its heartbeats broke, and its
listener, which has accepted a connection from here before, refuses them now, more than once. That
is what the kernel of a machine says whose process has ended. It is no proof: a proxy or a firewall
in front of a living broker may say it. So it makes nothing true that a session's end does not: the
broker is fenced, which is safe at any time but under a lease for strict reads, which is waited for;
its session goes on, so that no other process gets its id sooner; and a heartbeat takes it back.
Where it would be more than half of the brokers, what is wrong may be on this side: then sessions
decide.

Soft state of one controller epoch; ``now`` is a monotonic clock in seconds.

Why: docs/decisions/012-sessions-and-fencing.md
"""

from __future__ import annotations

import math

from controller.visibility.read_leases import ReadLeases
from raftlog.metadata.entities import Broker
from raftlog.metadata.image import Image


class Gone:
    """Who is thought to be gone, and is to be fenced for it."""

    def __init__(self, session_timeout_s: float) -> None:
        self._session_s = session_timeout_s
        self._gone: dict[int, int] = {}
        """Broker id -> broker epoch."""
        self._fenced_at: dict[int, float] = {}
        self.next_check = math.inf

    def found(self, broker_id: int, broker_epoch: int, now: float) -> None:
        """The evidence is there."""
        self._gone[broker_id] = broker_epoch
        self.next_check = now

    def heard(self, broker_id: int) -> None:
        """A heartbeat of the broker has come, which outweighs the evidence against its process.

        O(1).
        """
        if self._gone or self._fenced_at:
            self._gone.pop(broker_id, None)
            self._fenced_at.pop(broker_id, None)

    def fenced(self, broker_id: int, now: float) -> None:
        """It was fenced for this."""
        self._gone.pop(broker_id, None)
        self._fenced_at[broker_id] = now

    def due(self, image: Image, leases: ReadLeases, now: float) -> Broker | None:
        """One to fence now. O(brokers), and only while somebody is thought to be gone."""
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
            # Most of all: look again when there are others, or when sessions have ended.
            self.next_check = now + self._session_s / 8
            return None
        for broker_id in sorted(self._gone):
            if leases.ends_at(broker_id) <= now:
                self.next_check = now
                return image.brokers[broker_id]
            leases.stop(broker_id)
            self.next_check = min(self.next_check, leases.ends_at(broker_id))
        return None
