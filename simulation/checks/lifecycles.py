"""Lifecycle of a broker by KIP-343, and the double roll.

* *Self-fencing*: a broker accepts nothing new if its last accepted heartbeat or registration was
  sent longer ago than ``broker.fencing.timeout.ms`` by its own clock, unless its newest image
  disables heartbeats, or is older than the registration that did. Silence counts from when they are
  enabled, as far as it knows.
* *The controller decides first*: a self-fenced broker is not unfenced in the committed image for
  longer than a session while one controller leads and commits. Only a heartbeat that arrives
  restarts the session, answered or not [a silent broker's first heartbeat reaches a new controller
  when most of the session that this one granted is over, and then it pauses].
* *Inactive at first*: a new registration is fenced.
* *A leave is final*: once committed, no successor has to wait for its session.
* *Evidence of death*: a broker fenced as gone does not run, unless a firewall refused in its name.
* *Without heartbeats* (``broker.heartbeat.version`` 0) a broker is fenced only by its own leave.
"""

from collections.abc import Sequence
from typing import Any

from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Cause, has_left
from raftlog.metadata.records import Record, RecordType
from raftlog.metadata.versions import heartbeats_enabled
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import BrokerView, Checker, ControllerView, deciding, fail, present
from simulation.checks.existence import Asked
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged
from simulation.twins.loop import host_context

CLOCK_SLACK = 1.15
"""Largest ratio between a session timeout by a true clock and the configured one."""
DECIDES_WITHIN_S = 1.0
"""Longest delay of the controller's fencing after the end of a session, in seconds."""


HELD_UP_S = 0.1
"""Delay of a controller's timers from which it counts as paused, and extends all sessions."""


def _is_alone(broker: BrokerView, controller: ControllerView) -> bool:
    """Return whether a broker has fenced itself while this controller counts it as unfenced."""
    if broker.service is None or controller.service is None:
        return False
    lifecycle = broker.service.lifecycle
    registered = controller.service.image.brokers.get(broker.service.settings.broker_id)
    if not heartbeats_enabled(controller.service.image.features):
        return False
    if registered is None or registered.epoch != lifecycle.epoch or registered.fenced:
        return False
    return lifecycle.self_fenced(host_context(broker.name).run(broker.service.now))


class Lifecycles(Checker):
    """Checker of registrations, heartbeats, and their consequences."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._asked = Asked[tuple[str, int, float]]("broker_heartbeat", "register_broker")
        self._contact: dict[str, float] = {}
        """Broker's host -> sending time of the newest accepted request, or when heartbeats were
        enabled.
        """
        self._heartbeats: dict[str, bool] = {}
        self._off_below: dict[str, int] = {}
        """Broker's host -> first image that counts after its registration disabled heartbeats."""
        self._features: dict[str, int] = {}
        self._epochs: dict[int, int] = {}
        self._left: dict[int, tuple[int, float]] = {}
        """Broker id -> (controller epoch, commit time) of its leave, until it registers again."""
        self.self_fenced = self.after_leave = self.alone = 0
        """Numbers of queries to brokers that must have fenced themselves, of registrations after
        a leave, and of self-fenced brokers that counted as unfenced.
        """
        self._steady: tuple[str, int, float] = ("", 0, 0.0)
        """Active controller, its epoch, and the time since which it decides and commits
        steadily.
        """
        self._uncommitted = -1
        self._refused: set[str] = set()
        self.gone = 0
        self._alone_since: dict[str, float] = {}
        """Broker's host -> since when it has fenced itself, and counts as unfenced."""
        self._reached: dict[str, float] = {}
        """Broker's host -> arrival of its newest heartbeat at a deciding controller."""
        ledger.golden.listeners.append(self._committed)

    def broker_started(self, host: BrokerView) -> None:
        self._contact.pop(host.name, None)
        self._off_below.pop(host.name, None)
        self._heartbeats[host.name] = True

    def broker_moved(self, host: BrokerView) -> None:
        image = present(host.service).image
        if image.offset < self._off_below.get(host.name, -1):
            return
        in_force = heartbeats_enabled(image.features)
        if in_force and not self._heartbeats[host.name]:
            self._contact[host.name] = self._ledger.world.now()
        self._heartbeats[host.name] = in_force

    def broker_asked(self, host: BrokerView, why_fenced: str) -> None:
        if not self._heartbeats[host.name]:
            return
        bound_s = present(host.service).settings.lifecycle.fencing_timeout_ms / 1000 * CLOCK_SLACK
        contact = self._contact.get(host.name)
        if contact is not None and self._ledger.world.now() - contact <= bound_s:
            return
        self.self_fenced += 1
        if not why_fenced:
            age = "never" if contact is None else f"{self._ledger.world.now() - contact:.3f} s ago"
            fail(f"{host.name} takes a new request; its last accepted contact: {age}")

    def sample(self) -> None:
        now = self._ledger.world.now()
        newest, _ = deciding(self._ledger.world)
        steady_since = self._look_at_controller(newest, now)
        for broker in self._ledger.world.brokers:
            if newest is None or not _is_alone(broker, newest):
                self._alone_since.pop(broker.name, None)
                continue
            self.alone += broker.name not in self._alone_since
            reached = self._reached.get(broker.name, 0.0)
            since = max(self._alone_since.setdefault(broker.name, now), steady_since, reached)
            session_s = present(newest.service).settings.broker_session_timeout_ms / 1000
            bound_s = session_s * CLOCK_SLACK + DECIDES_WITHIN_S
            if now - since > bound_s:
                fail(f"{broker.name} has fenced itself for {now - since:.3f} s, {newest.name} not")

    def _look_at_controller(self, host: ControllerView | None, now: float) -> float:
        if host is None or host.service is None:
            self._steady = ("", 0, now)
            return now
        service, (name, epoch, since) = host.service, self._steady
        away_s = host_context(host.name).run(service.node.now) - service.describe().next_tick_at
        end, committed = service.replica.log_end_offset, service.node.committed_end
        uncommitted = end - 1 if committed < end else -1
        stuck = uncommitted >= 0 and committed <= self._uncommitted
        is_same = (name, epoch) == (host.name, service.node.controller_epoch)
        if not is_same or away_s > HELD_UP_S or stuck:
            since = now
        self._steady = host.name, service.node.controller_epoch, since
        self._uncommitted = uncommitted
        return since

    def message_arrived(self, host: ControllerView, peer: str, message: Any) -> None:
        if type(message) is not pb.ControllerRequest or not message.HasField("broker_heartbeat"):
            return
        beat, service = message.broker_heartbeat, host.service
        if service is None or service.node.decider is None:
            return
        registered = service.image.brokers.get(beat.broker_id)
        if registered is not None and registered.epoch == beat.broker_epoch:
            self._reached[peer] = self._ledger.world.now()

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        kind = self._asked.kind_of(message)
        if kind:
            sent = kind, getattr(message, kind).broker_id, self._ledger.world.now()
            self._asked.note(host.name, peer, message.correlation_id, sent)
            return
        found = self._asked.answered(host.name, peer, message)
        if found is not None:
            self._answered(host.name, peer, message, *found)

    def _answered(
        self, who: str, peer: str, response: Any, kind: str, broker_id: int, sent_at: float
    ) -> None:
        if not response.HasField("error"):
            self._contact[peer] = max(sent_at, self._contact.get(peer, sent_at))
            registered = response.register_broker
            if kind == "register_broker" and registered.heartbeats_off:
                self._off(peer, max(registered.broker_epoch, registered.metadata_offset))
        epoch, left_at = self._left.get(broker_id, (0, sent_at))
        if kind != "register_broker" or left_at >= sent_at or response.controller_epoch < epoch:
            return
        self.after_leave += 1
        if response.error.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            fail(f"{who} tells {peer} that {broker_id}, gone at {left_at:.3f}, is alive")

    def _off(self, peer: str, shown_from: int) -> None:
        """Note that a registration disabled heartbeats, until the broker's image says otherwise."""
        self._off_below[peer] = shown_from
        for broker in self._ledger.world.brokers:
            service = broker.service
            if broker.name == peer and service is not None and service.image.offset < shown_from:
                self._heartbeats[peer] = False

    def connects_refused(self, hosts: Sequence[str]) -> None:
        self._refused.update(hosts)

    def _gone(self, broker_id: int, broker_epoch: int) -> None:
        self.gone += 1
        for broker in self._ledger.world.brokers:
            service = broker.service
            if service is None or not service.running or service.lifecycle.epoch != broker_epoch:
                continue
            if service.settings.broker_id == broker_id and broker.name not in self._refused:
                fail(f"broker {broker_id} is fenced as gone, and {broker.name} runs")

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        for record in records:
            message = record.message
            if record.type == RecordType.FEATURE_LEVEL:
                self._features[message.name] = message.feature_level
            elif record.type == RecordType.REGISTER_BROKER:
                is_new = self._epochs.get(message.broker_id) != message.broker_epoch
                if is_new and not message.fenced:
                    fail(f"broker {message.broker_id} is unfenced at its registration")
                self._epochs[message.broker_id] = message.broker_epoch
                self._left.pop(message.broker_id, None)
            elif record.type == RecordType.UNREGISTER_BROKER:
                self._left.pop(message.broker_id, None)
            elif record.type == RecordType.BROKER_REGISTRATION_CHANGE and message.fenced:
                if message.cause == Cause.PROCESS_GONE:
                    self._gone(message.broker_id, message.broker_epoch)
                if has_left(message.fenced, message.in_controlled_shutdown):
                    self._left[message.broker_id] = logged.header.epoch, self._ledger.world.now()
                elif not heartbeats_enabled(self._features):
                    fail(
                        f"broker {message.broker_id} is fenced ({message.reason}) at"
                        f" {logged.header.base_offset}, where heartbeats are not in force"
                    )
