"""The shell of the controller: it receives requests, has them decided, proposes the records, and
sends each answer once it is certain.

Theory of operation. A handler only appends to the intake. One *turn* of the event loop decides the
waiting requests, up to a bound, adds each decision to the log of the epoch, and proposes all as one
chunk. The next turn waits for the commit of that chunk, so load makes chunks larger, not more
numerous; only when many bytes wait, up to three chunks are uncommitted at a time. Replies are
parked until their content is certain.

Claiming: a new leader folds the whole local log, the inherited uncommitted tail included, before it
decides anything. A node that loses the leadership drops the pending image. Uncommitted writes in
the log then have an unknown outcome; committed writes that wait to become visible succeed, and the
answer states the level that they reached; all other requests definitely failed.

``ControllerService`` makes and connects the parts, and forwards the replica's events;
``Announcements`` carries out the effects of a commit, and of a broker's report. ``node`` is the
state that the parts share; ``intake`` queues requests, ``turns`` decides them, ``replies`` answers
them, ``observers`` sends the log, ``catch_up`` folds and claims, ``transfer`` ends a leadership,
``upkeep`` ticks.

Why: docs/decisions/008-one-turn-one-chunk.md
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Container

import structlog

from controller.disk.snapshot_generator import SnapshotGenerator
from controller.disk.space import SpaceWatch
from controller.rules.node_roles import is_broker_alone
from controller.service.catch_up import CatchUp
from controller.service.intake import Intake, Reception
from controller.service.node import ControllerDescription, ControllerNode
from controller.service.observers import Observers
from controller.service.replies import Answers, Refusals
from controller.service.status import NodeLife, OutageWatch
from controller.service.transfer import POLL_S, ConnectionDrain, LeadershipTransfer
from controller.service.turns import EARLY, Leadership, Turns
from controller.service.upkeep import (
    BrokerProbes,
    FreeSpace,
    Housekeeping,
    Joining,
    PreferredLeader,
    SpareProbes,
)
from controller.settings import ControllerSettings
from raftlog.endpoint import Voter
from raftlog.errors import ApiError, ErrorCode, FatalError, fatal
from raftlog.metadata.image import Image
from raftlog.node.observability.clock_watch import ClockWatch
from raftlog.node.observability.figures import RequestFigures
from raftlog.node.observability.journal import NO_JOURNAL, Journal
from raftlog.node.replica.replica import Replica
from raftlog.node.storage.api import LogStore, SnapshotId
from raftlog.quorum import events as quorum_events
from raftlog.quorum.config import QuorumConfig
from raftlog.step_tracer import StepTracer
from raftlog.transport.api import Acceptor, Conversation, Transport
from raftlog.wire.controller.v1 import controller_pb2 as pb

log = structlog.get_logger(__name__)

HOLD_MAX_S = 0.025
"""Longest time in seconds that LAO is held back to be sent with records."""
REMEMBERED = 64
"""Maximum number of commits above LAO that are timed."""
_NEW_SHARE = 0.25
_PAUSE_S = 1.0
"""Longest interval between commits, in seconds, that still counts as a steady rate."""


class CommitRate:
    """The rate of commits, and the time that brokers take to apply one."""

    def __init__(self) -> None:
        self._commits: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        """(end offset, time) of the commits above LAO."""
        self._last = 0.0
        self._interval_s = _PAUSE_S

    def committed(self, high_watermark: int, now: float) -> None:
        """Record that the high watermark (exclusive) has moved."""
        interval_s = min(max(now - self._last, 0.0), _PAUSE_S)
        self._last = now
        self._interval_s += _NEW_SHARE * (interval_s - self._interval_s)
        self._commits.append((high_watermark, now))

    def hold_s(self, lao: int, now: float) -> float:
        """Return for how many seconds the new LAO (inclusive) may wait to be sent with a commit; 0
        to send it at once.
        """
        commits, since = self._commits, None
        while commits and commits[0][0] <= lao + 1:
            since = commits.popleft()[1]
        if since is None:
            return 0.0
        took_s = now - since
        if self._last + self._interval_s - now >= took_s:
            return 0.0
        return min(took_s, HOLD_MAX_S)


class _Everybody:
    """A container of every id: a writer waits for all brokers."""

    def __contains__(self, broker_id: object) -> bool:
        return True


EVERYBODY: Container[int] = _Everybody()


class Announcements:
    """The effects of a commit, and of a broker's report, while this node is the active controller.

    Parked replies are released at once; observers are answered after the other work of the same
    turn of the event loop. ``soon``: call back in a later turn of the event loop. ``wake``: run a
    turn soon. ``stopwatch``: a clock in seconds that advances within a turn. ``cpu_clock``: CPU
    seconds that the loop's thread has used.
    """

    def __init__(
        self,
        node: ControllerNode,
        intake: Intake,
        soon: Callable[[float, Callable[[], None]], None],
        wake: Callable[[], None],
        stopwatch: Callable[[], float],
        cpu_clock: Callable[[], float],
    ) -> None:
        self._node, self._intake = node, intake
        self._soon, self._wake = soon, wake
        self.observers = Observers(node, self.report, self._must_report, soon, stopwatch, cpu_clock)
        self._commit_due = False
        self._observers_due = False
        self._reports_due = False
        self._commit_rate = CommitRate()

    def committed(self, leadership: Leadership) -> None:
        """Send the answers that have become certain.

        All other work that follows from a commit is done after that.
        """
        leadership.parking.committed(self._node.committed_end)
        if not self._commit_due:
            self._commit_due = True
            self._soon(0, self._after_commit)

    def _after_commit(self) -> None:
        """Answer observers, replace the committed image, move LAO, and decide requests that have
        waited for this commit.

        Observers come first, as they are waiting and the other work does not affect their answers,
        except for an LAO that the commit itself moves; that is sent afterwards.
        """
        self._commit_due = False
        leadership = self._node.leadership
        if leadership is None or leadership.decider is None:
            return
        self.observers.lao_is_held = False
        self.observers.release()
        advanced_bytes = leadership.log.commit(self._node.committed_end)
        if advanced_bytes is not None:
            log = leadership.log
            self._node.committed.replace(log.committed, log.log_hash, advanced_bytes)
        now = self._node.now()
        self._commit_rate.committed(self._node.committed_end, now)
        leadership.decider.state.sketches.committed(self._node.committed_end, now)
        self._visibility_moved(leadership)
        if self._intake or leadership.decider.due.is_urgent():
            self._wake()

    def report(self, fetch: pb.MetadataFetchRequest) -> None:
        """Process the report in a broker's fetch."""
        leadership = self._node.leadership
        if leadership is None or leadership.decider is None:
            return
        leadership.decider.report(
            fetch.replica_id,
            fetch.broker_epoch,
            fetch.controller_epoch,
            fetch.applied_offset,
            fetch.told_lowest_acknowledged_offset,
            self._node.now(),
        )
        if not self._reports_due:
            # After the other reports of this turn of the event loop: all effects are found
            # together, and each observer gets one answer for all of them.
            self._reports_due = True
            self._soon(0, self._after_reports)

    def _after_reports(self) -> None:
        self._reports_due = False
        leadership = self._node.leadership
        if leadership is None or leadership.decider is None:
            return
        self._visibility_moved(leadership)
        if leadership.decider.due.is_urgent():
            self._wake()

    def _visibility_moved(self, leadership: Leadership) -> None:
        lao = leadership.log.lao
        seen = (lao.lao, lao.min_known_lao)
        if seen == leadership.visibility_seen:
            return
        tell = seen[0] != leadership.visibility_seen[0] and not self._observers_due
        leadership.visibility_seen = seen
        if leadership.decider is not None:
            leadership.decider.state.sketches.moved(*seen, self._node.now())
        leadership.parking.visibility(*seen)
        if tell:
            hold_s = self._commit_rate.hold_s(seen[0], self._node.now())
            if hold_s > 0:
                self._observers_due = self.observers.lao_is_held = True
                self._soon(hold_s, self._release_observers)
            else:
                self.observers.release()

    def request_reports(self) -> None:
        """Have brokers report the LAO that they know, if a reply waits for that."""
        leadership = self._node.leadership
        if leadership is not None and self._waits_for_known_lao(leadership):
            self.observers.request_reports()

    def _must_report(self) -> Container[int]:
        """Return the brokers whose report is awaited: all if a writer waits, else those to be
        unfenced.
        """
        leadership = self._node.leadership
        if leadership is None or leadership.decider is None:
            return EVERYBODY
        if self._waits_for_known_lao(leadership):
            return EVERYBODY
        return leadership.decider.state.wants_unfence

    @staticmethod
    def _waits_for_known_lao(leadership: Leadership) -> bool:
        # By LAO as the last report has moved it: the parked replies are updated later in the turn,
        # when brokers may know it already.
        return leadership.parking.waits_for_known_lao(leadership.log.lao.lao)

    def _release_observers(self) -> None:
        self._observers_due = False
        self.observers.lao_is_held = False
        self.observers.release()


PAUSE_MAX_S = 0.05
"""Longest pause, in seconds, before a callback passed to ``soon``, as on a busy machine a turn
seems longer than it is.
"""


class ControllerService:
    """One controller node above its replica."""

    def __init__(
        self,
        settings: ControllerSettings,
        quorum: QuorumConfig,
        store: LogStore,
        transport: Transport,
        *,
        rng: random.Random,
        wall_clock_ms: Callable[[], int],
        on_failure: Callable[[FatalError], None],
        stopwatch: Callable[[], float] | None = None,
        cpu_clock: Callable[[], float] | None = None,
        tracer: StepTracer[quorum_events.Event, quorum_events.Effect] | None = None,
        request_figures: RequestFigures | None = None,
        journal: Journal = NO_JOURNAL,
    ) -> None:
        """``stopwatch``: a clock in seconds that advances within a turn of the event loop, as the
        loop's clock need not. ``cpu_clock``: CPU seconds that the loop's thread has used; None if
        it is not measured. ``tracer``: traces every step of the quorum's state machine.
        ``request_figures``: the counters of answers, or None for new ones. ``journal``: receives
        the events that operators may look up later.
        """
        self.settings = settings
        self.quorum = quorum
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self.request_figures = request_figures or RequestFigures(self._loop.time)
        self._turn_due = False
        self.successor = asyncio.Event()
        """Set while another node is known to lead."""
        self.replica = Replica(
            quorum, store, transport, self, rng=rng, wall_clock_ms=wall_clock_ms, tracer=tracer
        )
        self.snapshots = SnapshotGenerator(
            settings,
            self.replica,
            cluster_id=quorum.cluster_id,
            now=self._loop.time(),
        )
        self._drain = ConnectionDrain()
        self.node = ControllerNode(
            quorum,
            self.replica,
            self._drain,
            SpaceWatch(settings.free_space_reserve_bytes),
            self._loop.time,
        )
        self._life = NodeLife(self.node, self.snapshots, store, journal)
        self._wire_requests(transport, stopwatch or self._loop.time, cpu_clock or (lambda: 0.0))
        self._wire_upkeep(store, transport, rng, journal)

    def _wire_requests(
        self,
        transport: Transport,
        stopwatch: Callable[[], float],
        cpu_clock: Callable[[], float],
    ) -> None:
        """Make and connect the parts that a request passes through."""
        node, settings = self.node, self.settings
        self._answers = answers = Answers(node, self.request_figures)
        self._intake = intake = Intake(settings.request_timeout_ms, settings.request_timeout_max_ms)
        self.refusals = Refusals(answers, intake, node, self._soon, stopwatch)
        self.transfer = LeadershipTransfer(
            node, self.wake, self.refusals.refuse_waiting, self._announce_successor
        )
        self._probes = BrokerProbes(transport, lambda: node.decider, self.wake)
        self.reception = Reception(
            node, intake, answers, self.transfer, self._drain, self._probes, self.wake, self._soon
        )
        self._announcements = Announcements(
            node, intake, self._soon, self.wake, stopwatch, cpu_clock
        )
        self.turns = Turns(
            node, self.replica, intake, answers, self.transfer, self.wake, self._soon, stopwatch
        )

    def _wire_upkeep(
        self, store: LogStore, transport: Transport, rng: random.Random, journal: Journal
    ) -> None:
        """Make and connect the parts that work without a request."""
        node, settings = self.node, self.settings
        self._joining = Joining(
            node,
            self.reception.received,
            transport,
            rng,
            auto_join=settings.controller_quorum_auto_join_enable,
        )
        self._spare_probes = SpareProbes(node, transport)
        self._catch_up = CatchUp(
            node,
            settings,
            self.snapshots,
            rng,
            send=self._answers.send,
            claimed=lambda: self.committed(node.committed_end),
            wake=self.wake,
            call_later=self._loop.call_later,
        )
        self._housekeeping = Housekeeping(
            node,
            self.snapshots,
            (
                self._joining,
                FreeSpace(node, store, self.transfer, self.wake),
                PreferredLeader(node, self.transfer),
                self._spare_probes,
                OutageWatch(node, self._life.outage),
                self._life,
                ClockWatch(lambda: self.replica.clock_ahead_ms, journal),
            ),
            reception=self.reception,
            intake=self._intake,
            refusals=self.refusals,
            observers=self._announcements.observers,
            journal=journal,
            failed=self.failed,
            wake=self.wake,
            call_at=self._loop.call_at,
        )

    # --- life ------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Recover the log.

        Optional, as ``start`` does it otherwise. Raises StorageError, CorruptLogError.
        """
        self.replica.recover()

    def start(self) -> None:
        """Recover the log, and join the quorum.

        Raises StorageError, CorruptLogError.
        """
        self.replica.start()
        self._housekeeping.start()

    def acceptors(self) -> dict[Conversation, Acceptor]:
        """Return the acceptor of each conversation that a controller serves."""
        return {
            **self.replica.acceptors(),
            Conversation.CONTROLLER: self.reception.accept,
            Conversation.OBSERVER: self._announcements.observers.accept,
        }

    async def leave(self, reason: str) -> None:
        """Transfer the leadership, if this node has it, before a planned stop.

        If other voters are alive, no accepted write then has an unknown outcome.
        """
        if self.node.leadership is None:
            return
        done: asyncio.Future[ApiError | None] = self._loop.create_future()
        self.transfer.begin_to_anybody(reason, done.set_result)
        await done
        # If the transfer failed or took too long, notify the waiting clients now, not when the
        # process ends.
        self.replica.resign(reason)

    async def drain(self) -> None:
        """Refuse new requests, and wait until none can be in flight to this node: closing the link
        of such a request would make its outcome unknown.
        """
        node = self.node
        error = node.not_controller() or ApiError(ErrorCode.NOT_CONTROLLER, "the node is stopping")
        self._drain.begin(
            self._loop.time(), lambda link: node.directory.failure(0, error, link.listener)
        )
        self.refusals.refuse_waiting()
        over = self._loop.create_future()

        def look() -> None:
            if node.closed or self._drain.is_over(self._loop.time()):
                over.set_result(None)
            else:
                self._loop.call_later(POLL_S, look)

        self._loop.call_later(POLL_S, look)
        await over

    def _announce_successor(self, node_id: int, takes_requests: bool) -> None:
        directory = self.node.directory
        self._drain.tell(
            lambda link: directory.successor(node_id, link.listener, takes_requests=takes_requests)
        )

    def close(self) -> None:
        """Stop the replica and all activity of this node."""
        self.node.closed = True
        self._housekeeping.close()
        self._catch_up.close()
        self.transfer.close()
        self._probes.reset()
        self._joining.close()
        self._spare_probes.close()
        self.replica.close()

    @property
    def log_contradiction(self) -> str:
        """How the log here contradicts another node's, or "" if it does not."""
        replica = self.replica
        return (
            replica.core.log_conflict
            or replica.dropped_committed
            or self._announcements.observers.contradiction
        )

    def known_image(self) -> Image | None:
        """Return the committed image, or None if it is not known here yet."""
        return None if self.node.committed_end < 0 else self.node.image

    @property
    def image(self) -> Image:
        """The committed image, under the name that a broker's service also uses."""
        return self.node.image

    def is_broker(self, node_id: int) -> bool:
        """Return whether a node is registered as a broker and is not a voter."""
        configured = (voter.node_id for voter in self.quorum.voters)
        return is_broker_alone(self.node.image, configured, node_id)

    def queue_depths(self) -> dict[str, int]:
        """Return the number of requests that wait to be decided, and of parked replies by
        reason.
        """
        leadership = self.node.leadership
        parked = {} if leadership is None else leadership.parking.depths()
        return {"decision": len(self._intake), **parked}

    def describe(self) -> ControllerDescription:
        """Return the state that this node has folded, and its waiting requests."""
        committed, intake = self.node.committed, self._intake
        return ControllerDescription(
            committed.offset,
            committed.epoch,
            committed.state_hash,
            committed.log_hash,
            len(intake),
            intake.waiting_bytes,
            self._housekeeping.next_tick_at,
        )

    # --- ReplicaListener -------------------------------------------------------------------------

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Record the leader that clients are redirected to."""
        directory = self.node.directory
        directory.leader_id, directory.leader_epoch = leader_id, epoch
        self._life.leader_changed(leader_id, epoch)
        self._catch_up.leader_changed(leader_id, epoch)
        if leader_id not in (-1, self.quorum.node_id):
            self.successor.set()
            self.transfer.successor_known()
        elif self.replica.campaigns:
            self.transfer.campaigning()

    def became_leader(self, epoch: int, epoch_start_offset: int) -> None:
        """Begin to claim."""
        directory = self.node.directory
        directory.leader_id, directory.leader_epoch = self.quorum.node_id, epoch
        self._life.became_leader(epoch, epoch_start_offset)
        self.successor.clear()
        self.transfer.leads()
        self._catch_up.became_leader(epoch, epoch_start_offset)

    def writes_wait(self) -> bool:
        """Return whether the next waiting request will be proposed together with the inherited
        tail.
        """
        return self._intake.next_kind() in EARLY

    def lost_leadership(self, epoch: int, reason: str) -> None:
        """Drop the pending image, and answer every waiting request."""
        leadership, self.node.leadership = self.node.leadership, None
        if leadership is None:
            return
        leadership.log.close()
        self._life.lost_leadership(epoch, reason, handed_over=self.transfer.resigning)
        self.refusals.lost(leadership, f"the leadership of epoch {epoch} was lost: {reason}")
        self.transfer.lost()
        self._probes.reset()
        if not self.transfer.holds(self._loop.time()):
            self.refusals.refuse_waiting()
        self._announcements.observers.refuse_all()
        self.wake()

    def snapshot_loaded(self, snapshot_id: SnapshotId) -> None:
        """Begin to load a snapshot, one slice per turn."""
        self._catch_up.snapshot_loaded(snapshot_id)

    def voters_changed(self, offset: int, voters: tuple[Voter, ...]) -> None:
        """Record the voter set that has taken effect."""
        self.node.directory.voters = voters

    def read_index_confirmed(self, number: int) -> None:
        """Send the replies without records that waited for this round."""
        if self.node.leadership is not None:
            self.node.leadership.parking.read_index_confirmed(number)
            if self._intake:
                self.wake()

    def failed(self, error: FatalError) -> None:
        """Stop this node, as its replica has stopped.

        Waiting requests get no answer.
        """
        self.close()
        self._on_failure(error)

    def committed(self, high_watermark: int) -> None:
        """Send the answers that have become certain.

        A node that does not lead folds instead.
        """
        self.node.committed_end = high_watermark
        leadership = self.node.leadership
        if leadership is None:
            self._catch_up.fold_soon()
        elif leadership.decider is None:
            self.wake()
        else:
            self._announcements.committed(leadership)

    # --- turns -----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Run a turn soon, unless one is due anyway."""
        # Never run a turn directly: the replica calls its listener from inside its own step.
        if not self._turn_due and not self.node.closed:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self.node.closed:
            return
        leadership = self.node.leadership
        try:
            if leadership is None or leadership.decider is None or self.node.load is not None:
                self._catch_up.step()
                # Requests that waited for the claim can proceed.
                leadership = self.node.leadership
            decider = leadership.decider if leadership is not None else None
            if leadership is None or decider is None or self.node.load is not None:
                return
            if self.transfer.under_way is None and not self._drain.begun:
                self.turns.decide_all(leadership, decider)
                if self._announcements.observers.unreported:
                    self._announcements.request_reports()
        except FatalError as error:
            log.critical("the controller stops", error=str(error))
            self.failed(error)
        except (
            Exception
        ) as error:  # a bug: no controller is better than one that leads but decides nothing
            log.exception("the controller stops")
            self.failed(fatal(error))

    def _soon(self, pause_s: float, callback: Callable[[], None]) -> None:
        """Call ``callback`` in a later turn of the event loop, unless this node has stopped by
        then.
        """
        if pause_s:
            self._loop.call_later(min(pause_s, PAUSE_MAX_S), self._unless_closed, callback)
        else:
            self._loop.call_soon(self._unless_closed, callback)

    def _unless_closed(self, callback: Callable[[], None]) -> None:
        if not self.node.closed:
            callback()
