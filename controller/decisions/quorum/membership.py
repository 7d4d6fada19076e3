"""Changes to the voter set (KIP-853), with the checks in Kafka's order: one replica at a time, each
committed before the next begins.

A set takes effect in the quorum's core as soon as its VotersRecord is appended. So the checks here
ensure that the record *can* be committed: a majority of the new set is alive, and a new voter has
caught up. The core refuses all other changes.

Why: docs/decisions/005-voters-in-the-log.md
"""

from __future__ import annotations

from collections.abc import Callable

from controller.decision import Reply, Write, refuse
from controller.state.state import ControllerState
from raftlog.endpoint import reachable_error
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import VoterEntry, Voters
from raftlog.metadata.records import Record, record
from raftlog.metadata.versions import metadata_version
from raftlog.quorum.core import QuorumDescription, ReplicaDescription
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

CAUGHT_UP_WITHIN_MS = 3_000
"""Maximum time, in ms, since a new voter last had all of the leader's log: the high watermark must
not have to wait for it to catch up.
"""
LIVE_WITHIN_MS = 1_500
"""Longest age, in ms, of a live voter's last fetch."""
FIRST_SET_EVERY_S = 0.1
"""Interval in seconds at which a static set is checked for directory ids that are still unknown."""

Look = Callable[[float], QuorumDescription]


class Membership:
    """Decides changes to the voter set in one epoch.

    ``look`` returns the replicas as the quorum's core sees them; it is None if this controller has
    no core.
    """

    def __init__(self, state: ControllerState, node_id: int, look: Look | None) -> None:
        self._state = state
        self._node_id = node_id
        self._describe = look
        self._next_check = 0.0

    def describe(self, now: float) -> QuorumDescription | None:
        """Return the replicas as the quorum's core sees them, or None if this controller has no
        core.
        """
        return None if self._describe is None else self._describe(now)

    # --- requests --------------------------------------------------------------------------------

    def add(self, request: rpc.AddRaftVoterRequest, now: float) -> Write:
        """Decide AddRaftVoter: a caught-up observer becomes a voter."""
        seen, voters = self.changeable(now)
        for voter in voters:
            if voter.id == request.voter_id:
                same = voter.directory_id == request.voter_directory_id
                raise refuse(
                    ErrorCode.DUPLICATE_VOTER,
                    f"node {voter.id} is a voter already"
                    + (
                        ""
                        if same
                        else f", with directory {voter.directory_id}: remove that one first"
                    ),
                    "voter_id",
                )
        if request.voter_id in self._state.log.pending.brokers:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"node {request.voter_id} is registered as a broker: controllers and brokers must"
                " have different node ids",
                "voter_id",
            )
        self._check_directory(request.voter_directory_id)
        self.check_candidate(seen, request)
        entry = VoterEntry(request.voter_id, request.voter_directory_id, request.endpoint)
        new = (*voters, entry)
        self.check_live_majority(seen, new)
        return Write(
            [voters_record(new, *self._replacement_after(new))],
            rpc.AddRaftVoterResponse(),
            answer_when_appended=request.ack_when_appended,
        )

    def check_candidate(self, seen: QuorumDescription, request: rpc.AddRaftVoterRequest) -> None:
        """Refuse a node that could not vote at once: it does not fetch, is behind, names no
        endpoint, or runs too old a build for the cluster.

        Raises ApiError.
        """
        observer = _observer(seen, request.voter_id, request.voter_directory_id)
        if observer is None:
            raise refuse(
                ErrorCode.REQUEST_TIMED_OUT,
                f"node {request.voter_id} with directory {request.voter_directory_id} does not"
                " fetch from this leader: start it as an observer first",
                "voter_id",
            )
        if not 0 <= observer.last_caught_up_age_ms <= CAUGHT_UP_WITHIN_MS:
            raise refuse(
                ErrorCode.REQUEST_TIMED_OUT,
                f"node {request.voter_id} has not caught up: it has the log up to"
                f" {observer.log_end_offset} of {seen.log_end_offset}, and fetched"
                f" {_ago(observer.last_fetch_age_ms)}",
                "voter_id",
            )
        self._check_endpoint(request.endpoint)
        known = observer.max_metadata_version
        finalized = metadata_version(self._state.log.pending.features)
        if known < finalized:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"node {request.voter_id} supports metadata.version up to {known}, but this"
                f" cluster is at {finalized}",
                "voter_id",
            )

    def remove(self, request: rpc.RemoveRaftVoterRequest, now: float) -> Write:
        """Decide RemoveRaftVoter.

        A leader that removes itself continues to lead, uncounted, until the change is committed.
        """
        seen, voters = self.changeable(now)
        gone = _leaving(voters, request)
        if request.joins_anew and now - self._state.began_at < LIVE_WITHIN_MS / 1000:
            # The voter may be about to fetch from this leader for the first time.
            raise refuse(
                ErrorCode.REQUEST_TIMED_OUT,
                f"this controller has led for less than {LIVE_WITHIN_MS} ms: it does not know yet"
                f" whether a process of node {gone.id} fetches",
                "voter_id",
            )
        if request.joins_anew and self.is_live(seen, gone):
            raise refuse(
                ErrorCode.REQUEST_TIMED_OUT,
                f"a process of node {gone.id} with directory {gone.directory_id} is a voter and"
                " has fetched recently: it must not be removed to join anew",
                "voter_id",
            )
        rest = tuple(voter for voter in voters if voter is not gone)
        if not rest:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"node {gone.id} is the last voter; the set must not be empty",
                "voter_id",
            )
        self.check_live_majority(seen, rest)
        # Without seats: the operator decides how many voters there are. An even set is not
        # refilled: it would need one more vote.
        replaces = self._state.settings.controller_quorum_voter_replace_after_ms > 0
        keeps = request.joins_anew and replaces and len(voters) % 2 == 1
        return Write(
            [voters_record(rest, len(voters) if keeps else 0)], rpc.RemoveRaftVoterResponse()
        )

    def update(self, request: rpc.UpdateRaftVoterRequest, now: float) -> Write | Reply:
        """Decide UpdateRaftVoter: a voter has another endpoint."""
        _, voters = self.changeable(now)
        old = _voter(voters, request.voter_id, request.voter_directory_id)
        self._check_endpoint(request.endpoint)
        if old.endpoint == request.endpoint:
            return Reply(rpc.UpdateRaftVoterResponse())
        new = tuple(
            VoterEntry(v.id, v.directory_id, request.endpoint) if v is old else v for v in voters
        )
        return Write(
            [voters_record(new, *self._replacement_after(new))], rpc.UpdateRaftVoterResponse()
        )

    def changeable(self, now: float) -> tuple[QuorumDescription, tuple[VoterEntry, ...]]:
        """Return the quorum and its voters.

        Raises ApiError if the set must not be changed now.
        """
        state = self._state
        named: Voters | None = state.log.pending.voters
        if named is not None and named.offset > state.log.committed.offset:
            raise refuse(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the change to the voter set at {named.offset} is not committed yet",
            )
        if self._describe is None or state.log.committed.offset < state.log.epoch_start_offset:
            raise refuse(
                ErrorCode.REQUEST_TIMED_OUT,
                "this controller has not yet committed a record of its own epoch",
            )
        seen = self._describe(now)
        if named is None:
            raise refuse(ErrorCode.UNSUPPORTED_VERSION, self._why_static(seen))
        return seen, named.voters

    def _replacement_after(self, voters: tuple[VoterEntry, ...]) -> tuple[int, int | None]:
        """Return the (seats, leaving id) of the replacement that is still incomplete with the new
        set; (0, None) if none is.
        """
        named = self._state.log.pending.voters
        if named is None or (len(named.voters) != len(voters) and len(voters) >= named.seats):
            return 0, None
        return named.seats, named.leaving_id if named.leaving_id >= 0 else None

    def _check_endpoint(self, endpoint: str) -> None:
        if error := reachable_error(endpoint):
            raise ApiError(ErrorCode.INVALID_REQUEST, error, field="endpoint")

    def _check_directory(self, directory_id: str) -> None:
        if not directory_id:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                "the directory id is empty; it must be the voter's",
                "voter_directory_id",
            )

    def check_live_majority(self, seen: QuorumDescription, voters: tuple[VoterEntry, ...]) -> None:
        """Refuse a set without a live majority: it could not be committed, and writes would stop
        until more voters return.

        Raises ApiError.
        """
        dead = [voter.id for voter in voters if not self.is_live(seen, voter)]
        majority = len(voters) // 2 + 1
        if len(voters) - len(dead) < majority:
            raise refuse(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the new set of voters {sorted(voter.id for voter in voters)} would have no live"
                f" majority: the leader does not hear from {sorted(dead)}",
                "voter_id",
            )

    def is_live(self, seen: QuorumDescription, voter: VoterEntry) -> bool:
        """Return whether a voter has fetched recently, or is this node."""
        if voter.id == self._node_id:
            return True
        return any(
            (replica.node_id, replica.directory_id) == (voter.id, voter.directory_id)
            and 0 <= replica.last_fetch_age_ms <= LIVE_WITHIN_MS
            for replica in (*seen.voters, *seen.observers)
        )

    # --- the first set ---------------------------------------------------------------------------

    @property
    def is_static(self) -> bool:
        """True while the log contains no voter set."""
        return self._describe is not None and self._state.log.pending.voters is None

    def next_deadline(self) -> float:
        """Return when ``first_set`` must be called again."""
        return self._next_check

    def first_set(self, now: float) -> Write | None:
        """Return the record of the configured set once all its directory ids are known, else
        None.
        """
        if not self.is_static or now < self._next_check:
            return None
        self._next_check = now + FIRST_SET_EVERY_S
        assert self._describe is not None
        if self._state.log.committed.offset < self._state.log.epoch_start_offset:
            return None
        voters = _with_directories(self._describe(now))
        if not voters or not all(voter.directory_id and voter.endpoint for voter in voters):
            return None
        return Write([voters_record(voters)])

    def _why_static(self, seen: QuorumDescription) -> str:
        unknown = [voter.id for voter in _with_directories(seen) if not voter.directory_id]
        return (
            "the voter set is static until every voter has fetched from this leader; missing:"
            f" {unknown}"
        )


def _with_directories(seen: QuorumDescription) -> tuple[VoterEntry, ...]:
    """Return the current set, with missing directory ids filled in from the voters' fetches."""
    shown = {
        replica.node_id: replica.directory_id
        for replica in seen.voters
        if replica.last_fetch_age_ms >= 0
    }
    return tuple(
        VoterEntry(
            voter.node_id, voter.directory_id or shown.get(voter.node_id, ""), voter.endpoint
        )
        for voter in seen.voter_set
    )


def voters_record(
    voters: tuple[VoterEntry, ...],
    seats: int = 0,
    leaving_id: int | None = None,
    reason: str = "",
) -> Record:
    """Return the record of a voter set.

    ``seats``, ``leaving_id``, ``reason``: see VotersRecord.
    """
    return record(
        pb.VotersRecord(
            seats=0 if seats == len(voters) else seats,
            leaving_id=leaving_id if len(voters) > seats > 0 else None,
            reason=reason,
            voters=[
                pb.VoterEntry(
                    voter_id=voter.id,
                    voter_directory_id=voter.directory_id,
                    endpoint=voter.endpoint,
                )
                for voter in sorted(voters, key=lambda voter: voter.id)
            ],
        )
    )


def _voter(voters: tuple[VoterEntry, ...], node_id: int, directory_id: str) -> VoterEntry:
    for voter in voters:
        if voter.id == node_id:
            if voter.directory_id == directory_id:
                return voter
            raise refuse(
                ErrorCode.VOTER_NOT_FOUND,
                f"voter {node_id} has directory {voter.directory_id}, not {directory_id!r}",
                "voter_directory_id",
            )
    raise refuse(ErrorCode.VOTER_NOT_FOUND, f"node {node_id} is not a voter", "voter_id")


def _leaving(voters: tuple[VoterEntry, ...], request: rpc.RemoveRaftVoterRequest) -> VoterEntry:
    """Return the voter to remove. Raises ApiError."""
    if request.joins_anew and not request.voter_directory_id:
        for voter in voters:
            if voter.id == request.voter_id:
                return voter
    return _voter(voters, request.voter_id, request.voter_directory_id)


def _observer(
    seen: QuorumDescription, node_id: int, directory_id: str
) -> ReplicaDescription | None:
    return next(
        (
            one
            for one in seen.observers
            if (one.node_id, one.directory_id) == (node_id, directory_id)
        ),
        None,
    )


def controller_ids(seen: QuorumDescription) -> frozenset[int]:
    """Return the node ids of the controllers: the current voter set, and the observers that
    fetch.
    """
    ids = {voter.node_id for voter in seen.voter_set}
    return frozenset(ids.union(replica.node_id for replica in (*seen.voters, *seen.observers)))


def _ago(age_ms: int) -> str:
    return "never" if age_ms < 0 else f"{age_ms} ms ago"
