"""Hand-written traces for the checkers, with logs and disks like the simulated ones."""

from __future__ import annotations

import re
import textwrap
from bisect import bisect_right
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.service.node import ControllerDescription
from raftlog import batch
from raftlog.endpoint import Voter
from raftlog.metadata.control_records import to_entries, voters_in
from raftlog.metadata.log_hash import EMPTY
from raftlog.metadata.records import record
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.node.storage.api import NodeIdentity, SnapshotId, VoteState
from raftlog.quorum import events as ev
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import Checker, CheckFailedError, Operation
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import LogHashes
from simulation.swarm.config import SwarmConfig

VOTERS = tuple(Voter(i, f"c{i}:9093", f"dir-{i}") for i in (1, 2, 3))


def refused(rule: str) -> pytest.RaisesExc[CheckFailedError]:
    return pytest.raises(CheckFailedError, match=rule)


def stories(text: str) -> pytest.MarkDecorator:
    """Parse a case for each line ``what: step; step; step -> rule``. The last step is refused by
    the rule, and passes if there is none. An indented line continues the previous one.
    """
    cases = []
    for line in re.sub(r"\n +", " ", textwrap.dedent(text).strip()).splitlines():
        what, rest = line.split(": ", 1)
        told, _, rule = rest.partition(" -> ")
        cases.append(pytest.param(told.split("; "), rule, id=what))
    return pytest.mark.parametrize(("steps", "rule"), cases)


def play(trace: Trace, steps: list[str], rule: str) -> None:
    for step in steps[:-1]:
        trace.do(step)
    with refused(rule) if rule else nullcontext():
        trace.do(steps[-1])


def config(key: str, value: str | None) -> pb.ConfigRecord:
    """Return the record of a client's config write."""
    return pb.ConfigRecord(resource_type=16, resource_name=key, name="match", value=value)


def registered(broker_id: int, epoch: int, *, fenced: bool = True) -> pb.RegisterBrokerRecord:
    return pb.RegisterBrokerRecord(
        broker_id=broker_id, broker_epoch=epoch, incarnation_id="i", fenced=fenced
    )


def fencing(broker_id: int, epoch: int, fenced: bool) -> pb.BrokerRegistrationChangeRecord:
    return pb.BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=fenced)


def chunk_of(
    base_offset: int,
    epoch: int,
    *messages: Any,
    client: tuple[int, int] = (0, 0),
    timestamp_ms: int = 1,
    principal: str = "",
) -> bytes:
    """One batch."""
    control = isinstance(messages[0], (pb.LeaderChangeRecord, pb.VotersRecord))
    return batch.encode(
        [record(message).data for message in messages],
        base_offset=base_offset,
        epoch=epoch,
        timestamp_ms=timestamp_ms,
        control=control,
        client_id=client[0],
        sequence=client[1],
        principal=principal,
    )


class Chunks:
    """Chunks of the log in the form of the simulated disk."""

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.chunks: list[bytes] = []

    def scan(self, offset: int) -> Any:
        for i in range(max(bisect_right(self.bases, offset) - 1, 0), len(self.bases)):
            yield self.bases[i], self.chunks[i]


class Host:
    def __init__(self, node_id: int, voters: tuple[Voter, ...]) -> None:
        self.id, self.name, self.incarnation = node_id, f"c{node_id}", 0
        self._voters = voters
        self.wall_offset_ms = 0
        self.service: Any = None
        self.core: Any = None
        self.max_metadata_version = LATEST_METADATA_VERSION
        self.log_hashes: LogHashes
        """Hashes of the committed log."""
        self.disk: Any = SimpleNamespace(
            identity=NodeIdentity("cluster", node_id, f"dir-{node_id}"),
            live=Chunks(), durable=Chunks(), vote=VoteState(), failure=None,
            was_set_back=False,
        )  # fmt: skip

    def up(self) -> None:
        live = self.disk.live
        end = (
            batch.scan(live.chunks[-1], expect_offset=live.bases[-1]).end_offset
            if live.bases
            else 0
        )
        self.core = SimpleNamespace(
            epoch=self.disk.vote.epoch, role="follower", voted_id=-1, leader_id=-1,
            log_start_offset=0, log_end_offset=end, flushed_end_offset=end, high_watermark=-1,
            halted=False, stepped_at=0.0,
            voters=tuple(sorted(self._voters, key=lambda voter: voter.node_id)),
            describe=lambda _now: SimpleNamespace(parked_fetches=0),
        )  # fmt: skip
        quorum_config = SimpleNamespace(
            voters=self._voters,
            directory_id=self.disk.identity.directory_id,
            max_metadata_version=self.max_metadata_version,
        )
        self.service = SimpleNamespace(
            quorum=quorum_config,
            description=ControllerDescription(-1, 0, 0, EMPTY, 0, 0, 0.0),
            describe=self.describe,
            node=SimpleNamespace(leadership=None),
            replica=SimpleNamespace(snapshots=SimpleNamespace()),
        )
        self.incarnation += 1

    def describe(self) -> ControllerDescription:
        description: ControllerDescription = self.service.description
        return description

    def says(self, **fields: Any) -> None:
        if "applied_offset" in fields:
            fields["log_hash"] = self.log_hashes.at(fields["applied_offset"] + 1)
        self.service.description = replace(self.service.description, **fields)


class Broker:
    def __init__(self, broker_id: int) -> None:
        self.id, self.name, self.incarnation = broker_id, f"b{broker_id}", 0
        self.service: Any = None
        # Those of brokers that hold data: see DataTrace.
        self.disk: Any = None
        self.network: Any = None

    def up(self, epoch: int = -1) -> None:
        tip = SimpleNamespace(offset=-1, epoch=0, state_hash=0)
        view = SimpleNamespace(
            tip=tip,
            known_lao=-1,
            known_lao_epoch=-1,
            controller_epoch=0,
            generation=0,
            repeatable=None,
        )
        self.service = SimpleNamespace(view=view, image=tip, lifecycle=SimpleNamespace(epoch=epoch))
        self.incarnation += 1


class Trace:
    """A cluster's history by steps, observed by ``checkers``; the ledger is the first."""

    def __init__(
        self,
        *makers: Any,
        voters: tuple[Voter, ...] = VOTERS,
        brokers: int = 0,
        config: SwarmConfig | None = None,
    ) -> None:
        self.ledger = Ledger()
        self.checkers: list[Checker] = [self.ledger, *(make(self.ledger) for make in makers)]
        self.time = 0.0
        self.config = config or SwarmConfig()
        self.controllers = [Host(voter.node_id, voters) for voter in voters]
        for host in self.controllers:
            host.log_hashes = self.ledger.golden.log_hashes
        self.brokers = [Broker(i) for i in range(1, brokers + 1)]
        self._hosts: dict[str, Any] = {
            **{host.name: host for host in self.controllers},
            **{host.name: host for host in self.brokers},
        }
        self._operations = 0
        for checker in self.checkers:
            checker.begin(self)
        for name in self._hosts:
            self.start(name)

    @property
    def last(self) -> Any:
        return self.checkers[-1]

    def now(self) -> float:
        return self.time

    def note(self, who: str, what: str) -> None:
        """Ignore it."""

    def tell(self, hook: str, *arguments: Any) -> None:
        for checker in self.checkers:
            getattr(checker, hook)(*arguments)

    def host(self, name: str) -> Any:
        return self._hosts[name]

    # --- processes -------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        host = self.host(name)
        host.up()
        self.tell("controller_started" if isinstance(host, Host) else "broker_started", host)

    def stop(self, name: str) -> None:
        """Crash, losing what is not durable."""
        host = self.host(name)
        host.service = host.core = None
        if isinstance(host, Host):
            host.disk.live.bases[:], host.disk.live.chunks[:] = (
                host.disk.durable.bases,
                host.disk.durable.chunks,
            )
            self.tell("controller_stopped", host, "killed")

    # --- the quorum ------------------------------------------------------------------------------

    def step(self, name: str, *effects: Any, event: Any = None) -> None:
        self.tell(
            "after_step", self.host(name), event if event is not None else ev.Tick(), list(effects)
        )

    def vote(
        self, name: str, epoch: int, candidate: int, *, durable: bool = True, tell: bool = True
    ) -> None:
        """Vote for a candidate and send the vote."""
        host = self.host(name)
        host.core.epoch = epoch
        if durable:
            host.disk.vote = VoteState(epoch, candidate)
        if not tell:
            return
        if candidate == host.id:
            asked = quorum.VoteRequest(replica_epoch=epoch, replica_id=host.id)
            self.send(name, f"c{candidate % 3 + 1}", quorum.QuorumMessage(vote_request=asked))
        else:
            granted = quorum.VoteResponse(leader_epoch=epoch, vote_granted=True, voter_id=host.id)
            self.send(name, f"c{candidate}", quorum.QuorumMessage(vote_response=granted))

    def lead(self, name: str, epoch: int, votes: tuple[int, ...] = ()) -> None:
        """Become leader with the votes of these nodes (default: itself and the next node), and
        write the epoch's first record.
        """
        host = self.host(name)
        votes = votes or (host.id, host.id % 3 + 1)
        for voter in votes:
            if f"c{voter}" in self._hosts and self.host(f"c{voter}").core is not None:
                self.vote(f"c{voter}", epoch, host.id)
        self.step(name, ev.BecameLeader(epoch, votes))
        self.append(name, epoch, pb.LeaderChangeRecord(leader_id=host.id, generation=1))

    def begin(self) -> None:
        """Let c1 lead epoch 1; all three have its first record, which is committed."""
        self.append("c1", 1, pb.LeaderChangeRecord(leader_id=1, generation=1))
        self.step("c1", ev.BecameLeader(1, (1, 2)))
        for name in ("c2", "c3"):
            self.replicate("c1", name)
        self.commit("c1", 1)

    def append(
        self,
        name: str,
        epoch: int,
        *messages: Any,
        durable: bool = True,
        client: tuple[int, int] = (0, 0),
        principal: str = "",
    ) -> int:
        """Append one batch at the end of this node's log; return its end."""
        base = self.ledger.nodes[name].log.end
        chunk = chunk_of(base, epoch, *messages, client=client, principal=principal)
        return self.append_chunk(name, base, chunk, durable=durable)

    def append_chunk(
        self, name: str, base: int, chunk: bytes, *, durable: bool = True, voters: Any = None
    ) -> int:
        scan = batch.scan(chunk, expect_offset=base)
        found = voters_in(chunk, scan.control_at) if voters is None else voters
        host = self.host(name)
        # Nobody appends what is of a later epoch than its own.
        host.core.epoch = max(host.core.epoch, scan.epochs[-1][0])
        disk = host.disk
        for chunks in (disk.live, disk.durable) if durable else (disk.live,):
            chunks.bases.append(base)
            chunks.chunks.append(chunk)
        span = ev.LogSpan(base, scan.end_offset, scan.epochs, chunk, scan.last_timestamp_ms, found)
        self.step(name, ev.Append(span))
        return scan.end_offset

    def replicate(self, source: str, target: str, *, durable: bool = True) -> None:
        """Give the target all it lacks, and let it acknowledge."""
        disk, log = self.host(source).disk, self.ledger.nodes[target].log
        for base, chunk in list(disk.live.scan(0)):
            if base >= log.end:
                self.append_chunk(target, base, chunk, durable=durable)

    def commit(self, name: str, offset: int) -> None:
        self.step(name, ev.HighWatermarkAdvanced(offset))

    def truncate(self, name: str, offset: int) -> None:
        disk = self.host(name).disk
        for chunks in (disk.live, disk.durable):
            while chunks.bases and chunks.bases[-1] >= offset:
                chunks.bases.pop()
                chunks.chunks.pop()
        self.step(name, ev.Truncate(offset))

    def fetch(self, name: str, offset: int, epoch: int) -> None:
        """Acknowledge."""
        request = quorum.FetchRequest(fetch_offset=offset, last_fetched_epoch=epoch)
        self.send(name, "c1", request)

    def send(self, name: str, peer: str, message: Any) -> None:
        self.tell("message_sent", self.host(name), peer, message)

    def committed(
        self, epoch: int, *messages: Any, client: tuple[int, int] = (0, 0), principal: str = ""
    ) -> int:
        """Commit one batch of c1's on all live voters; return its last offset."""
        end = self.append("c1", epoch, *messages, client=client, principal=principal)
        for host in self.controllers[1:]:
            if host.core is not None:
                self.replicate("c1", host.name)
        self.commit("c1", end)
        return end - 1

    # --- in stories ------------------------------------------------------------------------------

    def wins(self, name: str, epoch: int, votes: tuple[int, ...]) -> None:
        """Become leader with these votes, and do nothing more."""
        self.step(name, ev.BecameLeader(epoch, votes))

    def forgets(self, name: str, epoch: int) -> None:
        """Store this epoch without a vote."""
        self.host(name).disk.vote = VoteState(epoch, -1)

    def set_epoch(self, name: str, epoch: int) -> None:
        self.host(name).core.epoch = epoch

    def loads(self, name: str, end_offset: int, epoch: int) -> None:
        self.step(name, ev.LoadSnapshot(SnapshotId(end_offset, epoch)))

    def waits(self, milliseconds: int) -> None:
        self.time += milliseconds / 1000

    def word(self, text: str) -> Any:
        """Parse an argument of a step: a number, several, a config's value, a voter set, or a name."""
        if text.startswith("voters:"):
            return voters_record(*map(voter, map(int, text[7:].split(","))))
        if re.fullmatch(r"[\d,]*,[\d,]*", text):
            return tuple(int(one) for one in text.split(",") if one)
        if re.fullmatch(r"-?\d+", text):
            return int(text)
        return config("k", text) if len(text) == 1 else text

    def do(self, step: str) -> None:
        """Execute a step of a story: ``method argument … name=argument …``."""
        method, *words = step.split()
        named = dict(word.split("=") for word in words if "=" in word)
        getattr(self, method)(
            *(self.word(word) for word in words if "=" not in word),
            **{
                name: value if len(value) == 1 and not value.isdigit() else self.word(value)
                for name, value in named.items()
            },
        )

    # --- brokers and clients ---------------------------------------------------------------------

    def move(
        self,
        name: str,
        offset: int,
        *,
        told: int = -1,
        told_epoch: int = 1,
        repeatable: int | None = None,
    ) -> None:
        """Move the broker's view to this offset, with the right state."""
        service = self.host(name).service
        view = service.view
        epoch, state_hash = self.ledger.golden.hashes.get(offset, (0, 0))
        service.image = view.tip = SimpleNamespace(
            offset=offset, epoch=epoch, state_hash=state_hash
        )
        view.known_lao, view.known_lao_epoch = told, told_epoch
        view.repeatable = None if repeatable is None else SimpleNamespace(offset=repeatable)
        self.tell("broker_moved", self.host(name))

    def invoke(self, kind: Any, key: str = "k", value: str = "", **fields: Any) -> Operation:
        self.time += 1
        self._operations += 1
        operation = Operation(
            self._operations, fields.pop("client", "client"), kind, key, value, **fields
        )
        operation.invoked_at = self.time
        self.tell("client_invoked", operation)
        return operation

    def give(self, operation: Operation, outcome: Any = "ok", **fields: Any) -> None:
        self.time += 1
        operation.outcome, operation.returned_at = outcome, self.time
        for name, value in fields.items():
            setattr(operation, name, value)
        self.tell("client_returned", operation)


def voters_record(*voters: Voter) -> pb.VotersRecord:
    return pb.VotersRecord(voters=to_entries(voters))


def voter(node_id: int) -> Voter:
    return Voter(node_id, f"c{node_id}:9093", f"dir-{node_id}")
