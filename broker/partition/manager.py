"""All partition replicas of one broker, as the shell sees them: events and time in, effects out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from broker.partition.describe import ReplicaDescription, describe_led, describe_replica
from broker.partition.events import (
    AlterPartitionAnswered,
    AlterPartitionFailed,
    BrokerStatusChanged,
    ClientClosed,
    Effect,
    Event,
    FetchReceived,
    Flushed,
    ImageMoved,
    LinkLost,
    LinkOpened,
    ProduceReceived,
    ReplicaFetchAnswered,
    ReplicaFetchReceived,
    RetentionDue,
    SessionClosed,
    Tick,
)
from broker.partition.fetches import Fetches
from broker.partition.follower import Follower
from broker.partition.host import Host
from broker.partition.isr_updates import IsrUpdates
from broker.partition.leader import GAUGES, Leader
from broker.partition.produces import Produces
from broker.partition.roles import Roles
from broker.partition.sessions import Sessions
from broker.partition.settings import PartitionSettings
from broker.partition.unserved import Unserved, unserved
from raftlog.node.storage.partition_api import PartitionKey, RecoveredPartition
from raftlog.wire.data.v1 import data_pb2 as pb

COUNTS = (
    "IsrShrinks",
    "IsrExpands",
    "FailedIsrUpdates",
    "FailedReplicaFetches",
    "StaleReplicaEpochs",
    "Truncations",
)


class Partitions:
    """The implementation of ``api.PartitionReplicas``.

    Deterministic: the same events and times give the same effects.
    """

    def __init__(
        self, settings: PartitionSettings, recovered: Iterable[RecoveredPartition], now: float
    ) -> None:
        self._host = Host(settings, tuple(recovered), now)
        self._isr_updates = IsrUpdates(self._host)
        self._produces = Produces(self._host)
        self._fetches = Fetches(self._host)
        self._sessions = Sessions(self._host)
        self._roles = Roles(self._host, self._sessions, self._isr_updates)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Tick: self._tick,
            ImageMoved: self._image_moved,
            BrokerStatusChanged: self._broker_status_changed,
            ProduceReceived: self._produces.received,
            FetchReceived: self._fetches.received,
            ClientClosed: self._client_closed,
            ReplicaFetchReceived: self._sessions.received,
            SessionClosed: self._session_closed,
            LinkOpened: self._link_opened,
            LinkLost: self._link_lost,
            ReplicaFetchAnswered: self._replica_fetch_answered,
            Flushed: self._flushed,
            RetentionDue: self._retention_due,
            AlterPartitionAnswered: self._alter_partition_answered,
            AlterPartitionFailed: self._isr_updates.failed,
        }

    def step(self, event: Event, now: float) -> list[Effect]:
        """React to one event; the effects are to be carried out in order, before the next step."""
        host = self._host
        host.now = now
        self._handlers[type(event)](event)
        host.deadlines.run_due(now)
        self._sessions.settle()
        self._isr_updates.pump()
        self._roles.pump_links()
        host.ask_for_flush()
        effects, host.out = host.out, []
        return effects

    def next_deadline(self) -> float:
        """Return when to step Tick, at the latest; math.inf if never."""
        return self._host.deadlines.next()

    # --- questions -------------------------------------------------------------------------------

    def list_offsets(self, request: pb.ListOffsetsRequest, now: float) -> pb.ListOffsetsResponse:
        """Return at once, for each partition, a result or a typed error."""
        self._host.now = now
        return self._fetches.list_offsets(request)

    def describe_led(
        self, request: pb.BrokerMetadataRequest, now: float
    ) -> pb.BrokerMetadataResponse:
        """Return the ISRs of partitions led here, and the epochs that they hold under (KIP-24).

        Without keys: of all.
        """
        self._host.now = now
        return describe_led(self._host, request)

    def describe(self, key: PartitionKey) -> ReplicaDescription | None:
        """Return the description of a replica here; None: there is none."""
        replica = self._host.replicas.get(key)
        return None if replica is None else describe_replica(replica)

    def counters(self) -> dict[str, int]:
        """Return gauges and counts by Kafka's metric names. O(1)."""
        host = self._host
        found = {"PartitionCount": len(host.replicas), "OfflineReplicaCount": len(host.not_led)}
        found.update((name, host.gauges[name]) for name in GAUGES)
        found.update((name, host.counts[name]) for name in COUNTS)
        return found

    def unserved(self, now: float, *, low_space: bool) -> Unserved:
        """Return the partitions that this broker leads by the metadata but cannot serve. O(1)."""
        self._host.now = now
        return unserved(self._host, low_space=low_space)

    def end_offset(self, key: PartitionKey) -> int:
        """Return the log end of a replica here, unflushed records included; -1: no replica here."""
        replica = self._host.replicas.get(key)
        return -1 if replica is None else replica.log.end

    def keys(self) -> Iterable[PartitionKey]:
        """Return the keys of the replicas here, in order."""
        return sorted(self._host.replicas)

    # --- events ----------------------------------------------------------------------------------

    def _tick(self, _event: Tick) -> None:
        """Do nothing: due timers run at the end of every step."""

    def _image_moved(self, event: ImageMoved) -> None:
        self._host.image = event.image
        self._roles.reconsider(event.changes)

    def _broker_status_changed(self, event: BrokerStatusChanged) -> None:
        host = self._host
        host.serve_until, host.why_fenced = event.serve_until, event.why
        if (event.broker_epoch, event.shown_from) != (host.broker_epoch, host.shown_from):
            # One broker epoch does not vouch for another: the roles end with whichever arrives
            # first, this event or the image.
            host.broker_epoch, host.shown_from = event.broker_epoch, event.shown_from
            self._roles.reconsider(None)

    def _client_closed(self, event: ClientClosed) -> None:
        self._produces.client_closed(event.client)
        self._fetches.client_closed(event.client)

    def _session_closed(self, event: SessionClosed) -> None:
        self._sessions.closed(event.session)

    def _link_opened(self, event: LinkOpened) -> None:
        link = self._roles.links.get(event.leader_id)
        if link is not None:
            link.opened()

    def _link_lost(self, event: LinkLost) -> None:
        link = self._roles.links.get(event.leader_id)
        if link is not None:
            link.lost()

    def _replica_fetch_answered(self, event: ReplicaFetchAnswered) -> None:
        link = self._roles.links.get(event.leader_id)
        if link is not None:
            link.answered(event.response)

    def _flushed(self, event: Flushed) -> None:
        for replica in self._host.flushed(event.token):
            role = replica.role
            if isinstance(role, Leader):
                role.on_flushed()
            elif isinstance(role, Follower):
                role.link.durable(role)

    def _retention_due(self, event: RetentionDue) -> None:
        host = self._host
        for key in event.keys if host.serves else ():
            replica = host.replicas.get(key)
            if replica is not None and isinstance(replica.role, Leader):
                replica.role.retain(event.time_ms)

    def _alter_partition_answered(self, event: AlterPartitionAnswered) -> None:
        self._isr_updates.answered(event.response)
