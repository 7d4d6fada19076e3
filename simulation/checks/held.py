"""Leases, locks and double barriers (I31).

* A lease expires only if its TTL has passed since the last confirmed keep-alive was *sent*, with a
  margin for clock drift.
* All keys of a lease are deleted with it, and no key is put with an ended lease.
* No two clients rely on a lock at the same time, and its fencing tokens only grow.
* A value under a lock's guard is put only by the holder, even after a recovery of the log.
* No program keeps the lease of another program alive.
* The group of a double barrier is complete when it is formed, has no member of an earlier group,
  and only members start to work.
"""

from __future__ import annotations

from typing import Any

from raftlog.metadata.records import RecordType
from raftlog.recipes import AsyncLock
from simulation.checks.api import Checker, fail
from simulation.checks.ledger import Ledger
from simulation.twins.loop import host_context

EXPIRED = "expired"
MEETING, MEETING_SIZE = "meeting", 2
"""Name and group size of the double barrier."""
LOCK, GUARDED = "turn", "guarded"
"""The lock's name, and the key that it guards. The key's value names the client that put it, and
the generation and fencing token of its lock.
"""
_LOCK_PREFIX = f"locks/{LOCK}/"
_MEETING_PREFIX = f"double_barriers/{MEETING}/"
_ROUNDING_S = 0.002


class Held(Checker):
    """Checker of I31."""

    def __init__(self, ledger: Ledger) -> None:
        self._golden = ledger.golden
        self._listening = True
        """False while the records of a recovered log are replayed."""
        self._names: dict[int, str] = {}
        """Lease id -> name under which it was granted: of its client, or of a recipe."""
        self._locks: dict[str, tuple[str, int]] = {}
        """Key in the lock's queue -> its client, and the offset at which it was created."""
        self._until: dict[int, float] = {}
        """Lease id -> true time until which the client may rely on it."""
        self._keys: dict[int, set[str]] = {}
        """Lease id, unless the lease has ended -> its keys."""
        self._lease_of: dict[str, int] = {}
        self._holders: dict[str, AsyncLock] = {}
        self._used: dict[int, int] = {}
        """Generation in which the lock was used, in order -> the highest fencing token."""
        self._waiting: dict[str, int] = {}
        """Key of a client at the double barrier -> the offset at which it was created."""
        self._met: set[str] = set()
        self._last_met = -1
        self.met = 0
        self.confirmed = self.expired = self.revoked = self.taken = self.used = 0
        self.guarded = self.taken_after_recovery = 0
        ledger.golden.on(self._granted, RecordType.LEASE)
        ledger.golden.on(self._put, RecordType.KEY_VALUE)
        ledger.golden.on(self._ended, RecordType.REMOVE_LEASE)

    def begin_after(self, before: Held) -> None:
        """Start from the locks held before a recovery, to observe the recovered log first."""
        self._listening = False
        self._holders, self._used = before.taken_locks()

    def taken_locks(self) -> tuple[dict[str, AsyncLock], dict[int, int]]:
        """Return the last lock of each host, and the highest fencing token of each generation."""
        return self._holders, self._used

    def listen(self) -> None:
        """Treat committed records as new from here on: the recovered log is replayed."""
        self._listening = True

    def lease_confirmed(self, host: str, lease_id: int, sent_at: float, ttl_ms: int) -> None:
        self.confirmed += 1
        owner = self._names.get(lease_id, host)
        if owner != host:
            fail(f"I31: {host} keeps lease {lease_id} alive, which is {owner}'s")
        # The controller's clock may be fast.
        lasts_s = ttl_ms / 1000 / (1 + self.world.config.drift)
        self._until[lease_id] = max(self._until.get(lease_id, 0.0), sent_at + lasts_s)

    def _granted(self, message: Any, offset: int, epoch: int) -> None:
        self._keys[offset] = set()
        self._names[offset] = message.name

    def _put(self, message: Any, offset: int, epoch: int) -> None:
        if message.key.startswith(_MEETING_PREFIX):
            self._meeting(message, offset)
        elif message.key.startswith(_LOCK_PREFIX):
            if message.HasField("value"):
                self._locks[message.key] = message.value.decode(), offset
            else:
                self._locks.pop(message.key, None)
        elif message.key == GUARDED:
            self._guarded_put(message.value.decode(), offset)
        old = self._lease_of.pop(message.key, 0)
        if old:
            self._keys[old].discard(message.key)
        if not message.HasField("value") or not message.lease_id:
            return
        keys = self._keys.get(message.lease_id)
        if keys is None:
            fail(f"I31: {message.key} is put at {offset} with missing lease {message.lease_id}")
        keys.add(message.key)
        self._lease_of[message.key] = message.lease_id

    def _ended(self, message: Any, offset: int, epoch: int) -> None:
        left = self._keys.pop(message.lease_id)
        if left:
            fail(f"I31: lease {message.lease_id} ends at {offset}, and leaves keys {sorted(left)}")
        if message.reason != EXPIRED:
            self.revoked += 1
            return
        self.expired += 1
        until, now = self._until.get(message.lease_id, 0.0), self._golden.now()
        if now < until - _ROUNDING_S:
            early_s = f"{until - now:.3f} s before its time has passed"
            fail(f"I31: lease {message.lease_id} has expired at {offset}, {early_s}")

    def _meeting(self, message: Any, offset: int) -> None:
        if message.key != f"{_MEETING_PREFIX}formed":
            if message.HasField("value"):
                self._waiting.setdefault(message.key, offset)
            else:
                self._waiting.pop(message.key, None)
            return
        first, last = map(int, message.value.split())
        members = [key for key, made in self._waiting.items() if first <= made <= last]
        if len(members) != MEETING_SIZE or first <= self._last_met:
            fail(
                f"I31: a group of {MEETING_SIZE} is formed at {offset} of {members}, made from"
                f" {first} to {last}; the group before ends with {self._last_met}"
            )
        self.met += 1
        self._met.update(members)
        self._last_met = last

    def group_entered(self, host: str, key: str) -> None:
        if key not in self._met:
            fail(f"I31: {host} begins with {key}, which is of no group")

    def _guarded_put(self, says: str, offset: int) -> None:
        self.guarded += 1
        host, generation, token = says.split()
        first = min(self._locks.values(), key=lambda one: one[1], default=("nobody", -1))
        other = self._listening and int(generation) != self._golden.generation
        if other or (host, int(token)) != first:
            fail(
                f"I31: what the lock guards is put at {offset} by {host}, of token {token} in"
                f" generation {generation}; {first[0]} has it, with token {first[1]} in generation"
                f" {self._golden.generation}"
            )

    def lock_taken(self, host: str, lock: AsyncLock) -> None:
        self.taken += 1
        self.taken_after_recovery += len(self._golden.generations) > 1
        for other, held in self._holders.items():
            if held is not lock and host_context(other).run(lambda held=held: held.is_held):  # type: ignore[misc]
                fail(
                    f"I31: {host} has the lock (token {lock.token}), and {other} relies on it, too"
                    f" (token {held.token})"
                )
        self._holders[host] = lock

    def lock_used(self, host: str, lock: AsyncLock) -> None:
        self.used += 1
        is_over = lock.generation in list(self._used)[:-1]
        if is_over or lock.token < self._used.get(lock.generation, -1):
            fail(f"I31: {host} uses {lock.token} of {lock.generation}, after {self._used}")
        self._used[lock.generation] = lock.token
