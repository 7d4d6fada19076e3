"""The replicas here and their roles, as this broker's own newest image says: the only source of
roles.

Roles are taken only while the image shows the *current* registration of this broker. Such an image
is newer than whatever an earlier incarnation did: so no leader epoch is led twice with a log that a
crash has shortened in between, and no replica is deleted because its topic is not known *yet*. A
change touches the partitions it names and no others.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.partition.events import Changes, DropLink
from broker.partition.follower import Follower
from broker.partition.host import Host
from broker.partition.isr_updates import IsrUpdates
from broker.partition.leader import Leader
from broker.partition.leader_link import LeaderLink
from broker.partition.replica import Replica
from broker.partition.sessions import Sessions
from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.config_layers import ALL_BROKERS
from raftlog.metadata.entities import Partition
from raftlog.node.storage.partition_api import PartitionKey


class Roles:
    """The assigner of roles to all replicas of a broker."""

    def __init__(self, host: Host, sessions: Sessions, isr_updates: IsrUpdates) -> None:
        self._host = host
        self._sessions = sessions
        self._isr_updates = isr_updates
        self.links: dict[int, LeaderLink] = {}

    def reconsider(self, changes: Changes | None) -> None:
        """Assign roles again: the image or the status of this broker is another one."""
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
                continue
            if replica is None:
                replica = host.take_back(key) or Replica(key)
                host.add(replica)
            self._play(replica, partition)

    # --- roles -----------------------------------------------------------------------------------

    def _play(self, replica: Replica, partition: Partition) -> None:
        host, role = self._host, replica.role
        if role is not None and role.epoch == partition.leader_epoch:
            if isinstance(role, Leader) and partition.leader == host.broker_id:
                role.take_image(partition)
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
            # Offset and epoch would name two different records. Only metadata that was rolled back
            # can ask for it.
            replica.offline = (
                f"the log has records of leader epoch {replica.last_epoch}, the metadata is at"
                f" {partition.leader_epoch}"
            )
            host.not_led[replica.key] = replica.offline
            host.note(
                "can't lead",
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
            link = self.links[leader_id] = LeaderLink(host, leader_id)
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
        """Send, at the end of a step, the fetches that are due; drop links that nothing uses."""
        host = self._host
        touched, host.touched_links = host.touched_links, {}
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
                    leader.take_configs()
