"""What must hold in one node after every step.

``check_constant`` costs the same however long the log is and however many voters there are. It runs
after every step, in production too: its effects are carried out only if it passes, so a node that
contradicts itself stops before it says anything. ``check`` also looks at whole lists, for tests and
simulations.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from raftlog.errors import InvariantError
from raftlog.quorum.leader import Leader

if TYPE_CHECKING:
    from raftlog.quorum.node import Node


class Invariants:
    """Remembers what must not go back, and what was looked at when it last differed."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._vote = node.vote
        self._leader_confirmed = node.leader_confirmed
        self._high_watermark = node.high_watermark
        self._standing: tuple[object, ...] = ()
        self._least_end = 0
        """The log never ends below this as long as the standing is the same."""

    def check_constant(self) -> None:
        """Raises InvariantError naming the first rule that is broken. O(1).

        Most steps move nothing but the ends of the log; what the other rules are about is compared,
        and looked at if it differs.
        """
        node, log, high_watermark = self._node, self._node.log, self._node.high_watermark
        if not 0 <= log.start <= log.flushed_end <= log.end:
            raise InvariantError("log start <= flushed end <= log end")
        if not log.start <= high_watermark <= log.end and high_watermark != -1:
            raise InvariantError("log start <= HW <= log end")
        if high_watermark < self._high_watermark:
            raise InvariantError("the high watermark never goes down")
        standing = (
            node.vote,
            node.leader_confirmed,
            node.durable_vote,
            node.role,
            node.leader_id,
            node.voters,
            node.history.voters,
            node.history.record_offset,
            node.is_voter,
            node.participates,
            node.installing,
            log.start,
            log.epochs.last_epoch,
            log.start_epoch,
            log.snapshots,
        )
        if standing != self._standing or log.end < self._least_end:
            self._check_standing()
            self._standing = standing
        self._high_watermark = high_watermark

    def _check_standing(self) -> None:
        self._check_log()
        self._check_vote()
        self._check_role()
        node = self._node
        _require(node.voters is node.history.voters, "the set in force is the newest of the log")
        _require(
            node.history.record_offset < node.log.end,
            "no voter set is of a record that is not in the log",
        )
        _require(node.participates or not node.is_voter, "every voter takes part")
        self._vote, self._leader_confirmed = node.vote, node.leader_confirmed
        led_from = node.role.start_offset if isinstance(node.role, Leader) else 0
        self._least_end = max(led_from, node.history.record_offset + 1)

    def check(self) -> None:
        """All of it. Raises InvariantError."""
        self._check_lists()
        self._standing = ()
        self.check_constant()
        self._check_progress()

    def _check_log(self) -> None:
        log, high_watermark = self._node.log, self._node.high_watermark
        newest = log.snapshots[-1].end_offset if log.snapshots else 0
        _require(
            log.start <= newest <= max(0, high_watermark), "log start <= newest snapshot <= HW"
        )
        _require(
            log.last_epoch <= self._node.vote.epoch, "no record is of a higher epoch than the node"
        )

    def _check_lists(self) -> None:
        log = self._node.log
        entries, snapshots = log.epochs.entries, log.snapshots
        _require(all(a < b for a, b in pairwise(snapshots)), "snapshots ascend")
        _require(
            log.start == 0 or snapshots[0].end_offset >= log.start,
            "no snapshot ends below the log start",
        )
        _require(not entries or entries[0][1] == log.start, "the epoch index begins with the log")
        _require(all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries)), "epochs ascend")
        _require(not entries or entries[-1][1] < log.end, "every epoch of the index has a record")

    def _check_vote(self) -> None:
        old, new = self._vote, self._node.vote
        _require(new.epoch >= old.epoch, "the epoch never goes down")
        if new.epoch == old.epoch:
            _require(
                old.voted_id in (-1, new.voted_id),
                "a vote is never changed or forgotten within its epoch",
            )
            held = not self._leader_confirmed or old.leader_id in (-1, new.leader_id)
            _require(held, "one leader in an epoch, once it has answered")
            me = self._node.config.node_id
            _require(
                me not in (old.leader_id, new.leader_id) or old.leader_id in (-1, new.leader_id),
                "who led knows it",
            )

    def _check_role(self) -> None:
        node, role = self._node, self._node.role
        me = node.config.node_id
        _require(role.epoch == node.epoch == node.vote.epoch, "the role is of this epoch")
        if role.name == "leader":
            _require(node.participates, "who is removed for certain leads no more")
        elif role.name != "resigned":
            _require(
                (role.name == "observer") != node.participates,
                "voters are no observers, and others nothing else",
            )
        _require(
            (role.name == "leader") == (node.leader_id == me),
            "who leads knows itself as the leader",
        )
        _require(
            role.name != "follower" or node.leader_id not in (-1, me), "a follower has a leader"
        )
        if role.name in ("candidate", "leader"):
            _require(node.vote.voted_id == me, "who campaigns has voted for itself")
        if isinstance(role, Leader):
            durable = node.durable_vote
            _require(
                (durable.epoch, durable.voted_id) == (node.epoch, me),
                "who leads has a durable vote for itself",
            )
            _require(role.start_offset <= node.log.end, "a leader never truncates")
            _require(node.installing is None, "a leader never loads a snapshot")

    def _check_progress(self) -> None:
        node, role, history = self._node, self._node.role, self._node.history
        if isinstance(role, Leader):
            progress = role.progress
            known = progress.majority_offset(node.log.flushed_end)
            _require(known <= node.log.end, "nobody has more than the leader")
            counted = (
                {*progress.voters, node.config.node_id}
                if progress.counts_leader
                else {*progress.voters}
            )
            _require(
                counted == set(node.voters.ids), "the leader counts the voters, and nobody else"
            )
            _require(
                progress.counts_leader == node.is_voter, "the leader counts itself if it is a voter"
            )
            if history.before_logged and history.record_offset >= role.start_offset:
                changed = history.before.replicas_changed(history.voters)
                _require(changed <= 1, "consecutive voter sets differ by one replica")


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(rule)
