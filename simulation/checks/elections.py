"""Elections (I1, I2, I3, I7).

I1: one leader per epoch. I2: epochs never go back. I3: one vote per epoch, durable before it is
sent or counted. I7: a new leader has every record committed in a lower epoch. Votes are read from
the disks when a message leaves, as a crash would leave them. A candidate's request itself promises
nothing.
"""

from collections.abc import Sequence
from typing import Any

from raftlog.quorum import events as ev
from raftlog.quorum.events import Effect, Event
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from simulation.checks.api import BrokerView, Checker, ControllerView, fail, present
from simulation.checks.ledger import Directory, Ledger, Node, directory_of


class Elections(Checker):
    """Checker of I1, I2, I3 and I7."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.leaders: dict[int, tuple[str, int]] = {}
        self._votes: dict[tuple[Directory, int], int] = {}
        """(voter, epoch) -> candidate, of the votes that were sent."""
        self._epochs: dict[str, int] = {}
        self._told: dict[Directory, int] = {}
        """Directory -> highest epoch in its messages."""
        ledger.on(ev.BecameLeader, self._became_leader)

    def looked_at(self) -> dict[str, int]:
        return {"leaders": len(self.leaders), "votes": len(self._votes)}

    def controller_started(self, host: ControllerView) -> None:
        core = present(host.core)
        told = self._told.get(directory_of(host), 0)
        # One that was set back is for SetBack.
        if core.epoch < told and not host.disk.was_set_back:
            fail(f"I2: {host.name} was heard in epoch {told} and came back in epoch {core.epoch}")
        self._epochs[host.name] = core.epoch

    def controller_stopped(self, host: ControllerView, reason: str) -> None:
        self._epochs.pop(host.name, None)

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        epoch = host.core.epoch  # type: ignore[union-attr]
        before = self._epochs[host.name]
        if epoch != before:
            if epoch < before:
                fail(f"I2: the epoch of {host.name} goes back from {before} to {epoch}")
            self._epochs[host.name] = epoch

    def _became_leader(self, node: Node, effect: ev.BecameLeader) -> None:
        epoch, golden = effect.epoch, self._ledger.golden
        me = (node.name, node.host.incarnation)
        other = self.leaders.setdefault(epoch, me)
        if other != me:
            fail(f"I1: epoch {epoch} has two leaders, {other} and {me} (host, incarnation)")
        # Not what a higher epoch has committed: who was elected long ago may hear of it late, and
        # is of no consequence.
        end = self._ledger.committed_before(epoch)
        mine, committed = node.log.at(end), golden.at(end)
        if mine is None or mine != committed:
            fail(
                f"I7: {node.name} leads epoch {epoch} with a log that ends at {node.log.end} and"
                f" has {mine} at {end}, where {committed} is committed (epoch, chain)"
            )
        self._count_votes(node, effect)

    def _count_votes(self, node: Node, effect: ev.BecameLeader) -> None:
        ids = {voter.node_id: voter.directory_id for voter in node.voters}
        granted = [voter for voter in effect.granting_voters if voter in ids]
        if len(granted) <= len(ids) // 2:
            fail(
                f"I3: {node.name} leads epoch {effect.epoch} with the votes of"
                f" {list(effect.granting_voters)} only; the voters are {sorted(ids)}"
            )
        for voter in granted:
            if voter == node.host.id:
                vote = node.host.disk.vote
                got = [vote.voted_id] if vote.epoch == effect.epoch else []
            else:
                # Another disk of that id may have voted otherwise.
                got = [
                    to
                    for ((of, where), epoch), to in self._votes.items()
                    if of == voter and epoch == effect.epoch and ids[voter] in ("", where)
                ]
            if node.host.id not in got:
                fail(f"I3: {node.name} counts a vote of {voter} in {effect.epoch}, given to {got}")
        if node.host.id in granted:
            # Nobody was told of its own vote; from here on it is given.
            self._heard_in(node.host, effect.epoch)
            self._voted(node.host, effect.epoch, node.host.id)

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        kind = type(message)
        if kind is pb.FetchRequest:
            self._heard_in(host, message.current_leader_epoch)
        elif kind is pb.FetchResponse:
            self._heard_in(host, message.leader_epoch)
        elif kind is pb.QuorumMessage:
            self._control(host, peer, message)

    def _control(self, host: Any, peer: str, message: pb.QuorumMessage) -> None:
        field = message.WhichOneof("body")
        body = getattr(message, field)
        if field == "vote_response":
            self._heard_in(host, body.leader_epoch)
            if body.vote_granted and not body.pre_vote:
                self._voted(host, body.leader_epoch, self._id_of(peer))
        elif hasattr(body, "leader_epoch"):
            self._heard_in(host, body.leader_epoch)

    def _heard_in(self, host: Any, epoch: int) -> None:
        if host.disk.vote.epoch < epoch:
            fail(f"I2: {host.name} speaks in epoch {epoch}, its disk has {host.disk.vote.epoch}")
        who = directory_of(host)
        if self._told.get(who, 0) < epoch:
            self._told[who] = epoch

    def _voted(self, host: Any, epoch: int, candidate: int) -> None:
        vote = host.disk.vote
        if (vote.epoch, vote.voted_id) != (epoch, candidate) and vote.epoch <= epoch:
            fail(f"I3: {host.name} votes for {candidate} in epoch {epoch}; its disk has {vote}")
        got = self._votes.setdefault((directory_of(host), epoch), candidate)
        if got != candidate:
            fail(f"I3: {host.name} votes for {candidate} in epoch {epoch}, and has voted for {got}")

    def _id_of(self, peer: str) -> int:
        for host in self._ledger.world.controllers:
            if host.name == peer:
                return host.id
        fail(f"a vote for {peer}, which is not a controller")


class SetBack(Checker):
    """Directories that were set back (I3, I5): such a node neither leads, elects nor is served."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.noticed = 0
        """Number of processes that stopped because their directory was set back."""
        ledger.on(ev.BecameLeader, self._became_leader)

    def _became_leader(self, node: Node, effect: ev.BecameLeader) -> None:
        for host in self.world.controllers:
            if host.disk.was_set_back and host.id in (node.host.id, *effect.granting_voters):
                fail(f"{node.name} leads {effect.epoch} by {host.name}, which was set back")

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        if (
            host.disk.was_set_back
            and isinstance(event, ev.ResponseReceived)
            and isinstance(event.response, pb.FetchResponse)
            and not event.response.error_code
        ):
            fail(f"{host.name}, whose directory was set back, fetches from {event.peer_id}")

    def controller_stopped(self, host: ControllerView, reason: str) -> None:
        self.noticed += host.disk.starts.refused
