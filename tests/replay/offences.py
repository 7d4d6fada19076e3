"""Histories that break each rule of the audit, one after the other in one log."""

from collections.abc import Callable, Sequence
from typing import Any

from audited_log import AuditedLog
from unentitled import write_without_rights

from controller.rules.partition_change import MAX_REMOVALS
from raftlog.wire.records.v1 import records_pb2 as pb

Found = list[tuple[str, int, int | None]]
"""(rule, offset, broker) of the expected findings, in the order of offsets."""
Breaks = Callable[[AuditedLog], Found]
OFFENCES: list[Breaks] = []


def offence(breaks: Breaks) -> Breaks:
    """Register an offence; it leaves all brokers unfenced, and its topics are deleted."""
    OFFENCES.append(breaks)
    return breaks


def begun(
    replicas: list[int], *, adding: Sequence[int] = (), removing: Sequence[int] = ()
) -> dict[str, list[int]]:
    return {"replicas": replicas, "adding_replicas": [*adding], "removing_replicas": [*removing]}


ended = begun


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


UNCLEAN: dict[str, Any] = {"isr": [5], "leader": 5, "leader_recovery_state": 1}
CHANGED: list[tuple[str, int | None, list[int], list[int], dict[str, Any]]] = [
    (
        "STALE_PROPOSER_EPOCH",
        1,
        [1, 2],
        [1, 2],
        {"leader": 1, "proposer_id": 1, "proposer_epoch": 7},
    ),
    ("ISR_GREW_UNPROPOSED", 3, [1, 2, 3], [1], {"isr": [1, 3]}),
    ("ISR_EMPTY", None, [1, 2], [1, 2], {"isr": [], "leader": -1}),
    ("DUPLICATE_REPLICA", None, [1, 2], [1, 2], {"replicas": [1, 2, 1]}),
    ("LEADER_OUTSIDE_ISR", 3, [1, 2, 3], [1, 2], {"leader": 3}),
    ("LEADER_OUTSIDE_ISR", 1, [1, 2, 3], [1, 2], {"isr": [2]}),
    (
        "REASSIGNMENT_LOST_ORIGINAL",
        None,
        [1, 2],
        [1, 2],
        begun([3, 1, 2], adding=[3], removing=[2, 3]),
    ),
    (
        "REASSIGNMENT_LOST_ORIGINAL",
        None,
        [1, 2, 3],
        [1, 2],
        begun([4, 1, 2], adding=[4], removing=[2]),
    ),
    ("UNCLEAN_ELECTION_TOO_EARLY", 4, [4, 5], [4], UNCLEAN),
]
"""Rule, broker, replicas and ISR of a topic, and the fields of the change that breaks the rule."""
PROPOSED: list[tuple[str, int | None, list[int], dict[str, Any]]] = [
    ("STALE_PROPOSER_EPOCH", 1, [1], {"proposer_epoch": 1}),
    ("UNKNOWN_BROKER_EPOCH", 2, [1, 2], {"epochs": {2: -1}}),
    ("PROPOSER_NOT_LEADER", 2, [1], {"proposer_id": 2}),
    ("ISR_NOT_IN_REPLICAS", None, [1, 4], {}),
    ("ISR_NOT_IN_REPLICAS", None, [1, 2, 2], {}),
]
"""Rule, broker, and the ISR and the fields of a proposal for a topic on brokers 1 and 2."""


@offence
def single_changes(log: AuditedLog) -> Found:
    found = []
    for number, (rule, broker, replicas, isr, fields) in enumerate(CHANGED):
        log.topic(f"changed-{number}", replicas, isr)
        found.append((rule, log.change(f"changed-{number}", **fields), broker))
    for number, (rule, broker, isr, fields) in enumerate(PROPOSED):
        log.topic(f"proposed-{number}", [1, 2])
        found.append((rule, log.propose(f"proposed-{number}", isr, **fields), broker))
    return found


@offence
def strange_replicas(log: AuditedLog) -> Found:
    log.topic("stranger", [1, 2, 3])
    reassigned = log.change("stranger", replicas=[1, 3], isr=[1, 2])
    twice = log.topic("strange", [1, 2, 2], isr=[1, 2])
    log.change("strange", **begun([1, 2, 3], adding=[3]))
    # What it keeps is no news; what it adds was never registered.
    added = log.change("strange", **begun([1, 2, 3, 8], adding=[3, 8]))
    created = pb.PartitionRecord(topic_id=log.topics["strange"], partition_id=1, leader=-1)
    nowhere = log.append(created)
    return [
        ("ISR_NOT_IN_REPLICAS", reassigned, None),
        # Fewer replicas than before, and one that stays is not in the ISR.
        ("REASSIGNMENT_INCOMPLETE", reassigned, 3),
        ("DUPLICATE_REPLICA", twice, None),
        ("REPLICA_NOT_REGISTERED", added, 8),
        ("DUPLICATE_REPLICA", nowhere, None),
        ("ISR_EMPTY", nowhere, None),
    ]


@offence
def wrong_leader(log: AuditedLog) -> Found:
    log.topic("unclean", [4, 5], isr=[4])
    log.topic("led", [4])
    log.set_fenced(4, fenced=True)
    undeclared = log.change("unclean", isr=[5], leader=5)
    led = log.change("led", leader=4)
    log.change("led", leader=-1)
    log.set_fenced(4, fenced=False)
    return [("UNDECLARED_UNCLEAN_ELECTION", undeclared, 5), ("INELIGIBLE_LEADER", led, 4)]


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
    # The part of the removals that exceeds the fencing batch may follow later, but must follow.
    log.topic("many", [1, 2])
    log.append(log.standing(2, fenced=True), *[pb.NoOpRecord()] * MAX_REMOVALS)
    unfenced = log.append(log.standing(2, fenced=False))
    return [
        *(("INACTIVE_IN_ISR", offset, 2) for offset in (fenced, replaced, unregistered)),
        ("INACTIVE_IN_ISR", leads_on, 5),
        ("INACTIVE_IN_ISR", unfenced, 2),
    ]


@offence
def made_again(log: AuditedLog) -> Found:
    """While it is there, and after its topic was deleted."""
    log.topic("again", [1, 2])
    log.change("again", leader=1)
    topic_id = log.topics["again"]
    again = pb.PartitionRecord(topic_id=topic_id, replicas=[1, 2], isr=[1, 2], leader=1)
    both = log.forge(again)
    again.leader_epoch = 1
    standing_still = log.forge(again)
    log.delete_topic("again")
    again.leader_epoch = 0
    returned = log.append(pb.TopicRecord(name="again", topic_id=topic_id), again) + 1
    log.topics["again"] = topic_id
    back = ("LEADER_EPOCH_WENT_BACK", "PARTITION_EPOCH_WENT_BACK")
    return [
        *((rule, at, None) for at in (both, returned) for rule in back),
        ("PARTITION_EPOCH_WENT_BACK", standing_still, None),
    ]


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
    """A second one takes what the first is adding for original replicas."""
    log.topic("forgets", [1, 2])
    log.change("forgets", **begun([3, 2, 1], adding=[3], removing=[1]))
    second = log.change("forgets", **begun([4, 2, 3, 1], adding=[4], removing=[3, 1]))
    return [("REASSIGNMENT_LOST_ORIGINAL", second, None)]


@offence
def registered_wrongly(log: AuditedLog) -> Found:
    again = log.append(log.registration(5, broker_epoch=log.epoch_of(5)), *log.removals(5))
    log.set_fenced(5, fenced=False)
    log.append(log.unregistered(5))
    invented = log.append(log.registration(5, broker_epoch=log.end_offset + 100))
    log.register(5)
    unfenced = log.append(log.registration(5, fenced=False), *log.removals(5))
    log.set_fenced(5, fenced=False)
    return [
        ("BROKER_EPOCH_REUSED", again, 5),
        ("BROKER_EPOCH_REUSED", invented, 5),
        ("REGISTERED_UNFENCED", unfenced, 5),
    ]


@offence
def lao(log: AuditedLog) -> Found:
    log.say(log.end_offset - 1)
    log.cut()
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
    log.cut()
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
def controllers(log: AuditedLog) -> Found:
    second = log.append(pb.LeaderChangeRecord(leader_id=3), control=True)
    log.epoch += 1
    log.cut()
    headless = log.append(pb.NoOpRecord())
    return [
        ("TWO_CONTROLLERS_IN_EPOCH", second, None),
        ("EPOCH_WITHOUT_CONTROLLER", headless, None),
    ]


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


def voters(log: AuditedLog, directories: dict[int, str], endpoint: str = "h:1") -> int:
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
