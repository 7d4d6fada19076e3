"""The choice of an id for a broker that has none (KIP-426): the one that it had, the one mapped to
its host, a missing one, or a new one.

The order is that of the KIP. Additions keep an id from being stolen: host and port together
distinguish several brokers on one host; if a session that has not ended may be this broker's own,
the choice waits for its end; an id counts as missing only after ``broker.id.adopt.after.ms``. The
registration that follows in the same decision claims the id: if two brokers race for it, the first
to be decided gets it, and the other continues with the next rule.

No new id is assigned while an id that holds replicas may need a broker: a new id holds none, and
the partitions would stay one replica short. So a newcomer waits while one broker is absent and not
yet missing, and until all others have been heard from since it asked. (Otherwise, if the owner of
1002 died and a newcomer arrived within its session, the newcomer would get 1004.) If several are
absent, an operator has to decide, unless ``broker.id.generation.force`` requests a new id.

Why: docs/decisions/019-broker-ids.md
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from controller.decision import refuse
from controller.state.liveness import Absent, AwaitedIdError
from controller.state.state import ControllerState, heartbeats_off
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Broker, Hostname, HostnameCause, host_of, hostname_key
from raftlog.metadata.image import Image
from raftlog.wire.controller.v1 import controller_pb2 as rpc

BROKER_ID_MAX = 2**31 - 1
_FORCE = (
    "To get a new id anyway, set broker.id.generation.force, or use `raftlog cluster hostnames set`"
    " with an unused id"
)


class Choice(NamedTuple):
    """A chosen id, the rule that chose it, and why no earlier rule applied."""

    broker_id: int
    source: rpc.BrokerIdSource
    why: str


class _Life(Enum):
    """Evidence of whether the process that holds a registration is alive."""

    GONE = "its session has ended"
    UNDECIDED = "its session has not ended, and it was not heard from since this broker asked"
    ALIVE = "it is alive"


class _Asking:
    """The facts that decide which id a broker without one gets."""

    def __init__(
        self, state: ControllerState, request: rpc.RegisterBrokerRequest, now: float
    ) -> None:
        self.state, self.now = state, now
        self.image: Image = state.log.pending.snapshot()
        self.host, self.port = hostname_key(request.listeners[0].host), request.listeners[0].port
        self.incarnation_id, self.directory_id = (
            request.incarnation_id,
            request.process.directory_id,
        )
        self.asking_for_s = request.id_wanted.asking_for_ms / 1000
        self.forced = request.id_wanted.force_generation

    @property
    def place(self) -> str:
        """The broker's address, host:port."""
        return f"{self.host}:{self.port}"

    def life(self, broker_id: int) -> _Life:
        """Return whether the process that holds a registration is alive.

        A process that was last heard from before this broker asked may be this broker's own
        predecessor, and so may one that was heard from shortly afterwards: its last message may
        have been in transit for up to a session timeout.
        """
        sessions, now = self.state.sessions, self.now
        contact = sessions.last_contact(broker_id)
        if contact is None or not sessions.is_alive(broker_id, now):
            return _Life.UNDECIDED if self._may_be_unheard(broker_id) else _Life.GONE
        late_s = self.state.settings.broker_session_timeout_ms / 1000
        heard = (
            contact > max(self.state.began_at, self.state.sessions_granted_at)
            and now - contact < self.asking_for_s - late_s
        )
        return _Life.ALIVE if heard else _Life.UNDECIDED

    def _may_be_unheard(self, broker_id: int) -> bool:
        """Return whether a fenced broker may be alive although this new controller has not heard
        from it.

        Example: a lagging broker sends heartbeats, the leadership moves, and a moment later a host
        that an operator has mapped to the broker's id requests that id.
        """
        broker = self.image.brokers.get(broker_id)
        fenced = broker is not None and broker.fenced and not broker.has_left
        return (
            fenced
            and self.state.absent_ids.first_session(self.now)
            and not heartbeats_off(self.state)
        )

    def unheard(self, broker_id: int) -> float | None:
        """Return for how many more seconds a broker that counts as present may turn out to be gone,
        because nothing was heard from it since this broker asked.

        Returns None if it was heard from, does not count as present, or cannot be judged because
        heartbeats are disabled.
        """
        sessions, now = self.state.sessions, self.now
        contact = sessions.last_contact(broker_id)
        if contact is None or not sessions.is_alive(broker_id, now):
            broker = self.image.brokers.get(broker_id)
            # Its session has ended, and its fencing is decided next. Without heartbeats it still
            # counts as active.
            return (
                0.0
                if broker is not None and not broker.fenced and not heartbeats_off(self.state)
                else None
            )
        given = max(self.state.began_at, self.state.sessions_granted_at)
        if contact > given and now - contact <= self.asking_for_s:
            return None
        return contact + self.state.settings.broker_session_timeout_ms / 1000 - now

    def on_this_host(self) -> list[Broker]:
        """Return the brokers registered from this host, sorted by id."""
        brokers = self.image.brokers
        return [brokers[id_] for id_ in sorted(brokers) if host_of(brokers[id_]) == self.host]


def choose_broker_id(
    state: ControllerState, request: rpc.RegisterBrokerRequest, now: float
) -> Choice:
    """Choose the id of a broker whose request is otherwise valid.

    Raises INVALID_REGISTRATION, with instructions, if an operator has to decide (several missing
    ids, several brokers on one host); DUPLICATE_BROKER_REGISTRATION while the id may be the
    broker's own and a session has to end first; AwaitedIdError while another id may become
    available. In the last two cases the broker asks again.
    """
    asking = _Asking(state, request, now)
    notes: list[str] = []
    try:
        chosen = _own(asking) or _of_host(asking, notes) or _missing(asking, notes)
    except AwaitedIdError as error:
        state.id_waits.record(asking.place, error, now)
        raise
    state.id_waits.remove(asking.place)
    return chosen or _generated(asking, notes)


# --- its own ------------------------------------------------------------------------------------


def _own(asking: _Asking) -> Choice | None:
    """Return the id under which this process or this directory is registered already, or None.

    The broker may have lost it with the answer, or with the file that holds the id.
    """
    own: Broker | None = None
    for broker_id in sorted(asking.image.brokers):
        broker = asking.image.brokers[broker_id]
        if broker.incarnation_id == asking.incarnation_id:
            return Choice(broker_id, rpc.BROKER_ID_OWN, "this process has registered already")
        same = asking.directory_id and broker.process.directory_id == asking.directory_id
        if same and (own is None or broker.epoch > own.epoch):
            own = broker
    if own is None:
        return None
    return Choice(
        own.id, rpc.BROKER_ID_OWN, f"it was registered from this directory, {asking.directory_id}"
    )


# --- by hostname --------------------------------------------------------------------------------


def _of_host(asking: _Asking, notes: list[str]) -> Choice | None:
    """Return the id that this host is mapped to, or None if another broker uses that id now."""
    mapping = asking.image.hostnames.get(asking.host)
    neighbours = asking.on_this_host()
    chosen: Choice | None = None
    if mapping is None:
        notes.append(f"host {asking.host} is not mapped to an id")
    else:
        broker = asking.image.brokers.get(mapping.broker_id)
        by_hand = mapping.cause != HostnameCause.BY_REGISTRATION and (
            broker is None or mapping.offset > broker.epoch
        )
        if by_hand:
            chosen = _unless_taken(asking, mapping, broker, notes)
        elif broker is None:
            if neighbours:
                raise _ambiguous(
                    asking,
                    f"it is mapped to broker {mapping.broker_id}, which is not registered",
                    neighbours,
                )
            chosen = _mapped(asking, mapping, "which is not registered")
        elif host_of(broker) != asking.host:
            notes.append(
                f"host {asking.host} belonged to broker {broker.id}, which has now registered from"
                f" {broker.endpoint}"
            )
        elif broker.listeners[0].port == asking.port:
            chosen = _unless_taken(asking, mapping, broker, notes)
        elif asking.life(broker.id) is _Life.GONE:
            raise _ambiguous(
                asking, f"it is mapped to broker {broker.id}, which is not running", neighbours
            )
        else:
            notes.append(
                _several(
                    f"host {asking.host} is mapped to broker {broker.id}, which runs at"
                    f" {broker.endpoint}"
                )
            )
    if chosen is None:
        _check_endpoint(asking, neighbours, notes)
    return chosen


def _unless_taken(
    asking: _Asking, mapping: Hostname, broker: Broker | None, notes: list[str]
) -> Choice | None:
    if broker is None:
        return _mapped(asking, mapping, "which is not registered")
    life = asking.life(broker.id)
    if life is _Life.GONE:
        return _mapped(asking, mapping, "whose session has ended")
    if life is _Life.UNDECIDED:
        raise _wait(asking, broker)
    notes.append(
        f"host {asking.host} is mapped to broker {broker.id}, which is alive at {broker.endpoint}:"
        f" {_who(broker)}"
    )
    return None


def _check_endpoint(asking: _Asking, neighbours: list[Broker], notes: list[str]) -> None:
    """Refuse a new id to a broker at the host and port of a registered broker."""
    for broker in neighbours:
        if broker.listeners[0].port != asking.port:
            continue
        life = asking.life(broker.id)
        if life is _Life.UNDECIDED:
            raise _wait(asking, broker)
        if life is _Life.GONE:
            raise _ambiguous(
                asking,
                f"broker {broker.id} was registered at {asking.place}, but the host is not mapped"
                " to it",
                neighbours,
            )
        notes.append(f"broker {broker.id} is alive at this address: {_who(broker)}")


def _mapped(asking: _Asking, mapping: Hostname, state: str) -> Choice:
    why = (
        f"host {asking.host} is mapped to broker {mapping.broker_id} ({mapping.reason}, offset"
        f" {mapping.offset}), {state}"
    )
    return Choice(mapping.broker_id, rpc.BROKER_ID_HOSTNAME, why)


# --- missing ------------------------------------------------------------------------------------


def _missing(asking: _Asking, notes: list[str]) -> Choice | None:
    """Return the one id that holds replicas and has been absent long enough, or None if there is no
    such id.
    """
    state, image = asking.state, asking.image
    reserved = {
        mapping.broker_id: name
        for name, mapping in sorted(image.hostnames.items())
        if mapping.cause != HostnameCause.BY_REGISTRATION and name != asking.host
    }
    absent = state.absent_ids.absent(image, state.sessions.is_alive, asking.now)
    if asking.forced:
        away = ", ".join(str(one.broker_id) for one in absent) or "none"
        notes.append(f"a new id is forced (broker.id.generation.force); absent: {away}")
        return None
    kept = [one.broker_id for one in absent if one.broker_id in reserved]
    notes.extend(
        f"broker {broker_id} is absent and reserved for host {reserved[broker_id]}"
        for broker_id in kept
    )
    free = [one for one in absent if one.broker_id not in reserved]
    neighbours = [
        broker
        for broker in asking.on_this_host()
        if any(one.broker_id == broker.id for one in free)
    ]
    if neighbours:
        raise _ambiguous(asking, f"broker {neighbours[0].id} on this host is missing", neighbours)
    if len(free) > 1:
        raise _several_missing(asking, free)
    if free and not free[0].missing:
        raise _await_absence(asking, free[0])
    _check_all_heard(asking, reserved)
    if not free:
        notes.append("no id that holds replicas is absent")
        return None
    why = (
        f"broker {free[0].broker_id} ({_last_seen(image, free[0].broker_id)}) is the only"
        f" missing id, absent for {free[0].absent_for_s:.0f} s"
    )
    return Choice(free[0].broker_id, rpc.BROKER_ID_MISSING, "; ".join([*notes, why]))


def _check_all_heard(asking: _Asking, reserved: dict[int, str]) -> None:
    """Raise AwaitedIdError unless every broker that counts as present was heard from: any other may
    have died within its session.

    O(brokers).
    """
    image = asking.image
    for broker_id in sorted(image.replicas_of):
        remaining_s = asking.unheard(broker_id)
        if (
            remaining_s is not None
            and broker_id not in reserved
            and len(image.replicas_of[broker_id])
        ):
            raise AwaitedIdError(
                broker_id,
                remaining_s,
                f"broker {broker_id} ({_last_seen(image, broker_id)}) holds replicas and was not"
                f" heard from since the broker at {asking.place} asked for an id: it may be gone,"
                f" and its id may be needed. {_FORCE}",
            )


def _await_absence(asking: _Asking, one: Absent) -> AwaitedIdError:
    adopt_after_s = asking.state.settings.broker_id_adopt_after_ms / 1000
    held = f"{one.replica_count} replica{'s' if one.replica_count > 1 else ''}"
    return AwaitedIdError(
        one.broker_id,
        one.missing_in_s,
        f"broker {one.broker_id} ({_last_seen(asking.image, one.broker_id)}) is absent and holds"
        f" {held}: the broker at {asking.place} receives this id when it has been absent for"
        f" {adopt_after_s:g} s (broker.id.adopt.after.ms), or a new id if it returns. {_FORCE}",
    )


def _several_missing(asking: _Asking, free: list[Absent]) -> ApiError:
    listed = ", ".join(
        f"{one.broker_id} ({_last_seen(asking.image, one.broker_id)}, for {one.absent_for_s:.0f} s)"
        for one in free
    )
    return refuse(
        ErrorCode.INVALID_REGISTRATION,
        f"{len(free)} broker ids are missing, and the broker at {asking.place} may have any of"
        f" them: {listed}. Start the brokers that still have their disks, or choose an id for this"
        " one: set node.id in its configuration, or run `raftlog cluster hostnames set"
        f" {asking.host} ID`. {_FORCE}",
        "broker_id",
    )


def _last_seen(image: Image, broker_id: int) -> str:
    broker = image.brokers.get(broker_id)
    return "unregistered" if broker is None else f"last at {broker.endpoint}"


# --- generated ----------------------------------------------------------------------------------


def _generated(asking: _Asking, notes: list[str]) -> Choice:
    """Return the first id above all ids in use and above the floor.

    An id that is not reused cannot be confused with an earlier broker. Beyond BROKER_ID_MAX, the
    lowest free id above the floor is used.
    """
    image, floor = asking.image, asking.state.settings.reserved_broker_max_id
    used = {*image.brokers, *(mapping.broker_id for mapping in image.hostnames.values())}
    used |= {broker_id for broker_id, held in image.replicas_of.items() if len(held)}
    used |= {voter.id for voter in image.voters.voters} if image.voters is not None else set()
    used |= set(image.leader.voters) if image.leader is not None else set()
    used |= asking.state.controller_ids(asking.now)
    above = {broker_id for broker_id in used if broker_id > floor}
    broker_id = max(above, default=floor) + 1
    if broker_id > BROKER_ID_MAX:
        broker_id = next(
            id_ for id_ in range(floor + 1, floor + len(above) + 2) if id_ not in above
        )
    if broker_id > BROKER_ID_MAX:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"no broker id is free above reserved.broker.max.id = {floor}: unregister brokers, or"
            " lower it",
            "broker_id",
        )
    return Choice(
        broker_id, rpc.BROKER_ID_GENERATED, "; ".join([*notes, f"the next free id above {floor}"])
    )


# --- messages -----------------------------------------------------------------------------------


def _who(broker: Broker) -> str:
    return (
        f"incarnation {broker.incarnation_id}, directory {broker.process.directory_id or 'unknown'}"
    )


def _several(what: str) -> str:
    return (
        f"{what}: several brokers on one host cannot be distinguished by its name; set node.id"
        " on each"
    )


def _wait(asking: _Asking, broker: Broker) -> ApiError:
    return refuse(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"the host of {asking.place} is mapped to broker {broker.id}, but the session of"
        f" {_who(broker)} at {broker.endpoint} has not ended: retry until it ends or"
        " that process is heard from",
        "broker_id",
    )


def _ambiguous(asking: _Asking, what: str, neighbours: list[Broker]) -> ApiError:
    known = ", ".join(f"{broker.id} at {broker.endpoint}" for broker in neighbours)
    return refuse(
        ErrorCode.INVALID_REGISTRATION,
        f"the id of the broker at {asking.place} is ambiguous: {what}; registered from host"
        f" {asking.host}: {known}. Set node.id on each broker of the host; if this one is one of"
        " those listed, with an empty disk, use that id",
        "broker_id",
    )
