"""An exhaustive search over the shipped core of the quorum: every order of events within bounds.

From a beginning (a cluster at rest, or one in trouble) the search takes every step that the world
may take next: a message arrives, or its link breaks; a disk finishes a vote or a flush; a deadline
passes; a client writes or reads; a process dies, with or without what it had not flushed, noticed or
not, and starts again. States of the cluster that are equal count once. What must hold is checked in
each: the invariants of the core, and those of ``judge`` and ``Search._check_logs``. A violation is
told with the shortest story that leads to it.

    python tests/quorum/quorum_search.py [SCENE ...] [--minutes N] [--mutant NAME]
"""

import argparse
import math
import time
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from quorum_harness import Record
from quorum_oracle import Past, Violated, judge
from quorum_states import EvenCluster, Event, LocalState, LocalStates

from raftlog.quorum.config import Voter
from simulation.mutants.edits import Edit, edited
from simulation.mutants.registry import MUTANTS

Move = tuple[Any, ...]


class Spent(NamedTuple):
    """Counts of events; as a budget, their bounds."""

    deadlines: int = 0
    writes: int = 0
    reads: int = 0
    crashes: int = 0
    starts: int = 0
    breaks: int = 0
    """Messages whose link breaks: they do not arrive, and no node learns of it."""
    resignations: int = 0
    voter_changes: int = 0
    snapshots: int = 0


@dataclass(frozen=True)
class Scene:
    """An initial state, and the possible events from there."""

    name: str
    begin: Callable[[], EvenCluster]
    budget: Spent
    epochs: int = 3
    """No state with a higher epoch is looked at."""
    in_flight: int = 8
    """Nor one with more messages on their way."""


class State(NamedTuple):
    """A state of the cluster. ``locals``, ``bag``: numbers of LocalStates."""

    locals: list[int]
    bag: list[int]
    """Messages on their way, by link, those of one link in order."""
    past: Past
    spent: Spent


T = TypeVar("T", bound=Hashable)


class Numbers(Generic[T]):
    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def of(self, value: T) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


Way = tuple["array[int]", "array[int]"]
"""Predecessor of each state of a level, and the move from it, by number."""


@dataclass
class Result:
    """The result of a search. ``broken``: a rule; ``story``: the shortest path there."""

    scene: str
    states: int = 0
    depth: int = 0
    complete: bool = False
    """Every state within the bounds was looked at; else the time was over."""
    broken: str = ""
    story: list[str] = field(default_factory=list)
    seconds: float = 0.0
    epochs_led: int = 0
    committed: int = 0
    steps: int = 0
    """Number of distinct steps of nodes."""


class Search:
    """The search through one scene, level by level: all states N steps away, then N + 1."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._nodes = LocalStates()
        self._pasts: Numbers[Past] = Numbers()
        self._spents: Numbers[Spent] = Numbers()
        self._moves: Numbers[Move] = Numbers()
        self._matching: dict[tuple[int, int], bool] = {}
        self._first = self._pack(self._begin())

    def _begin(self) -> State:
        cluster = self.scene.begin()
        bag = [self._nodes.message_id(message) for message in cluster.network]
        self._count = len(cluster.nodes)
        locals_ = [self._nodes.adopt(node) for node in cluster.nodes.values()]
        return State(locals_, bag, cluster.oracle.past, Spent())

    # --- states as bytes: they are many -----------------------------------------------------------

    def _pack(self, state: State) -> bytes:
        messages = self._nodes.messages
        state.bag.sort(key=lambda message_id: messages[message_id].link)
        past, spent = self._pasts.of(state.past), self._spents.of(state.spent)
        return array("I", [*state.locals, past, spent, *state.bag]).tobytes()

    def _unpack(self, packed: bytes) -> State:
        numbers, count = array("I", packed).tolist(), self._count
        past, spent = self._pasts.values[numbers[count]], self._spents.values[numbers[count + 1]]
        return State(numbers[:count], numbers[count + 2 :], past, spent)

    # --- the search -------------------------------------------------------------------------------

    def run(self, seconds: float = math.inf, depth: int = 10_000, show: bool = False) -> Result:
        """Examine all states, level by level, within this time."""
        begun = time.monotonic()
        result = Result(self.scene.name)
        seen, level = {self._first}, [self._first]
        ways: list[Way] = []
        while level and result.depth < depth:
            way: Way = array("I"), array("I")
            try:
                level = self._following(level, seen, way, begun + seconds)
            except TimeoutError:
                break
            except Violated as violated:
                result.broken = str(violated)
                result.story = self._story(ways, violated)
                break
            ways.append(way)
            result.depth += 1
            if show:
                print(
                    f"  {result.depth:3} steps: {len(level):9,} states, {len(seen):10,} in all",
                    flush=True,
                )
        result.complete = not level
        result.states, result.seconds = len(seen), time.monotonic() - begun
        result.steps = len(self._nodes.steps)
        result.epochs_led = max(len(past.leaders) for past in self._pasts.values)
        result.committed = max(len(past.committed) for past in self._pasts.values)
        return result

    def _following(
        self, level: Sequence[bytes], seen: set[bytes], way: Way, until: float
    ) -> list[bytes]:
        """Return the new states one step after those of a level, and how each was reached. Raises
        Violated, with the state and the move; TimeoutError.
        """
        following: list[bytes] = []
        for at, packed in enumerate(level):
            if not at % 256 and time.monotonic() > until:
                raise TimeoutError
            state = self._unpack(packed)
            for move in self._possible(state):
                try:
                    after = self._after(state, move)
                except Violated as violated:
                    violated.at, violated.move = at, self._named(state, move)
                    raise
                if after is not None and after not in seen:
                    seen.add(after)
                    following.append(after)
                    way[0].append(at)
                    way[1].append(self._moves.of(self._named(state, move)))
        return following

    def _possible(self, state: State) -> Iterator[Move]:
        """Return every possible next step. A message is named by its place in the bag."""
        left = Spent(*(may - has for may, has in zip(self.scene.budget, state.spent, strict=True)))
        link: object = None
        for at, message_id in enumerate(state.bag):
            if (next_link := self._nodes.messages[message_id].link) != link:
                link = next_link
                yield "deliver", at
                if left.breaks:
                    yield "break", at
        for at, state_id in enumerate(state.locals):
            local = self._nodes.states[state_id]
            if local.alive:
                yield from self._possible_at(at, local, left)
            elif left.starts:
                yield "start", at

    def _possible_at(self, at: int, local: LocalState, left: Spent) -> Iterator[Move]:
        if local.has_vote:
            yield "persist", at
        if local.has_flush:
            yield "flush", at
        if local.has_snapshot:
            yield "freeze", at
        if left.deadlines and local.deadline < math.inf:
            yield "tick", at
        if local.role == "leader":
            if left.writes:
                yield "write", at
            if left.reads:
                yield "read", at
            if left.resignations:
                yield "resign", at
            if left.voter_changes and local.voters:
                yield from (("voters", at, *names) for names in self._voter_sets(local))
        if left.snapshots and local.may_compact:
            yield "compact", at
        if left.crashes:
            for kept in {0, local.unflushed}:
                yield "crash", at, kept, True
                yield "crash", at, kept, False

    def _voter_sets(self, local: LocalState) -> Iterator[list[str]]:
        for node_id in range(1, self._count + 1):
            if changed := {*local.voters} ^ {node_id}:
                yield [str(changed_id) for changed_id in sorted(changed)]

    def _after(self, state: State, move: Move) -> bytes | None:
        """Return the state after a move; None if it is out of bounds. Raises Violated."""
        locals_, bag, past = list(state.locals), list(state.bag), state.past
        spent, events = self._consequences(state, move, bag)
        for at, event in events:
            step = self._nodes.step(
                locals_[at], event, self._highest_correlation_id(locals_, bag, at + 1)
            )
            if step.broken:
                raise Violated(step.broken)
            locals_[at] = step.state
            bag.extend(step.sent)
            for sighting in step.seen:
                past = judge(past, sighting, partial(self._durable, locals_))
        if len(bag) > self.scene.in_flight or any(
            self._nodes.states[state_id].epoch > self.scene.epochs for state_id in locals_
        ):
            return None
        self._check_logs(locals_)
        return self._pack(State(locals_, bag, past, spent))

    def _consequences(
        self, state: State, move: Move, bag: list[int]
    ) -> tuple[Spent, list[tuple[int, Event]]]:
        """Return the cost of a move and the events of nodes; takes messages from the bag."""
        kind, at, *arguments = move
        spent = state.spent
        match kind:
            case "deliver":
                return spent, self._delivered(state, bag.pop(at))
            case "break":
                bag.pop(at)
                return spent._replace(breaks=spent.breaks + 1), []
            case "crash":
                kept, noticed = arguments
                spent = spent._replace(crashes=spent.crashes + 1)
                return spent, self._crashed(state, at, kept, noticed, bag)
            case "start":
                others = [
                    i for i, n in enumerate(state.locals) if i != at and self._nodes.states[n].alive
                ]
                started: list[tuple[int, Event]] = [(at, ("start", *[i + 1 for i in others]))]
                started += [(i, ("connected", at + 1)) for i in others]
                return spent._replace(starts=spent.starts + 1), started
            case "write":
                spent = spent._replace(writes=spent.writes + 1)
                return spent, [(at, ("write", spent.writes))]
        what = {
            "tick": "deadlines",
            "read": "reads",
            "resign": "resignations",
            "voters": "voter_changes",
        }
        what["compact"] = "snapshots"
        if kind in what:
            spent = spent._replace(**{what[kind]: getattr(spent, what[kind]) + 1})
        return spent, [(at, (kind, *arguments))]

    def _delivered(self, state: State, message_id: int) -> list[tuple[int, Event]]:
        message = self._nodes.messages[message_id]
        target = self._nodes.states[state.locals[message.target - 1]]
        if message.is_request and not target.alive:
            return self._failed(state, message_id)
        if target.alive and (message.is_request or target.life == message.life):
            return [(message.target - 1, ("deliver", message_id))]
        return []

    def _failed(self, state: State, message_id: int) -> list[tuple[int, Event]]:
        """Report to the sender, if it still runs, that a request will not be answered."""
        message = self._nodes.messages[message_id]
        asker = self._nodes.states[state.locals[message.asker - 1]]
        if not asker.alive or asker.life != message.life:
            return []
        return [(message.asker - 1, ("failed", message.target, message.correlation_id))]

    def _crashed(
        self, state: State, at: int, kept: int, noticed: bool, bag: list[int]
    ) -> list[tuple[int, Event]]:
        """Responses to a dead process are lost. If noticed, all links to it break at once."""
        events: list[tuple[int, Event]] = [(at, ("crash", kept))]
        messages = self._nodes.messages
        to_it = [number for number in bag if messages[number].target == at + 1]
        for number in to_it:
            if noticed or not messages[number].is_request:
                bag.remove(number)
            if noticed and messages[number].is_request:
                events += self._failed(state, number)
        if noticed:
            alive = (
                i for i, n in enumerate(state.locals) if i != at and self._nodes.states[n].alive
            )
            events += [(i, ("lost", at + 1)) for i in alive]
        return events

    def _highest_correlation_id(
        self, locals_: Sequence[int], bag: Sequence[int], node_id: int
    ) -> int:
        """Return the highest correlation id of a node's requests that any node still knows."""
        highest = 0
        for message_id in bag:
            message = self._nodes.messages[message_id]
            if message.asker == node_id and message.correlation_id > highest:
                highest = message.correlation_id
        for state_id in locals_:
            for asker, correlation_id in self._nodes.states[state_id].outstanding:
                if asker == node_id and correlation_id > highest:
                    highest = correlation_id
        return highest

    # --- what must hold over all nodes together ---------------------------------------------------

    def _durable(self, locals_: Sequence[int], voter: Voter) -> Sequence[Record]:
        return self._nodes.logs[self._nodes.states[locals_[voter.node_id - 1]].durable]

    def _check_logs(self, locals_: Sequence[int]) -> None:
        """Check log matching: the same epoch at the same offset means the same log up to there."""
        logs = sorted({self._nodes.states[state_id].log for state_id in locals_} - {-1})
        for i, one in enumerate(logs):
            for two in logs[i + 1 :]:
                matching = self._matching.get((one, two))
                if matching is None:
                    matching = match(self._nodes.logs[one], self._nodes.logs[two])
                    self._matching[one, two] = matching
                if not matching:
                    raise Violated("two logs with one epoch at one offset differ before it")

    # --- the story --------------------------------------------------------------------------------

    def _named(self, state: State, move: Move) -> Move:
        """Return the move with the message instead of its place."""
        return (move[0], state.bag[move[1]]) if move[0] in ("deliver", "break") else move

    def _story(self, ways: Sequence[Way], violated: Violated) -> list[str]:
        moves, at = [violated.move], violated.at
        for parents, numbers in reversed(ways):
            moves.append(self._moves.values[numbers[at]])
            at = parents[at]
        return [self._told(move) for move in reversed(moves)]

    def _told(self, move: Move) -> str:
        kind, at, *arguments = move
        if kind in ("deliver", "break"):
            message = self._nodes.messages[at]
            return f"{kind:8} {message.source} -> {message.target} {message.name}"
        return " ".join([f"{kind:8} {at + 1}", *map(str, arguments)])


def match(one: Sequence[Record], two: Sequence[Record]) -> bool:
    """Return whether two logs agree up to the last offset at which they have the same epoch."""
    for at in range(min(len(one), len(two)) - 1, -1, -1):
        if one[at][0] == two[at][0]:
            return one[: at + 1] == two[: at + 1]
    return True


# --- beginnings -----------------------------------------------------------------------------------


ONE_RECORD, TWO_RECORDS = 5, 6
"""Sizes of a fetch in bytes: the harness sends at most one record, or two."""


def cold() -> EvenCluster:
    """All processes have just started on empty disks."""
    return EvenCluster(3, connected=True, fetch_max_bytes=ONE_RECORD)


def elected() -> EvenCluster:
    """Node 1 has been elected in epoch 1, and no other node knows."""
    cluster = cold()
    while not cluster.leaders():
        if not cluster.move():
            cluster.run(0.005)
    cluster.network.clear()
    return cluster


def calm(fetch_max_bytes: int = ONE_RECORD, observers: int = 0) -> EvenCluster:
    """Node 1 leads epoch 1, and all have its whole log."""
    cluster = EvenCluster(3, observers, connected=True, fetch_max_bytes=fetch_max_bytes)
    cluster.elect()
    cluster.settle()
    return cluster


def diverged() -> EvenCluster:
    """Node 1 led epoch 1, and was isolated with a record that no other node has. Node 2 leads epoch
    2; the links are up again, and node 1 does not know it yet.
    """
    cluster = calm()
    cluster.isolate(1)
    cluster[1].propose([900])
    return _led_by_another(cluster)


def diverged_set() -> EvenCluster:
    """The world of ``diverged`` with a voter set without node 3 as the record of node 1."""
    cluster = logged(observers=0)
    cluster.isolate(1)
    cluster[1].propose_voters("1", "2")
    return _led_by_another(cluster)


def _led_by_another(cluster: EvenCluster) -> EvenCluster:
    while cluster[1].flush():
        pass
    cluster.network.clear()
    cluster.run_until(
        lambda: (
            len(cluster.leaders()) == 2
            and max(n.high_watermark for n in cluster.leaders()) > cluster[1].high_watermark
        )
    )
    cluster.settle()
    cluster.network.clear()
    cluster.heal()
    return cluster


def inherited(*, committed: bool = False) -> EvenCluster:
    """Node 1 led epoch 1 and died with a record that only node 2 had in addition. Nodes 2 and 3
    know that node 1 is down. Committed: node 1 knew that the record is on two disks.
    """
    cluster = calm()
    cluster.isolate(3)
    cluster[1].propose([900])
    while (
        cluster[2].disk.pending
        or len(cluster[2].log) < 2
        or committed > (cluster[1].high_watermark == 2)
    ):
        cluster.move()
    assert cluster[1].high_watermark == 1 + committed
    cluster.network.clear()
    cluster.heal()
    cluster.crash(1)
    return cluster


def logged(observers: int = 1) -> EvenCluster:
    """As ``calm``, with the voter set in the log; node 4 observes."""
    cluster = calm(observers=observers)
    cluster[1].propose_voters("1", "2", "3")
    cluster.run_until(cluster.calm)
    cluster.settle()
    return cluster


def behind() -> EvenCluster:
    """Node 3 was isolated while 1 and 2 committed two records."""
    cluster = calm()
    cluster.isolate(3)
    cluster.propose(2)
    cluster.run_until(lambda: cluster[2].up.high_watermark == 3)
    cluster.settle()
    cluster.network.clear()
    cluster.heal()
    return cluster


def compacted() -> EvenCluster:
    """As ``behind``, but 1 and 2 have taken snapshots and dropped their logs."""
    cluster = behind()
    cluster[1].compact()
    cluster[2].compact()
    return cluster


SCENES = {
    scene.name: scene
    for scene in (
        Scene("cold start", cold, Spent(deadlines=1, crashes=1, starts=1), epochs=2),
        Scene("a leader unheard of", elected, Spent(deadlines=2, crashes=1, starts=1), epochs=2),
        Scene("failover", calm, Spent(deadlines=2, writes=1, crashes=1, starts=1), epochs=2),
        Scene("two writes", calm, Spent(writes=2, crashes=1, deadlines=1), epochs=2),
        Scene("links", calm, Spent(deadlines=3, writes=1, breaks=2)),
        Scene("reads", calm, Spent(deadlines=3, reads=2, writes=1)),
        Scene("a tail of its own", diverged, Spent(deadlines=2, writes=1, crashes=1, starts=1)),
        Scene("an inherited tail", inherited, Spent(deadlines=3, writes=1, starts=1), epochs=2),
        Scene(
            "a committed tail",
            partial(inherited, committed=True),
            Spent(deadlines=3, starts=1),
            epochs=2,
        ),
        Scene(
            "a voter set of its own", diverged_set, Spent(deadlines=2, writes=1, voter_changes=1)
        ),
        Scene("resignation", calm, Spent(resignations=1, writes=1, deadlines=1, crashes=1)),
        Scene(
            "a voter more, a voter less",
            logged,
            Spent(voter_changes=2, writes=1, deadlines=1, crashes=1),
        ),
        Scene("a follower behind", behind, Spent(deadlines=2, writes=1, crashes=1, starts=1)),
        Scene("a snapshot", compacted, Spent(deadlines=2, writes=1, crashes=1, starts=1)),
    )
}


def search(scene: Scene, edits: Sequence[Edit] = (), **limits: Any) -> Result:
    """Search one scene, with rules of the core broken by edits. ``limits``: as of ``run``."""
    prepared = Search(scene)  # The beginning is one of the whole core.
    with edited(edits):
        return prepared.run(**limits)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Search the shipped core of the quorum exhaustively."
    )
    parser.add_argument("scene", nargs="*", choices=[*SCENES, []], help="default: all")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each scene")
    parser.add_argument("--mutant", default="", help="break a rule of the core first")
    parser.add_argument("--show", action="store_true", help="show each level")
    arguments = parser.parse_args()
    broken = False
    for name in arguments.scene or SCENES:
        edits = MUTANTS[arguments.mutant].edits if arguments.mutant else ()
        result = search(SCENES[name], edits, seconds=60 * arguments.minutes, show=arguments.show)
        end = result.broken or ("complete" if result.complete else "the time was over")
        print(
            f"{name:28} {result.states:11,} states  {result.depth:3} steps  {result.steps:8,} of nodes"
            f"  {result.epochs_led} led  {result.committed} committed  {result.seconds:5.0f} s  {end}",
            flush=True,
        )
        for line in result.story:
            print(f"    {line}")
        broken |= bool(result.broken)
    return int(broken)


if __name__ == "__main__":
    raise SystemExit(main())
