"""Strict reads (I22) are linearizable with writes that were answered as ``acknowledged`` or
``visible``.

* A strict read shows every such write that was answered before the read began, and everything that
  an earlier strict read showed, at any broker and without a token.
* It shows nothing above the highest announced LAO.
* The history of each key, with all writes and strict reads, is linearizable. A write answered with
  a lower level may take effect at any later time.

The rules hold whether or not the broker was unfenced or held a lease.
"""

import math
from bisect import bisect_left

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from simulation.checks.api import Checker, Operation, fail
from simulation.checks.ledger import Ledger
from simulation.checks.linearizability import Entry, by_key, check_register

READ_KINDS = ("read_config", "read_topics")


class StrictReads(Checker):
    """Checker of I22."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._golden = ledger, ledger.golden
        self._floor = Floors()
        self._registers: list[Operation] = []
        self.reads = 0
        self.held_to = 0

    def client_invoked(self, operation: Operation) -> None:
        if operation.kind == "write_config" or (
            operation.kind == "read_config" and _is_strict(operation)
        ):
            self._registers.append(operation)

    def client_returned(self, operation: Operation) -> None:
        if operation.outcome != "ok" or operation.offset < 0:
            return
        if operation.kind not in READ_KINDS:
            if operation.reached >= common_pb2.ACKS_ACKNOWLEDGED:
                self._floor.raise_to(operation.offset, operation.returned_at)
        elif _is_strict(operation):
            self._check(operation)
            self._floor.raise_to(operation.offset, operation.returned_at)

    def end(self) -> None:
        for key, operations in by_key(self._registers).items():
            history = [
                entry for operation in operations if (entry := _entry(operation)) is not None
            ]
            if not check_register(history):
                fail(f"I22: config {key}: no order of its writes explains strict reads: {history}")

    def _check(self, operation: Operation) -> None:
        self.reads += 1
        floor = self._floor.at(operation.invoked_at)
        self.held_to += floor >= 0
        name = f"{operation.client}'s strict {operation.kind} {operation.key}"
        if operation.offset < floor:
            fail(f"I22: {name} shows {operation.offset}; {floor} was acknowledged or shown before")
        if operation.offset not in self._golden.hashes:
            fail(f"I22: {name} shows {operation.offset}, not the end of a committed batch")
        if operation.offset > (lao := self._ledger.announced_lao):
            fail(f"I22: {name} shows {operation.offset}; LAO was announced up to {lao}")


def _is_strict(operation: Operation) -> bool:
    return operation.mode == broker_pb2.STRICT


def _entry(operation: Operation) -> Entry | None:
    """Return the operation as a call on a register; None if it has had no effect."""
    if operation.kind == "read_config":
        if operation.outcome != "ok":
            return None
        return Entry(operation.invoked_at, operation.returned_at, ("read",), operation.found)
    if operation.outcome == "failed":
        return None
    seen_by_all = operation.outcome == "ok" and operation.reached >= common_pb2.ACKS_ACKNOWLEDGED
    return Entry(
        operation.invoked_at,
        operation.returned_at if seen_by_all else math.inf,
        ("write", operation.value),
    )


class Floors:
    """The offset that reads must show at least, by the time when the read begins."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._offsets: list[int] = []

    def raise_to(self, offset: int, at: float) -> None:
        if not self._offsets or offset > self._offsets[-1]:
            self._times.append(at)
            self._offsets.append(offset)

    def at(self, time: float) -> int:
        # Not what was raised at the same moment: neither was before the other.
        index = bisect_left(self._times, time)
        return self._offsets[index - 1] if index else -1
