"""Tests of single hostile messages in every role: none ends the node, and a refused one changes
nothing.

Each kind of request and response, each field at its borders and at plausible values, alone and with
others, to cores in each role, with an empty log and with one that holds records, a snapshot and
voter sets. RAFTLOG_HOSTILE_MESSAGES sets how many messages are sent.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
from one_node import caught_up, granted, make_leader, respond
from quorum_harness import CLUSTER, Cluster, SimNode, effects_of, span_of, voters_value

from raftlog.endpoint import Voter, VotersAt
from raftlog.node.storage.api import SnapshotId, VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.admission import ALLOWANCE_EPOCHS, EPOCH_LIMIT, MAX_EPOCH, MAX_OFFSET
from raftlog.quorum.transitions import TRANSITIONS
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

MESSAGES = int(os.environ.get("RAFTLOG_HOSTILE_MESSAGES", "10000"))
EPOCH = 7
LOG = [(1, 1), (1, voters_value("1", "2", "3")), (2, 3), (2, 4), (5, 5), (5, 6)]
NAMES = ("Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "Fetch", "FetchSnapshot")
REQUESTS, RESPONSES = (
    [getattr(pb, f"{name}{kind}") for name in NAMES] for kind in ("Request", "Response")
)
INT32 = (-(2**31), -2, -1, 0, 1, 2, 3, 4, 9, 6, 7, 8, 9, 1000, ALLOWANCE_EPOCHS, ALLOWANCE_EPOCHS + 20, MAX_EPOCH - 1, MAX_EPOCH,
         MAX_EPOCH + 1, EPOCH_LIMIT)  # fmt: skip
INT64 = (-(2**63), -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 2**31, MAX_OFFSET, MAX_OFFSET + 1, 2**63 - 1)
STRINGS = (
    "",
    CLUSTER,
    "dir1",
    "dir2",
    "dir3",
    "wiped",
    "d" * 65,
    "\x1b[2J",
    "e" * 100_000,
    "host9:1",
    "h:0",
    "h:99999",
    "a b:1",
    "\0:1",
    ":",
)


# --- nodes in each role -------------------------------------------------------------------------


def begun(vote: VoteState, *, logged: bool, me: int = 1, **config: Any) -> SimNode:
    """Node ``me`` of three voters and an observer, the others of which are played by the test."""
    cluster = Cluster(3, 1, start=False, checked=False, seed=5)
    node = cluster[me]
    node.config = replace(node.config, **config)
    node.disk.vote = vote
    if logged:
        node.disk.log = list(LOG)
        node.disk.snapshots = {SnapshotId(3, 2): LOG[:3]}
    node.start()
    return node


unattached = partial(begun, VoteState(EPOCH))
follower = partial(begun, VoteState(EPOCH, -1, "", 2))


def prospective(*, logged: bool) -> SimNode:
    node = unattached(logged=logged)
    node.wait_for_deadline()
    return node


def candidate(*, logged: bool) -> SimNode:
    node = prospective(logged=logged)
    send = next(e for e in effects_of(node, ev.Send) if e.peer_id == 2)
    node.answer(send, granted(2, EPOCH, pre_vote=True))
    node.persist()
    return node


def leader(*, logged: bool) -> SimNode:
    node = unattached(logged=logged)
    make_leader(node)
    return node


def committed_leader(*, logged: bool) -> SimNode:
    node = leader(logged=logged)
    caught_up(node, high_watermark=0)
    assert node.up.high_watermark == node.up.log_end_offset
    return node


def heard_follower(*, logged: bool) -> SimNode:
    node = follower(logged=logged)
    respond(node, high_watermark=len(LOG) if logged else 0)
    return node


def snapshot_fetcher(*, logged: bool) -> SimNode:
    node = follower(logged=logged)
    named = pb.SnapshotId(end_offset=len(LOG) + 2, epoch=6)
    respond(node, high_watermark=0, snapshot_id=named)
    return node


def resigned(*, logged: bool) -> SimNode:
    node = leader(logged=logged)
    node.step(ev.ResignRequested("asked to"))
    return node


observer = partial(unattached, me=4)
BUILDERS: tuple[Callable[..., SimNode], ...] = (
    unattached,
    partial(begun, VoteState(EPOCH, 2, "dir2")),
    prospective,
    candidate,
    leader,
    committed_leader,
    follower,
    heard_follower,
    snapshot_fetcher,
    resigned,
    partial(begun, VoteState(EPOCH, 1, "dir1")),
    observer,
    partial(follower, me=4),
    partial(observer, voters=(), bootstrap_servers=("seed:1", "seed:2")),
)
NODES = [(builder, logged) for builder in BUILDERS for logged in (False, True)]


def test_attacked_nodes_cover_all_roles() -> None:
    roles = Counter(builder(logged=logged).up.role for builder, logged in NODES)
    assert set(roles) == set(TRANSITIONS)


# --- messages -----------------------------------------------------------------------------------


def plausible(kind: type, node: SimNode) -> Any:
    """Return a message much like an honest peer's."""
    core, message = node.up, kind()
    known = {
        "cluster_id": CLUSTER,
        "voter_id": node.id,
        "voter_directory_id": f"dir{node.id}",
        "replica_id": 2,
        "replica_directory_id": "dir2",
        "leader_id": 2 if node.id != 2 else 3,
        "leader_epoch": core.epoch,
        "replica_epoch": core.epoch,
        "current_leader_epoch": core.epoch,
        "fetch_offset": core.log_end_offset,
        "last_fetched_epoch": min(core.epoch, node.up._node.log.last_epoch),
        "last_offset": core.log_end_offset,
        "last_offset_epoch": min(core.epoch, node.up._node.log.last_epoch),
        "max_bytes": 1000,
        "max_wait_ms": 100,
        "high_watermark": max(0, core.high_watermark),
    }
    for descriptor in kind.DESCRIPTOR.fields:  # type: ignore[attr-defined]
        if descriptor.name in known:
            setattr(message, descriptor.name, known[descriptor.name])
    return message


def fields_of(kind: Any) -> list[Any]:
    return list(kind.DESCRIPTOR.fields)


def border_values(descriptor: Any, core: Any) -> tuple[Any, ...]:
    """Return the borders of a field, and values near those that the node knows."""
    end = core.log_end_offset
    return {
        descriptor.CPPTYPE_INT32: (*INT32, *range(core.epoch - 1, core.epoch + 3)),
        descriptor.CPPTYPE_INT64: (*INT64, *range(end - 1, end + 2)),
        descriptor.CPPTYPE_UINT64: (0, 1, 2**64 - 1),
        descriptor.CPPTYPE_STRING: (
            (b"", b"x" * 9) if descriptor.type == descriptor.TYPE_BYTES else STRINGS
        ),
        descriptor.CPPTYPE_BOOL: (False, True),
        descriptor.CPPTYPE_MESSAGE: (None, "many", *["few"] * 10),
    }[descriptor.cpp_type]


def put(message: Any, descriptor: Any, value: Any, rng: random.Random) -> None:
    if descriptor.cpp_type == descriptor.CPPTYPE_INT32 and descriptor.is_repeated:
        del message.preferred_candidates[:]
        message.preferred_candidates.extend([value] * rng.choice((0, 1, 3, 1000)))
    elif descriptor.cpp_type != descriptor.CPPTYPE_MESSAGE:
        setattr(message, descriptor.name, value)
    elif descriptor.name == "preferred_candidates":
        count = {None: 0, "few": 3, "many": 1001}[value]
        del message.preferred_candidates[:]
        message.preferred_candidates.extend(
            pb.PreferredCandidate(candidate_id=rng.choice(INT32)) for _ in range(count)
        )
    elif value is None:
        message.ClearField(descriptor.name)
    elif descriptor.name == "successor":
        part = message.successor
        part.candidate_id = rng.choice((1, 2, 3, *INT32))
        part.candidate_directory_id = rng.choice(("dir1", "dir2", "dir3", *STRINGS))
    elif descriptor.name == "start":
        message.start.count = rng.choice((1, 2, *INT64))
        message.start.nonces[:] = [rng.getrandbits(64)] * rng.choice((0, 1, 17))
    elif descriptor.name == "known_starts":
        del message.known_starts[:]
        for _ in range({"few": 3, "many": 1001}[value]):
            message.known_starts.add(directory_id="dir2", count=rng.choice((1, 2, *INT64)), nonce=1)
    elif descriptor.name == "last_batch":
        part = message.last_batch
        part.base_offset, part.crc = rng.choice((*range(9), *INT64)), rng.choice((0, 2**32 - 1))
    else:
        part = getattr(message, descriptor.name)
        # Half of them such as a leader could send: then they reach what it may do to the log.
        near = rng.random() < 0.5
        part.epoch = rng.randrange(8) if near else rng.choice(INT32)
        part.end_offset = rng.randrange(9) if near else rng.choice(INT64)


def outstanding(node: SimNode) -> list[Any]:
    return [
        e for e in node.effects if isinstance(e, ev.Send | ev.SendFetch | ev.SendFetchSnapshot)
    ][-4:]


def span_for(node: SimNode, rng: random.Random) -> Any:
    """Return the decoded content of a FetchResponse: sound bytes with arbitrary content."""
    core, kind = node.up, rng.randrange(6)
    epoch = rng.choice((core.epoch, core.epoch, core.epoch - 1, core.epoch + 1, 1, EPOCH_LIMIT))
    base = core.log_end_offset if kind else rng.choice((0, core.log_end_offset + 1))
    span = span_of([(epoch, 77), (epoch, 78)], base)
    if kind == 1:
        sets = ((Voter(2, "a:1"), Voter(2, "b:1")), (Voter(-5, "a:1"),), (), (Voter(9, ""),))
        span = msgspec.structs.replace(span, voters=(VotersAt(base, rng.choice(sets)),))
    return span


# --- what must hold -----------------------------------------------------------------------------


def state(node: SimNode) -> tuple[Any, ...]:
    """Return all state that a refusal must not change."""
    inner, core = node.up._node, node.up
    return (
        inner.vote,
        inner.leader_id,
        core.role,
        id(inner.role),
        inner.log.start,
        inner.log.end,
        inner.log.flushed_end,
        inner.log.epochs.entries,
        inner.high_watermark,
        inner.voters.all,
        inner.role.election_timer,
        inner.installing,
        tuple(sorted(node.dialed.items())),
    )


class Attack:
    """Sends messages to one node, and checks the results."""

    def __init__(self, node: SimNode, seen: Counter[str]) -> None:
        self.node, self.seen = node, seen
        self.changed = False

    def request(self, message: Any) -> None:
        node = self.node
        before, epoch = state(node), node.up.epoch
        effects = node.receive(message)
        answers = [e for e in effects if isinstance(e, ev.Reply | ev.ReplyFetch | ev.ReplySnapshot)]
        parked = isinstance(message, pb.FetchRequest) and node.up.role in ("leader", "candidate")
        assert len(answers) >= 1 or parked, "a request gets an answer"
        if answers and answers[-1].response.error_code:
            self.seen["refused request"] += 1
            assert state(node) == before, "a refused request changes nothing"
        elif state(node) != before:
            self.seen["request that counts"] += 1
            self.changed = True
        assert node.up.epoch - epoch <= ALLOWANCE_EPOCHS
        self.look(effects)

    def response(self, asked: Any, message: Any, span: Any, peer_id: int | None = None) -> None:
        node = self.node
        before = state(node)
        peer_id = asked.peer_id if peer_id is None else peer_id
        effects = node.step(ev.ResponseReceived(peer_id, asked.correlation_id, message, span))
        if any(isinstance(e, ev.Refused) for e in effects):
            self.seen["refused response"] += 1
            # The yes or no to what was asked counts all the same: a candidacy may follow, or a
            # leadership; also that the asked one leads, whom this node has voted for. What else it
            # claims does not.
            now, (epoch, me) = state(node), (before[0].epoch, node.id)
            mine = (epoch + 1, me, -1) if before[2] == "prospective" else (epoch, me, me)
            vote, voted = now[0], before[0].voted_id
            asks_elected = before[0].leader_id == -1 and asked.peer_id == voted
            led = (epoch, voted, voted) if asks_elected else mine
            assert vote == before[0] or (vote.epoch, vote.voted_id, vote.leader_id) in (mine, led)
            assert now[4:10] == before[4:10], "what is not believed changes nothing"
        elif state(node) != before:
            self.seen["response that counts"] += 1
        # Nothing is awaited any more: the next one would not be looked at.
        self.changed = True
        self.look(effects)

    def look(self, effects: list[Any]) -> None:
        self.seen["messages"] += 1
        assert not any(isinstance(e, ev.Fatal) for e in effects)
        assert self.node.up.epoch <= MAX_EPOCH
        self.node.up.validate()

    def live_on(self) -> None:
        """Complete disk work and let time pass."""
        node = self.node
        for _ in range(3):
            while node.persist() or node.flush() or (node.freezing and node.freeze(sound=False)):
                pass
            node.cluster.now = max(
                node.cluster.now, min(node.up.next_deadline(), node.cluster.now + 5)
            )
            node.step(ev.Tick())
        node.cluster.network.clear()
        self.look([])


def attacks() -> list[tuple[Callable[..., SimNode], bool, Any, Any, Any]]:
    """Yield (node, with a log, kind, field, value): each field at each value alone."""
    found: list[Any] = []
    for builder, logged in NODES:
        core = builder(logged=logged).up
        for kind in (*REQUESTS, *RESPONSES):
            for descriptor in fields_of(kind):
                found.extend(
                    (builder, logged, kind, descriptor, value)
                    for value in border_values(descriptor, core)
                )
    return found


def test_core_survives_each_field_at_its_limits() -> None:
    rng, seen = random.Random(3), Counter[str]()
    every = attacks()
    chosen = sorted(rng.sample(range(len(every)), min(len(every), MESSAGES // 2)))
    attack, of = None, None
    for builder, logged, kind, descriptor, value in (every[index] for index in chosen):
        if attack is None or attack.changed or of != (builder, logged):
            attack, of = Attack(builder(logged=logged), seen), (builder, logged)
        send(attack, kind, [(descriptor, value)], rng)
        if attack.changed:
            attack.live_on()
    assert seen["refused request"] > seen["messages"] // 5
    assert seen["request that counts"] > 20
    assert seen["refused response"] > 20
    assert seen["response that counts"] > 20


def send(attack: Attack, kind: Any, changes: list[tuple[Any, Any]], rng: random.Random) -> None:
    message = plausible(kind, attack.node)
    for descriptor, value in changes:
        put(message, descriptor, value, rng)
    if kind in REQUESTS:
        attack.request(message)
        return
    asked = outstanding(attack.node)
    if asked:
        span = (
            span_for(attack.node, rng) if kind is pb.FetchResponse and rng.random() < 0.5 else None
        )
        attack.response(asked[-1] if rng.random() < 0.7 else rng.choice(asked), message, span)


@pytest.mark.parametrize("block", range(5))
def test_core_survives_random_sequences_of_messages(block: int) -> None:
    """The effects of an accepted message stay, and the next message meets them."""
    seen = Counter[str]()
    for number in range(MESSAGES // 2 // 5 // 12):
        rng = random.Random(f"{block}-{number}")
        builder, logged = rng.choice(NODES)
        attack = Attack(builder(logged=logged), seen)
        for _ in range(12):
            kind = rng.choice((*REQUESTS, *RESPONSES))
            chosen = rng.sample(fields_of(kind), rng.choice((0, 1, 2, 3)))
            changes = [
                (descriptor, rng.choice(border_values(descriptor, attack.node.up)))
                for descriptor in chosen
            ]
            send(attack, kind, changes, rng)
            roll = rng.random()
            if roll < 0.2:
                attack.live_on()
            elif roll < 0.3 and attack.node.dialed:
                peer_id = rng.choice(sorted(attack.node.dialed))
                attack.node.step(rng.choice((ev.PeerConnected, ev.PeerLost))(peer_id))
        attack.live_on()
    assert seen["messages"] > 0
