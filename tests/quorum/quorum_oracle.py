"""Invariants over all nodes, checked at the moment they could break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftlog.quorum.config import Voter
from raftlog.quorum.events import Reply, SendFetch
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    from quorum_harness import Cluster, SimNode


class Oracle:
    """The whole history of the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.leader_of: dict[int, tuple[int, int]] = {}
        self.committed: list[tuple[int, int]] = []
        self.written: dict[tuple[int, int], int] = {}
        self.epoch_highest_led = 0
        self.rounds: dict[tuple[int, int], int] = {}
        self.leading: dict[int, int] = {}
        self.highest_led_at_epoch_of: dict[int, int] = {}

    def became_leader(self, node: SimNode, epoch: int) -> None:
        """Check election safety and leader completeness."""
        assert epoch not in self.leader_of, (
            f"two leaders in epoch {epoch}: {self.leader_of[epoch]} and {node.id}"
        )
        self.leader_of[epoch] = (node.id, node.life)
        self.epoch_highest_led = max(self.epoch_highest_led, epoch)
        self.leading[node.id] = epoch
        assert node.disk.vote.epoch == epoch, "leads before its vote is durable"
        assert node.disk.vote.voted_id == node.id
        assert node.log[: len(self.committed)] == self.committed, (
            f"leader {node.id} of {epoch} lacks committed records"
        )

    def lost_leadership(self, node: SimNode) -> None:
        assert self.leading.pop(node.id)

    def appended(self, node: SimNode, base: int, records: list[tuple[int, int]]) -> None:
        """Check that (offset, epoch) names one record, forever and everywhere."""
        for i, (epoch, value) in enumerate(records):
            known = self.written.setdefault((base + i, epoch), value)
            assert known == value, f"offset {base + i} of epoch {epoch} is {known} and {value}"

    def high_watermark(self, node: SimNode, offset: int) -> None:
        """Check: monotone; what is committed never changes; it is durable on a majority; the
        own-epoch rule.
        """
        assert offset > node.high_watermark, "the high watermark went back"
        assert offset <= len(node.log)
        node.high_watermark = offset
        known = min(offset, len(self.committed))
        assert node.log[:known] == self.committed[:known], (
            f"node {node.id} commits something else below {offset}"
        )
        if offset > len(self.committed):
            core = node.up
            # By its role it may have been removed by this very commit.
            assert node.id in self.leading, "a follower commits what no leader has"
            assert node.log[offset - 1][0] == self.leading[node.id], (
                "commits records of an older epoch by counting"
            )
            for at in range(len(self.committed), offset):
                holders = sum(self.holds(voter, at, node.log[at]) for voter in core.voters)
                assert holders * 2 > len(core.voters), (
                    f"offset {at} is durable on {holders} voters only"
                )
            self.committed = node.log[:offset]

    def holds(self, voter: Voter, offset: int, record: tuple[int, int]) -> bool:
        """Return whether this replica has the record durably."""
        node = self.cluster[voter.node_id]
        if voter.directory_id not in ("", node.config.directory_id):
            return False
        log = node.disk.recovered_log()
        return len(log) > offset and log[offset] == record

    def installs(self, node: SimNode, records: list[tuple[int, int]]) -> None:
        """Check that a snapshot contains exactly the committed records, and that a leader never
        loads one.
        """
        assert records == self.committed[: len(records)]
        assert node.up.role != "leader"
        assert len(records) > node.high_watermark

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

    def read_index_started(self, node: SimNode, number: int) -> None:
        self.rounds.setdefault((node.up.epoch, number), 0)
        self.rounds[node.up.epoch, number] = self.epoch_highest_led

    def read_index_confirmed(self, node: SimNode, number: int) -> None:
        """Check that no node was elected in a higher epoch before the round began, for the latest
        request that shares it.
        """
        epoch = node.up.epoch
        begun = [highest for (e, n), highest in self.rounds.items() if e == epoch and n <= number]
        assert begun, "confirmed, never started"
        assert max(begun) <= epoch, (
            f"round {number} of epoch {epoch} began after another had been elected"
        )
