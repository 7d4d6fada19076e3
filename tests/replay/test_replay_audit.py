"""Audit rules: a hand-made history that breaks each, and allowed neighbours."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from asking import ask, written
from audited_log import AuditedLog
from log_history import LogHistory
from spark_runs import Replay
from tiers import nightly
from unentitled import write_without_rights

from controller.rules.partition_change import MAX_REMOVALS
from raftlog.wire.records.v1 import records_pb2 as pb
from replay.engine import pool, reading
from replay.errors import ReplayError
from replay.jobs.audit import AuditResult
from replay.kernels.audit import BY_RECORD, OF_FACTS, OF_PARTITIONS
from replay.kernels.rules import departed
from replay.rules import CONTROLLER_EPOCH_WENT_BACK, CRITICAL, ERROR, RULES, choose

Found = list[tuple[str, int, int | None]]
"""(rule, offset, broker) of the expected findings, in the order of offsets."""
Breaks = Callable[[AuditedLog], Found]
OFFENCES: list[Breaks] = []


def offence(breaks: Breaks) -> Breaks:
    """Register an offence; it leaves all brokers unfenced, and its topics are deleted."""
    OFFENCES.append(breaks)
    return breaks


# --- who is admitted ----------------------------------------------------------------------------


@offence
def stale_epoch(log: AuditedLog) -> Found:
    log.topic("stale", [1, 2, 3])
    stale = log.epoch_of(3)
    log.set_fenced(3, fenced=True)
    log.register(3)
    log.set_fenced(3, fenced=False)
    first = log.propose("stale", [1, 2, 3], {3: stale})
    future = log.propose("stale", [1, 2], {2: log.end_offset + 50})
    # The record adds a former incarnation, and completes a reassignment.
    log.topic("moving", [1, 2])
    log.change("moving", **begun([3, 2, 1], adding=[3], removing=[1]))
    moved = log.propose("moving", [2, 3], {3: stale}, proposer_id=1, leader=3, **ended([3, 2]))
    return [("STALE_BROKER_EPOCH", at, id_) for at, id_ in ((first, 3), (future, 2), (moved, 3))]


@offence
def not_registered(log: AuditedLog) -> Found:
    named = log.topic("nobody", [1, 2, 9], isr=[1, 2])
    proposed = log.propose("nobody", [1, 2, 9])
    created = log.topic("empty", [1, 9])
    return [
        ("REPLICA_NOT_REGISTERED", named, 9),
        ("BROKER_NOT_REGISTERED", proposed, 9),
        ("BROKER_NOT_REGISTERED", created, 9),
        ("REPLICA_NOT_REGISTERED", created, 9),
    ]


@offence
def ineligible(log: AuditedLog) -> Found:
    log.topic("fenced", [1, 2, 3])
    log.set_fenced(3, fenced=True)
    fenced = log.propose("fenced", [1, 2, 3])
    log.propose("fenced", [1, 2])
    log.set_fenced(3, fenced=False)
    log.append(log.standing(2, in_controlled_shutdown=True), *log.removals(2))
    stopping = log.propose("fenced", [1, 2])
    log.propose("fenced", [1])
    log.append(log.standing(2, in_controlled_shutdown=False))
    return [("INELIGIBLE_ISR_MEMBER", fenced, 3), ("INELIGIBLE_ISR_MEMBER", stopping, 2)]


@offence
def stale_proposer(log: AuditedLog) -> Found:
    log.topic("proposer", [1, 2])
    under = log.propose("proposer", [1], proposer_epoch=1)
    without_isr = log.change("proposer", leader=1, proposer_id=1, proposer_epoch=77)
    return [("STALE_PROPOSER_EPOCH", under, 1), ("STALE_PROPOSER_EPOCH", without_isr, 1)]


# --- ISR and leader -----------------------------------------------------------------------------


Act = Callable[[AuditedLog, str], int]
SINGLE: list[tuple[str, list[int], list[int], Act, int | None]] = [
    ("UNKNOWN_BROKER_EPOCH", [1, 2], [1, 2], lambda log, t: log.propose(t, [1, 2], {2: -1}), 2),
    ("PROPOSER_NOT_LEADER", [1, 2], [1, 2], lambda log, t: log.propose(t, [1], proposer_id=2), 2),
    ("ISR_GREW_UNPROPOSED", [1, 2, 3], [1], lambda log, t: log.change(t, isr=[1, 3]), 3),
    ("ISR_EMPTY", [1, 2], [1, 2], lambda log, t: log.change(t, isr=[], leader=-1), None),
    (
        "UNCLEAN_ELECTION_TOO_EARLY",
        [4, 5],
        [4],
        lambda log, t: log.change(t, isr=[5], leader=5, leader_recovery_state=1),
        4,
    ),
]
"""Rule, replicas and ISR of a topic, the change that breaks the rule, and its broker."""


@offence
def single_changes(log: AuditedLog) -> Found:
    found = []
    for rule, replicas, isr, act, broker in SINGLE:
        log.topic(rule, replicas, isr)
        found.append((rule, act(log, rule), broker))
    return found


@offence
def no_replica(log: AuditedLog) -> Found:
    log.topic("stranger", [1, 2, 3])
    stranger = log.propose("stranger", [1, 4])
    twice = log.propose("stranger", [1, 2, 2])
    reassigned = log.change("stranger", replicas=[1, 3])
    return [("ISR_NOT_IN_REPLICAS", offset, None) for offset in (stranger, twice, reassigned)] + [
        # Fewer replicas than before, and one that stays is not in the ISR.
        ("REASSIGNMENT_INCOMPLETE", reassigned, 3)
    ]


@offence
def strange_replicas(log: AuditedLog) -> Found:
    twice = log.topic("strange", [1, 2, 2], isr=[1, 2])
    again = log.change("strange", replicas=[1, 2, 1])
    log.change("strange", **begun([1, 2, 3], adding=[3]))
    # What it keeps is no news; what it adds was never registered.
    added = log.change("strange", **begun([1, 2, 3, 8], adding=[3, 8]))
    return [
        ("DUPLICATE_REPLICA", twice, None),
        ("DUPLICATE_REPLICA", again, None),
        ("REPLICA_NOT_REGISTERED", added, 8),
    ]


@offence
def no_replicas(log: AuditedLog) -> Found:
    log.topic("nowhere", [1])
    created = pb.PartitionRecord(
        topic_id=log.topics["nowhere"], partition_id=1, replicas=[], isr=[], leader=-1
    )
    offset = log.append(created)
    return [("DUPLICATE_REPLICA", offset, None), ("ISR_EMPTY", offset, None)]


@offence
def outside(log: AuditedLog) -> Found:
    log.topic("outside", [1, 2, 3], isr=[1, 2])
    led = log.change("outside", leader=3)
    log.change("outside", leader=1)
    shrunk = log.change("outside", isr=[2])
    return [("LEADER_OUTSIDE_ISR", led, 3), ("LEADER_OUTSIDE_ISR", shrunk, 1)]


@offence
def undeclared(log: AuditedLog) -> Found:
    log.topic("unclean", [4, 5], isr=[4])
    log.set_fenced(4, fenced=True)
    led = log.change("unclean", isr=[5], leader=5)
    log.set_fenced(4, fenced=False)
    return [("UNDECLARED_UNCLEAN_ELECTION", led, 5)]


@offence
def eligible(log: AuditedLog) -> Found:
    """A clean election from the eligible replicas is allowed."""
    log.topic("eligible", [1, 2, 4, 5])
    log.propose("eligible", [1, 2])
    log.propose("eligible", [1], eligible_leader_replicas=[2])
    both = log.change("eligible", isr=[1, 2], isr_with_epochs=log.members([2]))
    never = log.propose("eligible", [1], eligible_leader_replicas=[2, 4])
    log.set_fenced(1, fenced=True)
    log.change("eligible", isr=[], leader=-1, eligible_leader_replicas=[1, 2], last_known_elr=[1])
    log.change("eligible", isr=[2], leader=2, eligible_leader_replicas=[1], last_known_elr=[])
    log.set_fenced(1, fenced=False)
    early = log.change(
        "eligible", isr=[5], leader=5, leader_recovery_state=1, eligible_leader_replicas=[]
    )
    return [
        ("ELIGIBLE_IN_ISR", both, None),
        ("ELIGIBLE_NEVER_IN_SYNC", never, 4),
        ("UNCLEAN_ELECTION_TOO_EARLY", early, 1),
        ("UNCLEAN_ELECTION_TOO_EARLY", early, 2),
    ]


def logs(log: AuditedLog, ends: dict[int, int]) -> list[pb.ReplicaLog]:
    """Return reports of replicas; ``ends``: end of each log, -1 of an empty one."""
    return [
        pb.ReplicaLog(
            broker_id=id_,
            broker_epoch=log.epoch_of(id_),
            last_epoch=min(end, 3),
            log_end_offset=max(end, 0),
        )
        for id_, end in ends.items()
    ]


@offence
def recovered_too_early(log: AuditedLog) -> Found:
    """A longer log that was live; a replica that was not waited for; a leader without a report.
    Allowed: an absent one with more, or a silent one beside the last leader.
    """

    def recover(name: str, leader: int, ends: dict[int, int], **known: Any) -> int:
        log.topic(name, [4, 5, 1], isr=[4])
        log.set_fenced(4, fenced=True)
        if log.partition(name).isr:
            log.change(name, isr=[], leader=-1, last_known_elr=[4])
        if known.pop("back", True):
            log.set_fenced(4, fenced=False)
        found = pb.UncleanRecovery(logs=logs(log, ends), last_known_leader=4, **known)
        led: dict[str, Any] = {"leader": leader, "leader_recovery_state": 1, "recovery": found}
        at = log.change(name, isr=[leader], last_known_elr=[], **led)
        log.set_fenced(4, fenced=False)
        return at

    longer = recover("longer", 5, {5: 7, 1: 9}, strategy="aggressive")
    waited = recover("waited", 5, {5: 7, 4: -1}, strategy="balanced", silent=[1])
    mute = recover("mute", 5, {1: 7}, strategy="requested")
    recover("away", 5, {5: 7, 4: 9}, strategy="aggressive", silent=[1], back=False)
    recover("beside", 4, {4: 9}, strategy="balanced", silent=[1, 5])
    return [("UNFOUNDED_RECOVERY", at, 5) for at in (longer, waited, mute)]


@offence
def recovering(log: AuditedLog) -> Found:
    log.topic("recovers", [4, 5], isr=[4])
    log.set_fenced(4, fenced=True)
    log.change("recovers", isr=[5], leader=5, leader_recovery_state=1)
    log.set_fenced(4, fenced=False)
    early = log.propose("recovers", [5, 4])
    log.propose("recovers", [5])
    log.propose("recovers", [5, 4], leader_recovery_state=0)
    return [("RECOVERING_WITH_FOLLOWERS", early, 5)]


@offence
def fenced_leader(log: AuditedLog) -> Found:
    log.topic("led", [3])
    log.set_fenced(3, fenced=True)
    led = log.change("led", leader=3)
    log.change("led", leader=-1)
    log.set_fenced(3, fenced=False)
    return [("INELIGIBLE_LEADER", led, 3)]


@offence
def stays(log: AuditedLog) -> Found:
    log.topic("stays", [1, 2])
    fenced = log.append(log.standing(2, fenced=True))
    log.change("stays", isr=[1])
    log.set_fenced(2, fenced=False)
    log.propose("stays", [1, 2])
    replaced = log.append(log.registration(2))
    log.change("stays", isr=[1])
    log.set_fenced(2, fenced=False)
    log.propose("stays", [1, 2])
    unregistered = log.append(log.unregistered(2))
    log.delete_topic("stays")
    log.register(2)
    log.set_fenced(2, fenced=False)
    log.topic("alone", [5])
    leads_on = log.append(log.standing(5, fenced=True), pb.NoOpRecord())
    log.delete_topic("alone")
    log.set_fenced(5, fenced=False)
    return [
        *(("INACTIVE_IN_ISR", offset, 2) for offset in (fenced, replaced, unregistered)),
        ("INACTIVE_IN_ISR", leads_on, 5),
    ]


@offence
def stays_for_long(log: AuditedLog) -> Found:
    """The part of the removals that exceeds the fencing batch may follow later, but must follow."""
    log.topic("many", [1, 2])
    log.append(log.standing(2, fenced=True), *[pb.NoOpRecord()] * MAX_REMOVALS)
    unfenced = log.append(log.standing(2, fenced=False))
    return [("INACTIVE_IN_ISR", unfenced, 2)]


@offence
def made_again(log: AuditedLog) -> Found:
    log.topic("again", [1, 2])
    log.change("again", leader=1)
    again = pb.PartitionRecord(topic_id=log.topics["again"], replicas=[1, 2], isr=[1, 2], leader=1)
    both = log.forge(again)
    again.leader_epoch = 1
    standing_still = log.forge(again)
    return [
        ("LEADER_EPOCH_WENT_BACK", both, None),
        ("PARTITION_EPOCH_WENT_BACK", both, None),
        ("PARTITION_EPOCH_WENT_BACK", standing_still, None),
    ]


@offence
def same_id_again(log: AuditedLog) -> Found:
    log.topic("returns", [1, 2])
    log.change("returns", leader=1)
    topic_id = log.topics["returns"]
    log.delete_topic("returns")
    created = pb.PartitionRecord(topic_id=topic_id, replicas=[1, 2], isr=[1, 2], leader=1)
    offset = log.append(pb.TopicRecord(name="returns", topic_id=topic_id), created) + 1
    return [("LEADER_EPOCH_WENT_BACK", offset, None), ("PARTITION_EPOCH_WENT_BACK", offset, None)]


@offence
def ends_too_early(log: AuditedLog) -> Found:
    """Completed without an added one; cancelled but kept; replaced by one that ends too early."""
    log.topic("early", [1, 2])
    log.change("early", **begun([3, 4, 1, 2], adding=[3, 4], removing=[1, 2]))
    log.propose("early", [1, 2, 3])
    complete = log.change("early", **ended([3, 4]), isr=[3], leader=3)
    log.topic("kept", [1, 2])
    log.change("kept", **begun([1, 3, 2], adding=[3], removing=[2]))
    cancelled = log.change("kept", **ended([1, 3]), isr=[1])
    log.topic("second", [1, 2, 3])
    log.change("second", **begun([1, 4, 2, 3], adding=[4], removing=[2, 3]))
    second = log.change("second", **ended([1, 5]), isr=[1])
    # None comes; of three two are left, and one of them lacks what the one that goes has.
    log.topic("fewer", [1, 2, 3])
    log.change("fewer", **begun([1, 2, 3], removing=[3]), isr=[1, 3])
    fewer = log.change("fewer", **ended([1, 2]), isr=[1])
    return [
        ("REASSIGNMENT_INCOMPLETE", complete, 4),
        ("REASSIGNMENT_INCOMPLETE", cancelled, 3),
        ("REASSIGNMENT_INCOMPLETE", second, 5),
        ("REASSIGNMENT_INCOMPLETE", fewer, 2),
    ]


@offence
def forgets_where_it_began(log: AuditedLog) -> Found:
    """A second one takes what the first is adding for original replicas; another one removes a
    non-replica, or loses one.
    """
    log.topic("forgets", [1, 2])
    log.change("forgets", **begun([3, 2, 1], adding=[3], removing=[1]))
    second = log.change("forgets", **begun([4, 2, 3, 1], adding=[4], removing=[3, 1]))
    log.topic("strays", [1, 2])
    strays = log.change("strays", **begun([3, 1, 2], adding=[3], removing=[2, 3]))
    log.topic("loses", [1, 2, 3])
    loses = log.change("loses", **begun([4, 1, 2], adding=[4], removing=[2]), isr=[1, 2])
    return [("REASSIGNMENT_LOST_ORIGINAL", offset, None) for offset in (second, strays, loses)]


def begun(
    replicas: list[int], *, adding: Sequence[int] = (), removing: Sequence[int] = ()
) -> dict[str, list[int]]:
    return {"replicas": replicas, "adding_replicas": [*adding], "removing_replicas": [*removing]}


ended = begun


# --- registrations ------------------------------------------------------------------------------


@offence
def reused(log: AuditedLog) -> Found:
    again = log.append(log.registration(5, broker_epoch=log.epoch_of(5)), *log.removals(5))
    log.set_fenced(5, fenced=False)
    log.append(log.unregistered(5))
    invented = log.append(log.registration(5, broker_epoch=log.end_offset + 100))
    log.register(5)
    log.set_fenced(5, fenced=False)
    return [("BROKER_EPOCH_REUSED", again, 5), ("BROKER_EPOCH_REUSED", invented, 5)]


@offence
def unfenced_at_first(log: AuditedLog) -> Found:
    at = log.append(log.registration(5, fenced=False), *log.removals(5))
    return [("REGISTERED_UNFENCED", at, 5)]


# --- LAO ----------------------------------------------------------------------------------------


@offence
def lao(log: AuditedLog) -> Found:
    log.say(log.end_offset - 1)
    level = log.end_offset - 1
    at = log.say(level, high_watermark=level)
    back = log.say(level - 2, applied={})
    beyond = log.say(level, high_watermark=log.end_offset + 1)
    everybody = dict.fromkeys((1, 2, 4, 5), log.end_offset - 1)
    # Broker 3 has applied ``level``, as it said before.
    above = log.say(log.end_offset - 1, applied=everybody)
    level = log.end_offset - 1
    log.say(level)
    # Far after what it is below.
    log.append(*[pb.NoOpRecord()] * 2048)
    far_back = log.say(level - 1, applied={})
    log.say(log.end_offset - 1)
    return [
        ("LAO_NOT_BELOW_HIGH_WATERMARK", at, None),
        ("LAO_WENT_BACK", back, None),
        ("LAO_WENT_BACK", far_back, None),
        ("HIGH_WATERMARK_BEYOND_LOG", beyond, None),
        ("LAO_ABOVE_APPLIED", above, 3),
    ]


@offence
def high_watermark(log: AuditedLog) -> Found:
    level = log.end_offset - 1
    log.say(level)
    # The highest stands beside an LAO that is unknown.
    log.say(-1, applied={})
    back = log.say(level, high_watermark=level + 1, applied={})
    log.append(*[pb.NoOpRecord()] * 64)
    log.say(log.end_offset - 1)
    far_back = log.say(level, high_watermark=level + 2, applied={})
    log.say(log.end_offset - 1)
    return [
        ("HIGH_WATERMARK_WENT_BACK", back, None),
        ("HIGH_WATERMARK_WENT_BACK", far_back, None),
        ("LAO_WENT_BACK", far_back, None),
    ]


@offence
def applied(log: AuditedLog) -> Found:
    """Beyond the log, and back in the next record; and below what was reported long before."""
    level = log.end_offset - 1
    log.say(level)
    beyond = log.say(level, applied={2: log.end_offset})
    honest = log.say(level, applied={2: log.end_offset - 2})
    log.append(*[pb.NoOpRecord()] * 64)
    back = log.say(level, applied={4: level - 1})
    # LAO is what 4 had reported before.
    log.say(log.end_offset - 1)
    return [
        ("APPLIED_BEYOND_LOG", beyond, 2),
        ("APPLIED_WENT_BACK", honest, 2),
        ("APPLIED_WENT_BACK", back, 4),
        ("LAO_ABOVE_APPLIED", back, 4),
    ]


@offence
def lao_too_early(log: AuditedLog) -> Found:
    log.elect(2)
    early = log.say(log.end_offset - 1, applied=dict.fromkeys((1, 2, 3, 5), log.end_offset - 1))
    log.say(log.end_offset - 1)
    # A report of another incarnation is none of this one.
    log.set_fenced(4, fenced=True)
    log.register(4)
    log.set_fenced(4, fenced=False)
    late = log.say(log.end_offset - 1, applied=dict.fromkeys((1, 2, 3, 5), log.end_offset - 1))
    return [("LAO_WITHOUT_REPORT", early, 4), ("LAO_WITHOUT_REPORT", late, 4)]


# --- hosts and controllers ----------------------------------------------------------------------


def mapped(
    host: str, broker_id: int | None, cause: Any = pb.BY_HAND, reason: str = "registered"
) -> pb.HostnameRecord:
    return pb.HostnameRecord(hostname=host, broker_id=broker_id, reason=reason, cause=cause)


@offence
def two_ids(log: AuditedLog) -> Found:
    log.append(mapped("db.example", 1))
    spelled = log.append(mapped("DB.example.", 2))
    batched = log.append(mapped("web.example", 1), mapped("web.example", 2))
    return [("HOSTNAME_OF_TWO_IDS", spelled, 2), ("HOSTNAME_OF_TWO_IDS", batched + 1, 2)]


@offence
def of_another(log: AuditedLog) -> Found:
    rule, by = "HOSTNAME_NOT_OF_REGISTRATION", pb.BY_REGISTRATION
    alone = log.append(mapped("mine.example", 1, by))
    removals = log.removals(4)
    registered = log.append(log.registration(4), *removals, mapped("yours.example", 3, by))
    log.set_fenced(4, fenced=False)
    worded = log.append(mapped("worded.example", 2, by, "set by hand"))
    return [(rule, alone, 1), (rule, registered + 1 + len(removals), 3), (rule, worded, 2)]


@offence
def two_controllers(log: AuditedLog) -> Found:
    at = log.append(pb.LeaderChangeRecord(leader_id=3), control=True)
    return [("TWO_CONTROLLERS_IN_EPOCH", at, None)]


@offence
def headless(log: AuditedLog) -> Found:
    log.epoch += 1
    return [("EPOCH_WITHOUT_CONTROLLER", log.append(pb.NoOpRecord()), None)]


def known(name: str, low: int, high: int) -> pb.FeatureRange:
    return pb.FeatureRange(name=name, min_supported_version=low, max_supported_version=high)


@offence
def unsupported(log: AuditedLog) -> Found:
    """A level that a broker does not support, and a broker that does not support the level."""

    def registers(*features: pb.FeatureRange) -> int:
        at = log.append(log.registration(4, features=features), *log.removals(4))
        log.set_fenced(4, fenced=False)
        return at

    def level(name: str, level: int) -> int:
        return log.append(pb.FeatureLevelRecord(name=name, feature_level=level))

    behind = registers(known("metadata.version", 1, 1), known("another", 5, 7))
    level("metadata.version", 1)
    beyond = level("metadata.version", 2)
    below = level("another", 4)
    level("another", 0)
    registers()
    return [("FEATURE_LEVEL_NOT_SUPPORTED", at, 4) for at in (behind, beyond, below)]


# --- what is allowed ----------------------------------------------------------------------------


def allowed() -> AuditedLog:
    """Allowed neighbours of each rule."""
    log = AuditedLog(metadata_version=1)
    parts = (_early, _lives, _elections, _within_batches, _moves, _many, _hosts, _lao, _clients)
    for part in parts:
        part(log)
    log.epoch += 7
    log.append(pb.RecoveryRecord(kind="unsafe recovery"), control=True)
    log.append(pb.VotersRecord(), control=True)
    log.elect(1)
    return log


def _early(log: AuditedLog) -> None:
    """Below metadata.version 2 a leader may not know the epochs of its followers."""
    log.topic("early", [1, 2])
    log.propose("early", [1, 2], {2: -1})
    log.append(pb.FeatureLevelRecord(name="metadata.version", feature_level=2))


def _lives(log: AuditedLog) -> None:
    """An amended registration keeps its epoch; a new incarnation stays alone in an ISR."""
    log.topic("a", [1, 2, 3])
    broker = log.draft.brokers[2]
    log.append(
        log.registration(
            2, broker_epoch=broker.epoch, incarnation_id=broker.incarnation_id, fenced=False
        )
    )
    log.propose("a", [1, 2])
    log.topic("last", [5])
    log.set_fenced(5, fenced=True)
    log.register(5)
    log.set_fenced(5, fenced=False)
    assert log.partition("last").leader == 5
    log.propose("last", [5])
    # Out of the ISR first: no record leaves one with somebody who is not registered.
    log.append(*log.removals(2), log.unregistered(2))
    # A replica that is not registered any more stays one: where others are added, too.
    log.change("a", **begun([1, 2, 3, 4], adding=[4]))
    _supported(log)
    log.register(2)
    log.set_fenced(2, fenced=False)
    log.append(log.standing(2, in_controlled_shutdown=True), *log.removals(2))
    log.append(log.standing(2, fenced=True, in_controlled_shutdown=True), *log.removals(2))
    log.register(2)
    log.set_fenced(2, fenced=False)


def _supported(log: AuditedLog) -> None:
    """Unregistered brokers and disabled features do not count; lao.version may be unknown."""

    def level(name: str, level: int) -> None:
        log.append(pb.FeatureLevelRecord(name=name, feature_level=level))

    log.append(log.registration(2, features=[known("another", 1, 2), known("lao.version", 0, 0)]))
    level("another", 2)
    level("another", 0)
    level("lao.version", 1)
    log.append(log.unregistered(2))
    level("another", 3)
    level("another", 0)


def _elections(log: AuditedLog) -> None:
    """Unclean leaders that say so; during an unfinished recovery the record need not."""
    log.topic("unclean", [3, 4, 5], isr=[3])
    log.append(
        log.standing(3, fenced=True),
        log.of("unclean", isr=[4], leader=4, leader_recovery_state=1),
    )
    log.append(log.standing(4, fenced=True), log.of("unclean", isr=[5], leader=5))
    log.set_fenced(3, fenced=False)
    log.set_fenced(4, fenced=False)
    log.propose("unclean", [3, 5], leader_recovery_state=0)
    # Unregistered: the election stands before the record that makes it needed.
    log.topic("left", [3, 4], isr=[3])
    led = log.of("left", isr=[4], leader=4, leader_recovery_state=1)
    log.append(
        *[each for each in log.removals(3) if each.topic_id != log.topics["left"]],
        led,
        log.unregistered(3),
    )
    log.register(3)
    log.set_fenced(3, fenced=False)


def _within_batches(log: AuditedLog) -> None:
    """Own changes count at the batch's end: 4 leads before the record that unfences it."""
    log.topic("rising", [3, 4], isr=[3])
    log.set_fenced(4, fenced=True)
    log.set_fenced(3, fenced=True)
    led = log.of("rising", isr=[4], leader=4, leader_recovery_state=1)
    log.append(led, log.standing(4, fenced=False))
    log.set_fenced(3, fenced=False)


def _moves(log: AuditedLog) -> None:
    """A proposal that completes a reassignment makes a replica leader that has just joined."""
    log.topic("moving", [1, 2])
    log.change("moving", replicas=[3, 2, 1], adding_replicas=[3], removing_replicas=[1])
    done: dict[str, Any] = ended([3, 2])
    log.propose("moving", [2, 3], proposed=[1, 2, 3], proposer_id=1, leader=3, **done)
    log.delete_topic("moving")
    log.topic("moving", [1, 2])
    # Cancelled: in another order, with one out of the ISR who was out of it before.
    log.topic("cancelled", [1, 2, 3], isr=[1, 2])
    log.change("cancelled", **begun([4, 1, 2, 3], adding=[4], removing=[2, 3]))
    log.change("cancelled", **ended([1, 3, 2]))
    # A second one, where 4 is in the ISR by then and 5 is not wanted any more: what it adds is
    # there, and it ends at once.
    log.change("cancelled", **begun([4, 5, 1, 3, 2], adding=[4, 5], removing=[1, 2, 3]))
    log.propose("cancelled", [1, 2, 4])
    log.change("cancelled", **begun([5, 4, 2, 1, 3], adding=[4, 5], removing=[1, 3]))
    log.change("cancelled", **ended([4, 1, 2]))
    # Fewer, at once, and all that stay are in sync; others in the same places.
    log.change("cancelled", **ended([2, 1]), isr=[2, 1])
    log.change("cancelled", **ended([1, 2]))


def _many(log: AuditedLog) -> None:
    """A broker with many partitions leaves its ISRs in batches, and stays fenced until the last
    one.
    """
    log.topic("many", [1, 4])
    log.append(log.standing(4, fenced=True), *[pb.NoOpRecord()] * MAX_REMOVALS)
    log.append(*log.removals(4))
    log.set_fenced(4, fenced=False)


def _clients(log: AuditedLog) -> None:
    """A client may close itself, by its last numbered write."""
    client = log.append(pb.OpenClientRecord(name="leaving"))
    log.append(pb.CloseClientRecord(client_id=client, reason="closed"), client_id=client)


def _hosts(log: AuditedLog) -> None:
    """The cause counts, not the words; and who takes a cause back maps nothing."""
    for broker_id in (1, 2, None, 3):
        log.append(mapped("shared.example", broker_id, reason="set by hand"))
    for cause in (pb.BY_HAND, pb.HOSTNAME_CAUSE_UNSPECIFIED):
        log.append(mapped("meant.example", 1, cause))


def _lao(log: AuditedLog) -> None:
    level = log.end_offset - 1
    log.say(level)
    log.set_fenced(5, fenced=True)
    # A fenced broker does not count, whatever it has applied; who has not changed is not named.
    log.say(level, applied={1: log.end_offset - 1})
    ahead = log.end_offset - 1
    log.say(ahead, applied=dict.fromkeys((1, 2, 3, 4), ahead))
    log.set_fenced(5, fenced=False)
    log.elect(2)
    # Another controller may know less, and be told less, at first.
    log.say(-1, applied={1: ahead - 1}, high_watermark=ahead - 1)
    log.say(log.end_offset - 1)
    # What a broker had applied counts for its registration alone.
    log.set_fenced(5, fenced=True)
    log.register(5)
    log.say(log.reached, applied={5: 3})
    log.set_fenced(5, fenced=False)
    log.say(log.end_offset - 1)


@offence
def numbered_writes(log: AuditedLog) -> Found:
    log.topic("numbered", [1, 2])
    client, nobody = log.append(pb.OpenClientRecord(name="closed")), 777_777
    change = pb.ConfigRecord(
        resource_type=2, resource_name="numbered", name="retention.ms", value="1"
    )
    log.append(change, client_id=client)
    log.append(pb.CloseClientRecord(client_id=client, reason="closed"))
    log.sequence -= 1
    again = log.append(change, change, client_id=client) + 1
    # Of a client that no record has opened: its numbers promise nothing.
    log.append(change, client_id=nobody)
    log.sequence -= 1
    log.append(change, client_id=nobody)
    return [("CLOSED_CLIENT_WROTE", again, None), ("NUMBER_EXECUTED_TWICE", again, None)]


@offence
def no_right(log: AuditedLog) -> Found:
    return [("WRITE_WITHOUT_RIGHT", offset, None) for offset in write_without_rights(log)]


# --- levels, voters, configs ---------------------------------------------------------------------


@offence
def other_voters(log: AuditedLog) -> Found:
    """Two replaced by two, and one with another directory; an unsafe recovery may name any."""
    log.append(pb.RecoveryRecord(kind="unsafe recovery"), control=True)
    voters(log, {1: "", 2: "b", 3: "c"})
    voters(log, {1: "a", 2: "b", 3: "c", 4: "d"})
    voters(log, {2: "b", 3: "c", 4: "d"})
    swapped = voters(log, {2: "b", 3: "c", 5: "e"})
    formatted = voters(log, {2: "b", 3: "new", 5: "e"})
    log.append(pb.NoOpRecord())
    wholesale = voters(log, {7: "g", 8: "h", 9: "i"})
    log.append(pb.RecoveryRecord(kind="unsafe recovery"), control=True)
    voters(log, {1: "a"})
    return [
        ("VOTERS_REPLACED_WHOLESALE", offset, None) for offset in (swapped, formatted, wholesale)
    ]


def voters(log: LogHistory, directories: dict[int, str], endpoint: str = "h:1") -> int:
    entries = [
        pb.VoterEntry(voter_id=id_, voter_directory_id=directory, endpoint=endpoint)
        for id_, directory in directories.items()
    ]
    return log.append(pb.VotersRecord(voters=entries), control=True)


@offence
def config_of_nobody(log: AuditedLog) -> Found:
    log.topic("there", [1, 2])
    set_ = pb.ConfigRecord(resource_type=2, name="retention.ms", value="1")
    of_nobody = log.append(pb.ConfigRecord(resource_type=2, resource_name="never", name="a"))
    log.append(pb.ConfigRecord(resource_type=4, resource_name="never", name="a", value="1"))
    set_.resource_name = "there"
    log.append(set_)
    log.append(
        pb.RemoveTopicRecord(topic_id=log.topics["there"]),
        pb.ConfigRecord(resource_type=2, resource_name="there", name="retention.ms"),
    )
    behind = log.append(set_)
    topic_id = log.rng.getrandbits(128).to_bytes(16, "big")
    # The second of the name; its batch sets the config first.
    log.append(set_, pb.TopicRecord(name="there", topic_id=topic_id))
    in_batch = log.append(pb.RemoveTopicRecord(topic_id=topic_id), set_) + 1
    del log.topics["there"]
    return [("CONFIG_OF_UNKNOWN_TOPIC", offset, None) for offset in (of_nobody, behind, in_batch)]


# --- tests --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found, AuditResult]:
    """Return an export with all offences, the expected and the actual findings."""
    log, expected = AuditedLog(), list[tuple[str, int, int | None]]()
    for breaks in OFFENCES:
        expected += breaks(log)
        for name in list(log.topics):
            log.delete_topic(name)
    directory = written(log, tmp_path_factory.mktemp("broken"))
    return directory, expected, ask("audit", directory, limit=1000)


@pytest.mark.parametrize(
    "rule", [rule.id for rule in choose(()) if rule is not CONTROLLER_EPOCH_WENT_BACK]
)
def test_rule_finds_its_violations_alone(
    broken: tuple[Path, Found, AuditResult], rule: str
) -> None:
    _, expected, result = broken
    there = sorted((offset, broker or -1) for id_, offset, broker in expected if id_ == rule)
    found = [finding for finding in result.findings if finding.rule == rule]
    assert sorted((each.offset, each.broker_id or -1) for each in found) == there
    assert there
    (counted,) = [each for each in result.rules if each.id == rule]
    assert counted.findings == len(there) <= counted.checked
    for each in found:
        assert (each.offsets[0], each.documentation) == (each.offset, counted.documentation)
        assert each.found
        assert each.expected


def test_spark_finds_the_same_violations(
    replay: Replay, broken: tuple[Path, Found, AuditResult]
) -> None:
    assert replay("audit", broken[0], limit=1000) == broken[2]


@pytest.mark.parametrize("slice_rows", [29, nightly(1)])
def test_findings_do_not_depend_on_slices(
    broken: tuple[Path, Found, AuditResult], monkeypatch: pytest.MonkeyPatch, slice_rows: int
) -> None:
    monkeypatch.setattr(reading, "SLICE_ROWS", slice_rows)
    assert ask("audit", broken[0], limit=1000) == broken[2]


def test_worker_processes_find_the_same_violations(
    broken: tuple[Path, Found, AuditResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker process has its own partitions."""
    monkeypatch.setattr(pool, "ALONE_RECORDS", 0)
    monkeypatch.setattr(pool, "workers", lambda: 2)
    assert ask("audit", broken[0], limit=1000) == broken[2]


def test_decreasing_epoch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No export of ours holds one: the writer refuses it."""
    log = LogHistory(2)
    elected = log.end_offset
    log.elect(2)
    written(log.run(60), tmp_path)

    def forged(*of: Any, **named: Any) -> Iterator[pa.Table]:
        for table in reading.slices(*of, **named):
            epoch = table["epoch"]
            at = table.schema.get_field_index("epoch")
            earlier = pc.if_else(pc.equal(table["offset"], 50), pa.scalar(1, epoch.type), epoch)
            yield table.set_column(at, "epoch", earlier)

    monkeypatch.setattr("replay.engine.audit.slices", forged)
    rule = CONTROLLER_EPOCH_WENT_BACK.id
    result = ask("audit", tmp_path, rules=(rule,))
    assert [(each.rule, each.offsets, each.subject) for each in result.findings] == [
        (rule, [50, elected], "controller epoch 1")
    ]


def test_audit_accepts_allowed_histories(tmp_path: Path) -> None:
    log = allowed()
    result = ask("audit", written(log, tmp_path))
    assert (result.findings, result.passed, result.total) == ([], True, 0)
    assert result.checked == log.end_offset


def test_generated_history_passes(tmp_path: Path) -> None:
    log = LogHistory(52, with_entries=False).run(1200)
    result = ask("audit", written(log, tmp_path))
    assert (result.passed, result.findings, result.checked) == (True, [], log.end_offset)


def test_findings_are_limited_and_counted(tmp_path: Path) -> None:
    log = LogHistory(51)
    log.create_topic("orders", 2)
    for _ in range(5):
        log.alter_isr("orders", 0, [1, 2], {2: 77_777})
    rules = ("stale_broker_epoch", "lao_went_back")
    result = ask("audit", written(log, tmp_path), limit=2, rules=rules)
    assert (len(result.findings), result.total) == (2, 5)
    counts = [(rule.id, rule.findings) for rule in result.rules]
    assert counts == [("STALE_BROKER_EPOCH", 5), ("LAO_WENT_BACK", 0)]


def test_every_rule_belongs_to_one_family_and_is_explained() -> None:
    judged = [*OF_PARTITIONS, *BY_RECORD, *OF_FACTS]
    assert len(judged) == len(set(judged))
    assert {rule.family for rule in RULES} == set(judged)
    assert {rule.severity for rule in RULES} == {CRITICAL, ERROR}
    document = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    assert re.findall(r"^### (\w+)", document, re.MULTILINE) == [rule.id for rule in RULES]


def test_fencing_batch_size_equals_the_controllers() -> None:
    assert departed.FENCING_BATCH_MAX == MAX_REMOVALS


def test_rules_are_selected_by_id() -> None:
    chosen = [rule.id for rule in choose(["lao-went-back", "ISR_EMPTY"])]
    assert chosen == ["ISR_EMPTY", "LAO_WENT_BACK"]
    assert {rule.id for rule in set(RULES) - set(choose([]))} == {
        "DIRECTORY_NOT_REGISTERED",
        "TRANSACTION_OUT_OF_PLACE",
        "ZK_MIGRATION_WENT_BACK",
        "PRODUCER_IDS_OVERLAP",
    }
    assert len(choose([], "kafka")) == len(RULES) - 20
    told = "unknown rules: NOTHING; the rules are STALE_BROKER_EPOCH"
    with pytest.raises(ReplayError, match=told):
        choose(["nothing"])
