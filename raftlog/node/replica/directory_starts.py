"""The starts of the voters' data directories, which distinguish a copied or restored directory from
the one that has made promises.

Theory of operation. A voter is a node id and a directory id, and copying a directory copies both.
So each start on a directory gets a number and a random *nonce*, and the directory remembers the
last ones. A node sends its start in the first Fetch of an epoch, with a vote request, and with a
vote. The others remember, durably, the newest start of each voter's directory; a leader passes on
the starts that it knows. If a directory does not remember a start that others know, it was restored
from a copy older than that start and has forgotten its later promises. Its votes do not count, and
a leader does not serve it.

A leader can see two more signs, in its own epoch: a newer start acknowledges less than the previous
one did, or another process with the same directory still fetches.

A refused process exits. The next start on that directory counts as the same one until a leader
serves it, so that a refused start cannot make a copy newer than its original. For the same reason
the start in a pre-vote request is compared, but not remembered.

Why: docs/decisions/038-a-copied-directory-is-noticed.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from raftlog.bounds import DIRECTORY_NONCES_MAX
from raftlog.endpoint import Voter
from raftlog.errors import DirectoryInUseElsewhereError, DirectorySetBackError, ErrorCode
from raftlog.logger import get_logger
from raftlog.node.replica.listener import Refusals
from raftlog.node.replica.peer_acceptor import FetchAddresses
from raftlog.node.storage.api import DirectoryStart, KnownStart, LogStore
from raftlog.quorum import events as ev
from raftlog.quorum.admission import Refusal, is_directory_id
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumCore
from raftlog.transport.api import Link
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

log = get_logger(__name__)

MAX_STARTS = 2**53
"""Limit on the number of starts of a directory, exclusive."""
IN_USE_TIMEOUTS = 5
"""Number of fetch timeouts for which the directory must be in use elsewhere before a node ends: the
link of a process whose host has died stays open for a while.
"""
_REFUSES = "node {} refuses it: {}"
MAX_DIRECTORIES = 4
"""Number of directories remembered for a voter whose directory id is not in the voter set."""


class VoterStarts:
    """The starts of the voters that this node knows, and its own."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._own_directory = store.identity.directory_id
        self._voters: tuple[Voter, ...] = ()
        self.own_message = _message_of(store.starts.own)
        """This node's own start, in the form in which it is sent."""

    def set_voters(self, voters: tuple[Voter, ...]) -> None:
        """Set the voters: only their directories are remembered."""
        self._voters = voters

    def refusal(
        self, node_id: int, directory_id: str, claimed: pb.DirectoryStart
    ) -> Refusal | None:
        """Return why a node with this start is refused, or None if it is not."""
        start = DirectoryStart(claimed.count, tuple(claimed.nonces[: DIRECTORY_NONCES_MAX + 1]))
        if not (0 < start.count < MAX_STARTS and 0 < len(start.nonces) <= DIRECTORY_NONCES_MAX):
            reason = f"invalid start: number {start.count} with {len(claimed.nonces)} nonces"
            return Refusal(ErrorCode.INVALID_REQUEST, "start", reason)
        if directory_id == self._own_directory:
            if start == self._store.starts.own:
                return None
            return Refusal(
                ErrorCode.DIRECTORY_IN_USE,
                "start",
                f"this process, node {node_id}, runs with directory {directory_id} (start"
                f" {self._store.starts.count}): start {start.count} belongs to a copy",
            )
        known = self.known(directory_id)
        if known is None or start.follows(known):
            return None
        return Refusal(
            ErrorCode.DIRECTORY_SET_BACK,
            "start",
            f"directory {directory_id} of node {node_id} is an older copy, or was restored from"
            f" one: it is at start {start.count} (nonce {start.nonces[0]:x}), but had already"
            f" reached start {known.count} (nonce {known.nonce:x})",
        )

    def refusal_of(
        self,
        request: pb.FetchRequest | pb.VoteRequest,
        link: Link,
        core: QuorumCore,
        fetch_addresses: FetchAddresses,
        since: float,
    ) -> Refusal | None:
        """Return why the start of the sender's directory is refused, or None if it is not.

        ``since``: the time from which on a Fetch proves that its process is alive.
        """
        node_id, directory_id = request.replica_id, request.replica_directory_id
        refusal = self.refusal(node_id, directory_id, request.start)
        if refusal is None and not self.is_new(directory_id, request.start):
            return None
        if refusal is not None and refusal.code is not ErrorCode.DIRECTORY_SET_BACK:
            return refusal
        end_offset, fetched_at = core.acknowledged(node_id, directory_id)
        nonce = request.start.nonces[0]
        if fetched_at > since and fetch_addresses.others(link, node_id, directory_id, nonce):
            return Refusal(
                ErrorCode.DIRECTORY_IN_USE,
                "start",
                f"another process fetches with directory {directory_id} of node {node_id} from"
                f" {fetch_addresses.address(node_id, directory_id)}; this one is at {link.peer}",
            )
        if core.hears_leader and core.leader_id == node_id:
            return Refusal(
                ErrorCode.DIRECTORY_IN_USE,
                "start",
                f"another process with the id of node {node_id} leads epoch {core.epoch}; this one"
                f" is at {link.peer}, with directory {directory_id}",
            )
        if (
            refusal is None
            and isinstance(request, pb.FetchRequest)
            and request.current_leader_epoch == core.epoch
            and request.fetch_offset < end_offset
        ):
            return Refusal(
                ErrorCode.DIRECTORY_SET_BACK,
                "start",
                f"directory {directory_id} of node {node_id} was restored from an older copy, or"
                " has"
                f" lost records: its log ends at {request.fetch_offset}, but it has acknowledged"
                f" offsets up to {end_offset} in this epoch, {core.epoch}",
            )
        return refusal

    def is_new(self, directory_id: str, claimed: pb.DirectoryStart) -> bool:
        """Return whether a start that was not refused is newer than the known one."""
        known = self.known(directory_id)
        return known is None or claimed.count > known.count

    def known(self, directory_id: str) -> KnownStart | None:
        """Return the newest known start of a directory, or None."""
        for one in self._store.starts.known:
            if one.directory_id == directory_id:
                return one
        return None

    def remember(self, node_id: int, directory_id: str, count: int, nonce: int) -> None:
        """Remember a start durably if it belongs to a voter and is newer than the known one. Raises
        StorageError.
        """
        known = self.known(directory_id)
        if directory_id == self._own_directory or (known is not None and count <= known.count):
            return
        if not self._may_be_voter(node_id, directory_id):
            return
        starts = self._store.starts
        kept = [one for one in starts.known if one.directory_id != directory_id]
        named = {voter.directory_id for voter in self._voters}
        unnamed = [one for one in kept if one.directory_id not in named]
        room = MAX_DIRECTORIES * sum(1 for voter in self._voters if not voter.directory_id)
        newest = unnamed[max(0, len(unnamed) + 1 - room) :] if room else []
        kept = [one for one in kept if one.directory_id in named or one in newest]
        kept.append(KnownStart(directory_id, count, nonce))
        self._store.keep_starts(replace(starts, known=tuple(kept)))

    def _may_be_voter(self, node_id: int, directory_id: str) -> bool:
        return is_directory_id(directory_id) and any(
            voter.node_id == node_id and voter.directory_id in ("", directory_id)
            for voter in self._voters
        )

    def passed_on(self) -> list[pb.KnownStart]:
        """Return what a leader passes on: the starts that it knows, and its own."""
        starts = self._store.starts
        own = KnownStart(self._own_directory, starts.count, starts.nonces[0])
        return [
            pb.KnownStart(directory_id=one.directory_id, count=one.count, nonce=one.nonce)
            for one in (*starts.known, own)
        ]

    def learn(self, passed_on: Iterable[pb.KnownStart]) -> None:
        """Remember the starts that a leader passes on. Raises StorageError."""
        for one in passed_on:
            known = self.known(one.directory_id)
            if known is not None and one.count <= known.count:
                continue
            for voter in self._voters:
                if voter.directory_id in ("", one.directory_id) and 0 < one.count < MAX_STARTS:
                    self.remember(voter.node_id, one.directory_id, one.count, one.nonce)
                    break

    def refused(self) -> None:
        """Record durably that a leader has refused this node's own start. Raises StorageError."""
        self._store.keep_starts(replace(self._store.starts, refused=True))

    def accepted(self) -> None:
        """Record durably that a leader serves this node's own start: the next start is counted
        again. Raises StorageError.
        """
        if self._store.starts.refused:
            self._store.keep_starts(replace(self._store.starts, refused=False))


class StartChecks(VoterStarts):
    """Checks the starts in the messages of one replica. Its methods raise StorageError."""

    def __init__(
        self,
        store: LogStore,
        config: QuorumConfig,
        fetch_addresses: FetchAddresses,
        refusals: Refusals,
        now: Callable[[], float],
    ) -> None:
        super().__init__(store)
        self._timeout_s = config.fetch_timeout_ms / 1000
        self._fetch_addresses, self._refusals, self._now = fetch_addresses, refusals, now
        self._in_use = -math.inf, -math.inf
        """Times of the first and the last response that the directory is in use elsewhere."""

    def check_request(
        self, request: pb.FetchRequest | pb.VoteRequest, link: Link, core: QuorumCore
    ) -> Refusal | None:
        """Return why the sender's start is refused; otherwise remember it, and return None."""
        is_vote = isinstance(request, pb.VoteRequest)
        if not is_vote and core.role not in ("leader", "candidate"):
            # A node that does not lead answers that. A candidate keeps the Fetch until it is
            # elected.
            return None
        since = self._now() - self._timeout_s
        refusal = self.refusal_of(request, link, core, self._fetch_addresses, since)
        if refusal is not None:
            self._count(type(request).__name__, refusal)
            if not is_vote:
                self._fetch_addresses.refuse(link)
            return refusal
        node_id, directory_id = request.replica_id, request.replica_directory_id
        count, nonce = request.start.count, request.start.nonces[0]
        if isinstance(request, pb.VoteRequest):
            if request.pre_vote:
                # A pre-vote promises nothing, and a copy running in parallel requests it, too.
                return None
        else:
            known = self.known(directory_id)
            if core.role == "candidate" and known is not None and count > known.count:
                # Only a leader can tell whether another process fetches with that directory.
                return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "start", "this node campaigns")
            self._fetch_addresses.accept(link, node_id, directory_id, nonce)
        self.remember(node_id, directory_id, count, nonce)
        return None

    def check_vote(self, peer_id: int, response: pb.VoteResponse) -> bool:
        """Return whether the responder's start is acceptable, so that its vote counts. Raises
        DirectoryInUseElsewhereError.
        """
        directory_id = response.voter_directory_id
        if directory_id and is_directory_id(directory_id) and response.HasField("start"):
            refusal = self.refusal(peer_id, directory_id, response.start)
            if refusal is not None:
                self._count("VoteResponse", refusal)
                return False
            self.remember(peer_id, directory_id, response.start.count, response.start.nonces[0])
        if response.error_code == ErrorCode.DIRECTORY_IN_USE:
            self._check_use(peer_id, response.error_message)
        return True

    def check_fetched(self, peer_id: int, response: pb.FetchResponse, epoch: int) -> None:
        """Learn the starts in a leader's response. If the leader refuses this node's own start,
        raises DirectorySetBackError or DirectoryInUseElsewhereError.
        """
        if not response.error_code:
            self._in_use = -math.inf, -math.inf
            self.accepted()
            self.learn(response.known_starts)
        elif response.error_code == ErrorCode.DIRECTORY_IN_USE:
            self._check_use(peer_id, response.error_message)
        elif (
            response.error_code == ErrorCode.DIRECTORY_SET_BACK
            and response.leader_id == peer_id
            and response.leader_epoch >= epoch
        ):
            self.refused()
            raise DirectorySetBackError(
                "the data directory was restored from an older copy; "
                + _REFUSES.format(peer_id, response.error_message)
            )

    def _check_use(self, peer_id: int, reason: str) -> None:
        """Raise DirectoryInUseElsewhereError if peers have reported for long enough that another
        process has this directory.
        """
        now, enough_s = self._now(), IN_USE_TIMEOUTS * self._timeout_s
        why = _REFUSES.format(peer_id, reason)
        since, last_at = self._in_use
        if now - last_at > enough_s:
            since = now
            log.error("the data directory is in use elsewhere", why=why)
        self._in_use = since, now
        if now - since >= enough_s:
            self.refused()
            raise DirectoryInUseElsewhereError(f"the data directory is in use elsewhere; {why}")

    def _count(self, message: str, refusal: Refusal) -> None:
        self._refusals.add(ev.Refused(message, refusal.field, refusal.reason, contradiction=False))


def _message_of(start: DirectoryStart) -> pb.DirectoryStart:
    return pb.DirectoryStart(count=start.count, nonces=start.nonces)
