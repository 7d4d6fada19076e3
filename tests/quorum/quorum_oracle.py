"""Invariants over all nodes, checked at the moment they could break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raftlog.quorum.config import Voter
from raftlog.quorum.events import Reply, SendFetch
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from quorum_harness import Cluster, SimNode

Record = tuple[int, int]
Durable = Callable[[Voter], Sequence[Record]]
"""Returns the log that a crash of this replica would leave; empty for another disk of its node."""


class Sighting(NamedTuple):
    """An action of one node that must be consistent with the others', see ``judge``."""

    kind: str
    """leads, commits, installs, round begun, round confirmed."""
    node_id: int
    epoch: int
    number: int = 0
    """Number of the round."""
    log: tuple[Record, ...] = ()
    """The whole log of a new leader; what is committed; what is installed."""
    voters: tuple[Voter, ...] = ()
    leads: bool = False


class Past(NamedTuple):
    """The history that the nodes' states do not show."""

    leaders: tuple[tuple[int, int], ...] = ()
    """(epoch, node), ascending."""
    committed: tuple[Record, ...] = ()
    """Records that any node has ever committed."""
    rounds: tuple[tuple[int, int, int], ...] = ()
    """(epoch, read-index round, highest epoch that had been led when it began last)."""


class Violated(AssertionError):  # noqa: N818
    """A rule is broken by ``move``, in state ``at`` of a search's level."""

    at: int
    move: Any


def judge(past: Past, seen: Sighting, durable: Durable) -> Past:
    """Return the history with this action. Raises Violated."""
    known = past.committed[: len(seen.log)]
    match seen.kind:
        case "leads":
            if any(epoch == seen.epoch for epoch, _ in past.leaders):
                raise Violated(f"two leaders in epoch {seen.epoch}")
            if seen.log[: len(past.committed)] != past.committed:
                raise Violated(f"the leader of epoch {seen.epoch} lacks committed records")
            leaders = sorted((*past.leaders, (seen.epoch, seen.node_id)))
            return past._replace(leaders=tuple(leaders))
        case "commits":
            if seen.log[: len(known)] != known:
                raise Violated("two nodes commit different records at one offset")
            if len(seen.log) > len(known):
                _check_commit(seen, durable)
                return past._replace(committed=seen.log)
        case "installs":
            if seen.leads or seen.log != known:
                raise Violated("a snapshot holds what is not committed, or a leader installs it")
        case "round begun":
            others = [entry for entry in past.rounds if entry[:2] != (seen.epoch, seen.number)]
            highest = max((epoch for epoch, _ in past.leaders), default=0)
            rounds = sorted((*others, (seen.epoch, seen.number, highest)))
            return past._replace(rounds=tuple(rounds))
        case "round confirmed":
            begun = [
                highest
                for epoch, number, highest in past.rounds
                if epoch == seen.epoch and number <= seen.number
            ]
            if not begun:
                raise Violated("a read round is confirmed that never began")
            if max(begun) > seen.epoch:
                raise Violated("a read round began after a higher epoch had a leader")
    return past


def _check_commit(seen: Sighting, durable: Durable) -> None:
    if not seen.leads:
        raise Violated("a follower commits what no leader has")
    if seen.log[-1][0] != seen.epoch:
        raise Violated("a leader commits records of an older epoch by counting")
    logs = [tuple(durable(voter)) for voter in seen.voters]
    holders = sum(log[: len(seen.log)] == seen.log for log in logs)
    if 2 * holders <= len(seen.voters):
        raise Violated(f"what is committed is durable on {holders} of {len(seen.voters)} voters")


class Sightings:
    """Checks what one node shows alone, and keeps the rest for a search."""

    def __init__(self) -> None:
        self.seen: list[Sighting] = []

    def see(self, sighting: Sighting) -> None:
        self.seen.append(sighting)

    def became_leader(self, node: SimNode, epoch: int) -> None:
        vote = node.disk.vote
        assert (vote.epoch, vote.voted_id) == (epoch, node.id), "leads before its vote is durable"
        self.see(Sighting("leads", node.id, epoch, log=tuple(node.log)))

    def lost_leadership(self, node: SimNode) -> None:
        """Ignored: a search judges the node that leads instead."""

    def high_watermark(self, node: SimNode, offset: int) -> None:
        assert node.high_watermark < offset <= len(node.log), "the high watermark is no such offset"
        node.high_watermark = offset
        core, log = node.up, tuple(node.log[:offset])
        self.see(
            Sighting("commits", node.id, core.epoch, log=log, voters=core.voters, leads=leads(node))
        )

    def installs(self, node: SimNode, records: list[Record]) -> None:
        assert len(records) > node.high_watermark, "a snapshot takes back what is committed"
        self.see(
            Sighting("installs", node.id, node.up.epoch, log=tuple(records), leads=leads(node))
        )

    def read_index_started(self, node: SimNode, number: int) -> None:
        self.see(Sighting("round begun", node.id, node.up.epoch, number))

    def read_index_confirmed(self, node: SimNode, number: int) -> None:
        self.see(Sighting("round confirmed", node.id, node.up.epoch, number))

    def appended(self, node: SimNode, base: int, records: list[Record]) -> None:
        """Ignored: a search compares the logs of all nodes."""

    def leaves(self, node: SimNode, effect: Any) -> None:
        """Check: persist before send, flush before acknowledge."""
        if isinstance(effect, Reply) and isinstance(effect.response, pb.VoteResponse):
            response = effect.response
            assert node.disk.vote.epoch >= response.leader_epoch, (
                "an epoch is told before it is durable"
            )
            if (
                response.vote_granted
                and not response.pre_vote
                and node.disk.vote.epoch == response.leader_epoch
            ):
                assert node.disk.vote.voted_id == effect.reply_to[0], (
                    "a vote is told before it is durable"
                )
        if isinstance(effect, SendFetch):
            request = effect.request
            assert node.disk.vote.epoch >= request.current_leader_epoch
            if request.current_leader_epoch == node.up.epoch:
                durable = node.disk.recovered_log()
                assert request.fetch_offset <= len(durable), "acknowledges what is not durable"
                assert durable[: request.fetch_offset] == node.log[: request.fetch_offset], (
                    "acknowledges other records than are durable"
                )


def leads(node: SimNode) -> bool:
    """Return whether it leads; its role may have been removed by this very step."""
    return node.role.start_offset != -1 or node.up.role == "resigned"


class Oracle(Sightings):
    """The whole history of a cluster, which judges each action at once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.past = Past()
        self.written: dict[tuple[int, int], int] = {}
        self.leading: set[int] = set()

    @property
    def leader_of(self) -> dict[int, int]:
        """Leader of each epoch."""
        return dict(self.past.leaders)

    def see(self, sighting: Sighting) -> None:
        self.past = judge(self.past, sighting, self.durable)

    def durable(self, voter: Voter) -> Sequence[Record]:
        node = self.cluster[voter.node_id]
        same_disk = voter.directory_id in ("", node.config.directory_id)
        return node.disk.recovered_log() if same_disk else ()

    def became_leader(self, node: SimNode, epoch: int) -> None:
        super().became_leader(node, epoch)
        self.leading.add(node.id)

    def lost_leadership(self, node: SimNode) -> None:
        self.leading.remove(node.id)

    def appended(self, node: SimNode, base: int, records: list[Record]) -> None:
        """Check that (offset, epoch) names one record, forever and everywhere."""
        for i, (epoch, value) in enumerate(records):
            known = self.written.setdefault((base + i, epoch), value)
            assert known == value, f"offset {base + i} of epoch {epoch} is {known} and {value}"
