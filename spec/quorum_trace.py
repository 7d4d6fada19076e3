"""A trace of the quorum: what each step of each core does, by the actions of ``spec/Quorum.tla``.

The trace is made to be compared with the module (``spec/quorum_traces.py``). A step of a core is
one or more actions, read from its event, its effects, and the state before and after it. The last
of them has the state after the step, so a step that the module cannot do, or does to another
result, is found by the comparison alone.

A trace ends early, and says why, where a disk is replaced or damaged: the module has no such thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lao_trace import TraceEndedError
from typing_extensions import override

from raftlog.errors import ErrorCode
from raftlog.quorum import events as ev
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.events import Effect, Event
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from simulation.checks.api import Checker, ControllerView

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
Action = dict[str, Any]
"""``t`` is the kind, ``n`` the node."""


class Seen(NamedTuple):
    """The state of a core, as far as the module has it. Node id 0: none."""

    role: str
    e: int
    v: int
    l: int  # noqa: E741
    end: int
    flushed: int
    hw: int
    hears: bool


def seen(core: QuorumCore) -> Seen:
    """Return the state of a core."""
    return Seen(
        core.role,
        core.epoch,
        max(0, core.voted_id),
        max(0, core.leader_id),
        core.log_end_offset,
        core.flushed_end_offset,
        max(0, core.high_watermark),
        core._node.role.hears_leader,
    )


class QuorumTrace(Checker):
    """Records a run. Checks nothing."""

    def __init__(self, most: int = 1_000_000) -> None:
        """``most``: number of actions after which the trace ends."""
        self.actions: list[Action] = []
        self.ended = ""
        """Reason why the trace ends before the run; empty if it does not."""
        self.steps = 0
        """Steps of cores in the trace."""
        self.nodes: set[int] = set()
        self.configured: frozenset[int] = frozenset()
        self._most = most
        self._last: dict[int, Seen] = {}
        self._disks: dict[int, str] = {}
        self._durable: dict[int, tuple[int, int]] = {}
        self._snapshots: dict[int, int] = {}
        """Node -> end of its newest snapshot."""
        self._installing: dict[int, int] = {}
        """Node -> end of the snapshot that is about to replace its log."""
        self._cut: set[int] = set()
        """Nodes with a truncation that is not durable."""
        self._early: dict[int, dict[int, tuple[pb.FetchRequest, Any]]] = {}
        """Fetches that a candidate keeps until it leads."""

    # --- hooks -----------------------------------------------------------------------------------

    @override
    def controller_started(self, host: ControllerView) -> None:
        core, node_id = host.core, host.id
        assert core is not None
        config = core._node.config
        if self._disks.setdefault(node_id, config.directory_id) != config.directory_id:
            self._end(f"the disk of node {node_id} was replaced")
        if host.name in self.world.damaged:  # type: ignore[attr-defined]
            self._end(f"the disk of node {node_id} is damaged")
        if config.voters and not self.configured:
            self.configured = frozenset(voter.node_id for voter in config.voters)
        self.nodes.add(node_id)
        now = self._last[node_id] = seen(core)
        vote = core._node.vote
        self._durable[node_id] = vote.epoch, max(0, vote.voted_id)
        self._cut.discard(node_id)
        self._early.pop(node_id, None)
        vote_now = vote.epoch, max(0, vote.voted_id)
        installed = now.hw == self._installing.pop(node_id, -1)
        if now.hw > self._snapshots.get(node_id, 0) and not installed:
            # The snapshot was durable, and the process died before its core heard of that.
            self._add("freeze", node_id, end=now.hw)
        self._snapshots[node_id] = now.hw
        begins: Action = {"end": now.end, "last": core.last_epoch, "w": vote_now}
        if now.l:
            # The leader was saved.
            self._add("restart", node_id, **begins)
            self._add("follow", node_id, l=now.l, e=now.e, after=now)
        else:
            self._add("restart", node_id, **begins, after=now)

    @override
    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        core, node_id = host.core, host.id
        if core is None or core.halted or node_id not in self._last:
            return
        before, after = self._last[node_id], seen(core)
        self._last[node_id] = after
        self.steps += 1
        step = _Step(node_id, core, before, after, event, effects)
        actions = [*self._disk(step), *_transitions(step)]
        actions += self._early_fetches(step)
        actions += self._effects(step)
        if step.hears != after.hears:
            actions.append({"t": "hears" if after.hears else "doubt", "n": node_id})
        if not actions:
            if before == after:
                return
            actions = [{"t": "nothing", "n": node_id}]
        for action in actions[:-1]:
            self._add(action.pop("t"), action.pop("n"), **action)
        self._add(actions[-1].pop("t"), actions[-1].pop("n"), **actions[-1], after=after)

    def _add(self, kind: str, node_id: int, **fields: Any) -> None:
        if self.ended:
            raise TraceEndedError(self.ended)
        self.actions.append({"t": kind, "n": node_id, **fields})
        if len(self.actions) >= self._most and "after" in fields:
            self._end("")

    def _end(self, why: str) -> None:
        self.ended = why
        raise TraceEndedError(why)

    # --- the actions of a step -------------------------------------------------------------------

    def _disk(self, step: _Step) -> list[Action]:
        """Return the actions of the disk before the step."""
        node_id, event = step.node_id, step.event
        if type(event) is ev.VotePersisted:
            vote = event.vote.epoch, max(0, event.vote.voted_id)
            if vote != self._durable[node_id]:
                self._durable[node_id] = vote
                return [{"t": "persist", "n": node_id, "w": vote}]
        elif type(event) is ev.Flushed:
            end = min(event.end_offset, step.before.end)
            if end > step.before.flushed or node_id in self._cut:
                self._cut.discard(node_id)
                return [{"t": "flush", "n": node_id, "end": end}]
        elif type(event) is ev.SnapshotFrozen:
            self._snapshots[node_id] = end = event.snapshot_id.end_offset
            return [{"t": "freeze", "n": node_id, "end": end}]
        elif type(event) is ev.LogStartAdvanced:
            return [{"t": "drop", "n": node_id, "end": event.snapshot_id.end_offset}]
        elif type(event) is ev.SnapshotStored:
            self._cut.discard(node_id)
            end = self._installing.pop(node_id, 0)
            if not event.error:
                self._snapshots[node_id] = end
            return [{"t": "unsound" if event.error else "stored", "n": node_id}]
        return []

    def _early_fetches(self, step: _Step) -> list[Action]:
        """The Fetches that have reached a leader with this step."""
        kept = self._early.setdefault(step.node_id, {})
        event, arrived = step.event, []
        if type(event) is ev.RequestReceived and isinstance(event.request, pb.FetchRequest):
            if "leader" in (step.before.role, step.after.role):
                arrived.append((event.request, event.reply_to))
            elif step.after.role == "candidate":
                kept[event.request.replica_id] = event.request, event.reply_to
        if step.before.role != "leader" and step.after.role == "leader":
            arrived += kept.values()
        if step.after.role != "candidate":
            kept.clear()
        return [
            {"t": "acked", "n": step.node_id, "f": request.replica_id, "end": request.fetch_offset,
             "last": request.last_fetched_epoch}
            for request, reply_to in arrived
            if step.acknowledged(request, reply_to) and request.replica_id in self.nodes
        ]  # fmt: skip

    def _effects(self, step: _Step) -> list[Action]:
        actions: list[Action] = []
        node_id, leads = step.node_id, "leader" in (step.before.role, step.after.role)
        for effect in step.effects:
            kind = type(effect)
            if kind is ev.Append:
                actions.append(step.appended(effect, leads=leads))
            elif kind is ev.HighWatermarkAdvanced and leads:
                actions.append({"t": "commit", "n": node_id, "end": effect.offset})
            elif kind is ev.Truncate:
                self._cut.add(node_id)
                actions.append(step.truncated())
            elif kind is ev.SendFetch:
                request = effect.request
                actions.append(
                    {"t": "fetch", "n": node_id, "to": effect.peer_id, "end": request.fetch_offset,
                     "last": request.last_fetched_epoch}
                )  # fmt: skip
            elif kind is ev.StoreSnapshot and effect.last:
                step.hears = step.after.hears
                snapshot_id = effect.snapshot_id
                self._installing[node_id] = snapshot_id.end_offset
                actions.append(
                    {"t": "installing", "n": node_id, "end": snapshot_id.end_offset,
                     "last": snapshot_id.epoch}
                )  # fmt: skip
            elif kind is ev.Reply and _grants(effect):
                actions.append(_granted(node_id, step.event.request))
        moved = step.after.hw != step.before.hw and type(step.event) is ev.ResponseReceived
        if moved and not leads and not any(one["t"] == "fetched" for one in actions):
            step.hears = True
            actions.insert(0, step.fetched(0))
        return actions


class _Step:
    """One step of a core."""

    def __init__(
        self, node_id: int, core: QuorumCore, before: Seen, after: Seen,
        event: Any, effects: Sequence[Any],
    ) -> None:  # fmt: skip
        self.node_id, self.core, self.before, self.after = node_id, core, before, after
        self.event, self.effects = event, effects
        self.hears = before.hears
        """True if the module says that the node hears its leader, after the actions so far."""

    def acknowledged(self, request: pb.FetchRequest, reply_to: Any) -> bool:
        """Return whether a Fetch was not a refused one, nor one of a log that differs."""
        if request.current_leader_epoch not in (self.before.e, self.after.e):
            return False
        answers = [
            effect.response
            for effect in self.effects
            if type(effect) is ev.ReplyFetch and effect.reply_to is reply_to
        ]
        # A leader that this very Fetch lets resign, as it commits its removal, refuses it at last.
        resigned = self.before.role == "leader" and self.after.role == "resigned"
        return not any(
            (one.error_code and not (resigned and one.error_code == NOT_LEADER))
            or one.HasField("diverging_epoch")
            or one.HasField("snapshot_id")
            for one in answers
        )

    def appended(self, effect: ev.Append, *, leads: bool) -> Action:
        """Return the action of an Append."""
        span = effect.span
        if not leads:
            self.hears = True
            return self.fetched(span.end_offset - span.base_offset)
        sets = tuple(
            (entry.offset - span.base_offset + 1, frozenset(one.node_id for one in entry.voters))
            for entry in span.voters
        )
        count = span.end_offset - span.base_offset
        return {"t": "write", "n": self.node_id, "count": count, "sets": sets}

    def fetched(self, count: int) -> Action:
        """Return the action of an answer with that number of records."""
        last = self.core.last_epoch
        return {
            "t": "fetched",
            "n": self.node_id,
            "count": count,
            "last": last,
            "hw": self.after.hw,
        }

    def truncated(self) -> Action:
        """Return the action of a truncation."""
        self.hears = True
        place = self.event.response.diverging_epoch
        return {"t": "truncated", "n": self.node_id, "e": place.epoch, "end": place.end_offset}


def _grants(effect: ev.Reply) -> bool:
    """Return whether an answer grants a vote or a pre-vote."""
    return isinstance(effect.response, pb.VoteResponse) and effect.response.vote_granted


def _granted(node_id: int, request: pb.VoteRequest) -> Action:
    return {
        "t": "granted_pre" if request.pre_vote else "granted", "n": node_id,
        "to": request.replica_id, "e": request.replica_epoch,
        "last": request.last_offset_epoch, "end": request.last_offset,
    }  # fmt: skip


def _transitions(step: _Step) -> list[Action]:
    """The changes of role, epoch and leader; those by a granted vote or a commit come with that."""
    node_id, before, after = step.node_id, step.before, step.after
    asks = [
        effect.request.pre_vote
        for effect in step.effects
        if type(effect) is ev.Send and isinstance(effect.request, pb.VoteRequest)
    ]
    votes = any(
        type(effect) is ev.Reply and _grants(effect) and not effect.response.pre_vote
        for effect in step.effects
    )
    kinds: list[Action] = []
    role, leader = before.role, before.l
    campaigns = after.role == "candidate" and after.e > before.e
    if after.e > before.e and not campaigns:
        if after.l not in (0, node_id):
            kinds.append({"t": "follow", "n": node_id, "l": after.l, "e": after.e})
            role, leader = "follower", after.l
        else:
            kinds.append({"t": "learn", "n": node_id, "e": after.e})
            role, leader = "unattached", 0
    elif not campaigns and leader != after.l and after.l not in (0, node_id):
        kinds.append({"t": "follow", "n": node_id, "l": after.l, "e": after.e})
        role, leader = "follower", after.l
    if role != "prospective" and (True in asks or campaigns or after.role == "prospective"):
        kinds.append({"t": "time_out", "n": node_id})
        role = "prospective"
    if campaigns:
        kinds.append({"t": "campaign", "n": node_id, "e": after.e})
    elif after.role == "leader" and role != "leader":
        kinds.append({"t": "win", "n": node_id})
    elif role == "leader" and after.role == "resigned":
        if not any(type(effect) is ev.HighWatermarkAdvanced for effect in step.effects):
            kinds.append({"t": "resign", "n": node_id})
    elif role == "prospective" and after.role != "prospective" and not votes:
        kinds.append({"t": "fall_back", "n": node_id})
    elif after.role != "resigned" and (
        (leader != 0 and after.l == 0 and role != "leader")
        or (role == "resigned" and after.role in ("observer", "unattached"))
    ):
        kinds.append({"t": "forget", "n": node_id})
    if kinds:
        step.hears = False
    return kinds
