"""A trace of LAO: one event for each step of a controller's tracker, and of each broker's view and
read gate.

The trace is made to be compared with ``spec/Lao.tla`` (``spec/traces.py``). It sees the arguments
and results of a few shipped functions; it changes nothing. Each event has the values that the code
has after the step, so a step that the specification would not take, or takes to another result, is
found out by the comparison alone.

Unlike the simulator, this reads private attributes and wraps functions: the specification names
what the code keeps to itself. It stands outside of ``simulation/`` for that.

A trace ends early, and says why, at the first event that the specification leaves out: heartbeats
out of force, a legacy registration, two living processes of one broker, a broken memory.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from typing_extensions import override

from broker.metadata.read_gate import ReadGate, ReadLease
from broker.metadata.view import View
from controller.state.leases import ReadLeases
from controller.visibility.lao import LaoTracker
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.image import Image
from raftlog.metadata.records import Record, RecordType
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.events import BecameLeader, Effect, Event, HighWatermarkAdvanced
from raftlog.wire.broker.v1 import broker_pb2
from simulation.checks.api import BrokerView, Checker, ControllerView
from simulation.twins.loop import host_context

Process = tuple[int, int]
"""(broker id, number of the process, from 1)."""
Entry = dict[str, Any]
"""An event: ``t`` is its kind. Offsets and epochs are those of the code; -1: none."""
READS: dict[int, str] = {
    broker_pb2.REPEATABLE: "repeatable",
    broker_pb2.LATEST: "latest",
    broker_pb2.STRICT: "strict",
}


class TraceEndedError(Exception):
    """The trace is over, and the run with it."""


class Change(NamedTuple):
    """A change of a membership, by one record."""

    kind: str
    """``reg``, ``unf`` or ``fen``."""
    broker_id: int
    process: Process | None = None
    """The registered process."""
    broker_epoch: int = -1


class LaoTrace(Checker):
    """Records a run. Checks nothing."""

    def __init__(self, most: int = 1_000_000) -> None:
        """``most``: number of events after which the trace ends."""
        self.events: list[Entry] = []
        self.ended = ""
        """Reason why the trace ends before the run; empty if it does not."""
        self._most = most
        self._newest = 0
        self._processes: dict[int, Process] = {}
        """View -> its process, of those that live."""
        self._hosts: dict[Process, Any] = {}
        self._numbers: dict[int, int] = {}
        self._incarnations: dict[str, Process] = {}
        self._epochs: dict[tuple[int, int], Process] = {}
        """(broker id, broker epoch) -> the process that registered under it."""
        self._registered: set[Process] = set()
        """Processes that have registered in this generation of the log."""
        self._recovered: dict[int, int] = {}
        """Offset at which a recovery has ended a generation -> epoch of the next leader."""
        self._generations: dict[int, int] = {}
        """Generation of the log -> first epoch in which something of it was committed."""
        self._offered: dict[Process, list[int]] = {}
        """Indices of the leases that controllers have decided on, in order."""
        self._step = -1
        self._admitting = False
        """True if a read is answered as soon as it comes."""
        self._said: dict[Any, Any] = {}

    # --- hooks -----------------------------------------------------------------------------------

    @override
    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        core = host.core
        if core is None:
            return
        for effect in effects:
            if isinstance(effect, BecameLeader):
                if effect.epoch < self._newest:
                    self._end("a leader of an older epoch was elected late")
                self._newest = effect.epoch
                self._elected(core, effect.epoch)
            elif isinstance(effect, HighWatermarkAdvanced) and core.role == "leader":
                self._generations.setdefault(core._node.log.lineage.current, core.epoch)
                self._add("high", e=core.epoch, n=effect.offset - 1)

    def _elected(self, core: QuorumCore, epoch: int) -> None:
        log = core._node.log
        elected = {"e": epoch, "end": log.end, "hw": core.high_watermark - 1}
        # A log that was recovered has no generation until its first leader names one.
        if log.lineage.current != NO_GENERATION or not log.lineage._entries:
            self._add("elect", **elected, last=core.last_epoch)
            return
        base = log.lineage._entries[-1].offset
        if base in self._recovered:
            self._end("the first leader of a recovered log has led nobody")
        self._recovered[base] = epoch
        self._registered.clear()
        before = bisect_left(log.epochs._starts, base)
        last = log.epochs._epochs[before - 1] if before else log.start_epoch
        self._add("restore", **elected, base=base, last=last)

    @override
    def broker_started(self, host: BrokerView) -> None:
        service: Any = host.service
        incarnation = service._lifecycle._incarnation_id
        process = self._incarnations.get(incarnation) or self._begin(host.id, incarnation)
        self._processes[id(service.view)] = process
        self._hosts[process] = host

    def _begin(self, broker_id: int, incarnation: str) -> Process:
        """Start a new process of a broker, and return it."""
        if any(other[0] == broker_id for other in self._hosts):
            self._end("a broker has two processes")
        number = self._numbers[broker_id] = self._numbers.get(broker_id, 0) + 1
        process = self._incarnations[incarnation] = broker_id, number
        self._add("start", p=process)
        return process

    @override
    def broker_stopped(self, host: BrokerView, reason: str) -> None:
        process = next((one for one, other in self._hosts.items() if other is host), None)
        if process is not None:
            del self._hosts[process]
            self._processes = {v: one for v, one in self._processes.items() if one != process}
            self._add("stop", p=process)

    @override
    def broker_asked(self, host: BrokerView, why_fenced: str) -> None:
        process = self._processes.get(id(host.service.view)) if host.service is not None else None
        if process is not None and not why_fenced:
            self._once("serves", process)

    # --- what the code does ----------------------------------------------------------------------

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Observe the functions of LAO until the context ends."""
        with ExitStack() as stack:
            for owner, name, look in (
                (LaoTracker, "proposed", self._proposed),
                (LaoTracker, "passed", self._passed),
                (LaoTracker, "committed", self._committed),
                (LaoTracker, "report", self._reported),
                (View, "apply", self._moved),
                (View, "hear", self._heard),
                (View, "install", self._moved),
                (View, "reset", self._reset),
                (ReadGate, "admit", self._admitted),
                (ReadGate, "_find", self._found),
                (ReadLeases, "granted", self._granted),
                (ReadLease, "answered", self._lease_answered),
                (ReadLease, "held", self._lease_held),
            ):
                stack.enter_context(_watched(owner, name, look))
            yield

    # --- trackers --------------------------------------------------------------------------------

    def _proposed(
        self, call: Any, tracker: LaoTracker, records: Sequence[Record], base: int
    ) -> None:
        changes = [change for one in records if (change := self._change(one)) is not None]
        for change in changes:
            self._look_at_lease(change.broker_id)
        at = len(self.events)
        call(tracker, records, base)
        # ``passed`` was called in between.
        del self.events[at:]
        self._propose(tracker, base, base + len(records), changes)

    def _passed(self, call: Any, tracker: LaoTracker, count: int, base: int) -> None:
        call(tracker, count, base)
        # In the claim, inherited batches pass, too.
        if base > tracker._epoch_start_offset:
            self._propose(tracker, base, base + count, [])

    def _propose(self, tracker: LaoTracker, base: int, end: int, changes: Sequence[Change]) -> None:
        self._add_of(tracker, "propose", base=base, end=end, changes=changes)

    def _committed(self, call: Any, tracker: LaoTracker, high_watermark: int) -> None:
        before = tracker.high_watermark
        call(tracker, high_watermark)
        if tracker.high_watermark != before:
            self._add_of(tracker, "commit", n=high_watermark - 1)

    def _reported(self, call: Any, tracker: LaoTracker, *report: int) -> None:
        call(tracker, *report)
        broker_id, broker_epoch, epoch, applied, known = report
        process = self._epochs.get((broker_id, broker_epoch))
        counts = process is not None and epoch == tracker.epoch
        self._add_of(tracker, "report", p=process if counts else None, a=applied, k=known, of=epoch)

    def _change(self, record: Record) -> Change | None:
        message = record.message
        if record.type == RecordType.REGISTER_BROKER:
            if message.registration_version == 0:
                self._end("a legacy broker")
            process = self._incarnations.get(message.incarnation_id)
            if process is None:
                # A broker without an id registers before it serves.
                process = self._begin(message.broker_id, message.incarnation_id)
            elif process in self._registered:
                self._end("a process has registered again")
            self._registered.add(process)
            self._epochs[message.broker_id, message.broker_epoch] = process
            return Change("reg", message.broker_id, process, message.broker_epoch)
        if record.type == RecordType.UNREGISTER_BROKER:
            return Change("fen", message.broker_id)
        if record.type == RecordType.BROKER_REGISTRATION_CHANGE and message.HasField("fenced"):
            return Change("fen" if message.fenced else "unf", message.broker_id)
        return None

    def _add_of(self, tracker: LaoTracker, kind: str, **fields: Any) -> None:
        if tracker._heartbeats_off and tracker._registrations.current:
            self._end("heartbeats are out of force")
        lao, known = tracker.lao, tracker.min_known_lao
        if tracker._level_is_zero:
            lao = known = -2
        self._add(kind, e=tracker.epoch, lao=lao, known=known, **fields)

    # --- brokers ---------------------------------------------------------------------------------

    def _moved(self, call: Any, view: View, *arguments: Any, **options: Any) -> Any:
        result = call(view, *arguments, **options)
        self._move(view, -1)
        return result

    def _reset(self, call: Any, view: View, generation: int) -> None:
        if generation == view.generation:
            self._end("a broker's log or state was wrong")
        call(view, generation)
        process = self._processes.get(id(view))
        if process is not None and generation in self._generations:
            epoch = max(self._generations[generation], view.controller_epoch)
            self._add("anew", p=process, e=epoch)

    def _heard(self, call: Any, view: View, epoch: int, lao: int, high_watermark: int = -1) -> bool:
        accepted: bool = call(view, epoch, lao, high_watermark)
        if accepted:
            self._move(view, lao)
        return accepted

    def _move(self, view: View, lao: int) -> None:
        process = self._processes.get(id(view))
        if process is None or self.ended:
            return
        step = self.world.loop.steps  # type: ignore[attr-defined]
        last = self.events[-1] if self.events else {}
        now = {
            "e": view.controller_epoch,
            "n": view.applied,
            "l": lao,
            "known": (view.known_lao, view.known_lao_epoch),
            "above": view.lao_above_applied,
        }
        # Records are applied, and then the rest of the answer is heard, in one step of the loop.
        begun = last.get("t") == "move" and last["p"] == process and last["l"] < 0
        state = now["e"], now["n"], max(lao, view.known_lao), now["known"]
        if begun and step == self._step:
            last.update(now)
        elif state != self._said.get(process):
            self._said[process] = state
            self._add("move", p=process, **now)
        self._step = step

    def _admitted(
        self, call: Any, gate: ReadGate[Any], *arguments: Any, **options: Any
    ) -> Image | None:
        self._admitting = True
        try:
            image: Image | None = call(gate, *arguments, **options)
        finally:
            self._admitting = False
        return image

    def _found(self, call: Any, gate: ReadGate[Any], queue: int, offset: int) -> Image | None:
        image: Image | None = call(gate, queue, offset)
        process = self._processes.get(id(gate._view))
        if image is not None and process is not None:
            self._once(
                "read",
                process,
                mode=READS[queue],
                wanted=offset,
                shown=image.offset,
                now=self._admitting,
            )
        return image

    # --- leases ----------------------------------------------------------------------------------

    def _granted(self, call: Any, leases: ReadLeases, broker_id: int, now: float) -> None:
        call(leases, broker_id, now)
        for host in self.world.controllers:
            node = host.service.node if host.service is not None else None
            if node is None or node.decider is None or node.decider.state.read_leases is not leases:
                continue
            process = next((one for one in self._hosts if one[0] == broker_id), None)
            if process is not None and not self.ended:
                self._add("grant", e=node.decider.state.log.epoch, p=process, taken=False)
                self._offered.setdefault(process, []).append(len(self.events) - 1)

    def _lease_answered(
        self, call: Any, lease: ReadLease, sent_at: float, lease_ms: int, refusal: str
    ) -> None:
        call(lease, sent_at, lease_ms, refusal)
        process = self._holder(lease)
        # An answer that is late enough brings a lease that is over.
        if lease_ms <= 0 or process is None or not self._holds(self._hosts[process]):
            return
        epoch = self._hosts[process].service.view.controller_epoch
        offers = [at for at in self._offered.get(process, ()) if self.events[at]["e"] == epoch]
        if offers:
            self.events[offers[-1]]["taken"] = True
            # It was on its way when it was last looked at.
            for event in self.events[offers[-1] :]:
                if event["t"] == "lease_ends" and event["p"] == process:
                    event["t"] = "dropped"
        else:
            self._add("grant", e=epoch, p=process, taken=True)
        self._offered[process] = []

    def _lease_held(self, call: Any, lease: ReadLease, now: float) -> bool:
        held: bool = call(lease, now)
        if held and (process := self._holder(lease)) is not None:
            self._once("leased", process)
        return held

    def _holder(self, lease: ReadLease) -> Process | None:
        return next((p for p, host in self._hosts.items() if host.service._lease is lease), None)

    def _look_at_lease(self, broker_id: int) -> None:
        """A broker is about to be fenced or replaced: note whether its lease has ended."""
        for process, host in self._hosts.items():
            if process[0] == broker_id and not self._holds(host):
                self._add("lease_ends", p=process)

    def _holds(self, host: Any) -> bool:
        """Return whether a broker's lease is valid by the broker's own clock."""
        now = host_context(host.name).run(self.world.loop.time)  # type: ignore[attr-defined]
        held: bool = ReadLease.held.__wrapped__(host.service._lease, now)  # type: ignore[attr-defined]
        return held

    # --- the list --------------------------------------------------------------------------------

    def _once(self, kind: str, process: Process, **fields: Any) -> None:
        """Add an event that changes nothing, unless the last one of its kind was the same and
        nothing has happened since that could change it.
        """
        key = (self._said.get(process), self._said.get("changes"), tuple(fields.items()))
        if self._said.get((kind, process)) != key:
            self._said[kind, process] = key
            self._add(kind, p=process, **fields)

    def _add(self, kind: str, **fields: Any) -> None:
        if self.ended:
            return
        if len(self.events) >= self._most:
            self._end("long enough")
            return
        if kind in ("grant", "lease_ends", "start", "stop") or fields.get("changes"):
            self._said["changes"] = len(self.events)
        self.events.append({"t": kind, **fields})

    def _end(self, why: str) -> None:
        if not self.ended:
            self.ended = why
            self.world.fail(TraceEndedError(why))  # type: ignore[attr-defined]


@contextmanager
def _watched(owner: type, name: str, look: Callable[..., Any]) -> Iterator[None]:
    original = vars(owner)[name]

    @functools.wraps(original)
    def looked_at(*arguments: Any, **options: Any) -> Any:
        return look(original, *arguments, **options)

    setattr(owner, name, looked_at)
    try:
        yield
    finally:
        setattr(owner, name, original)
