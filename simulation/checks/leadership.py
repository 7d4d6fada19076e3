"""Begin and end of leaderships (Raft 5.4.2, KIP-996, KAFKA-15489).

* An epoch's first batch is its leader's own LeaderChange record.
* A leader without fetches of a majority for one and a half fetch timeouts resigns (check-quorum).
* No needless election: no epoch opens while a leader and a majority have had working streams for as
  long as an election takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from raftlog.quorum import events as ev
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.events import Effect, Event, Refused
from raftlog.quorum.leader import CHECK_QUORUM_FACTOR
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from simulation.checks.api import Checker, ControllerView, fail, present
from simulation.checks.ledger import Ledger, Node

_FETCHES = (pb.FetchRequest, pb.FetchSnapshotRequest)
HEARD_WITHIN = 0.75
"""Share of the fetch timeout within which a follower with a working stream receives an answer."""


@dataclass(slots=True)
class _Leading:
    """A node that leads."""

    epoch: int
    start_offset: int
    since: float
    base: float
    """Time of the leader's own clock, in seconds: before it no voter counts as silent."""
    heard: dict[int, float] = field(default_factory=dict)
    """Node id -> when it fetched last, by the leader's clock."""
    begun: bool = False


@dataclass(slots=True)
class _Hearing:
    """A node that follows a leader and receives its answers. Times are of the world's clock."""

    epoch: int
    since: float
    last: float


class Leadership(Checker):
    """Checker of the begin and end of leaderships."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._leading: dict[str, _Leading] = {}
        self._hearing: dict[str, _Hearing] = {}
        self._opened: dict[str, int] = {}
        """Host -> epoch of its latest campaign."""
        self.campaigns = 0
        ledger.on(ev.BecameLeader, self._became_leader)
        ledger.on(ev.LostLeadership, self._lost_leadership)
        ledger.on(ev.Append, self._appended)

    def controller_stopped(self, host: ControllerView, reason: str) -> None:
        self._leading.pop(host.name, None)
        self._hearing.pop(host.name, None)

    def _became_leader(self, node: Node, effect: ev.BecameLeader) -> None:
        core, now = present(node.host.core), self._ledger.world.now()
        self._leading[node.name] = _Leading(effect.epoch, node.log.end, now, core.stepped_at)

    def _lost_leadership(self, node: Node, effect: ev.LostLeadership) -> None:
        self._leading.pop(node.name, None)

    def _appended(self, node: Node, effect: ev.Append) -> None:
        leading = self._leading.get(node.name)
        if leading is None or leading.begun:
            return
        leading.begun = True
        first = self._ledger.matching.headers(effect.span.data)[0]
        if effect.span.base_offset != leading.start_offset or not first.control:
            fail(f"{node.name} begins epoch {leading.epoch} without a LeaderChange")

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        kind = type(event)
        if kind is ev.RequestReceived:
            self._requested(host, event.request)  # type: ignore[union-attr]
        elif kind is ev.ResponseReceived:
            self._answered(host, event.response)  # type: ignore[union-attr]
        elif kind is ev.Tick:
            self._ticked(host)
        if effects:
            core = present(host.core)
            if core.role == "candidate" and self._opened.get(host.name) != core.epoch:
                self._opened[host.name] = core.epoch
                self._campaigns(host, core.epoch)
            leading = self._leading.get(host.name)
            if leading is not None and any(type(effect) is ev.VotersChanged for effect in effects):
                leading.base = core.stepped_at

    def _requested(self, host: ControllerView, request: object) -> None:
        leading = self._leading.get(host.name)
        if leading is not None and isinstance(request, _FETCHES):
            leading.heard[request.replica_id] = host.core.stepped_at  # type: ignore[union-attr]

    def _ticked(self, host: ControllerView) -> None:
        leading = self._leading.get(host.name)
        if leading is None:
            return
        core, now = host.core, host.core.stepped_at  # type: ignore[union-attr]
        times = [
            now
            if voter.node_id == host.id
            else max(leading.base, leading.heard.get(voter.node_id, -math.inf))
            for voter in core.voters  # type: ignore[union-attr]
        ]
        heard = sorted(times)[-(len(times) // 2 + 1)]
        if now - heard > CHECK_QUORUM_FACTOR * _config(host).fetch_timeout_ms / 1000 + 1e-6:
            fail(f"{host.name} leads epoch {leading.epoch}, unheard for {now - heard:.3f} s")

    def connects_refused(self, hosts: Sequence[str]) -> None:
        # To everybody it looks as if the other process had died: what was heard before counts no
        # more.
        self._hearing.clear()

    def _answered(self, host: ControllerView, response: object) -> None:
        core = present(host.core)
        if not isinstance(response, pb.FetchResponse) or response.error_code:
            return
        if core.role != "follower" or response.leader_epoch != core.epoch:
            self._hearing.pop(host.name, None)
            return
        now, hearing = self._ledger.world.now(), self._hearing.get(host.name)
        longest = HEARD_WITHIN * _config(host).fetch_timeout_ms / 1000
        if hearing is None or hearing.epoch != core.epoch or now - hearing.last > longest:
            self._hearing[host.name] = _Hearing(core.epoch, now, now)
        else:
            hearing.last = now

    def _campaigns(self, host: ControllerView, epoch: int) -> None:
        self.campaigns += 1
        now = self._ledger.world.now()
        config = _config(host)
        heard = now - HEARD_WITHIN * config.fetch_timeout_ms / 1000
        # A campaign's reasons may be this old: its timeout, pre-votes, and messages in transit.
        election_ms = config.election_timeout_ms + config.election_jitter_max_ms
        throughout = now - 2 * (config.fetch_timeout_ms + election_ms) / 1000
        for name, leading in self._leading.items():
            node = self._ledger.nodes.get(name)
            if node is None or leading.epoch >= epoch or leading.since > throughout:
                continue
            # A removed voter's campaign elects nobody: see ``membership``.
            if name == host.name or not node.may_be_voter(host.id):
                continue
            ids = {voter.node_id for voter in node.voters}
            hear = [node.host.id] if node.host.id in ids else []
            for follower, hearing in self._hearing.items():
                other = self._ledger.nodes.get(follower)
                steady = hearing.since <= throughout and hearing.last >= heard
                if other is not None and other.host.id in ids and hearing.epoch == leading.epoch:
                    hear += [other.host.id] * steady
            if len(hear) > len(ids) // 2:
                fail(
                    f"a needless election: {host.name} opens epoch {epoch}, while {name} leads"
                    f" epoch {leading.epoch} and {sorted(hear)} have heard it throughout"
                )


def _config(host: ControllerView) -> QuorumConfig:
    return present(host.service).quorum


class Contradictions(Checker):
    """Checker: no controller receives a contradiction."""

    def __init__(self) -> None:
        self.effects = 0
        """Number of checked effects. Refusals that are not contradictions are not judged."""

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        self.effects += len(effects)
        for effect in effects:
            if type(effect) is Refused and effect.contradiction:
                fail(f"{host.name} refuses a {effect.message}: {effect.field}: {effect.reason}")
