"""Search for broker ids (KIP-426): every registration maps its host, and a host keeps its broker's
id even if its disk is replaced.

Broker 200 + N runs on host bN. Unless it has registered elsewhere (as a twin makes it do), only its
id may be registered from bN.

A newcomer, on a host nK, gets an id registered from another host only if no process ran under it
for as long as makes an id missing, or none that a controller heard for a session more, and no other
id with replicas is away. A session begins when a heartbeat reaches the controller [a cut delays the
commit of its unfencing for half a session: it is fenced a session after it was heard, and the id is
free]. It gets a new id only if no id with replicas was away when it first asked, and for a session
before where messages may be late.

A manual mapping counts unless a process under that id was heard lately, and excludes other hosts.
An unregistered broker's session is not waited for.
"""

import math
from typing import Any

from controller.settings import ControllerSettings
from raftlog.metadata.entities import HostnameCause, has_left, hostname_key
from raftlog.metadata.records import Record, RecordType
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import BrokerView, Checker, ControllerView, fail
from simulation.checks.existence import Asked
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged

BROKER_IDS = 200
"""The broker on host bN has this id plus N, so that node ids are unique in a cluster."""
CLOCK_SLACK = 1.25
"""Largest ratio between a controller's clock and a true one, or a broker's."""
PROMPT = frozenset(("newcomer", "broker_away", "kill_broker", "stop_broker", "resign"))
"""Faults that delay no message. In runs without others, messages of a dead process arrive within
ON_ITS_WAY_S.
"""
ON_ITS_WAY_S = 0.5


class BrokerIds(Checker):
    """Checker of broker ids. It reads the committed records, not the fold under test."""

    def __init__(self, ledger: Ledger) -> None:
        self._mapped: dict[str, int] = {}
        self._hosts: dict[int, set[str]] = {}
        """Broker id -> hosts that have ever registered it."""
        self._ledger = ledger
        self._running: dict[str, int] = {}
        """Host -> broker id of its running process."""
        self._away_since: dict[int, float] = {}
        """Broker id -> time since which no process runs under it."""
        self._asked_at: dict[str, float] = {}
        self._heard: dict[int, float] = {}
        """Broker id -> arrival time of its last accepted heartbeat or registration."""
        self._heard_from: dict[int, str] = {}
        """Broker id -> host of the process that sent that request."""
        self._died: dict[int, float] = {}
        """Broker id -> time when that process died."""
        self._left: dict[int, float] = {}
        """Broker id -> time when it left; until its next registration."""
        self._unregistered: dict[int, float] = {}
        """Broker id -> time when an operator unregistered it; until its next registration."""
        self._by_hand: dict[str, tuple[int, int]] = {}
        """Host -> (id, offset) of a mapping by an operator; until a registration maps the host."""
        self._asked = Asked[float]("broker_heartbeat", "register_broker")
        self._reached: dict[int, float] = {}
        """Broker id -> time when a heartbeat under it last reached an active controller."""
        self._registers: dict[str, float] = {}
        """Host -> time when a registration from it last reached an active controller."""
        self.adopted = self.generated = self.given_by_hand = 0
        ledger.golden.listeners.append(self._committed)

    def looked_at(self) -> dict[str, int]:
        return {**super().looked_at(), "brokers": len(self._hosts)}

    def broker_started(self, host: BrokerView) -> None:
        self._running[host.name] = host.id
        self._away_since.pop(host.id, None)

    def broker_stopped(self, host: BrokerView, reason: str) -> None:
        broker_id = self._running.pop(host.name, -1)
        now = self._ledger.world.now()
        self._away_unless_running(broker_id, now)
        for heard, name in self._heard_from.items():
            if name == host.name:
                # A later process of this host, which no controller has heard, ends: the one that
                # was heard died before.
                self._died.setdefault(heard, now)

    def message_sent(self, host: ControllerView | BrokerView, peer: str, message: Any) -> None:
        if (
            host.name[:1] == "n"
            and type(message) is pb.ControllerRequest
            and message.register_broker.HasField("id_wanted")
        ):
            self._asked_at.setdefault(host.name, self._ledger.world.now())
        elif (
            came_at := self._asked.answered(host.name, peer, message)
        ) is not None and not message.HasField("error"):
            self._hear(self._running.get(peer, -1), peer, came_at)

    def message_arrived(self, host: ControllerView, peer: str, message: Any) -> None:
        kind, service = self._asked.kind_of(message), host.service
        if not kind or service is None or service.node.decider is None:
            return
        now = self._ledger.world.now()
        self._asked.note(peer, host.name, message.correlation_id, now)
        if kind == "broker_heartbeat":
            self._reached[message.broker_heartbeat.broker_id] = now
        else:
            self._registers[peer] = now

    def _came_at(self, host: str) -> float:
        """Return the arrival time of the registration that is being committed."""
        return self._registers.get(host, self._ledger.world.now())

    def _hear(self, broker_id: int, host: str, at: float) -> None:
        self._heard[broker_id] = max(at, self._heard.get(broker_id, at))
        self._heard_from[broker_id] = host
        self._died.pop(broker_id, None)

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        registered: list[tuple[str, int]] = []
        mapped: list[str] = []
        for offset, record in enumerate(records, logged.header.base_offset):
            message: Any = record.message
            if record.type == RecordType.HOSTNAME:
                mapped += self._hostname(message, offset)
            elif record.type == RecordType.BROKER_REGISTRATION_CHANGE and has_left(
                message.fenced, message.in_controlled_shutdown
            ):
                # It has left, which ends its session, though its process may not have heard so yet.
                self._away_since.setdefault(message.broker_id, self._ledger.world.now())
                self._left.setdefault(message.broker_id, self._ledger.world.now())
            elif record.type == RecordType.BROKER_REGISTRATION_CHANGE:
                # Unless it is fenced, it was heard: the answer to its heartbeat may still wait for
                # this commit. What an amendment says again is of nobody.
                broker_id = message.broker_id
                moved = message.HasField("fenced") or message.HasField("in_controlled_shutdown")
                if moved and not message.fenced and broker_id not in self._died:
                    came_at = self._reached.get(broker_id, -math.inf)
                    self._heard[broker_id] = max(came_at, self._heard.get(broker_id, came_at))
            elif record.type == RecordType.UNREGISTER_BROKER:
                self._unregistered[message.broker_id] = self._ledger.world.now()
            elif (
                record.type == RecordType.REGISTER_BROKER
                and message.broker_epoch == logged.header.base_offset
            ):
                registered.append((hostname_key(message.end_points[0].host), message.broker_id))
        for host, broker_id in registered:
            self._registered(host, broker_id, logged.header.base_offset)
            self._unregistered.pop(broker_id, None)
            self._left.pop(broker_id, None)
        for host in mapped:
            self._by_hand.pop(host, None)

    def _hostname(self, message: Any, offset: int) -> list[str]:
        host = message.hostname
        self._mapped.pop(host, None)
        if not message.HasField("broker_id"):
            self._by_hand.pop(host, None)
            return []
        self._mapped[host] = message.broker_id
        if message.cause != HostnameCause.BY_HAND:
            return [host]
        self._by_hand[host] = message.broker_id, offset
        return []

    def _registered(self, host: str, broker_id: int, offset: int) -> None:
        if (mapped := self._mapped.get(host)) != broker_id:
            fail(f"broker {broker_id} registers at {offset}; {host} is mapped to {mapped}")
        others = self._hosts.setdefault(broker_id, set())
        if host[:1] == "n":
            self._newcomer(host, broker_id, bool(others - {host}), offset)
        others.add(host)
        self._hear(broker_id, host, self._came_at(host))
        own = BROKER_IDS + int(host[1:]) if host[:1] == "b" and host[1:].isdigit() else None
        if own not in (None, broker_id) and self._hosts.get(own, {host}) <= {host}:
            fail(f"{host} registers as {broker_id} at {offset}: it is broker {own}'s")

    def _newcomer(self, host: str, broker_id: int, adopted: bool, offset: int) -> None:
        now = self._ledger.world.now()
        config = self._ledger.world.config
        adopt_after_ms = config.adopt_after_ms or ControllerSettings().broker_id_adopt_after_ms
        late_s = config.session_timeout_ms / 1000 * CLOCK_SLACK + 1.0
        if PROMPT.issuperset(config.faults):
            late_s = ON_ITS_WAY_S
        held = self._ledger.golden.image().replicas_of
        what = f"newcomer {host} registers as broker {broker_id} at offset {offset}"
        if self._meant(host, broker_id, offset, what):
            return
        if broker_id in self._unregistered and self._by_hand.get(host, (-1, -1))[0] == broker_id:
            # Mapped by hand before the registration that an operator has ended since.
            self.given_by_hand += 1
            self._away_unless_running(broker_id, now)
            return
        kept = {one for other, (one, _) in self._by_hand.items() if other != host}
        away = {
            one: now - since
            for one, since in self._away_since.items()
            if len(held.get(one) or ()) and one not in kept
        }
        if adopted:
            self.adopted += 1
            away.pop(broker_id, None)
            if self._gone_s(broker_id, now) < adopt_after_ms / 1000 / CLOCK_SLACK:
                fail(f"{what}: that is {min(self._hosts[broker_id])}'s, and not missing")
        else:
            self.generated += 1
        asking_s = now - self._asked_at.get(host, now)
        self._away_unless_running(broker_id, now)
        gone = sorted(one for one, away_s in away.items() if away_s > asking_s + late_s)
        if gone:
            fail(f"{what}, and no process has run as {gone} for {asking_s + late_s:.3f} s")

    def _away_unless_running(self, broker_id: int, now: float) -> None:
        """Note that a process under this id has stopped, and since when no other one runs."""
        if broker_id not in self._running.values():
            self._away_since[broker_id] = now

    def _gone_s(self, broker_id: int, now: float) -> float:
        """Return for how long, in seconds, a broker has been gone: since its process died, left or
        was unregistered, or since its session ended.
        """
        if broker_id in self._left:
            # The answer to its farewell may be heard later, and its process end later still.
            return now - self._left[broker_id]
        heard = self._heard.get(broker_id, -math.inf)
        ended = heard + self._ledger.world.config.session_timeout_ms / 1000 / CLOCK_SLACK
        for since in (self._died, self._away_since, self._unregistered):
            ended = min(ended, since.get(broker_id, ended))
        return now - max(heard, ended)

    def _meant(self, host: str, broker_id: int, offset: int, what: str) -> bool:
        """Return whether the host gets the id that an operator mapped it to. Raises
        CheckFailedError if another host gets it.
        """
        now = self._ledger.world.now()
        wanted, mapped_at = self._by_hand.get(host, (-1, -1))
        for other, (kept, _) in self._by_hand.items():
            if other != host and kept == broker_id and wanted != broker_id:
                fail(f"{what}: that is kept for host {other}")
        before = [one for one in self._ledger.golden.standings(wanted) if one.offset < offset]
        newest = max((one.broker_epoch for one in before), default=-1)
        if wanted < 0 or newest > mapped_at:
            return False
        if broker_id == wanted:
            self.given_by_hand += 1
            if self._gone_s(broker_id, now) < 0 and broker_id not in self._unregistered:
                fail(f"{what}: a broker under that id was heard from within a session")
            self._away_unless_running(broker_id, now)
            return True
        # Who lived on while this one asked was not a past of its own, and may be heard of after its
        # death.
        ended = max(since.get(wanted, -math.inf) for since in (self._died, self._away_since))
        late_s = self._ledger.world.config.session_timeout_ms / 1000 * CLOCK_SLACK
        if newest < 0 or (
            self._gone_s(wanted, now) > late_s and ended <= self._asked_at.get(host, now)
        ):
            fail(f"{what}: {wanted} is mapped by hand since {mapped_at}, and unused")
        return False
