"""Replies that wait: for the commit of what they depend on, for a confirmed read-index round, for
LAO, for every member to know LAO.

Pure. Offsets, rounds and LAO only grow, and so do the waits in order of arrival: every queue is
released from its front.

Why: docs/decisions/003-read-index-rounds.md
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any

import msgspec

from controller.service.deadlines import SLACK, Deadlines
from raftlog.config_writes.messages import ConfigReplies
from raftlog.resource_limits import CONTROLLER_MAX_PARKED_REPLIES
from raftlog.shares import Shares
from raftlog.tracing import Served
from raftlog.wire.common.v1 import common_pb2

COMMITTED, ACKNOWLEDGED, VISIBLE = (
    common_pb2.ACKS_COMMITTED,
    common_pb2.ACKS_ACKNOWLEDGED,
    common_pb2.ACKS_VISIBLE,
)


class Parked(msgspec.Struct, eq=False):
    """One reply that is ready but for what it waits for."""

    link: Any
    response: Any
    offset: int
    """The last record it depends on (inclusive): the write's own, or the newest pending one when a
    read was decided.
    """
    round: int
    """The read-index round a reply without records waits for; 0 for a write."""
    acks: Any
    deadline: float
    done: bool = False
    charged: bool = False
    """To its connection's share."""
    count: int = 1
    """How many replies it is: more only for a group."""
    kind: str = ""
    """The name of the request's body,"""
    begun: float = 0.0
    """when it came, by the stopwatch,"""
    code: int = 0
    """and its error; 0: none."""
    trace: Served | None = None
    """Its span; None: it is not traced."""
    committed: bool = False
    """Of a traced write: it is committed, and waits for more."""

    @property
    def is_write(self) -> bool:
        """Whether records of its own are in the log."""
        return self.round == 0

    def end_trace(self, code: int = 0) -> None:
        """It is answered, or nobody waits any more: what it has waited for last ends, too."""
        if self.trace is None:
            return
        if not self.is_write:
            self.trace.reached("read-index round")
        elif self.committed:
            self.trace.reached("visible" if self.acks == VISIBLE else "acknowledged")
        else:
            self.trace.reached("commit")
        self.trace.end(code)
        self.trace = None

    def say_reached(self) -> None:
        """What was asked for is reached: say so in the response."""
        if type(self.response) is ConfigReplies:
            self.response.reached = self.acks
        else:
            self.response.write.reached = self.acks

    def each(self) -> Iterator[Parked]:
        """Its replies one by one."""
        if type(self.response) is not ConfigReplies:
            yield self
            return
        for response in self.response.responses():
            offset = response.write.token.offset
            yield Parked(
                self.link,
                response,
                offset,
                self.round,
                self.acks,
                self.deadline,
                kind=self.kind,
                begun=self.begun,
            )


class Parking:
    """All parked replies of one leadership."""

    def __init__(self, send: Callable[[Parked], None]) -> None:
        self._send = send
        self._writes: deque[Parked] = deque()
        self._reads: deque[Parked] = deque()
        self._acknowledged: deque[Parked] = deque()
        self._visible: deque[Parked] = deque()
        self._waiting_for: dict[int, deque[Parked]] = {
            ACKNOWLEDGED: self._acknowledged,
            VISIBLE: self._visible,
        }
        """The committed writes that asked for more."""
        self._duplicates: dict[common_pb2.Acks, list[tuple[int, int, Parked]]] = {
            COMMITTED: [],
            ACKNOWLEDGED: [],
            VISIBLE: [],
        }
        """Heaps by what was asked: (offset, a number, the reply)."""
        self._duplicate_count = 0
        """How many there ever were."""
        self._duplicates_waiting = 0
        self._deadlines: Deadlines[Parked] = Deadlines()
        self._dead = 0
        """Given up since the queues were last swept."""
        self._high_watermark = 0
        self._lowest_acknowledged_offset = self._min_known_lao = -1
        self._confirmed_round = 0
        self._shares = Shares(CONTROLLER_MAX_PARKED_REPLIES)

        self.take_place, self.give_back_place = self._shares.take, self._shares.give_back
        """By peer, before anything is decided for it: a connection that asks for much leaves as
        much for the others.
        """

    def has_room(self, link: Any) -> bool:
        """Whether another reply on this connection may wait."""
        return self._shares.has_room(link.peer)

    def __len__(self) -> int:
        return (
            len(self._writes)
            + len(self._reads)
            + len(self._acknowledged)
            + len(self._visible)
            + self._duplicates_waiting
        )

    def depths(self) -> dict[str, int]:
        """How many replies wait, by what for; a group of writes counts one."""
        return {
            "commit": len(self._writes),
            "read_index": len(self._reads),
            "acknowledged": len(self._acknowledged),
            "visible": len(self._visible),
            "duplicate": self._duplicates_waiting,
        }

    def park(self, parked: Parked) -> None:
        """Wait for its commit, and, without records, for its round."""
        if not parked.charged:
            self._charge(parked)
        (self._reads if parked.round else self._writes).append(parked)
        self._deadlines.add(parked)

    def park_duplicate(self, parked: Parked) -> None:
        """Wait for a record that is older than what waits: at once, if it has got as far as was
        asked.
        """
        if not parked.charged:
            self._charge(parked)
        asked: Any = parked.acks
        self._duplicate_count += 1
        heap = self._duplicates.get(asked, self._duplicates[VISIBLE])
        heapq.heappush(heap, (parked.offset, self._duplicate_count, parked))
        self._duplicates_waiting += 1
        self._deadlines.add(parked)
        self._release_duplicates()

    def committed(self, high_watermark: int) -> None:
        """The high watermark (exclusive) has advanced. Writes that asked for more wait on."""
        self._high_watermark = high_watermark
        writes, give_back = self._writes, self._shares.give_back
        while writes and writes[0].offset < high_watermark:
            parked = writes.popleft()
            if parked.done:
                continue
            if parked.acks == COMMITTED:
                parked.done = True
                if parked.charged:
                    parked.charged = False
                    give_back(parked.link.peer, parked.count)
                self._send(parked)
            else:
                if parked.trace is not None:
                    parked.trace.reached("commit")
                    parked.committed = True
                self._waiting_for[parked.acks].append(parked)
        if self._duplicates_waiting:
            self._release_duplicates()
        if self._reads:
            self.release_reads()

    def read_index_confirmed(self, number: int) -> None:
        """This node led after round ``number`` began."""
        self._confirmed_round = number
        self.release_reads()

    def is_confirmed(self, number: int) -> bool:
        """Whether this node led after round ``number`` began."""
        return number <= self._confirmed_round

    def release_reads(self) -> None:
        """Send the replies without records whose commit and round have come."""
        reads = self._reads
        while (
            reads
            and reads[0].round <= self._confirmed_round
            and reads[0].offset < self._high_watermark
        ):
            self._finish(reads.popleft())

    def visibility(self, lowest_acknowledged_offset: int, min_known_lao: int) -> None:
        """LAO, or what everybody has been told of it, has moved (both inclusive, -1 unknown)."""
        self._lowest_acknowledged_offset, self._min_known_lao = (
            lowest_acknowledged_offset,
            min_known_lao,
        )
        for queue, reached in (
            (self._acknowledged, lowest_acknowledged_offset),
            (self._visible, min_known_lao),
        ):
            while queue and queue[0].offset <= reached:
                parked = queue.popleft()
                if not parked.done:
                    parked.say_reached()
                    self._finish(parked)
        self._release_duplicates()

    def waits_for_known_lao(self, lao: int) -> bool:
        """Return whether a reply is covered by this LAO, and waits for every member to know it."""
        visible, duplicates = self._visible, self._duplicates[VISIBLE]
        return bool(
            (visible and visible[0].offset <= lao) or (duplicates and duplicates[0][0] <= lao)
        )

    def _release_duplicates(self) -> None:
        # Their offsets come in any order.
        if not self._duplicates_waiting:
            return
        for asked, heap in self._duplicates.items():
            if heap:
                reached = {
                    COMMITTED: self._high_watermark - 1,
                    ACKNOWLEDGED: self._lowest_acknowledged_offset,
                }
                self._release_heap(heap, asked, reached.get(asked, self._min_known_lao))

    def _release_heap(
        self, heap: list[tuple[int, int, Parked]], asked: common_pb2.Acks, reached: int
    ) -> None:
        while heap and heap[0][0] <= reached:
            parked = heapq.heappop(heap)[2]
            self._duplicates_waiting -= 1
            if not parked.done:
                parked.response.write.reached = asked
                self._finish(parked)

    def _finish(self, parked: Parked) -> None:
        if not parked.done:
            self._done(parked)
            self._send(parked)

    def expired(self, now: float) -> Iterator[tuple[Parked, bool]]:
        """Each reply whose deadline has passed, once, and whether its write is committed.

        The caller answers it.

        Whoever stops in between goes on with the next call.
        """
        for parked in self._deadlines.late(now, len(self)):
            self._done(parked)
            self._dead += 1
            yield parked, self._is_committed(parked)
        if self._dead and (self._dead > len(self) // 2 + SLACK or self._dead >= len(self)):
            # Some of these queues may not move for long.
            self._sweep()

    def abandon(self, links: Collection[Any]) -> None:
        """These links are gone: nobody waits for their replies any more. O(n)."""
        duplicates = (entry[2] for heap in self._duplicates.values() for entry in heap)
        for parked in chain(
            self._writes, self._reads, self._acknowledged, self._visible, duplicates
        ):
            if parked.link in links and not parked.done:
                self._done(parked)
                parked.end_trace()
        self._sweep()

    def _is_committed(self, parked: Parked) -> bool:
        return parked.is_write and parked.offset < self._high_watermark

    def _sweep(self) -> None:
        """Drop what was given up."""
        self._dead = 0
        for queue in (self._writes, self._reads, self._acknowledged, self._visible):
            left = [parked for parked in queue if not parked.done]
            queue.clear()
            queue.extend(left)
        for heap in self._duplicates.values():
            heap[:] = [entry for entry in heap if not entry[2].done]
            heapq.heapify(heap)
        self._duplicates_waiting = sum(len(heap) for heap in self._duplicates.values())

    def _charge(self, parked: Parked) -> None:
        if parked.link is not None:
            parked.charged = self._shares.take(parked.link.peer, parked.count)

    def _done(self, parked: Parked) -> None:
        parked.done = True
        if parked.charged:
            parked.charged = False
            self._shares.give_back(parked.link.peer, parked.count)

    def drain(self) -> Iterator[tuple[Parked, bool]]:
        """All that wait, and whether their write is committed: leadership is lost.

        Whoever stops in between goes on later.
        """
        for queue in (self._writes, self._reads, self._acknowledged, self._visible):
            while queue:
                parked = queue.popleft()
                if not parked.done:
                    self._done(parked)
                    yield parked, self._is_committed(parked)
        for heap in self._duplicates.values():
            while heap:
                parked = heapq.heappop(heap)[2]
                self._duplicates_waiting -= 1
                if not parked.done:
                    self._done(parked)
                    yield parked, self._is_committed(parked)
