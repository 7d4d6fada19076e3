"""The cost of the quorum's state machine alone: microseconds per step, by role and event, for three
cores in one process.

No bytes, no disk, no network: effects are carried out and flushes complete immediately, so only the
cost of deciding remains.

    .venv/bin/python -m benchmarks.core_steps [--writes N] [--json]
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.stats import percentile
from raftlog.endpoint import Voter
from raftlog.node.storage.api import RecoveredLog, VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumCore

VOTERS = tuple(Voter(i, f"c{i}:1", f"d{i}") for i in (1, 2, 3))


@dataclass(slots=True)
class Asker:
    """The receiver of a reply."""

    node_id: int
    correlation_id: int


class Cores:
    """Three cores, and the queue between them."""

    def __init__(self) -> None:
        self.now = 0.0
        empty = RecoveredLog(VoteState(), 0, 0, ())
        self.cores = {
            v.node_id: QuorumCore(
                QuorumConfig("c", v.node_id, v.directory_id, VOTERS),
                empty,
                random.Random(v.node_id),
                self.now,
            )
            for v in VOTERS
        }
        self.queue: deque[tuple[int, ev.Event]] = deque()
        self.taken: dict[tuple[str, str], list[float]] = defaultdict(list)

    def step(self, node_id: int, event: ev.Event) -> None:
        """Run and time one step; its effects become events for the others."""
        core = self.cores[node_id]
        role, kind = core.role, _kind(event)
        begun = time.perf_counter()
        effects = core.step(event, self.now)
        self.taken[role, kind].append(time.perf_counter() - begun)
        for effect in effects:
            self._carry_out(node_id, effect)

    def run(self) -> None:
        """Step the cores until no event is left."""
        while self.queue:
            self.step(*self.queue.popleft())

    def _carry_out(self, me: int, effect: ev.Effect) -> None:
        if isinstance(effect, ev.PersistVote):
            self.queue.append((me, ev.VotePersisted(effect.vote)))
        elif isinstance(effect, ev.Send | ev.SendFetch):
            self.queue.append(
                (
                    effect.peer_id,
                    ev.RequestReceived(effect.request, Asker(me, effect.correlation_id)),
                )
            )
        elif isinstance(effect, ev.Reply):
            to: Asker = effect.reply_to
            self.queue.append(
                (to.node_id, ev.ResponseReceived(me, to.correlation_id, effect.response))
            )
        elif isinstance(effect, ev.ReplyFetch):
            self._reply_fetch(me, effect)
        elif isinstance(effect, ev.Flush):
            self.queue.append((me, ev.Flushed(self.cores[me].log_end_offset)))
        elif isinstance(effect, ev.BecameLeader):
            self.propose(me)

    def _reply_fetch(self, me: int, effect: ev.ReplyFetch) -> None:
        to: Asker = effect.reply_to
        end, epoch = self.cores[me].log_end_offset, self.cores[me].epoch
        has_data = effect.max_bytes > 0 and effect.offset < end
        span = (
            ev.LogSpan(effect.offset, end, ((epoch, effect.offset),), b"", 0) if has_data else None
        )
        self.queue.append(
            (to.node_id, ev.ResponseReceived(me, to.correlation_id, effect.response, span))
        )

    def propose(self, leader: int) -> None:
        """Propose one record in the leader's epoch at its log end."""
        core = self.cores[leader]
        base, epoch = core.log_end_offset, core.epoch
        span = ev.LogSpan(base, base + 1, ((epoch, base),), b"", 0)
        self.queue.append((leader, ev.Proposed(epoch, span)))

    def elect(self) -> int:
        """Connect all cores and elect a leader; return its id."""
        for me in self.cores:
            for peer in self.cores:
                if peer != me:
                    self.step(me, ev.PeerConnected(peer))
        for _ in range(1000):
            self.run()
            leaders = [me for me, core in self.cores.items() if core.role == "leader"]
            if leaders:
                return leaders[0]
            self.now = min(core.next_deadline() for core in self.cores.values())
            for me in self.cores:
                self.step(me, ev.Tick())
        raise RuntimeError("no leader was elected")


def _kind(event: ev.Event) -> str:
    if isinstance(event, ev.RequestReceived):
        return type(event.request).__name__
    if isinstance(event, ev.ResponseReceived):
        return type(event.response).__name__
    return type(event).__name__


def measure(writes: int) -> dict[str, Any]:
    """Make ``writes`` writes one after the other, with a confirmed read-index round after every
    hundredth one.
    """
    cores = Cores()
    leader = cores.elect()
    cores.taken.clear()
    begun = time.perf_counter()
    for number in range(writes):
        cores.now += 0.001
        cores.propose(leader)
        cores.run()
        if number % 100 == 0:
            cores.step(leader, ev.ReadIndexRequested())
            cores.run()
    elapsed = time.perf_counter() - begun
    if cores.cores[leader].high_watermark < writes:
        raise RuntimeError(
            f"only {cores.cores[leader].high_watermark} of {writes} writes were committed"
        )
    steps = {
        f"{role} {kind}": {
            "count": len(taken),
            "p50_us": round(percentile(taken, 0.5) * 1e6, 2),
            "p99_us": round(percentile(taken, 0.99) * 1e6, 2),
            "us_a_write": round(sum(taken) / writes * 1e6, 2),
        }
        for (role, kind), taken in sorted(cores.taken.items())
    }
    return {"writes": writes, "us_a_write": round(elapsed / writes * 1e6, 2), "steps": steps}


def main(
    writes: Annotated[int, typer.Option(min=100, max=1_000_000)] = 20_000,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """Measure the cost of each kind of step."""
    result = measure(writes)
    if as_json:
        print(json.dumps(result, indent=1))
        return
    table = Table(
        title=f"{writes} writes on three cores: {result['us_a_write']} us each, handing on included"
    )
    for column in ("role and event", "count", "p50 us", "p99 us", "us a write"):
        table.add_column(column, justify="left" if column.startswith("role") else "right")
    for name, cost in result["steps"].items():
        table.add_row(
            name, *(str(cost[key]) for key in ("count", "p50_us", "p99_us", "us_a_write"))
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
