"""Random schedules and scenes of the model of partition replicas: what happens, and when.

A schedule lets everything go wrong, heals it, and looks; a scene calls the same steps by hand.
"""

import itertools
from collections.abc import Callable
from typing import Any

from partition_model import (
    BROKERS,
    KEPT_MS,
    TOPIC_ID,
    BrokenPromiseError,
    Node,
    Wire,
    World,
    Written,
    same_batches,
)
from replica_kit import data

from broker.partition import events as ev
from raftlog.errors import ErrorCode
from raftlog.metadata.records import record
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.data.v1 import data_pb2 as pb
from raftlog.wire.records.v1 import records_pb2


class DrivenWorld(World):
    """One schedule, or one scene."""

    # --- the whole of it ----------------------------------------------------------------------------

    def run(self) -> None:
        """Set up, let everything go wrong, heal, and look."""
        self.begin()
        actions = self._actions()
        weights = list(itertools.accumulate(weight for weight, _ in actions))
        for _ in range(self.steps):
            self.now += self.rng.choice((0.0, 0.0, 0.001, 0.03))
            self.rng.choices(actions, cum_weights=weights)[0][1]()
        self.heal()

    def begin(self) -> None:
        """Three brokers, registered and unfenced, and a topic of two partitions."""
        for id_ in BROKERS:
            self._start(self.nodes[id_])
        for id_ in BROKERS:
            self._register(self.nodes[id_])
            self.controller.unfence(id_)
        self._create()
        for node in self.nodes.values():
            while node.applied < len(self.controller.log) - 1:
                self._apply(node)

    def turns(self, count: int = 20) -> None:
        """Let everything that is up, and is not held back, go on for a while."""
        for _ in range(count):
            self._turn(-1)

    def produce(self, key: PartitionKey, node: Node) -> Written:
        """Send a record to a leader; what becomes of it is checked from here on."""
        return self._send(key, node, [f"v{self._number()}"], 20_000)

    def restart(self, node: Node) -> None:
        """A dead broker comes back."""
        self._start(node)

    def catch_up(self, *nodes: Node) -> None:
        """These register, hear all of the metadata, flush, and are unfenced; nothing else moves."""
        for node in nodes:
            if node.epoch < 0:
                self._register(node)
        for node in nodes:
            while node.applied < len(self.controller.log) - 1:
                self._apply(node)
            while (token := node.disk.flush()) is not None:
                self.step(node, ev.Flushed(token))
            if self._may_unfence(node):
                self.controller.unfence(node.id)
                self._isr_moved()

    def carry_alters(self) -> None:
        """All proposals on their way arrive, and their answers."""
        self.hold_alters = False
        while self.alters:
            self.carry_alter()
        for sender, number, event in self.answers:
            if self.nodes[sender].altering == number:
                self.nodes[sender].altering = None
                self.step(self.nodes[sender], event)
        self.answers.clear()

    def give_up_alter(self, node: Node) -> None:
        """The patience of a proposer ends, and it asks again."""
        node.altering = None
        self.step(node, ev.AlterPartitionFailed(ErrorCode.REQUEST_TIMED_OUT, outcome_unknown=True))
        self.now += 0.1
        self.step(node, ev.Tick())

    def fence(self, id_: int) -> None:
        """Fence a broker at the controller."""
        self.controller.fence(id_)
        self._isr_moved()

    def _create(self) -> None:
        name = "t"
        records = [record(records_pb2.TopicRecord(name=name, topic_id=TOPIC_ID))]
        for index in range(self.partitions):
            replicas = [BROKERS[(index + shift) % len(BROKERS)] for shift in range(len(BROKERS))]
            records.append(
                record(
                    records_pb2.PartitionRecord(
                        partition_id=index,
                        topic_id=TOPIC_ID,
                        replicas=replicas,
                        isr=replicas,
                        leader=replicas[0],
                    )
                )
            )
        config = records_pb2.ConfigRecord(
            resource_type=2,
            resource_name=name,
            name="min.insync.replicas",
            value=str(self.min_isr),
        )
        records.append(record(config))
        if self.kept_bytes >= 0:
            for key, value in (("retention.bytes", self.kept_bytes), ("retention.ms", KEPT_MS)):
                records.append(
                    record(
                        records_pb2.ConfigRecord(
                            resource_type=2, resource_name=name, name=key, value=str(value)
                        )
                    )
                )
        self.controller.commit(records)
        self.keys = [(TOPIC_ID, index) for index in range(self.partitions)]
        self._isr_moved()

    def _actions(self) -> list[tuple[float, Callable[[], None]]]:
        """Each schedule has a temper of its own: what is frequent in one is rare in another."""
        some = self.rng.choice
        self.replaced = some((0.1, 0.4, 0.8))
        return [
            (80, self.deliver),
            (some((1, 4)), self._calm),
            (some((0.2, 1.5)), self._hold_alters),
            (some((1, 3, 8)), self._produce),
            (some((10, 30)), self._flush),
            (some((8, 25)), self._apply_image),
            (6, self._tick),
            (15, self.open_link),
            (some((0.5, 3, 12)), self.carry_alter),
            (some((3, 12)), self._answer_alter),
            (some((0.2, 1.0)), self._lose_alter),
            (some((0.0, 0.5)), self._alter_refused),
            (some((0.1, 1.0)), self._break_link),
            (some((0.3, 2.0)), self._late_message),
            (some((0.1, 0.3, 0.6)), self._crash),
            (some((4, 12)), self._restart),
            (some((6, 15)), self._register_some),
            (some((0.1, 0.3, 1.0)), self._fence),
            (some((6, 15)), self._unfence),
            (some((0.0, 0.3)), self._lose_contact),
            (4, self._regain_contact),
            (some((0.1, 0.5)), self._skip_image),
            (some((0.0, 0.3)), self._reassign),
            (some((0.0, 0.4)), self._long_pause),
            *(((some((0.5, 3)), self._retain),) if self.kept_bytes >= 0 else ()),
        ]

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    # --- messages and images ------------------------------------------------------------------------

    def deliver(self) -> None:
        wires = [
            w
            for node in self._alive()
            for w in node.wires.values()
            if w.open and (w.requests or w.responses) and not self.cut & {w.leader, w.follower}
        ]
        if not wires:
            return
        wire = self.rng.choice(wires)
        if wire.responses and (not wire.requests or self.rng.random() < 0.5):
            self.step(
                self.nodes[wire.follower],
                ev.ReplicaFetchAnswered(wire.leader, wire.responses.popleft()),
            )
        else:
            self.deliver_request(wire)

    def deliver_request(self, wire: Wire) -> None:
        leader = self.nodes[wire.leader]
        if leader.core is not None:
            self.step(leader, ev.ReplicaFetchReceived(wire, wire.requests.popleft()))

    def _late_message(self) -> None:
        if self.late:
            wire = self.rng.choice(self.late)
            if wire.requests and self.rng.random() < 0.8:
                self.deliver_request(wire)
            else:
                self._end(wire)

    def open_link(self) -> None:
        closed = [
            w
            for node in self._alive()
            for w in node.wires.values()
            if not w.open
            and self.nodes[w.leader].core is not None
            and not self.cut & {w.leader, w.follower}
        ]
        if closed:
            wire = self.rng.choice(closed)
            wire.open = True
            self.step(self.nodes[wire.follower], ev.LinkOpened(wire.leader))

    def _break_link(self) -> None:
        opened = [w for node in self._alive() for w in node.wires.values() if w.open]
        if opened:
            wire = self.rng.choice(opened)
            self._lose(self.nodes[wire.follower], wire.leader, tell=True, again=True)

    def _produce(self) -> None:
        key = (TOPIC_ID, self.rng.randrange(self.partitions))
        leaders = [node for node in self._alive() if self.leader_of(node, key) is not None]
        if leaders:
            number = self._number()
            more = [f"v{number}+{more}" for more in range(self.rng.choice((0, 0, 1, 3)))]
            self._send(
                key,
                self.rng.choice(leaders),
                [f"v{number}", *more],
                self.rng.choice((50, 2000, 20_000)),
            )

    def _send(self, key: PartitionKey, node: Node, values: list[str], timeout_ms: int) -> Written:
        leader = self.leader_of(node, key)
        assert leader is not None
        reply_to = self._number()
        written = self.written[values[0]] = self.waiting[reply_to] = Written(key, values[0])
        end = node.disk.end(key, durable=False)
        one = pb.ProducePartition(
            topic_id=key[0], partition_index=key[1], current_leader_epoch=-1, records=data(*values)
        )
        request = pb.ProduceRequest(acks=-1, timeout_ms=timeout_ms, partitions=[one])
        self.step(node, ev.ProduceReceived(request, 1, reply_to))
        if node.disk.end(key, durable=False) > end:
            if not node.serving:
                raise BrokenPromiseError(f"broker {node.id} is fenced and took records")
            writer = self.writers.setdefault((key, leader.epoch), (node.id, node.incarnation))
            if writer != (node.id, node.incarnation):
                raise BrokenPromiseError(
                    f"epoch {leader.epoch} of {key[1]} was led by {writer} and by {node.id}"
                )
        return written

    def _flush(self) -> None:
        """One flush, or all that were asked for with one report."""
        node = self._some()
        token = node.disk.flush() if node is not None else None
        if node is not None and token is not None:
            while self.rng.random() < 0.8 and (later := node.disk.flush()) is not None:
                token = later
            self.step(node, ev.Flushed(token))

    def _apply_image(self) -> None:
        behind = [node for node in self._alive() if node.applied < len(self.controller.log) - 1]
        if behind:
            self._apply(self.rng.choice(behind))

    def _skip_image(self) -> None:
        """A snapshot: all at once."""
        node = self._some()
        if node is not None and node.applied < len(self.controller.log) - 1:
            node.applied = len(self.controller.log) - 1
            self.step(node, ev.ImageMoved(self.controller.log[node.applied][0], None))
            self._stand(node)

    def _tick(self) -> None:
        node = self._some()
        if node is not None:
            self.now = max(self.now, min(node.core.next_deadline(), self.now + 1.0))
            self.step(node, ev.Tick())

    def _long_pause(self) -> None:
        """Beyond replica.lag.time.max.ms."""
        for _ in range(8):
            self.now += 0.3
            for node in self._alive():
                self.step(node, ev.Tick())
                if node.contact:
                    self._stand(node)

    # --- AlterPartition -----------------------------------------------------------------------------

    def _hold_alters(self) -> None:
        """The way to the controller is slow for a while."""
        self.hold_alters = not self.hold_alters

    def carry_alter(self) -> None:
        """Any of those on their way arrives, however old."""
        if self.alters and not self.hold_alters:
            alter = self.alters.pop(self.rng.randrange(len(self.alters)))
            before = self.controller.image
            answer = self.controller.alter(alter.request)
            event: ev.Event = (
                ev.AlterPartitionFailed(answer, outcome_unknown=False)
                if isinstance(answer, ErrorCode)
                else ev.AlterPartitionAnswered(answer)
            )
            self.trace.append(
                f"{self.now:.3f} alter of {alter.sender}: {_short(alter.request)} ->"
                f" {_short(answer)}"
            )
            if before is not self.controller.image:
                self._isr_moved()
            self.answers.append((alter.sender, alter.number, event))

    def _answer_alter(self) -> None:
        if self.answers:
            sender, number, event = self.answers.pop(self.rng.randrange(len(self.answers)))
            node = self.nodes[sender]
            if node.core is not None and node.altering == number:
                node.altering = None
                if self.rng.random() < 0.15:
                    event = ev.AlterPartitionFailed(
                        ErrorCode.NETWORK_EXCEPTION, outcome_unknown=True
                    )
                self.step(node, event)

    def _lose_alter(self) -> None:
        """The sender's patience ends; the request is still on its way."""
        waiting = [node for node in self._alive() if node.altering is not None]
        if waiting:
            node = self.rng.choice(waiting)
            node.altering = None
            self.step(
                node, ev.AlterPartitionFailed(ErrorCode.REQUEST_TIMED_OUT, outcome_unknown=True)
            )

    def _alter_refused(self) -> None:
        """Answer an AlterPartition as a node that is not the controller: it was certainly not
        executed.
        """
        for alter in self.alters:
            node = self.nodes[alter.sender]
            if node.core is not None and node.altering == alter.number:
                self.alters.remove(alter)
                node.altering = None
                self.step(
                    node, ev.AlterPartitionFailed(ErrorCode.NOT_CONTROLLER, outcome_unknown=False)
                )
                return

    # --- lives of brokers ---------------------------------------------------------------------------

    def _crash(self) -> None:
        """Anybody; but rather somebody who is about to come into an ISR."""
        node = self._some()
        if node is None or len(self._alive()) < 2:
            return
        named = [
            self.nodes[member.broker_id]
            for alter in self.alters
            for topic in alter.request.topics
            for partition in topic.partitions
            for member in partition.new_isr_with_epochs
            if member.broker_id not in self.isr_of((TOPIC_ID, partition.partition_index))
            and self.nodes[member.broker_id].core is not None
        ]
        if named and self.rng.random() < 0.6:
            node = self.rng.choice(named)
        self.kill(node, replace_disk=self.rng.random() < self.replaced)

    def _restart(self) -> None:
        dead = [node for node in self.nodes.values() if node.core is None]
        if dead:
            self._start(self.rng.choice(dead))

    def _register_some(self) -> None:
        unregistered = [node for node in self._alive() if node.epoch < 0]
        if unregistered:
            self._register(self.rng.choice(unregistered))
        elif self.rng.random() < 0.01:
            node = self._some()
            if node is not None:
                self._register(node)

    def _fence(self) -> None:
        dead = [node.id for node in self.nodes.values() if node.core is None]
        id_ = self.rng.choice(dead if dead and self.rng.random() < 0.7 else BROKERS)
        broker = self.controller.image.brokers[id_]
        active = [b for b in BROKERS if self.controller.image.brokers[b].active]
        if not broker.fenced and (len(active) > 1 or self.nodes[id_].core is None):
            self.controller.fence(id_)
            self.trace.append(f"{self.now:.3f} broker {id_} is fenced")
            self._isr_moved()

    def _unfence(self) -> None:
        fenced = [node for node in self._alive() if self._may_unfence(node)]
        if fenced:
            node = self.rng.choice(fenced)
            self.controller.unfence(node.id)
            self.trace.append(f"{self.now:.3f} broker {node.id} is unfenced")
            self._isr_moved()

    def _may_unfence(self, node: Node) -> bool:
        broker = self.controller.image.brokers[node.id]
        reached = node.applied >= 0 and self.controller.log[node.applied][0].offset >= node.epoch
        return broker.fenced and broker.epoch == node.epoch and reached and node.contact

    def _lose_contact(self) -> None:
        """Cut a broker off from the controllers: it considers itself fenced."""
        node = self._some()
        if node is not None:
            node.contact = False
            self._stand(node)

    def _regain_contact(self) -> None:
        away = [node for node in self._alive() if not node.contact]
        if away:
            node = self.rng.choice(away)
            node.contact = True
            self._stand(node)

    def _reassign(self) -> None:
        """A replica that neither leads nor is in sync goes, or one comes."""
        key = (TOPIC_ID, self.rng.randrange(self.partitions))
        partition = self._partition(key)
        gone = [b for b in BROKERS if b not in partition.replicas]
        spare = [b for b in partition.replicas if b not in partition.isr]
        if gone:
            replicas = [*partition.replicas, *gone]
        elif spare:
            replicas = [b for b in partition.replicas if b != spare[0]]
        else:
            return
        change = records_pb2.PartitionChangeRecord(
            partition_id=key[1], topic_id=key[0], replicas=records_pb2.IdList(ids=replicas)
        )
        self.controller.commit([record(change)])
        self.trace.append(f"{self.now:.3f} replicas of {key[1]}: {replicas}")
        self._isr_moved()

    # --- in the end ---------------------------------------------------------------------------------

    def _calm(self) -> None:
        """Everything that is up goes well for a little while."""
        for _ in range(self.rng.randint(1, 12)):
            self._turn(-1)
        if self.rng.random() < 0.5:
            self._produce()

    def heal(self) -> None:
        """Everybody is back, nothing is lost any more: all of it must be there, and work."""
        self.hold_alters = False
        self.behind.clear()
        self.cut.clear()
        while self.alters:
            self.carry_alter()
        for node in self.nodes.values():
            if node.core is None:
                self._start(node)
            node.contact = True
        for key in self.keys:
            replicas = self._partition(key).replicas
            if len(replicas) < len(BROKERS):
                self._add_all(key)
        for turn in range(600):
            self._turn(turn)
            if turn > 50 and self._settled():
                break
        else:
            raise BrokenPromiseError(f"nothing settles: {self._describe()}")
        for key in self.keys:
            leader = self.nodes[self._partition(key).leader]
            self._check_has_all(leader, key)
            end = leader.disk.end(key, durable=True)
            for node in self.nodes.values():
                self._check_has_all(node, key)
                if not same_batches(
                    node.disk.content(key, end, durable=True),
                    leader.disk.content(key, end, durable=True),
                ):
                    raise BrokenPromiseError(
                        f"broker {node.id} has another log of {key[1]} than its leader"
                    )

    def _add_all(self, key: PartitionKey) -> None:
        replicas = self._partition(key).replicas
        more = [b for b in BROKERS if b not in replicas]
        change = records_pb2.PartitionChangeRecord(
            partition_id=key[1],
            topic_id=key[0],
            replicas=records_pb2.IdList(ids=[*replicas, *more]),
        )
        self.controller.commit([record(change)])
        self._isr_moved()

    def _turn(self, turn: int) -> None:
        self.now += 0.05
        for wire in list(self.late):
            if not self.cut & {wire.leader, wire.follower}:
                self._end(wire)
        for node in self._alive():
            if node.epoch < 0:
                self._register(node)
            while node.applied < len(self.controller.log) - 1 and node.id not in self.behind:
                self._apply(node)
            if self._may_unfence(node):
                self.controller.unfence(node.id)
                self._isr_moved()
            self._stand(node)
            self.step(node, ev.Tick())
            while (token := node.disk.flush()) is not None:
                self.step(node, ev.Flushed(token))
        for _ in range(12):
            self.deliver()
            self.open_link()
        while self.alters and not self.hold_alters:
            self.carry_alter()
        while self.answers:
            sender, number, event = self.answers.pop(0)
            node = self.nodes[sender]
            if node.core is not None and node.altering == number:
                node.altering = None
                self.step(node, event)
        for node in self._alive():
            if node.altering is not None and not any(
                a.number == node.altering for a in self.alters
            ):
                node.altering = None
                self.step(
                    node, ev.AlterPartitionFailed(ErrorCode.REQUEST_TIMED_OUT, outcome_unknown=True)
                )
        if turn in (20, 40):
            for _ in range(4):
                self._produce()

    def _settled(self) -> bool:
        for key in self.keys:
            partition = self._partition(key)
            if partition.leader < 0 or len(partition.isr) < len(BROKERS):
                return False
            leader = self.leader_of(self.nodes[partition.leader], key)
            if leader is None or leader.high_watermark < leader.replica.log.end:
                return False
        return not self.waiting or all(node.core is not None for node in self.nodes.values())

    def _describe(self) -> str:
        said = []
        for key in self.keys:
            partition = self._partition(key)
            leader = (
                self.leader_of(self.nodes[partition.leader], key) if partition.leader > 0 else None
            )
            said.append(
                f"{key[1]}: {partition.isr} of {partition.replicas}, led by {partition.leader},"
                f" {leader and leader.high_watermark}"
            )
            if leader is not None:
                proposal = leader.isr.state.proposal
                ends = {id_: f.end_offset for id_, f in leader.isr.followers.items()}
                said.append(
                    f"proposal {proposal}, over {leader.isr.over}, followers at {ends} of"
                    f" {leader.replica.log.end}"
                )
        return "; ".join(said)


def _short(message: Any) -> str:
    return " ".join(str(message).split())[:300]


def run(seed: int, **options: Any) -> DrivenWorld:
    """One schedule; what it breaks is raised with the seed."""
    world = DrivenWorld(seed, **options)
    try:
        world.run()
    except BrokenPromiseError as error:
        raise BrokenPromiseError(f"seed {seed}: {error}") from None
    return world
