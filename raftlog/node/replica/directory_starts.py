"""The starts of the voters' data directories, by which a copied or restored directory is
distinguished from the one that has made promises.

Theory of operation. A voter is a node id and a directory id, and both are copied with a directory.
So each start on a directory is counted and draws a random number, its *nonce*, and the directory
remembers the last ones. A node sends its start in the first Fetch of an epoch, with a vote request,
and with a vote. The others remember, durably, the newest start of each voter's directory; a leader
passes on the starts that it knows. If a directory does not itself remember a start that others
know, it was restored from a copy older than that start: it has forgotten its later promises. Its
votes do not count, and a leader does not serve it.

Only a leader sees two more signs, in its own epoch: a newer start acknowledges less than the
previous one did; and another process with the same directory still fetches.

A leader's refusal ends the refused process. The next start on that directory counts as the same one
until a leader serves it: no refused start makes a copy newer than its original. For the same reason
the start in a pre-vote request is compared, but not remembered.

Why: docs/decisions/038-a-copied-directory-is-noticed.md
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from raftlog.bounds import DIRECTORY_NONCES_MAX
from raftlog.endpoint import Voter
from raftlog.errors import ErrorCode
from raftlog.node.replica.peer_acceptor import FetchAddresses
from raftlog.node.storage.api import DirectoryStart, KnownStart, LogStore
from raftlog.quorum.admission import Refusal, is_directory_id
from raftlog.quorum.core import QuorumCore
from raftlog.transport.api import Link
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

MAX_STARTS = 2**53
"""Limit on the number of starts of a directory, exclusive."""
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
                f" {self._store.starts.count}): start {start.count} is of a copy of it",
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


def _message_of(start: DirectoryStart) -> pb.DirectoryStart:
    return pb.DirectoryStart(count=start.count, nonces=start.nonces)
