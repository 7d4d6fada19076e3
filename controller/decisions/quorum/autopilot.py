"""Autopilot: a spare replaces a dead voter, in two changes to the voter set.

A voter is dead when the leader has not heard from it for controller.quorum.voter.replace.after.ms.
A spare is an observer that offers itself, can be reached at its endpoints, and has followed without
a gap for a while. An odd set first loses the dead voter and then gains the spare; an even set does
the reverse, so neither change raises the number of votes needed or depends on the spare's vote.
Counter-example: of three voters one is dead, and the spare is added first. Four voters need three
votes; if the spare dies now, the two live voters, enough before, can do nothing.

The record of the first change states how many voters there should be (``seats``), so that the next
leader completes what this one has begun; no other change begins meanwhile. Without a spare no voter
is removed: a set that shrank by itself would eventually let a minority of the operator's voters
decide.

Why: docs/decisions/036-autopilot.md
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from controller.decision import Write
from controller.decisions.quorum.membership import (
    CAUGHT_UP_WITHIN_MS,
    LIVE_WITHIN_MS,
    Membership,
    voters_record,
)
from controller.state.state import ControllerState
from raftlog.errors import ApiError
from raftlog.metadata.entities import VoterEntry
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.quorum.v1 import quorum_pb2

CHECK_EVERY_S = 0.5
"""Interval in seconds at which the replicas are examined."""
STEADY_S = 10.0
"""Time in seconds for which a spare must follow without a gap before it is trusted; shorter if
voters are replaced sooner.
"""
MAX_SPARES = 16
"""Maximum number of spares that are probed at a time."""
SHOWN = 3
"""Maximum number of observers whose conditions a reason lists."""

Key = tuple[int, str]
"""Node id and directory id of a replica."""


class Step(Enum):
    """A change to the voter set."""

    WAIT = "nothing is due"
    ADD = "a spare becomes a voter"
    REMOVE = "a voter leaves the set"


class Plan(NamedTuple):
    """The step that is due now, and why.

    ``voters``: the new set, or empty if nothing changes. ``replica``: the voter that joins or
    leaves. ``leaving_id``: the voter that leaves after it.
    """

    step: Step
    reason: str
    replica: VoterEntry | None = None
    voters: tuple[VoterEntry, ...] = ()
    seats: int = 0
    leaving_id: int | None = None


class Sightings:
    """When each replica fell silent, or began to follow without a gap, as the leader of this epoch
    has observed.
    """

    def __init__(self) -> None:
        self._silent: dict[Key, float] = {}
        self._steady: dict[Key, float] = {}

    def update(self, replicas: Iterable[ReplicaDescription], now: float) -> None:
        """Record the condition of all given replicas, and drop the others."""
        silent, steady = self._silent, self._steady
        self._silent, self._steady = {}, {}
        for one in replicas:
            key = (one.node_id, one.directory_id)
            if not is_heard(one):
                self._silent[key] = silent.get(key, now)
            elif 0 <= one.last_caught_up_age_ms <= CAUGHT_UP_WITHIN_MS:
                self._steady[key] = steady.get(key, now)

    def silent_s(self, key: Key, now: float) -> float | None:
        """Return for how many seconds a replica has been silent, or None if it is not silent."""
        since = self._silent.get(key)
        return None if since is None else now - since

    def steady_s(self, key: Key, now: float) -> float | None:
        """Return for how many seconds a replica has followed without a gap, or None if it does not
        follow.
        """
        since = self._steady.get(key)
        return None if since is None else now - since

    def extend_all(self, gap_s: float) -> None:
        """Exclude a pause of this process, in which it heard from no replica."""
        for since in (self._silent, self._steady):
            for key in since:
                since[key] += gap_s


class Autopilot:
    """The replacement of dead voters in one epoch.

    ``after_s``: time in seconds after which a silent voter is dead; 0 if replacement is off.
    """

    def __init__(self, state: ControllerState, node_id: int, members: Membership) -> None:
        self._state, self._node_id, self._members = state, node_id, members
        self.after_s = state.settings.controller_quorum_voter_replace_after_ms / 1000
        self._steady_s = min(STEADY_S, self.after_s) if self.after_s else STEADY_S
        self._sightings = Sightings()
        self._reached: dict[Key, str] = {}
        """Replica -> the endpoint at which it was last reached."""
        self.next_check = state.began_at
        """Time of the next examination."""

    def due(self, now: float) -> Write | None:
        """Return the change to the voter set that is due now, or None."""
        if now < self.next_check:
            return None
        seen = self._members.describe(now)
        self.next_check = now + CHECK_EVERY_S if seen is not None else math.inf
        if seen is None:
            return None
        self._sightings.update((*seen.voters, *seen.observers), now)
        known = {_replica_key(one) for one in seen.observers}
        self._reached = {key: at for key, at in self._reached.items() if key in known}
        if not self.after_s:
            return None
        plan = self.plan(now)
        if plan.step is Step.WAIT:
            return None
        return Write([voters_record(plan.voters, plan.seats, plan.leaving_id, plan.reason)])

    def extend_all(self, gap_s: float) -> None:
        """Exclude a pause of this process."""
        self._sightings.extend_all(gap_s)

    def spares(self, now: float) -> list[tuple[Key, str]]:
        """Return the observers that offer themselves, and the endpoints to probe; empty while
        replacement is off.
        """
        seen = self._members.describe(now) if self.after_s else None
        offering = [one for one in seen.observers if one.spare_endpoint] if seen else []
        return [(_replica_key(one), one.spare_endpoint) for one in offering[:MAX_SPARES]]

    def probed(self, key: Key, endpoint: str, *, accepted: bool) -> None:
        """Record whether a spare accepted a connection."""
        if accepted:
            self._reached[key] = endpoint
        else:
            self._reached.pop(key, None)

    # --- the rules -------------------------------------------------------------------------------

    def plan(self, now: float) -> Plan:
        """Return the step that is due according to the last observation. Changes nothing."""
        try:
            seen, voters = self._members.changeable(now)
        except ApiError as error:
            return Plan(Step.WAIT, error.message)
        named = self._state.log.pending.voters
        seats = (named.seats if named is not None else 0) or len(voters)
        if len(voters) < seats:
            return self._fill(seen, voters, seats, now)
        if len(voters) > seats:
            return self._drop(seen, voters, seats, now)
        return self._replace(seen, voters, now)

    def _replace(self, seen: QuorumDescription, voters: tuple[VoterEntry, ...], now: float) -> Plan:
        """Begin the replacement of the voter that has been dead the longest."""
        silent = self._silent(voters, now)
        if not silent:
            return Plan(Step.WAIT, "every voter fetches from the leader")
        gone = max(silent, key=lambda voter: (silent[voter], -voter.id))
        said = f"node {gone.id} has been silent for {int(silent[gone])} s"
        if silent[gone] < self.after_s:
            return Plan(Step.WAIT, f"{said}; it is replaced after {self.after_s:.0f} s")
        rest = tuple(voter for voter in voters if voter is not gone)
        spare, why = self._spare(seen, rest, now)
        if spare is None:
            return Plan(Step.WAIT, f"{said}; {why}")
        reason = f"{said}: node {spare.id} takes its seat"
        if len(voters) % 2:
            return self._changed(seen, voters, Plan(Step.REMOVE, reason, gone, rest, len(voters)))
        if spare.id == gone.id:
            return Plan(
                Step.WAIT,
                f"{said}, and runs again with another directory, which can join only after"
                f" the voter is removed; of {len(voters)} voters, an even number, none is removed"
                " first",
            )
        return self._changed(
            seen, voters, Plan(Step.ADD, reason, spare, (*voters, spare), len(voters), gone.id)
        )

    def _fill(
        self, seen: QuorumDescription, voters: tuple[VoterEntry, ...], seats: int, now: float
    ) -> Plan:
        """Complete the replacement in an odd set: a spare takes the vacant seat."""
        spare, why = self._spare(seen, voters, now)
        if spare is None:
            return Plan(Step.WAIT, f"a seat is vacant; {why}")
        reason = f"node {spare.id} takes the vacant seat"
        return self._changed(seen, voters, Plan(Step.ADD, reason, spare, (*voters, spare), seats))

    def _drop(
        self, seen: QuorumDescription, voters: tuple[VoterEntry, ...], seats: int, now: float
    ) -> Plan:
        """Complete the replacement in an even set: the voter whose seat is taken leaves, even if it
        has returned.
        """
        named = self._state.log.pending.voters
        leaving_id = -1 if named is None else named.leaving_id
        silent = self._silent(voters, now)

        def order(voter: VoterEntry) -> tuple[bool, float, int]:
            return voter.id == leaving_id, silent.get(voter, 0.0), voter.id

        gone = max((one for one in voters if one.id != self._node_id), key=order)
        rest = tuple(voter for voter in voters if voter is not gone)
        taken = gone.id == leaving_id
        why = "its seat is taken" if taken else f"there are {len(voters)} voters for {seats} seats"
        reason = f"node {gone.id} leaves: {why}"
        return self._changed(seen, voters, Plan(Step.REMOVE, reason, gone, rest, seats))

    def _silent(self, voters: Iterable[VoterEntry], now: float) -> dict[VoterEntry, float]:
        """Return the silent voters, and for how many seconds each has been silent."""
        found = {}
        for voter in voters:
            silent_s = self._sightings.silent_s(_key(voter), now)
            if silent_s is not None and voter.id != self._node_id:
                found[voter] = silent_s
        return found

    def _changed(self, seen: QuorumDescription, voters: tuple[VoterEntry, ...], plan: Plan) -> Plan:
        """Return the plan if its voter set needs no more votes than the current one and has a live
        majority, else a plan to wait.
        """
        if len(plan.voters) // 2 > len(voters) // 2:
            return Plan(Step.WAIT, "the new set would need more votes than the current one")
        try:
            self._members.check_live_majority(seen, plan.voters)
        except ApiError as error:
            return Plan(Step.WAIT, error.message)
        return plan

    # --- spares ----------------------------------------------------------------------------------

    def _spare(
        self, seen: QuorumDescription, voters: tuple[VoterEntry, ...], now: float
    ) -> tuple[VoterEntry | None, str]:
        """Return (spare, ""), for the spare that has followed the longest, or (None, reason)."""
        unfit = {one: self._unfit(seen, one, voters, now) for one in seen.observers}
        fit = [one for one, why in unfit.items() if not why]
        if not fit:
            said = [f"node {one.node_id} {why}" for one, why in unfit.items()]
            more = ", …" if len(said) > SHOWN else ""
            which = f" ({', '.join(said[:SHOWN])}{more})" if said else ""
            return None, f"there is no spare{which}"

        def merit(one: ReplicaDescription) -> tuple[float, int]:
            return self._sightings.steady_s(_replica_key(one), now) or 0.0, -one.node_id

        best = max(fit, key=merit)
        return VoterEntry(best.node_id, best.directory_id, best.spare_endpoint), ""

    def _unfit(
        self,
        seen: QuorumDescription,
        one: ReplicaDescription,
        voters: tuple[VoterEntry, ...],
        now: float,
    ) -> str:
        """Return why an observer is not a spare, or "" if it is."""
        if not one.spare_endpoint:
            return "is not offered as a spare: it has controller.quorum.voter.replace.after.ms=0"
        if any(voter.id == one.node_id for voter in voters):
            return "has the id of a voter"
        if one.node_id in self._state.log.pending.brokers:
            return "has the id of a broker"
        if one.low_on_space:
            return "has too little disk space"
        steady_s = self._sightings.steady_s(_replica_key(one), now)
        if steady_s is None:
            return "does not follow" if is_heard(one) else "is silent"
        if steady_s < self._steady_s:
            return f"has followed for {int(steady_s)} of {self._steady_s:.0f} s"
        if self.after_s and self._reached.get(_replica_key(one)) != one.spare_endpoint:
            return f"cannot be reached at {one.spare_endpoint}"
        try:
            self._members.check_candidate(
                seen,
                rpc.AddRaftVoterRequest(
                    voter_id=one.node_id,
                    voter_directory_id=one.directory_id,
                    endpoint=one.spare_endpoint,
                ),
            )
        except ApiError as error:
            return f"cannot vote: {error.message}"
        return ""

    # --- description -----------------------------------------------------------------------------

    def describe(self, now: float) -> quorum_pb2.AutopilotState:
        """Return the plan and the conditions of all replicas. Changes nothing."""
        plan, named = self.plan(now), self._state.log.pending.voters
        voters = named.voters if named is not None else ()
        replica = plan.replica or VoterEntry(-1, "", "")
        described = quorum_pb2.AutopilotState(
            after_ms=round(self.after_s * 1000),
            seats=(named.seats if named is not None else 0) or len(voters),
            step=plan.step.name,
            node_id=replica.id,
            directory_id=replica.directory_id,
            reason=plan.reason,
        )
        seen = self._members.describe(now)
        if seen is None:
            return described
        for one in (*seen.voters, *seen.observers):
            key = _replica_key(one)
            is_voter = any(_key(voter) == key for voter in voters)
            silent_s = self._sightings.silent_s(key, now)
            steady_s = self._sightings.steady_s(key, now)
            if not is_heard(one):
                condition = "silent"
            elif is_voter or not one.spare_endpoint:
                condition = "live" if is_voter else "live, not offered as a spare"
            else:
                condition = self._unfit(seen, one, voters, now) or "ready"
            described.replicas.add(
                replica_id=one.node_id,
                replica_directory_id=one.directory_id,
                is_voter=is_voter,
                condition=condition,
                for_ms=round(1000 * (silent_s or steady_s or 0.0)),
            )
        return described


def is_heard(one: ReplicaDescription) -> bool:
    """Return whether a replica has fetched recently."""
    return 0 <= one.last_fetch_age_ms <= LIVE_WITHIN_MS


def _key(voter: VoterEntry) -> Key:
    return voter.id, voter.directory_id


def _replica_key(one: ReplicaDescription) -> Key:
    return one.node_id, one.directory_id
