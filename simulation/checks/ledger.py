"""The ledger: the log of each controller and the committed log, reconstructed from the effects of
the quorum's state machines. Checkers subscribe to effects, which the ledger applies first.

It checks log matching (I4), and that committed records never change (I6): high watermarks only rise
during a process, all cover the same log, and no node drops committed records.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raftlog.endpoint import Voter
from raftlog.quorum import events as ev
from raftlog.quorum.events import Effect, Event
from simulation.checks.api import Checker, ControllerView, World, fail, present
from simulation.checks.golden import GoldenLog
from simulation.checks.node_log import LogMatching, NodeLog

Subscriber = Callable[["Node", Any], None]
Directory = tuple[int, str]
"""Node id and directory id, which identify a copy of the log."""


def directory_of(host: Any) -> Directory:
    identity = host.disk.identity
    return identity.node_id, identity.directory_id


@dataclass(slots=True, eq=False)
class Node:
    """A controller process, and its log as the ledger reconstructs it."""

    host: ControllerView
    log: NodeLog
    configured: tuple[Voter, ...]
    directory_id: str
    base_voters: tuple[Voter, ...] | None = None
    high_watermark: int = -1
    leads: int = -1
    """The epoch in which the node leads; -1 if it does not."""

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The active set: the last appended one, else the snapshot's, else the configured one."""
        if self.log.voter_sets:
            return self.log.voter_sets[-1].voters or self.configured
        return self.base_voters or self.configured

    def may_be_voter(self, node_id: int) -> bool:
        """Return whether the node's newest committed voter set, or a later one, has a voter."""
        sets = self.log.voter_sets
        committed = sum(entry.offset < self.high_watermark for entry in sets)
        held = [entry.voters for entry in sets[max(0, committed - 1) :]]
        if not committed:
            held.append(self.base_voters or ())
        return any(voter.node_id == node_id for one in held for voter in one or self.configured)


class Ledger(Checker):
    """The ledger. It must be the first in the list of checkers."""

    def __init__(self) -> None:
        self.matching = LogMatching()
        self.golden = GoldenLog()
        self.nodes: dict[str, Node] = {}
        self.subscribers: dict[type, list[Subscriber]] = {}
        self.announced_lao = -1
        self._commits: list[tuple[int, int]] = []
        """Ascending pairs: an epoch, and the end of the log when its leader committed last."""
        self._books: dict[type, Callable[[Node, Any], None]] = {
            ev.Append: self._append,
            ev.Truncate: self._truncate,
            ev.HighWatermarkAdvanced: self._high_watermark,
            ev.BecameLeader: self._became_leader,
            ev.LostLeadership: self._lost_leadership,
            ev.LoadSnapshot: self._load_snapshot,
        }

    def committed_before(self, epoch: int) -> int:
        index = bisect_left(self._commits, (epoch, -1))
        return self._commits[index - 1][1] if index else 0

    def on(self, effect: type, subscriber: Subscriber) -> None:
        self.subscribers.setdefault(effect, []).append(subscriber)

    def credit(self, epoch: int) -> None:
        """Note that the leader of an epoch has committed everything up to the current end."""
        if self._commits and self._commits[-1][0] == epoch:
            self._commits.pop()
        self._commits.append((epoch, self.golden.end))

    def begin(self, world: World) -> None:
        self.world = world
        self.golden.now = world.now

    def controller_started(self, host: ControllerView) -> None:
        core, quorum = present(host.core), present(host.service).quorum
        start = core.log_start_offset
        below = self.golden.at(start)
        if below is None:
            fail(f"I9: the log of {host.name} begins at {start}, which is not committed")
        log = NodeLog(host.name, self.matching, start, *below)
        for base_offset, chunk in host.disk.live.scan(start):
            log.append(*self._from(start, base_offset, chunk))
        if log.end != core.log_end_offset:
            fail(f"{host.name} recovered up to {core.log_end_offset}, its disk ends at {log.end}")
        node = Node(
            host, log, tuple(quorum.voters), quorum.directory_id, self.golden.voters_at(start)
        )
        self.nodes[host.name] = node

    def _from(self, start: int, base_offset: int, chunk: bytes) -> tuple[int, bytes]:
        """Return a chunk from the log start on: disks keep the chunk that contains it whole."""
        if base_offset >= start:
            return base_offset, chunk
        first = next((h for h in self.matching.headers(chunk) if h.base_offset >= start), None)
        return (start, b"") if first is None else (first.base_offset, chunk[first.position :])

    def controller_stopped(self, host: ControllerView, reason: str) -> None:
        self.nodes.pop(host.name, None)

    def lao_announced(self, host: ControllerView, controller_epoch: int, lao: int) -> None:
        self.announced_lao = max(self.announced_lao, lao)

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        if not effects:
            return
        books, subscribers = self._books, self.subscribers
        for effect in effects:
            kind = type(effect)
            book = books.get(kind)
            told = subscribers.get(kind)
            if book is not None or told is not None:
                node = self.nodes[host.name]
                if book is not None:
                    book(node, effect)
                for subscriber in told or ():
                    subscriber(node, effect)

    def _append(self, node: Node, effect: ev.Append) -> None:
        span, log = effect.span, node.log
        log.append(span.base_offset, span.data)
        if log.end != span.end_offset:
            fail(f"{node.name} takes [{span.base_offset}, {span.end_offset}), ending at {log.end}")

    def _truncate(self, node: Node, effect: ev.Truncate) -> None:
        end = effect.end_offset
        if end < node.high_watermark:
            fail(f"I6: {node.name} truncates to {end}, below {node.high_watermark}")
        core = present(node.host.core)
        for dropped in node.log.truncate(end):
            committed = self.golden.at(dropped.end_offset)
            if committed is None or committed[1] != dropped.chain:
                continue
            # A leader of a later epoch may have committed more without this node, which truncates
            # for its own leader until it learns of that epoch.
            if dropped.end_offset <= self.committed_before(core.epoch + 1):
                fail(f"I6: {node.name} drops [{end}, {dropped.end_offset}), which is committed")

    def looked_at(self) -> dict[str, int]:
        return {"committed": self.golden.end}

    def _high_watermark(self, node: Node, effect: ev.HighWatermarkAdvanced) -> None:
        offset, golden = effect.offset, self.golden
        if offset <= node.high_watermark:
            fail(f"I6: {node.name}'s high watermark goes from {node.high_watermark} to {offset}")
        node.high_watermark = offset
        if offset > golden.end:
            if node.leads < 0:
                fail(f"I6: {node.name} takes {offset} for committed, beyond {golden.end}")
            self._same(node, golden.end)
            if node.log.at(offset) is None:
                fail(f"{node.name} commits {offset}, which is not the end of a batch of its log")
            for logged in node.log.between(golden.end, offset):
                golden.append(logged)
            self.credit(node.leads)
        else:
            self._same(node, offset)

    def _same(self, node: Node, offset: int) -> None:
        mine, committed = node.log.at(offset), self.golden.at(offset)
        if mine is None or mine != committed:
            fail(f"I6: {node.name} has (epoch, chain) {mine} below {offset}, not {committed}")

    def _became_leader(self, node: Node, effect: ev.BecameLeader) -> None:
        node.leads = effect.epoch

    def _lost_leadership(self, node: Node, effect: ev.LostLeadership) -> None:
        node.leads = -1

    def _load_snapshot(self, node: Node, effect: ev.LoadSnapshot) -> None:
        snapshot = effect.snapshot_id
        committed = self.golden.at(snapshot.end_offset)
        if committed is None or committed[0] != snapshot.epoch:
            fail(f"I9: {node.name} begins with {snapshot}; committed is {committed}")
        mine = node.log.at(snapshot.end_offset)
        if mine is None or mine != committed:
            # A fetched snapshot: now the log is empty, and begins at its end.
            node.log = NodeLog(node.name, self.matching, snapshot.end_offset, *committed)
            node.base_voters = self.golden.voters_at(snapshot.end_offset)
            _begins_at(node, snapshot.end_offset)


def _begins_at(node: Node, offset: int) -> None:
    parts = node.host.disk.state, present(node.host.service).replica, present(node.host.core)
    known = (parts[0].start_offset, parts[1].log_start_offset, parts[2].log_start_offset)
    if known != (offset, offset, offset):
        fail(f"I9: the log of {node.name} begins at {offset}; its parts say {known}")
