"""All partition replicas of one broker, as the shell sees them: events and time go in, effects come
out.

Roles come only from the broker's own newest image, and only while that shows the *current*
registration of this broker. Such an image is newer than anything that an earlier incarnation did.
So no leader epoch is led again with a log that a crash has shortened, and no replica is deleted
because its topic is not known *yet*. A change touches only the partitions that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

from broker.partition.client_requests import Fetches, Produces
from broker.partition.describe import (
    ReplicaDescription,
    Unserved,
    describe_led,
    describe_replica,
    led_page,
    unserved,
)
from broker.partition.events import (
    AlterPartitionAnswered,
    AlterPartitionFailed,
    BrokerStatusChanged,
    Changes,
    ClientClosed,
    DropLink,
    Effect,
    Event,
    FetchReceived,
    Flushed,
    ImageMoved,
    LinkLost,
    LinkOpened,
    ProduceReceived,
    Read,
    ReplicaFetchAnswered,
    ReplicaFetchReceived,
    RetentionDue,
    SessionClosed,
    SpaceChanged,
    Tick,
)
from broker.partition.follower import Follower, LeaderLink
from broker.partition.host import Host, PartitionSettings, Replica
from broker.partition.isr import IsrUpdates
from broker.partition.leader import GAUGES, Leader
from broker.partition.sessions import Sessions
from raftlog.bounds import REPLICA_LOGS_MAX
from raftlog.metadata.config_keys import ALL_BROKERS, ResourceType
from raftlog.metadata.entities import Partition
from raftlog.node.storage.partition_api import PartitionKey, RecoveredPartition
from raftlog.wire.controller.v1.controller_pb2 import ReplicaLogReport
from raftlog.wire.data.v1 import data_pb2 as pb

REPORTED_AGAIN_MAX = 200
"""Maximum number of leaderless partitions that one heartbeat reports again."""


class Roles:
    """Assigns roles to all replicas of a broker."""

    def __init__(self, host: Host, sessions: Sessions, isr_updates: IsrUpdates) -> None:
        self._host = host
        self._sessions = sessions
        self._isr_updates = isr_updates
        self.links: dict[int, LeaderLink] = {}
        self._touched_links: dict[int, LeaderLink] = {}
        """Links to process at the end of the step."""

    def reconsider(self, changes: Changes | None) -> None:
        """Assign roles again, as this broker's image or status has changed."""
        host = self._host
        registration = host.broker(host.broker_id)
        current = registration is not None and registration.epoch == host.broker_epoch
        registered = current and host.image.offset >= host.shown_from
        if registered and (changes is None or not host.registered):
            held: Iterable[PartitionKey] = host.image.replicas_of.get(host.broker_id) or ()
            keys = sorted({*held, *host.replicas})
            host.registered = True
            self._settle(keys)
            self._links_moved(tuple(self.links))
        elif registered:
            assert changes is not None
            self._settle(self._touched(changes))
            self._brokers_changed(changes)
            self._configs_changed(changes)
        elif host.registered:
            host.registered = False
            host.leaderless.clear()
            host.unreported.clear()
            for key in list(host.replicas):
                self._end_role(host.replicas[key])

    def _touched(self, changes: Changes) -> list[PartitionKey]:
        host, found = self._host, dict.fromkeys(changes.partitions)
        for topic_id in changes.removed_topics:
            found.update(
                dict.fromkeys((topic_id, index) for index in host.by_topic.get(topic_id, ()))
            )
        return list(found)

    def _settle(self, keys: Iterable[PartitionKey]) -> None:
        host = self._host
        for key in keys:
            partition = host.partition(key)
            replica = host.replicas.get(key)
            if partition is None or host.broker_id not in partition.replicas:
                if replica is not None:
                    self._end_role(replica)
                    host.set_aside(replica)
                self._note_leader(key, led=True)
                continue
            if replica is None:
                replica = host.take_back(key) or Replica(key)
                host.add(replica)
            self._play(replica, partition)
            self._note_leader(key, led=partition.leader >= 0)

    def _note_leader(self, key: PartitionKey, *, led: bool) -> None:
        """Record whether a partition of this broker has no leader."""
        host = self._host
        if led:
            host.leaderless.pop(key, None)
            host.unreported.pop(key, None)
        elif key not in host.leaderless:
            host.leaderless[key] = host.unreported[key] = None

    # --- roles -----------------------------------------------------------------------------------

    def _play(self, replica: Replica, partition: Partition) -> None:
        host, role = self._host, replica.role
        if role is not None and role.epoch == partition.leader_epoch:
            if isinstance(role, Leader) and partition.leader == host.broker_id:
                role.process_image(partition)
                return
            if isinstance(role, Follower) and partition.leader == role.leader_id:
                return
        self._end_role(replica)
        if partition.leader == host.broker_id:
            self._lead(replica, partition)
        elif partition.leader >= 0:
            self._follow(replica, partition)

    def _lead(self, replica: Replica, partition: Partition) -> None:
        host = self._host
        if replica.last_epoch >= partition.leader_epoch:
            # Offset and epoch would identify two different records. Only metadata that was rolled
            # back can request this.
            replica.offline = (
                f"the log has records of leader epoch {replica.last_epoch}, but the metadata is at"
                f" {partition.leader_epoch}"
            )
            host.not_led[replica.key] = replica.offline
            host.note(
                "cannot lead",
                partition=replica.key[0].hex(),
                index=replica.key[1],
                why=replica.offline,
            )
            return
        leader = Leader(host, replica, partition, self._isr_updates)
        replica.role = leader
        leader.begin()

    def _follow(self, replica: Replica, partition: Partition) -> None:
        host, leader_id = self._host, partition.leader
        link = self.links.get(leader_id)
        if link is None:
            link = self.links[leader_id] = LeaderLink(host, leader_id, self._touched_links)
            link.look_up()
        follower = Follower(host, replica, leader_id, partition.leader_epoch, link)
        replica.role = follower
        link.add(follower)

    def _end_role(self, replica: Replica) -> None:
        role, replica.role = replica.role, None
        if replica.offline:
            replica.offline = ""
            del self._host.not_led[replica.key]
        if isinstance(role, Leader):
            role.resign()
        elif isinstance(role, Follower):
            role.link.remove(role)

    # --- other news from the image ---------------------------------------------------------------

    def _brokers_changed(self, changes: Changes) -> None:
        self._links_moved(changes.brokers)
        for broker_id in dict.fromkeys(changes.brokers):
            for leader in self._sessions.of_replica(broker_id):
                leader.isr.consider()

    def _links_moved(self, broker_ids: Iterable[int]) -> None:
        for broker_id in dict.fromkeys(broker_ids):
            if broker_id in self.links:
                self.links[broker_id].look_up()

    def pump_links(self) -> None:
        """At the end of a step, send the fetches that are due, and drop unused links."""
        host = self._host
        touched = dict(self._touched_links)
        self._touched_links.clear()
        for leader_id, link in touched.items():
            if link.followers:
                link.pump()
            elif self.links.get(leader_id) is link:
                link.close()
                del self.links[leader_id]
                if link.endpoint:
                    host.out.append(DropLink(leader_id))

    def _configs_changed(self, changes: Changes) -> None:
        host = self._host
        for resource_type, name in dict.fromkeys(changes.configs):
            if resource_type == ResourceType.TOPIC:
                topic_id = host.image.topic_ids.get(name)
                keys = (
                    []
                    if topic_id is None
                    else [(topic_id, index) for index in host.by_topic.get(topic_id, ())]
                )
            elif resource_type == ResourceType.BROKER and name == ALL_BROKERS:
                keys = list(host.replicas)
            else:
                continue
            for key in keys:
                leader = host.replicas[key].role
                if isinstance(leader, Leader):
                    leader.read_configs()
                    leader.isr_changed()


COUNTS = (
    "IsrShrinks",
    "IsrExpands",
    "FailedIsrUpdates",
    "FailedReplicaFetches",
    "StaleReplicaEpochs",
    "Truncations",
)


class Partitions:
    """All replicas of one broker.

    Deterministic, no I/O: the same events and times give the same effects.
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
            SpaceChanged: self._space_changed,
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
        """Process one event; return the effects, to be carried out in order before the next
        step.
        """
        host = self._host
        host.now = now
        self._handlers[type(event)](event)
        host.deadlines.run_due(now)
        self._sessions.settle()
        self._isr_updates.pump()
        self._roles.pump_links()
        host.request_flush()
        effects, host.out = host.out, []
        return effects

    def next_deadline(self) -> float:
        """Return when to step Tick, at the latest; math.inf if never."""
        return self._host.deadlines.next()

    def was_read(self, read: Read, size_bytes: int) -> None:
        """Adjust the throttle's charge for a read to the bytes that were read."""
        self._host.leader_throttle.spend(size_bytes - read.charged, self._host.now)

    # --- queries
    # -----------------------------------------------------------------------------------

    def list_offsets(self, request: pb.ListOffsetsRequest, now: float) -> pb.ListOffsetsResponse:
        """Return, for each partition, a result or a typed error, at once."""
        self._host.now = now
        return self._fetches.list_offsets(request)

    def describe_led(
        self, request: pb.BrokerMetadataRequest, now: float
    ) -> pb.BrokerMetadataResponse:
        """Return the ISRs of partitions led here, and the epochs for which they are valid (KIP-24).

        Covers the requested partitions, or all of them, page by page. Raises ApiError.
        """
        self._host.now = now
        return led_page(self._host.replicas, partial(describe_led, self._host), request)

    @property
    def has_unreported(self) -> bool:
        """Whether there are leaderless partitions that no heartbeat has reported."""
        return bool(self._host.unreported)

    def replica_logs(self) -> list[ReplicaLogReport]:
        """Return a heartbeat's reports on the leaderless partitions.

        These are the unreported ones if there are any, else some of the others again, as the
        controller may have changed, or may not have known the state of the partition when it was
        reported. Only complete durable logs of the current registration are reported.
        """
        host = self._host
        again = islice(host.leaderless, REPORTED_AGAIN_MAX)
        keys = list(islice(host.unreported, REPLICA_LOGS_MAX) if host.unreported else again)
        reports = []
        for key in keys:
            host.unreported.pop(key, None)
            del host.leaderless[key]
            host.leaderless[key] = None
            replica, partition = host.replicas[key], host.partition(key)
            if partition is not None and replica.durable:
                reports.append(
                    ReplicaLogReport(
                        topic_id=key[0],
                        partition_index=key[1],
                        leader_epoch=partition.leader_epoch,
                        last_epoch=replica.last_epoch,
                        log_end_offset=replica.log.end,
                    )
                )
        return reports

    def describe(self, key: PartitionKey) -> ReplicaDescription | None:
        """Return the description of a replica here, or None."""
        replica = self._host.replicas.get(key)
        return None if replica is None else describe_replica(replica)

    def counters(self) -> dict[str, int]:
        """Return gauges and counts by Kafka's metric names.

        O(1).
        """
        host = self._host
        found = {"PartitionCount": len(host.replicas), "OfflineReplicaCount": len(host.not_led)}
        found.update((name, host.gauges[name]) for name in GAUGES)
        found.update((name, host.counts[name]) for name in COUNTS)
        return found

    def unserved(self, now: float, *, low_space: bool) -> Unserved:
        """Return the partitions that this broker leads according to the metadata but cannot serve.

        O(1).
        """
        self._host.now = now
        return unserved(self._host, low_space=low_space)

    def end_offset(self, key: PartitionKey) -> int:
        """Return a replica's log end here, unflushed records included; -1 if there is no such
        replica.
        """
        replica = self._host.replicas.get(key)
        return -1 if replica is None else replica.log.end

    def keys(self) -> Iterable[PartitionKey]:
        """Return the keys of the replicas here, in order."""
        return sorted(self._host.replicas)

    # --- events ----------------------------------------------------------------------------------

    def _tick(self, _event: Tick) -> None:
        """Do nothing: due timers run at the end of every step."""

    def _image_moved(self, event: ImageMoved) -> None:
        host, changes = self._host, event.changes
        host.image = event.image
        if changes is None or any(one[0] == ResourceType.BROKER for one in changes.configs):
            host.read_throttles()
        self._roles.reconsider(event.changes)

    def _broker_status_changed(self, event: BrokerStatusChanged) -> None:
        host = self._host
        host.serve_until, host.why_fenced = event.serve_until, event.why
        if (event.broker_epoch, event.shown_from) != (host.broker_epoch, host.shown_from):
            # One broker epoch does not vouch for another: the roles end with this event or with the
            # image, whichever arrives first.
            host.broker_epoch, host.shown_from = event.broker_epoch, event.shown_from
            self._roles.reconsider(None)

    def _space_changed(self, event: SpaceChanged) -> None:
        self._host.low_on_space = event.low

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
