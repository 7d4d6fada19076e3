"""The decider of the active controller in one epoch: it maps requests and reports to decisions, and
finds work that a deadline, a report, or the log itself makes due.

No I/O, no clock, no randomness. The shell adds each decision to the epoch's log at once, so the
next decision sees it and requests can be pipelined. All of this state is dropped when the
leadership is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from typing import Any

from controller.decision import (
    Decision,
    Defer,
    Duplicate,
    LeaseGranted,
    LeaseKeptAlive,
    ProgressRecorded,
    Refusal,
    Reply,
    Write,
    check_item_count,
    check_record_bytes,
    refuse,
)
from controller.decisions import acls, configs, plans
from controller.decisions.acls import may_do_everything
from controller.decisions.brokers import describe, hostnames, registration
from controller.decisions.brokers.heartbeats import (
    check_heartbeat,
    decide_heartbeat,
    fence_gone,
    fence_silent,
    fence_stuck,
    may_unfence,
    on_probation,
    unfence_decision,
)
from controller.decisions.brokers.hostnames import HostnameCollector
from controller.decisions.clients import clients, export_cursors, key_values
from controller.decisions.clients.clients import ClientExpiry, check_owner, find_result
from controller.decisions.clients.key_values import expire_lease
from controller.decisions.configs import accepted_writes
from controller.decisions.partitions import leader_elections, reassignment, topics
from controller.decisions.partitions.alter_partition import alter_partitions
from controller.decisions.partitions.leader_elections import LeaderBalance
from controller.decisions.quorum import features, transfer
from controller.decisions.quorum.autopilot import Autopilot
from controller.decisions.quorum.membership import Look, Membership, controller_ids
from controller.state.batched_changes import RETRY_S
from controller.state.epoch_log import LaoReport
from controller.state.state import ControllerState, apply, heartbeats_off, unfence_legacy_brokers
from raftlog.config_writes.writes import ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.limits import check as check_limits
from raftlog.limits import cluster_error
from raftlog.metadata import versions
from raftlog.metadata.acls import CLUSTER, AclOperation
from raftlog.metadata.entities import Broker, ClientResult
from raftlog.metadata.records import record
from raftlog.node.security.authorization import NONE_REFUSED, Asker, Authorization, Refused
from raftlog.node.security.authorizer import Caller
from raftlog.node.security.permissions import REQUESTS, All, Each, Listed
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

CHECK_ALL_EVERY_S = 0.1
"""Interval in seconds between checks of all brokers that wait to be unfenced. The checks find
changes that no report shows, such as the end of a probation.
"""


class DueWork:
    """Decisions on due work, made from ``state``.

    The shell adds the records and notifies the decider.
    """

    def __init__(
        self, state: ControllerState, membership: Membership, autopilot: Autopilot
    ) -> None:
        self._state = state
        self._membership, self._autopilot = membership, autopilot
        self._check_all_at = now = state.began_at
        self._unparked = state.log.lao.unparked
        self._next_due = -math.inf
        """Time before which nothing becomes due, cached so that a write need not query each kind of
        work. Only ``recheck``, ``check_at`` and a new LAO bring it forward.
        """
        self._lao = state.log.lao.lao
        self._expiry = ClientExpiry(state.settings, now)
        self._balance = LeaderBalance(state.settings, now)
        self._hostnames = HostnameCollector(now)

    def recheck(self) -> None:
        """Make the next query examine all work, as some may be due now."""
        self._next_due = -math.inf

    def check_at(self, time: float) -> None:
        """Record that work may become due at ``time``."""
        self._next_due = min(self._next_due, time)

    def is_urgent(self) -> bool:
        """Return whether ``next`` may have work that must not wait for a timer.

        Such work: the bootstrap, raising leader epochs of an earlier generation, and handling a
        broker that is ready to be unfenced, is still in some ISRs, or has returned and should get
        leaderships.
        """
        state, has_news = self._state, self._has_news()
        if self._next_due > -math.inf and not has_news:
            return False
        return (
            self._needs_bootstrap()
            or state.epoch_floor.is_due(state.log.pending)
            or bool(state.isr_removals)
            or bool(state.join_elections)
            or (has_news and self._next_admitted() is not None)
        )

    def _has_news(self) -> bool:
        """Return whether LAO has changed, or a broker that waits to be unfenced has sent a new
        report.
        """
        state = self._state
        return bool(state.to_examine) or state.log.lao.unparked != self._unparked

    def next(self, now: float, *, fencing_only: bool = False) -> Write | None:
        """Return the next work, which always has records, or None if nothing is due.

        The caller proposes it and calls again. ``fencing_only``: the disks are full, so only
        fencing, which is bounded, is allowed.
        """
        if self._is_quiet(now):
            return None
        found = self._find(now, fencing_only=fencing_only)
        self._next_due = -math.inf if found is not None else self._earliest()
        return found

    def _is_quiet(self, now: float) -> bool:
        """Return whether ``next`` has no work."""
        return now < self.next_deadline() and not self._has_news()

    def next_deadline(self) -> float:
        """Return a time before which ``next`` has no work unless something happens.

        O(1).
        """
        log, progress = self._state.log, self._state.progress
        count = log.end_offset - progress.observed_end
        if count > 0:
            # Everything except its own records counts as news to the progress policy.
            progress.observe_news(count, progress.observed_end)
            progress.observed_end = log.end_offset
        if log.lao.lao != self._lao:
            self._lao = log.lao.lao
            self._next_due = min(self._next_due, progress.next_due(self._lao))
        return self._next_due

    def _find(self, now: float, *, fencing_only: bool = False) -> Write | None:
        state, pending = self._state, self._state.log.pending
        if now >= state.absent_ids.next_check:
            # The committed image: an uncommitted request of an operator may still be lost, and the
            # broker that it removes is at work [the commit takes a second, and its id is assigned
            # to another].
            state.absent_ids.update(state.log.committed, state.sessions.is_alive, now)
        if fencing_only:
            return (
                self.begin_generation()
                or fence_silent(state, now)
                or fence_gone(state, now)
                or state.isr_removals.due(pending)
                or fence_stuck(state, now)
            )
        return (
            self.bootstrap()
            or self.begin_generation()
            or fence_silent(state, now)
            or fence_gone(state, now)
            or state.isr_removals.due(pending)
            or state.join_elections.due(pending)
            or self.unfence_ready(now)
            or fence_stuck(state, now)
            or state.unclean_recovery.due(pending, now)
            or self._membership.first_set(now)
            or self._autopilot.due(now)
            or self._write_progress(now)
            or self._expiry.due(pending, now)
            or self._balance.due(
                pending, state.log.committed, now, state.lag_watch.low_on_space(now)
            )
            or self._hostnames.due(pending, now)
            or expire_lease(state, now)
        )

    def _earliest(self) -> float:
        """Return the earliest deadline of all kinds of work."""
        state = self._state
        if (
            self._needs_bootstrap()
            or state.isr_removals
            or state.join_elections
            or state.epoch_floor.is_due(state.log.pending)
            or len(state.log.pending.clients) > state.settings.max_clients
        ):
            return -math.inf
        expiry = state.sessions.next_expiry()
        return min(
            state.lag_watch.next_check,
            state.gone.next_check,
            self._membership.next_deadline() if self._membership.is_static else math.inf,
            self._autopilot.next_check,
            self._expiry.next_check,
            self._balance.next_deadline(),
            self._hostnames.next_check,
            self._check_all_at if state.wants_unfence else math.inf,
            state.absent_ids.next_check,
            math.inf if expiry is None else expiry[0],
            state.progress.next_due(state.log.lao.lao),
            state.leases.next_due(),
            state.unclean_recovery.next_deadline(),
        )

    def bootstrap(self) -> Write | None:
        """Return the initial feature levels of a new cluster, or None if the log has them.

        The log itself decides whether they are missing: a flag would outlive a lost epoch.
        """
        if not self._needs_bootstrap():
            return None
        level = self._state.settings.bootstrap_metadata_version or versions.LATEST_METADATA_VERSION
        levels = {
            versions.METADATA_VERSION: level,
            versions.LAO_VERSION: 1,
            versions.BROKER_HEARTBEAT_VERSION: 1,
        }
        records = [
            record(pb.FeatureLevelRecord(name=name, feature_level=level))
            for name, level in levels.items()
        ]
        for principal in self._state.settings.bootstrap_super_users:
            records += may_do_everything(principal, self._state.rng)
        return Write(records)

    def begin_generation(self) -> Write | None:
        """Return the next batch for a log that was restored or recovered: all brokers are fenced,
        and leader epochs raised above all earlier ones.
        """
        return self._state.epoch_floor.due(self._state)

    def unfence_ready(self, now: float) -> Write | None:
        """Unfence a broker that has asked for it and is ready."""
        if self._state.wants_unfence and now >= self._check_all_at:
            self._check_all_at = now + CHECK_ALL_EVERY_S
            self._state.to_examine.update(dict.fromkeys(sorted(self._state.wants_unfence)))
        while (broker := self._next_admitted()) is not None:
            if not on_probation(self._state, broker, now):
                return unfence_decision(self._state, broker)
            del self._state.to_examine[broker.id]
        return None

    def _needs_bootstrap(self) -> bool:
        return versions.METADATA_VERSION not in self._state.log.pending.features

    def _next_admitted(self) -> Broker | None:
        """Return a fenced broker with new reports that has asked to be unfenced and has applied
        enough, or None.
        """
        state = self._state
        to_examine = state.to_examine
        if state.log.lao.unparked != self._unparked:
            self._unparked = state.log.lao.unparked
            to_examine.update(dict.fromkeys(sorted(state.wants_unfence)))
        while to_examine:
            broker_id = next(iter(to_examine))
            broker = state.log.pending.brokers[broker_id]
            if may_unfence(state, broker):
                return broker
            del to_examine[broker_id]
        return None

    def _write_progress(self, now: float) -> Write | None:
        log = self._state.log
        # Images are made chunk by chunk: brokers, and LAO, may already be at a committed record of
        # the next chunk.
        high_watermark = max(log.committed.offset + 1, log.lao.high_watermark)
        message = self._state.progress.decide(
            log.lao.lao, high_watermark, log.lao.applied_offsets(), now
        )
        if message is None:
            return None
        if log.log_hash.is_known:
            message.log_hash_begin_offset = log.log_hash.begin_offset
            message.log_hash_end_offset = log.log_hash.end_offset
            message.log_hash = log.log_hash.digest
        self._state.sketches.into(message)
        return Write([record(message)], effects=(ProgressRecorded(message),))


Handler = Callable[..., Decision]
DECISIONS: dict[str, Handler] = {
    kind: getattr(module, kind)
    for module in (
        acls, clients, configs, describe, export_cursors, features, hostnames, key_values,
        leader_elections, plans, reassignment, registration, topics, transfer,
    )
    for kind in REQUESTS
    if getattr(getattr(module, kind, None), "__module__", "") == module.__name__
}  # fmt: skip
"""The functions that decide requests, each named after its request's body; ``Decider`` adds the few
that are methods.

A function declares what it needs by the names of its parameters: ``state``; ``request``, the body;
``now``; ``refused``, the items that the client may not change; ``owner``, the principal whose
clients and leases the request may use (None for all); ``look``, which returns the progress of the
replicas; ``node_id``.
"""


@cache
def _parameters(decide: Handler) -> tuple[str, ...]:
    return tuple(signature(decide).parameters)


_ACKS_MAX = max(common_pb2.Acks.values())
_WITH_EFFECTS = (Write, Reply, Defer)
_QUIET = (LeaseGranted, LeaseKeptAlive)
"""Effects that make no work due earlier."""


class Decider:
    """The decisions of one epoch, made from ``state``, of which only the soft state is changed.

    The shell adds each decision's records to ``state.log``, and then calls ``proposed``, before it
    asks for the next decision. ``quorum`` returns the replicas' progress; without it the voter set
    cannot change.
    """

    def __init__(
        self,
        state: ControllerState,
        report_lao: LaoReport,
        node_id: int,
        quorum: Look | None = None,
    ) -> None:
        """``report_lao``: called at once with each offset that a broker reports."""
        self.state = state
        self._report_lao = report_lao
        if quorum is not None:
            state.controller_ids = lambda now: controller_ids(quorum(now))
        unfence_legacy_brokers(state)
        members = Membership(state, node_id, quorum)
        self.autopilot = Autopilot(state, node_id, members)
        """Replaces dead voters by spare controllers, if it is enabled."""
        self.due = DueWork(state, members, self.autopilot)
        """Work that becomes due without a request."""
        self._checked_principal = ""
        self._asker = Asker(Caller("", ""))
        """Client whose request is being decided; used only with an authorizer."""
        self._handlers = self._all_handlers(members, node_id, quorum)

    def _all_handlers(
        self, members: Membership, node_id: int, quorum: Look | None
    ) -> dict[str | None, Handler]:
        """Return the handler of each kind of request, by the name of its body: from DECISIONS, or a
        method.
        """
        given = {"state": self.state, "node_id": node_id, "look": quorum}
        decisions: dict[str | None, Handler] = {
            kind: partial(self._decide_by, kind, decide, _parameters(decide), given)
            for kind, decide in DECISIONS.items()
        }
        return decisions | {
            "broker_heartbeat": self._heartbeat,
            "alter_partition": self._alter_partition,
            "add_raft_voter": members.add,
            "remove_raft_voter": members.remove,
            "update_raft_voter": members.update,
        }

    def _decide_by(
        self,
        kind: str,
        decide: Handler,
        parameters: tuple[str, ...],
        given: dict[str, Any],
        request: Any,
        now: float,
        refused: Refused = NONE_REFUSED,
    ) -> Decision:
        """Call a decision function with the arguments that its parameters name."""
        owner = self._owner(kind) if "owner" in parameters else None
        values = {**given, "request": request, "now": now, "refused": refused, "owner": owner}
        return decide(*[values[name] for name in parameters])

    def _owner(self, kind: str) -> str | None:
        """Return the principal whose clients and leases the request may use, or None for all."""
        authorization, asker = self.state.authorization, self._asker
        if authorization is None:
            return None
        if REQUESTS[kind].clears_up and authorization.allows(
            asker, AclOperation.ALTER, CLUSTER, self.state.log.pending
        ):
            return None
        return asker.caller.principal

    # --- requests --------------------------------------------------------------------------------

    def decide(
        self,
        request: rpc.ControllerRequest | ConfigWrites,
        now: float,
        kind: str = "",
        first: int = 0,
    ) -> Decision:
        """Decide one request, or the requests of a group, from ``first`` onwards, that succeed
        unchanged; the Write then has them as its ``group``.

        Never raises: an error is part of the decision. The only state changed here is what the
        request reports: a heartbeat counts whatever the decision is. ``kind``: name of the body, ""
        if not known yet.
        """
        if type(request) is ConfigWrites:
            part = self._accepted(request, first)
            if part is not None:
                return Write([], group=part)
            request = next(request.requests(first))
        return self._decide_one(request, now, kind)

    def _decide_one(self, request: Any, now: float, kind: str) -> Decision:
        state = self.state
        if not kind:
            kind = request.WhichOneof("body") or ""
        handler = self._handlers.get(kind)
        try:
            if (other := cluster_error(state.cluster_id, request.cluster_id)) is not None:
                raise other
            if handler is None:
                raise refuse(
                    ErrorCode.INVALID_REQUEST,
                    "body is missing, or unknown to this controller",
                    "body",
                )
            if not 0 <= request.acks <= _ACKS_MAX:
                raise refuse(
                    ErrorCode.INVALID_REQUIRED_ACKS,
                    f"acks is {request.acks}; it must be in 0 .. {_ACKS_MAX}",
                    "acks",
                )
            of_kind = REQUESTS[kind]
            if of_kind.brings_work:
                self.due.recheck()
            body = getattr(request, kind)
            check_limits(body)
            continues_wait = request.HasField("written")
            if continues_wait:
                handler = partial(self._continue_wait, request.written)
            if request.HasField("client"):
                client = request.client
                # The batch header includes it, whatever the request is. Most requests have the same
                # principal as the previous one.
                if client.principal != self._checked_principal:
                    check_limits(client, "client")
                    self._checked_principal = client.principal
                if (client.sequence or client.client_id) and not continues_wait:
                    if state.authorization is not None:
                        check_owner(state.log.pending, client.client_id, client.principal)
                    result = find_result(state.log.pending, client, state.generation)
                    if result is not None:
                        return Duplicate(result)
            decision = (
                handler(body, now)
                if state.authorization is None
                else self._authorized(state.authorization, handler, kind, request, now)
            )
            if type(decision) is Write:
                floor = state.epoch_floor
                if floor.first and floor.must_delay(decision.records, state.log.pending):
                    return Defer(now + RETRY_S)
                if not of_kind.held_partitions:
                    check_record_bytes(decision.records, kind)
            return decision
        except ApiError as error:
            return Refusal(error)

    def _accepted(self, writes: ConfigWrites, first: int) -> ConfigWrites | None:
        """Return the requests of a group, from ``first`` onwards, that succeed unchanged, or None
        if the first one needs a full decision.
        """
        state = self.state
        if state.without_space or writes.cluster_id not in ("", state.cluster_id):
            return None
        if writes.principal != self._checked_principal and (client := writes.client()) is not None:
            try:
                check_limits(client, "client")
            except ApiError:
                return None
            self._checked_principal = client.principal
        view = state.log.pending_but_configs
        count = accepted_writes(view, state.settings, writes, first)
        if count and state.authorization is not None:
            asker = self._asker
            if asker.caller != (writes.principal, writes.host) or asker.node_id is not None:
                asker = self._asker = Asker(Caller(writes.principal, writes.host))
            count = state.authorization.permitted(writes, first, first + count, asker, view)
        return writes.part(first, first + count) if count else None

    def _continue_wait(self, written: common_pb2.MetadataToken, *_: Any) -> Duplicate:
        """Wait until a committed write reaches its level. An earlier controller answered it before
        that.

        Raises INCONSISTENT_GENERATION, INVALID_REQUEST, and NOT_CONTROLLER for a position beyond
        this log, which shows that this controller is stale.
        """
        state, log = self.state, self.state.log
        if written.generation != state.generation:
            raise refuse(
                ErrorCode.INCONSISTENT_GENERATION,
                f"the position belongs to generation {written.generation}, but the log has"
                f" generation {state.generation}",
                "written.generation",
            )
        if written.offset < 0:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"offset {written.offset} is negative; it must be 0 or more",
                "written.offset",
            )
        if written.epoch > log.epoch or written.offset > log.pending.offset:
            raise refuse(
                ErrorCode.NOT_CONTROLLER,
                f"offset {written.offset} of epoch {written.epoch} is beyond the end of this log,"
                f" {log.end_offset}: a newer controller wrote it",
                "written.offset",
            )
        return Duplicate(
            ClientResult(client_id=0, sequence=0, offset=written.offset, epoch=written.epoch)
        )

    def _authorized(
        self,
        authorization: Authorization,
        handler: Handler,
        kind: str,
        request: rpc.ControllerRequest,
        now: float,
    ) -> Decision:
        """Check the client's permissions, then decide the request.

        Raises ApiError. Uses the pending image: a change of permissions in the log applies to all
        later requests, committed or not.
        """
        row, body, view = REQUESTS[kind].right, getattr(request, kind), self.state.log.pending
        client, asker = request.client, self._asker
        # Most requests come from the same client as the previous one.
        if asker.caller != (client.principal, client.host) or (
            client.HasField("node_id") or asker.node_id is not None
        ):
            asker = self._asker = Asker.of(client)
        if type(row) is Each or type(row) is All:
            # Each item takes a check: their number is limited as in the handler.
            limit = self.state.settings.max_records_per_request
            check_item_count(len(getattr(body, row.items)), limit, row.items)
        refused = authorization.check(row, body, asker, view)
        decision = handler(body, now, refused) if refused else handler(body, now)
        if type(row) is Listed and type(decision) is Reply:
            authorization.leave_out(row, decision.body, asker, view)
        return decision

    def _heartbeat(self, request: rpc.BrokerHeartbeatRequest, now: float) -> Decision:
        broker = self.state.check_broker_epoch(request.broker_id, request.broker_epoch)
        check_heartbeat(request, self.state.generation)
        if not broker.has_left:
            self._renew(broker, now)
        self.report(
            broker.id,
            broker.epoch,
            request.controller_epoch,
            request.current_metadata_offset,
            request.told_lowest_acknowledged_offset,
            now,
        )
        if request.replica_logs:
            recovery, view = self.state.unclean_recovery, self.state.log.pending
            recovery.report(view, broker, request.replica_logs, now)
            self.due.recheck()
        return decide_heartbeat(self.state, broker, request, now)

    def _alter_partition(self, request: rpc.AlterPartitionRequest, now: float) -> Decision:
        self.state.check_broker_epoch(request.broker_id, request.broker_epoch)
        return alter_partitions(self.state.log.pending, self.state.settings, request)

    # --- reports ---------------------------------------------------------------------------------

    def heard(self, broker_id: int, broker_epoch: int, now: float) -> Broker | None:
        """Record that a broker's heartbeat has arrived, and return the broker.

        The heartbeat itself is decided later: a long queue must not end sessions. Returns None, and
        changes nothing, for an epoch other than the registered one, and for a broker that has
        completed its controlled shutdown.
        """
        broker = self._registration(broker_id, broker_epoch)
        if broker is None:
            return None
        self._renew(broker, now)
        return broker

    def _renew(self, broker: Broker, now: float) -> None:
        state, broker_id = self.state, broker.id
        self.due.check_at(now + state.sessions.timeout_s)
        state.sessions.touch(broker_id, broker.epoch, now)
        state.absent_ids.present(broker_id)
        state.gone.heard(broker_id)

    def extend_for_pause(self, gap_s: float, now: float) -> None:
        """Extend sessions after a pause of the shell: heartbeats that were sent during the pause
        are still unread in sockets, and no session may end before they are read.
        """
        self.state.sessions.extend_all(gap_s, now)
        self.state.absent_ids.extend_all(gap_s)
        self.state.leases.extend_all(gap_s)
        self.autopilot.extend_all(gap_s)

    def found_gone(self, broker_id: int, broker_epoch: int, now: float) -> None:
        """Record evidence that a registered broker's process has exited: see
        :mod:`controller.state.liveness`.
        """
        self.due.recheck()
        if self._registration(broker_id, broker_epoch) is not None and not heartbeats_off(
            self.state
        ):
            self.state.gone.found(broker_id, broker_epoch, now)

    def report(
        self,
        broker_id: int,
        broker_epoch: int,
        controller_epoch: int,
        applied: int,
        known_lao: int,
        now: float,
    ) -> None:
        """Process the applied offset and known LAO that a broker reports in each heartbeat and
        metadata fetch.

        A fetch does not renew a session while heartbeats are enabled. The broker fences itself by
        its heartbeats alone, so the controller must use the same evidence: otherwise a broker whose
        fetches alone got through would serve nothing and yet remain leader. A fetch is still a sign
        of life: the id of a broker that fetches is not assigned to another broker.
        """
        if heartbeats_off(self.state):
            self.heard(broker_id, broker_epoch, now)
            self._count_as_active(broker_id, broker_epoch)
        elif (
            self.state.absent_ids.counts_as_absent(broker_id)
            and self._registration(broker_id, broker_epoch) is not None
        ):
            self.state.absent_ids.present(broker_id)
        self._report_lao(broker_id, broker_epoch, controller_epoch, applied, known_lao)
        if broker_id in self.state.wants_unfence:
            self.state.to_examine[broker_id] = None

    def _count_as_active(self, broker_id: int, broker_epoch: int) -> None:
        """Mark a fenced broker to be unfenced: without heartbeats it need not ask."""
        broker = self._registration(broker_id, broker_epoch)
        if broker is not None and broker.fenced:
            self.state.ask_unfence(broker_id)

    def _registration(self, broker_id: int, broker_epoch: int) -> Broker | None:
        """Return the broker if this is its current epoch and it has not completed a controlled
        shutdown, else None.
        """
        broker = self.state.log.pending.brokers.get(broker_id)
        return (
            broker
            if broker is not None and broker.epoch == broker_epoch and not broker.has_left
            else None
        )

    def proposed(self, decision: Decision, now: float) -> None:
        """Apply the effects of a decision whose records, if any, are in the pending image."""
        if isinstance(decision, _WITH_EFFECTS) and decision.effects:
            for effect in decision.effects:
                apply(self.state, effect, now)
            if not all(type(effect) in _QUIET for effect in decision.effects):
                self.due.recheck()
