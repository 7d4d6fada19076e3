"""Golden transcripts: a command a line, each node's full reaction under it.

QUORUM_TRANSCRIPTS=rewrite writes them anew; read the difference before you believe it. Commands:

    cluster VOTERS [OBSERVERS] [key=value ...]   timing as in QuorumConfig; nodes are not started
    disk NODE [epoch=E vote=V leader=L] [log=E:COUNT,E:COUNT ...]      what it finds when it starts
    start NODE.. | crash NODE [KEEP] | restart NODE     a crash keeps the first KEEP operations that were not flushed
    connect | connect A B | lost A B                    A learns that its link to B is up, that B's process is gone
    advance MS                                          time passes, timers fire
    deliver A B | drop A B | repeat A B                 the oldest message from A to B; repeat leaves it where it is
    unsafe                                              from here on promises are broken on purpose
    persist NODE | flush NODE | settle                  disk work, one or everything
    propose NODE COUNT | round NODE | resign NODE [SUCCESSOR]
    stale NODE                                          a proposal of the epoch before
    voters NODE NAME..                                  propose a voter set; 2b is node 2 with its second disk
    replace NODE                                        another disk, empty (the node is down)
    snapshot NODE [END] | compact NODE                  make one; compact: and drop the log before it
    freeze NODE [spoilt]                                a fetched snapshot becomes durable, or turns out to be damaged
    space NODE low|enough

The edges of the protocol itself: 01, 02, 05 to 07, 09, 11 to 23, 32.

Others: read-index rounds against delayed fetches -> 10; an epoch that was campaigned in is not led
again -> 11; removed leader -> 23; two changes -> 24; leader outside the known set -> 25; who alone
has its own removal -> 26; hung disk -> 27; transfer -> 28; little space -> 29; snapshot gone or
damaged while fetched -> 30; leader change while fetching -> 31; other history after the log start
-> 32; VotersRecord truncated -> 33; a voter that does not know that it is one votes -> 34.
"""

import difflib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from quorum_harness import Cluster, SimNode, span_of

from raftlog.endpoint import Voter
from raftlog.node.storage.api import VoteState
from raftlog.quorum import events
from raftlog.quorum import events as ev

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def show_fields(message: Any) -> str:
    """Show the fields that are set, except those that are always the same."""
    constant = (
        "cluster_id",
        "replica_directory_id",
        "voter_directory_id",
        "correlation_id",
        "leader_endpoint",
        "max_metadata_version",
        "max_bytes",
        "max_wait_ms",
        "error_message",
    )
    parts = []
    for descriptor, value in message.ListFields():
        if descriptor.name in constant:
            continue
        shown = value
        if descriptor.name == "preferred_candidates":
            shown = [getattr(one, "candidate_id", one) for one in value]
        elif descriptor.name == "snapshot_id":
            shown = show_id(value)
        elif descriptor.name == "bytes":
            shown = len(value)
        elif descriptor.name == "diverging_epoch":
            shown = f"({value.epoch}, {value.end_offset})"
        parts.append(f"{descriptor.name}={shown}")
    return " ".join(parts)


def show_id(snapshot_id: Any) -> str:
    return f"({snapshot_id.end_offset}, {snapshot_id.epoch})"


def show_voters(voters: tuple[Voter, ...]) -> str:
    parts = []
    for voter in voters:
        n = voter.node_id
        directory = "" if voter.directory_id == f"dir{n}" else f"/{voter.directory_id or '?'}"
        endpoint = "" if voter.endpoint == f"host{n}:1" else f"@{voter.endpoint}"
        parts.append(f"{n}{directory}{endpoint}")
    return " ".join(parts) or "none"


def show_span(span: ev.LogSpan) -> str:
    voters = "".join(
        f" voters {entry.offset}: {show_voters(entry.voters)}" for entry in span.voters
    )
    return f"[{span.base_offset}, {span.end_offset}) epochs {dict(span.epochs)}{voters}"


def show(effect: ev.Effect) -> str:
    name = type(effect).__name__
    match effect:
        case events.PersistVote(vote):
            return f"{name} epoch={vote.epoch} voted={vote.voted_id} leader={vote.leader_id}"
        case events.Send(peer, _, request) | events.SendFetch(peer, _, request):
            return f"{name} to {peer}: {type(request).__name__} {show_fields(request)}"
        case events.Reply((asker, *_), response):
            return f"{name} to {asker}: {type(response).__name__} {show_fields(response)}"
        case events.ReplyFetch((asker, *_), response, offset, max_bytes):
            data = f" + data from {offset}" if max_bytes else ""
            return f"{name} to {asker}: {show_fields(response)}{data}"
        case events.Append(span):
            return f"{name} {show_span(span)}"
        case events.SendFetchSnapshot(peer, _, request):
            return f"{name} to {peer}: {show_fields(request)}"
        case events.ReplySnapshot((asker, *_), response, position):
            return f"{name} to {asker}: {show_fields(response)} + data from {position}"
        case events.StoreSnapshot(snapshot_id, position, data, last):
            return (
                f"{name} {show_id(snapshot_id)} from {position} to"
                f" {position + len(data)}{' last' if last else ''}"
            )
        case events.LoadSnapshot(snapshot_id) | events.DropSnapshot(snapshot_id):
            return f"{name} {show_id(snapshot_id)}"
        case events.VotersChanged(offset, voters):
            return f"{name} {offset}: {show_voters(voters)}"
        case events.PeersChanged(peers):
            return f"{name} {show_voters(peers)}"
        case _:
            fields = " ".join(f"{key}={getattr(effect, key)}" for key in effect.__struct_fields__)
            return f"{name} {fields}".rstrip()


def state(node: SimNode) -> str:
    if not node.alive:
        return "down"
    core = node.up
    leader = "-" if core.leader_id == -1 else str(core.leader_id)
    voted = "-" if core.voted_id == -1 else str(core.voted_id)
    mark = "-" if core.high_watermark == -1 else str(core.high_watermark)
    start = f"{core.log_start_offset}-" if core.log_start_offset else ""
    log = f"log {start}{core.log_end_offset} flushed {core.flushed_end_offset} hw {mark}"
    return f"{core.role}, epoch {core.epoch}, leader {leader}, voted {voted}, {log}"


class Player:
    """Executes commands."""

    def __init__(self) -> None:
        self.cluster: Cluster

    def play(self, line: str) -> Iterator[str]:
        command, *arguments = line.split()
        if command == "cluster":
            self.begin(*arguments)
            return
        before = {node.id: state(node) for node in self.cluster.nodes.values()}
        at = len(self.cluster.history)
        getattr(self, command)(*arguments)
        for node_id, effect in self.cluster.history[at:]:
            yield f"    {node_id} {show(effect)}"
        for node in self.cluster.nodes.values():
            if state(node) != before[node.id]:
                yield f"    {node.id} = {state(node)}"

    def begin(self, *arguments: str) -> None:
        sizes = [int(a) for a in arguments if "=" not in a]
        timing: dict[str, Any] = {
            key: int(value) for key, value in (a.split("=") for a in arguments if "=" in a)
        }
        timing = {"election_jitter_max_ms": 0} | timing
        self.cluster = Cluster(*sizes, start=False, **timing)
        self.cluster.fatal_allowed = True

    def disk(self, node: str, *settings: str) -> None:
        given = dict(item.split("=") for item in settings)
        disk = self.cluster[int(node)].disk
        disk.log = []
        voted = int(given.get("vote", -1))
        directory = f"dir{voted}" if voted != -1 else ""
        disk.vote = VoteState(
            int(given.get("epoch", 0)), voted, directory, int(given.get("leader", -1))
        )
        for run in filter(None, given.get("log", "").split(",")):
            epoch, count = map(int, run.split(":"))
            for _ in range(count):
                # The same (offset, epoch) is the same record on every node.
                disk.log.append((epoch, 1000 * epoch + len(disk.log)))
        self.cluster.oracle.written.update(
            {(at, e): value for at, (e, value) in enumerate(disk.log)}
        )

    def unsafe(self) -> None:
        self.cluster.oracle = Mock()

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self.cluster[int(node)].start()

    restart = start

    def crash(self, node: str, keep: str = "0") -> None:
        self.cluster.crash(int(node), keep=int(keep), noticed=False)

    def connect(self, *pair: str) -> None:
        if pair:
            self.cluster[int(pair[0])].step(ev.PeerConnected(int(pair[1])))
        else:
            self.cluster.connect_all()

    def lost(self, one: str, two: str) -> None:
        self.cluster[int(one)].step(ev.PeerLost(int(two)))

    def advance(self, ms: str) -> None:
        self.cluster.now += int(ms) / 1000
        self.cluster.tick_due()

    def oldest(self, source: str, target: str) -> Any:
        return next(
            m for m in self.cluster.network if (m.source, m.target) == (int(source), int(target))
        )

    def deliver(self, source: str, target: str) -> None:
        message = self.oldest(source, target)
        self.cluster.network.remove(message)
        self.cluster.deliver(message)

    def repeat(self, source: str, target: str) -> None:
        self.cluster.deliver(self.oldest(source, target))

    def drop(self, source: str, target: str) -> None:
        self.cluster.network.remove(self.oldest(source, target))

    def persist(self, node: str) -> None:
        assert self.cluster[int(node)].persist()

    def flush(self, node: str) -> None:
        assert self.cluster[int(node)].flush()

    def settle(self) -> None:
        self.cluster.settle()

    def propose(self, node: str, count: str) -> None:
        self.cluster[int(node)].propose([self.cluster.new_value() for _ in range(int(count))])

    def round(self, node: str) -> None:
        self.cluster[int(node)].step(ev.ReadIndexRequested())

    def resign(self, node: str, successor: str = "-1") -> None:
        self.cluster[int(node)].step(ev.ResignRequested("asked to", int(successor)))

    def stale(self, node: str) -> None:
        at = self.cluster[int(node)]
        epoch = at.up.epoch - 1
        at.step(events.Proposed(epoch, span_of([(epoch, self.cluster.new_value())], len(at.log))))

    def voters(self, node: str, *names: str) -> None:
        self.cluster[int(node)].propose_voters(*names)

    def replace(self, node: str) -> None:
        self.cluster[int(node)].replace_disk()

    def snapshot(self, node: str, end: str = "-1") -> None:
        self.cluster[int(node)].snapshot(int(end))

    def compact(self, node: str) -> None:
        self.cluster[int(node)].compact()

    def freeze(self, node: str, how: str = "") -> None:
        assert self.cluster[int(node)].freeze(sound=how != "spoilt")

    def space(self, node: str, how: str) -> None:
        self.cluster[int(node)].step(events.SpaceChanged(how == "low"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_transcript_is_reproduced(file: Path) -> None:
    player = Player()
    old = file.read_text()
    new: list[str] = []
    for line in old.splitlines():
        if line.startswith("    "):
            continue
        new.append(line)
        if line and not line.startswith("#"):
            new.extend(player.play(line))
    text = "\n".join(new) + "\n"
    if os.environ.get("QUORUM_TRANSCRIPTS") == "rewrite":
        file.write_text(text)
    assert text == old or os.environ.get("QUORUM_TRANSCRIPTS") == "rewrite", "\n".join(
        difflib.unified_diff(old.splitlines(), text.splitlines(), "expected", "now", lineterm="")
    )


def test_at_least_ten_transcripts_exist() -> None:
    assert len(FILES) >= 10
