"""Voter sets (I19, KIP-853): one change in flight, and majorities of successive sets intersect.

Each node uses the set of its own log: the last appended, the snapshot's, or the configured one. A
removed node that campaigns changes nothing at a node that knows of the removal, unless that knows
no leader and has the shorter log (KIP-853).
"""

from collections.abc import Sequence
from typing import NamedTuple

from raftlog.endpoint import Voter
from raftlog.metadata.records import RecordType
from raftlog.quorum import events as ev
from raftlog.quorum.events import Effect, Event
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from raftlog.wire.records.v1 import records_pb2 as pb_records
from simulation.checks.api import Checker, ControllerView, fail, present
from simulation.checks.ledger import Ledger, Node


class _State(NamedTuple):
    """State of another node that a node with knowledge of its removal lets it change no more."""

    role: str
    epoch: int
    voted_id: int
    leader_id: int


class VoterSets(Checker):
    """Checker of I19."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.changes = 0
        self._states: dict[str, _State] = {}
        ledger.on(ev.Append, self._appended)

    def _appended(self, node: Node, effect: ev.Append) -> None:
        span, sets = effect.span, node.log.voter_sets
        if not sets or sets[-1].offset < span.base_offset:
            if span.voters:
                fail(f"I19: {node.name} is told of voters {span.voters} that are not in the log")
            return
        new = [found for found in sets if found.offset >= span.base_offset]
        if tuple(new) != tuple(span.voters):
            fail(f"I19: {node.name} appends the voter sets {new} and is told of {span.voters}")
        before = sets[-len(new) - 1] if len(sets) > len(new) else None
        old = before.voters if before is not None else (node.base_voters or node.configured)
        for found in new:
            if old and found.voters and not majorities_meet(old, found.voters):
                fail(f"I19: disjoint: {_ids(found.voters)} at {found.offset} after {_ids(old)}")
            old = found.voters
        if node.leads >= 0:
            self._check_leader(
                node, len(new), before.offset if before is not None else -1, span.base_offset
            )

    def _check_leader(self, node: Node, new: int, before: int, at: int) -> None:
        self.changes += 1
        committed = node.log.at(node.high_watermark) if node.high_watermark >= 0 else None
        if new > 1 or before >= max(node.high_watermark, 0):
            fail(f"I19: {node.name} proposes voters at {at}; {before} is not committed")
        if committed is None or committed[0] != node.leads:
            fail(f"I19: {node.name} proposes voters at {at} before {node.leads} commits")

    def controller_stopped(self, host: ControllerView, reason: str) -> None:
        self._states.pop(host.name, None)

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        core = present(host.core)
        state = _State(core.role, core.epoch, core.voted_id, core.leader_id)
        before = self._states.get(host.name)
        self._states[host.name] = state
        if type(event) is ev.RequestReceived and before is not None and state != before:
            self._moved_by(self._ledger.nodes[host.name], before, state, event.request)

    def _moved_by(self, node: Node, before: _State, state: _State, request: object) -> None:
        if isinstance(request, pb.VoteRequest):
            asker, mine = request.replica_id, node.log.batches[-1:]
            theirs = (request.last_offset_epoch, request.last_offset)
            may_be_newer = not mine or theirs >= (mine[0].header.epoch, node.log.end)
        elif isinstance(request, pb.BeginQuorumEpochRequest):
            asker, may_be_newer = request.leader_id, True
        elif isinstance(request, pb.EndQuorumEpochRequest):
            asker = request.leader_id
            may_be_newer = asker == before.leader_id
        else:
            return
        if node.may_be_voter(asker) or (may_be_newer and before.role != "leader"):
            return
        fail(f"I19: removed {asker} moves {node.name} from {before} to {state}")

    def sample(self) -> None:
        for node in self._ledger.nodes.values():
            core = node.host.core
            if core is not None and not core.halted:
                ids = tuple(sorted(voter.node_id for voter in node.voters))
                counted = tuple(voter.node_id for voter in core.voters)
                if ids != counted:
                    fail(f"I19: {node.name} counts {counted}, its log names {ids}")


class Replacements(Checker):
    """Automatic changes of the voter set (I19): a majority needs as many votes as before, and one
    replacement is completed before the next.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._newest: pb_records.VotersRecord | None = None
        self.begun = self.completed = 0
        ledger.golden.on(self._committed, RecordType.VOTERS)

    def _committed(self, message: pb_records.VotersRecord, offset: int, epoch: int) -> None:
        if message.reason and self._newest is not None:
            self._check(self._newest, message, offset)
        self._newest = message

    def _check(
        self, before: pb_records.VotersRecord, after: pb_records.VotersRecord, offset: int
    ) -> None:
        if len(after.voters) // 2 != len(before.voters) // 2:
            what = f"{len(after.voters)} voters after {len(before.voters)}"
            fail(f"I19: the set at {offset} replaces a voter, and needs other votes: {what}")
        if before.seats:
            if len(after.voters) != before.seats or after.seats:
                what = f"{before.seats} seats that has begun: {len(after.voters)} voters"
                fail(f"I19: the set at {offset} does not complete the replacement on {what}")
            self.completed += 1
        else:
            if after.seats != len(before.voters):
                fail(f"I19: the set at {offset}: {len(before.voters)} seats become {after.seats}")
            self.begun += 1


def majorities_meet(old: Sequence[Voter], new: Sequence[Voter]) -> bool:
    """Return whether each majority of one set has a member in each majority of the other."""
    common = sum(1 for voter in new if any(_same(voter, other) for other in old))
    # Common members that a majority of each set needs; both may have them if these are few enough.
    needs = [max(0, len(one) // 2 + 1 - (len(one) - common)) for one in (old, new)]
    return sum(needs) > common


def _same(one: Voter, other: Voter) -> bool:
    """A directory that is not known may be any."""
    return one.node_id == other.node_id and (
        one.directory_id == other.directory_id or "" in (one.directory_id, other.directory_id)
    )


def _ids(voters: Sequence[Voter]) -> list[str]:
    return [f"{voter.node_id}@{voter.directory_id}" for voter in voters]
