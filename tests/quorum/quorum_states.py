"""The states of one node of the quorum, told apart by value, and what an event makes of them.

An event concerns one node: the shipped core and its disk. So each (state of a node, event) is
stepped once, however many states of the cluster it occurs in; a state of the cluster is a handful
of numbers. What makes that possible:

* Times count relative to the node's clock, and clocks of nodes are not compared: a node's time moves
  when one of its own deadlines passes, so every order of deadlines and messages occurs. What lies
  more than LONG_AGO_S back is one and the same.
* No jitter: random numbers are always the middle. Which timer ends first is a choice of the search.
* Correlation ids start again where no earlier one is outstanding; the core promises only that
  outstanding ones differ.
* What only people see (reasons), and how often an unproven epoch may still be believed, is left out.
"""

import math
import pickle
import random
import traceback
from collections import deque
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import Message as ProtoMessage
from quorum_harness import Cluster, Message, Record, SimNode
from quorum_oracle import Sighting, Sightings

from raftlog.quorum import events

LONG_AGO_S = 5.0
"""Several of the longest timeout."""

SHORTEST_TIME_S = 50.0
"""Clocks start at 100: a smaller number is a duration."""

LEADER_CHANGE = 1000
"""Value of the record that begins an epoch."""

Event = tuple[Any, ...]
"""A kind and its arguments, see ``LocalStates._carry_out``."""

_LEFT_OUT = frozenset(
    [
        "cluster",
        "config",
        "effects",
        "_rng",
        "allowance",
        "_handlers",
        "_invariants",
        "campaign_reason",
        "_correlation_id",
        "_lost_reason",
        "validate_each_step",
        "_template",
        "armed",
        "operations",
        "done_operations",
    ]
)
_SLOTS: dict[type, list[str]] = {}


class Even(random.Random):
    """Not random: always the middle, always the first."""

    def __reduce__(self) -> str:
        return "EVEN"

    def random(self) -> float:
        return 0.5

    def randrange(self, *_args: Any, **_kwargs: Any) -> int:
        return 0


EVEN = Even(0)


class EvenCluster(Cluster):
    """A cluster whose states the search can start from."""

    def rng_of(self, _node: SimNode) -> random.Random:
        return EVEN


class World:
    """The surroundings of a node as it sees them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.network: list[Message] = []
        self.oracle = Sightings()
        self.history: deque[Any] = deque(maxlen=0)
        self.fatal_allowed = False
        self.installed = 0

    def new_value(self) -> int:
        return LEADER_CHANGE

    def rng_of(self, _node: SimNode) -> random.Random:
        return EVEN

    def __reduce__(self) -> str:
        return "WORLD"


WORLD: Any = World()


def value_of(what: Any, now: float, seen: dict[int, int] | None = None) -> Any:
    """Return an object and all that it refers to as a comparable value."""
    kind = type(what)
    if kind in (int, str, bytes, bool) or what is None or what in (math.inf, -math.inf):
        return what
    if kind is float:
        past = max(round(what - now, 6), -LONG_AGO_S)
        return ("at", past) if what > SHORTEST_TIME_S else ("for", round(what, 6))
    seen = {} if seen is None else seen
    if kind in (tuple, list, deque):
        return tuple([value_of(item, now, seen) for item in what])
    if kind is dict:
        return tuple(
            [(value_of(key, now, seen), value_of(item, now, seen)) for key, item in what.items()]
        )
    if kind in (set, frozenset):
        return ("set", *sorted(what))
    if isinstance(what, ProtoMessage):
        return (kind.__name__, what.SerializeToString(deterministic=True))
    if id(what) in seen:
        return ("seen", seen[id(what)])
    seen[id(what)] = len(seen)
    if isinstance(what, msgspec.Struct):
        return (
            kind.__name__,
            *[value_of(getattr(what, name), now, seen) for name in what.__struct_fields__],
        )
    attributes = [(name, getattr(what, name)) for name in _slots_of(kind) if hasattr(what, name)]
    attributes += [
        item for item in getattr(what, "__dict__", {}).items() if item[0] not in _LEFT_OUT
    ]
    return (kind.__name__, *[(name, value_of(item, now, seen)) for name, item in attributes])


def _slots_of(kind: type) -> list[str]:
    names = _SLOTS.get(kind)
    if names is None:
        names = []
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else slots
        _SLOTS[kind] = names = [
            name for name in names if name not in _LEFT_OUT and name != "__dict__"
        ]
    return names


class LocalState(NamedTuple):
    """One state of one node, with what the search needs. ``log`` and ``durable`` are numbers of
    logs; ``durable`` is the one that a crash now would leave.
    """

    pickled: bytes
    now: float
    alive: bool
    life: int
    role: str = ""
    epoch: int = 0
    deadline: float = math.inf
    has_vote: bool = False
    has_flush: bool = False
    has_snapshot: bool = False
    unflushed: int = 0
    may_compact: bool = False
    voters: tuple[int, ...] = ()
    """The active voter set if this node may propose a change to it now, else empty."""
    log: int = -1
    durable: int = -1
    outstanding: tuple[tuple[int, int], ...] = ()
    """(node that asked, correlation id) of the requests that this node waits for or holds."""


class InFlight(NamedTuple):
    """A message in flight. Messages of one link arrive in order, or not at all."""

    link: tuple[int, int, bool, bool]
    name: str
    source: int
    target: int
    is_request: bool
    asker: int
    life: int
    """Life of the requesting process at the request."""
    correlation_id: int
    event: events.Event
    """The event of the message's arrival."""


class Step(NamedTuple):
    """A state after an event. ``broken``: the broken rule; empty: none."""

    state: int
    sent: tuple[int, ...]
    seen: tuple[Sighting, ...]
    broken: str


class LocalStates:
    """All states of nodes, messages and logs so far, by number."""

    def __init__(self) -> None:
        self.states: list[LocalState] = []
        self.messages: list[InFlight] = []
        self.logs: list[tuple[Record, ...]] = []
        self.steps: dict[tuple[int, Event, int], Step] = {}
        self._state_ids: dict[Any, int] = {}
        self._message_ids: dict[Any, int] = {}
        self._log_ids: dict[tuple[Record, ...], int] = {}

    def adopt(self, node: SimNode) -> int:
        """Return the number of the present state of a cluster's node; the cluster may not be used
        afterwards.
        """
        now, node.cluster = node.cluster.now, WORLD
        return self._state_id(node, now)

    def step(self, state_id: int, event: Event, correlation_id: int) -> Step:
        """Return the step of an event; the next correlation id is the one above ``correlation_id``."""
        key = (state_id, event, correlation_id)
        step = self.steps.get(key)
        if step is None:
            step = self.steps[key] = self._step(*key)
        return step

    def _step(self, state_id: int, event: Event, correlation_id: int) -> Step:
        state, world = self.states[state_id], WORLD
        world.oracle, world.network, world.now = Sightings(), [], state.now
        node: SimNode = pickle.loads(state.pickled)
        if node.core is not None:
            node.core._node._correlation_id = correlation_id
        broken = ""
        try:
            self._carry_out(node, event)
        except AssertionError as error:  # InvariantError is one
            broken = str(error) or str(traceback.extract_tb(error.__traceback__)[-1].line)
        sent = tuple([self.message_id(message) for message in world.network])
        node.effects = []
        after = state_id if broken else self._state_id(node, world.now)
        return Step(after, sent, tuple(world.oracle.seen), broken)

    def _carry_out(self, node: SimNode, event: Event) -> None:
        match event:
            case ("deliver", message_id):
                node.step(self.messages[message_id].event)
            case ("tick",):
                WORLD.now = max(WORLD.now, node.up.next_deadline())
                node.step(events.Tick())
            case ("persist" | "flush" | "freeze" as work,):
                getattr(node, work)()
            case ("write", value):
                node.propose([value])
            case ("voters", *names):
                node.propose_voters(*names)
            case ("compact",):
                node.compact()
            case ("read",):
                node.step(events.ReadIndexRequested())
            case ("resign",):
                node.step(events.ResignRequested("asked to"))
            case ("crash", kept):
                node.crash(kept)
            case ("start", *connected):
                node.start()
                for peer_id in connected:
                    self._connect(node, peer_id)
            case ("connected", peer_id):
                self._connect(node, peer_id)
            case ("lost", peer_id):
                node.step(events.PeerLost(peer_id))
            case ("failed", peer_id, correlation_id):
                node.step(events.RequestFailed(peer_id, correlation_id))
            case _:
                raise ValueError(event)

    def _connect(self, node: SimNode, peer_id: int) -> None:
        if peer_id in node.dialed:
            node.step(events.PeerConnected(peer_id))

    def _state_id(self, node: SimNode, now: float) -> int:
        alive = node.core is not None
        key = (node.id, node.life, value_of(node if alive else node.disk, now))
        found = self._state_ids.get(key)
        if found is None:
            found = self._state_ids[key] = len(self.states)
            self.states.append(self._describe(node, now))
        return found

    def _describe(self, node: SimNode, now: float) -> LocalState:
        core, durable = node.core, self._log_id(node.disk.recovered_log())
        pickled = pickle.dumps(node, pickle.HIGHEST_PROTOCOL)
        if core is None:
            return LocalState(pickled, now, False, node.life, durable=durable)
        may_change = core.role == "leader" and not core.membership_obstacle()
        return LocalState(
            pickled,
            now,
            True,
            node.life,
            core.role,
            core.epoch,
            core.next_deadline(),
            bool(node.held or node.saving),
            bool(node.flushes),
            bool(node.freezing),
            len(node.disk.pending),
            node.high_watermark > node.start_offset,
            tuple(voter.node_id for voter in core.voters) if may_change else (),
            self._log_id(node.log),
            durable,
            tuple(_outstanding(node)),
        )

    def _log_id(self, records: list[Record]) -> int:
        log = tuple(records)
        found = self._log_ids.setdefault(log, len(self.logs))
        if found == len(self.logs):
            self.logs.append(log)
        return found

    def message_id(self, message: Message) -> int:
        name, span = type(message.body).__name__, message.span
        link = (message.source, message.target, name.startswith("Fetch"), "Snapshot" in name)
        key = (
            *link,
            name,
            message.correlation_id,
            message.is_request,
            message.asker_life,
            message.body.SerializeToString(deterministic=True),
            None if span is None else (span.base_offset, span.data),
        )
        found = self._message_ids.setdefault(key, len(self.messages))
        if found == len(self.messages):
            self.messages.append(_in_flight(message, link, name))
        return found


def _in_flight(message: Message, link: tuple[int, int, bool, bool], name: str) -> InFlight:
    source, target, correlation_id = message.source, message.target, message.correlation_id
    event: events.Event
    if message.is_request:
        asker = source
        event = events.RequestReceived(message.body, (source, correlation_id, message.asker_life))
    else:
        asker = target
        event = events.ResponseReceived(source, correlation_id, message.body, message.span)
    return InFlight(
        link,
        name,
        source,
        target,
        message.is_request,
        asker,
        message.asker_life,
        correlation_id,
        event,
    )


def _outstanding(node: SimNode) -> list[tuple[int, int]]:
    role = node.role
    found = [
        (fetch.reply_to[0], fetch.correlation_id) for fetch in getattr(role, "_parked", {}).values()
    ]
    found += (
        [reply_to[:2] for _, reply_to in getattr(role, "_early", {}).values()]
        if role.name == "candidate"
        else []
    )
    for effect in node.held:
        if isinstance(effect, events.Reply | events.ReplyFetch | events.ReplySnapshot):
            found.append(effect.reply_to[:2])
        elif not isinstance(effect, events.PersistVote):
            found.append((node.id, effect.correlation_id))
    awaited = getattr(role, "_awaited", {})
    found += [(node.id, correlation_id) for correlation_id in awaited.values()]
    fetcher = getattr(role, "_fetcher", None)
    if fetcher is not None and fetcher._awaited is not None:
        found.append((node.id, fetcher._awaited))
    return found
