"""All fetch sessions of followers at one broker, and the check of their broker epochs (KIP-903)."""

from __future__ import annotations

from collections.abc import Hashable

from broker.partition.events import ReplicaFetchReceived
from broker.partition.host import Host
from broker.partition.leader import Leader
from broker.partition.session import Session
from raftlog.errors import ApiError, ErrorCode
from raftlog.limits.checking import check as check_limits
from raftlog.metadata.versions import supports_replica_epochs
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.data.v1 import data_pb2 as pb

NO_EPOCH = -1


class Sessions:
    """All fetch sessions of followers at one broker."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.by_id: dict[Hashable, Session] = {}
        self.touched: dict[int, Session] = {}
        """Sessions to process when the step ends, by number."""
        self._numbers = 0

    def received(self, event: ReplicaFetchReceived) -> None:
        """Process a follower's fetch."""
        session = self.by_id.get(event.session)
        if session is None:
            self._numbers += 1
            session = self.by_id[event.session] = Session(self, event.session, self._numbers)
        try:
            self._check(event.request)
        except ApiError as error:
            session.refuse(event.request, error)
        else:
            session.fetch(event.request)

    def closed(self, id_: Hashable) -> None:
        """End the session of a closed link."""
        session = self.by_id.pop(id_, None)
        if session is not None:
            session.clear()
            self.touched.pop(session.number, None)

    def settle(self) -> None:
        """Answer sessions with news, at the end of a step."""
        while self.touched:
            self.touched.pop(next(iter(self.touched))).settle()

    def of_replica(self, replica_id: int) -> list[Leader]:
        """Return the leaders here that news of a replica concerns: those of its positions."""
        found: dict[PartitionKey, Leader] = {}
        for session in self.by_id.values():
            if session.replica_id == replica_id:
                found.update((key, position.leader) for key, position in session.positions.items())
        return list(found.values())

    def _check(self, request: pb.ReplicaFetchRequest) -> None:
        host, state = self.host, request.replica_state
        if request.cluster_id != host.settings.cluster_id:
            raise ApiError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"this broker is of cluster {host.settings.cluster_id!r}",
            )
        check_limits(request)
        if request.leader_id != host.broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this is broker {host.broker_id}")
        if not host.serves:
            raise ApiError(ErrorCode.BROKER_FENCED, host.why_not_serving())
        self._check_epoch(state.replica_id, state.replica_epoch)

    def _check_epoch(self, replica_id: int, epoch: int) -> None:
        """Refuse every epoch but the one that the image shows (KIP-903).

        A fetch proves nothing about an epoch. [One names an epoch that was never assigned; taken
        for the follower's newest, it would refuse the true follower from then on.] A true follower
        whose registration this broker has not applied yet retries.
        """
        if epoch == NO_EPOCH and not supports_replica_epochs(self.host.image.features):
            return
        registered = self.host.broker(replica_id)
        known = NO_EPOCH if registered is None else registered.epoch
        if epoch < max(known, 0):
            self.host.counts["StaleReplicaEpochs"] += 1
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {replica_id} of epoch {epoch} is over: {known} is known here",
            )
        if epoch > known:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {replica_id} of epoch {epoch} is not known here yet: "
                + ("no registration is" if registered is None else f"{known} is"),
            )
