"""Operations of people and their tools on the generated cluster: topics, configs, moves."""

from collections.abc import Callable

from controller.decisions.configs import config_record
from controller.rules.placement import new_partition, spread
from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.image import PartitionKey
from raftlog.metadata.records import Record, record
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.generate.cluster import Cluster
from simulation.generate.schedule import BROKER_CONFIGS, PRINCIPALS, TOPIC_CONFIGS, Rates, Schedule

_UNCLEAN_TOPICS = 0.04
_MAX_CLIENTS = 40
_HOUR_MS = 3_600_000


class Workload:
    """Planner of the regular operations."""

    def __init__(self, cluster: Cluster, schedule: Schedule) -> None:
        self._cluster, self._schedule = cluster, schedule
        self._log, self._rng = cluster.log, cluster.log.rng
        self.topics: list[str] = []
        self._created = 0
        self._clients: list[tuple[int, list[int]]] = []

    def plan(self, rates: Rates, begin_ms: int) -> None:
        actions: list[tuple[float, Callable[[int], None]]] = [
            (rates.deployments, self._deploy),
            (rates.alterations, self._alter),
            (rates.temporary_topics, self._temporary_topic),
            (rates.clients, self._client),
            (rates.reassignments, self._reassign),
        ]
        for per_day, action in actions:
            self._schedule.every(per_day, begin_ms, action, by_people=True)

    def create(self, name: str, partitions: int, at_ms: int, principal: str) -> bool:
        cluster, rng, view = self._cluster, self._rng, self._log.draft
        live = cluster.active()
        width = min(cluster.profile.replication_factor, cluster.profile.brokers)
        if len(live) < width:
            return False
        topic_id = rng.getrandbits(128).to_bytes(16, "big")
        configs = {"min.insync.replicas": "2"} if width > 2 else {}
        if rng.random() < _UNCLEAN_TOPICS:
            configs["unclean.leader.election.enable"] = "true"
        assignments = spread(view, live, partitions, width, rng)
        active = frozenset(live)
        records = [record(pb.TopicRecord(name=name, topic_id=topic_id))]
        records += [
            config_record(ResourceType.TOPIC, name, key, value) for key, value in configs.items()
        ]
        records += [
            new_partition(topic_id, index, replicas, active)
            for index, replicas in enumerate(assignments)
        ]
        self._write(records, at_ms, principal)
        return True

    def create_first(self, at_ms: int) -> int:
        """Create the permanent topics. Return the time when it is done."""
        profile, rng = self._cluster.profile, self._rng
        total = profile.topics * profile.partitions
        for number in range(profile.topics):
            # Many small topics and few large ones, as it is.
            partitions = max(
                1, min(profile.partitions * 8, round(rng.expovariate(1 / profile.partitions)))
            )
            if profile.skew == "topic":
                partitions = total // 2 if number == 0 else max(1, partitions // 2)
            name = f"{('orders', 'billing', 'events', 'metrics')[number % 4]}.{number:04d}"
            self._cluster.observed.advance(at_ms)
            self.create(name, partitions, at_ms, PRINCIPALS[0])
            self.topics.append(name)
            at_ms += rng.randrange(20, 400)
        return at_ms

    def _temporary_topic(self, at_ms: int) -> None:
        self._created += 1
        name, principal = f"streams-{self._created}-repartition", self._rng.choice(PRINCIPALS[4:])
        if self.create(
            name, self._rng.randrange(1, 2 * self._cluster.profile.partitions), at_ms, principal
        ):
            ends_ms = at_ms + int(self._rng.expovariate(1 / (6 * _HOUR_MS)))
            self._schedule.at(ends_ms, lambda now_ms: self._delete(name, now_ms, principal))

    def _delete(self, name: str, at_ms: int, principal: str) -> None:
        view = self._log.draft
        keys = sorted(view.configs.get((ResourceType.TOPIC, name)) or ())
        gone = [config_record(ResourceType.TOPIC, name, key, None) for key in keys]
        gone.append(record(pb.RemoveTopicRecord(topic_id=view.topic_ids[name])))
        self._write(gone, at_ms, principal)

    def _alter(self, at_ms: int) -> None:
        rng = self._rng
        if rng.random() < 0.1:
            name, resource_type = str(rng.choice(self._cluster.broker_ids)), ResourceType.BROKER
            keys = BROKER_CONFIGS
        else:
            name, resource_type, keys = rng.choice(self.topics), ResourceType.TOPIC, TOPIC_CONFIGS
        key = rng.choice(list(keys))
        value = rng.choice(keys[key])
        if value is None and key not in (self._log.draft.configs.get((resource_type, name)) or ()):
            value = keys[key][0]
        self._write([config_record(resource_type, name, key, value)], at_ms, rng.choice(PRINCIPALS))

    def _deploy(self, at_ms: int) -> None:
        """Let a tool set configs of several topics, one write each, within seconds."""
        for _ in range(self._rng.randrange(5, 60)):
            self._alter(at_ms)
            at_ms += self._rng.randrange(2, 30)

    def _client(self, at_ms: int) -> None:
        if len(self._clients) >= _MAX_CLIENTS:
            client_id, _ = self._clients.pop(self._rng.randrange(len(self._clients)))
            closed = pb.CloseClientRecord(client_id=client_id, reason="closed by its owner")
            self._log.append([record(closed)], at_ms)
        client_id = self._log.end_offset
        self._log.append([record(pb.OpenClientRecord(name=f"deploy-{client_id}"))], at_ms)
        self._clients.append((client_id, [1]))

    def _write(self, records: list[Record], at_ms: int, principal: str) -> None:
        rng, client = self._rng, (0, 0, 0)
        if self._clients and rng.random() < 0.5:
            client_id, numbers = rng.choice(self._clients)
            sequence = numbers[0]
            numbers[0] += 1
            client = (client_id, sequence, max(1, sequence - rng.randrange(8)))
        self._log.append(records, at_ms, principal=principal, client=client)

    def _reassign(self, at_ms: int) -> None:
        """Move some partitions from one broker to another, which has their data minutes later."""
        live = self._cluster.active()
        if len(live) <= self._cluster.profile.replication_factor:
            return
        source, to = self._rng.sample(live, 2)
        keys: list[PartitionKey] = [
            (each.topic_id, each.index)
            for each in self._cluster.held(source)
            if each.replicas[-1] == source and to not in each.replicas
        ]
        keys = self._rng.sample(keys, min(len(keys), 40))
        self._cluster.reassign(keys, to, at_ms)
        done_ms = at_ms + self._rng.randrange(60_000, 900_000)
        self._schedule.at(done_ms, lambda now_ms: self._cluster.expand(to, now_ms, keys=keys))
