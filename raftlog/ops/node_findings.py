"""Findings about machines and connections, brokers and their partitions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median_low

from raftlog.metadata.config_keys import THROTTLES
from raftlog.metadata.entities import Cause
from raftlog.node.config.settings import Settings
from raftlog.ops.evidence import AskedNode, Broker, BrokerState, NodeReport, Survey
from raftlog.ops.quorum_findings import Finding, Severity, degraded, down, notice, rule
from raftlog.text import brokers, counted, named, nodes, span
from raftlog.transport.probe import TlsTrouble

CLOCKS_MS = 1_000
"""Difference between two clocks in ms that is worth a finding: ten times the response time."""
ENDS_SOON_MS = 14 * 86_400_000
NEARLY_FULL = 0.1
NEARLY_FULL_BYTES = 20 << 30
"""Free space in bytes that is enough for a disk of any size."""
_OURS = (
    "Set RAFTLOG_TLS_... to the certificate or token, and the authority, that these nodes accept."
)
_INSPECT = "raftlog certs inspect FILE"
_TLS: dict[TlsTrouble, tuple[str, str, str]] = {
    TlsTrouble.EXPIRED: (
        "CERTIFICATE_EXPIRED",
        "Renew it: overwrite the old files; the node uses the new ones from its next connection "
        "onwards (docs/security.md, Renewal).",
        _INSPECT,
    ),
    TlsTrouble.NOT_YET_VALID: (
        "CERTIFICATE_EXPIRED",
        "Compare the clocks of the authority, the node and this machine, then issue the "
        "certificate again.",
        _INSPECT,
    ),
    TlsTrouble.OTHER_AUTHORITY: (
        "CERTIFICATE_REFUSED",
        _OURS + " Or renew the node's certificate.",
        _INSPECT,
    ),
    TlsTrouble.OTHER_NAME: (
        "CERTIFICATE_REFUSED",
        "Use an address that the certificate names, or issue a certificate that also has this "
        "name.",
        _INSPECT,
    ),
    TlsTrouble.OWN_EXPIRED: (
        "OWN_CERTIFICATE_EXPIRED",
        "Renew this client's certificate.",
        _INSPECT,
    ),
    TlsTrouble.OWN_REFUSED: ("OWN_CERTIFICATE_REFUSED", _OURS, _INSPECT),
    TlsTrouble.PLAINTEXT: (
        "TLS_DIFFERS",
        "Unset RAFTLOG_TLS_..., or correct the address.",
        "raftlog doctor --bootstrap-controller HOST:PORT",
    ),
    TlsTrouble.WANTS_TLS: ("TLS_DIFFERS", _OURS, _INSPECT),
    TlsTrouble.NOT_H2: (
        "TLS_DIFFERS",
        "Give the port of a listener, not of http.listener.",
        "raftlog doctor --bootstrap-controller HOST:PORT",
    ),
}


@rule
def _connections(survey: Survey) -> Iterator[Finding]:
    by: dict[TlsTrouble, list[AskedNode]] = defaultdict(list)
    for node in survey.nodes:
        if node.fails_for_tls:
            by[node.tls.trouble].append(node)
    for trouble, several in by.items():
        code, remedy, command = _TLS[trouble]
        first, *more = several
        also = f" (also: {named([one.endpoint for one in more])})" if more else ""
        yield Finding(
            code,
            Severity.DEGRADED if survey.answers else Severity.DOWN,
            f"{_where(first)} {first.tls.text}{also}.",
            _follows(trouble, known=bool(survey.answers)),
            remedy,
            command,
        )


def _where(node: AskedNode) -> str:
    return f"Node {node.node_id} ({node.endpoint})" if node.node_id >= 0 else node.endpoint


def _follows(trouble: TlsTrouble, *, known: bool) -> str:
    if trouble is TlsTrouble.EXPIRED:
        return (
            "New connections to it fail. Open connections last until they break; then other nodes "
            "cannot reach it either."
        )
    return "Its state is unknown from here." if known else "The state of the cluster is unknown."


@rule
def _certificates(survey: Survey) -> Iterator[Finding]:
    soon = [
        (one.name, one.node.certificate_ends_at_ms)
        for one in survey.reports
        if 0 < one.node.certificate_ends_at_ms < survey.at_ms + ENDS_SOON_MS
    ]
    if soon:
        when = [(name, _when(at_ms - survey.at_ms)) for name, at_ms in soon]
        said = named([f"{name} ({at})" for name, at in when])
        yield notice(
            "CERTIFICATE_ENDS_SOON",
            f"Certificates expire soon or have expired: {said}."
            if len(soon) > 1
            else f"The certificate of {when[0][0]} {when[0][1]}.",
            "After that, new connections to that node fail.",
            "Renew it before then; nodes need no restart (docs/security.md, Renewal).",
            _INSPECT,
        )


def _when(left_ms: int) -> str:
    return f"expires in {span(left_ms)}" if left_ms > 0 else f"expired {span(-left_ms)} ago"


@rule
def _clocks(survey: Survey) -> Iterator[Finding]:
    told = [one for one in survey.reports if one.node.now_ms]
    if len(told) < 2:
        return
    middle = median_low([one.ahead_ms for one in told])
    off = [(one.name, one.ahead_ms - middle) for one in told]
    off = [(name, ms) for name, ms in off if abs(ms) > CLOCKS_MS]
    if off:
        said = named(
            [f"{name} ({span(abs(ms))} {'ahead' if ms > 0 else 'behind'})" for name, ms in off]
        )
        name, ms = off[0]
        one = f"{span(abs(ms))} {'ahead of' if ms > 0 else 'behind'} the others"
        yield notice(
            "CLOCKS_DIFFER",
            f"Clocks differ from the others: {said}."
            if len(off) > 1
            else f"The clock of {name} is {one}.",
            "Elections, leases and LAO do not use the wall clock. The log, partition records and "
            "time-based retention follow the clocks of a majority of the voters. But that machine "
            "may consider valid certificates and tokens expired.",
            "Let chrony or another NTP client set the clock of that machine.",
            "timedatectl",
        )


@rule
def _full_brokers(survey: Survey) -> Iterator[Finding]:
    low = [one for one in _broker_reports(survey) if one.node.low_on_space]
    if low:
        serving = survey.brokers.brokers if survey.brokers is not None else ()
        every = sum(one.state == BrokerState.ACTIVE for one in serving) == len(low)
        said = named([f"{one.name} ({one.room})" for one in low])
        yield Finding(
            "BROKER_LOW_ON_SPACE",
            Severity.DOWN if every else Severity.DEGRADED,
            f"The disk of {said} is below its free-space reserve.",
            "All brokers refuse producers; consumers are served."
            if every
            else "It stores no records: it leads only partitions that no other in-sync replica can"
            " lead, and leaves the ISR of every partition that receives records. Consumers are"
            " served.",
            "Free space, install a larger disk, reduce the retention of large topics "
            "(retention.ms, retention.bytes), or drain the broker. No restart is needed. "
            "docs/operations.md, A disk fills up.",
            "raftlog topics describe",
        )


def _broker_reports(survey: Survey) -> list[NodeReport]:
    return [one for one in survey.reports if one.node.role == "broker"]


@rule
def _disks(survey: Survey) -> Iterator[Finding]:
    low = {f"node {node_id}" for node_id in survey.low_on_space}
    low |= {one.name for one in _broker_reports(survey) if one.node.low_on_space}
    full = [one for one in survey.reports if one.name not in low and _nearly_full(one)]
    if full:
        said = named(
            [
                f"of {one.name} ({one.node.disk_free_bytes >> 20} MiB,"
                f" {100 * one.node.disk_free_bytes // one.node.disk_total_bytes} % are free)"
                for one in full
            ]
        )
        yield notice(
            "DISK_NEARLY_FULL",
            f"The disk {said} is nearly full.",
            "Below its reserve, a controller no longer leads if another can; a broker stores no "
            "records.",
            "Free space, or install a larger disk. docs/operations.md, A disk fills up.",
            "raftlog quorum describe --replication",
        )


def _nearly_full(one: NodeReport) -> bool:
    free, total = one.node.disk_free_bytes, one.node.disk_total_bytes
    return total > 0 and free < min(NEARLY_FULL * total, NEARLY_FULL_BYTES)


@rule
def _builds(survey: Survey) -> Iterator[Finding]:
    of: dict[str, list[str]] = defaultdict(list)
    for one in survey.reports:
        if one.node.version:
            of[one.node.version].append(one.name)
    levels = list(_levels(survey))
    if len(of) < 2 and not levels:
        return
    said = [f"{version} on {named(names)}" for version, names in sorted(of.items())]
    cause = f"Nodes run different builds: {'; '.join(said)}." if len(of) > 1 else ""
    yield notice(
        "MIXED_BUILDS",
        " ".join(filter(None, (cause, *levels))),
        "Feature levels cannot be raised above what all nodes support. Until one is raised, every "
        "node can be rolled back.",
        "Finish the upgrade, or roll it back: docs/operations.md, Upgrade and rollback.",
        "raftlog cluster features describe",
    )


def _levels(survey: Survey) -> Iterator[str]:
    """Yield a sentence for each feature whose highest supported level differs between
    controllers.
    """
    features: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    best = survey.best
    for one in survey.answers:
        if best is not None and one.cluster_id == best.cluster_id:
            for feature in one.features:
                highest = feature.max_supported_version
                features[feature.name][highest].append(one.node_id)
    for name, of in features.items():
        if len(of) > 1:
            said = ", ".join(f"{nodes(who)} to {level}" for level, who in sorted(of.items()))
            yield f"Controllers support {name} up to different levels: {said}."


_START_IT = ("Start it, or check its log.", "raftlog broker run -c FILE")
_BY_CAUSE: dict[int, tuple[str, str]] = {
    Cause.SESSION_TIMED_OUT: (
        "It hangs, or its machine or network is down: check these. Kill a hanging process, and "
        "start it again.",
        "raftlog brokers list",
    ),
    Cause.DISK_HANGS: (
        "Its disk, or the file system of its data directory, does not complete writes: check "
        "these. It is unfenced automatically.",
        "raftlog brokers list",
    ),
    Cause.METADATA_LAG: (
        "It does not apply the log: check its CPU, memory and log. It is unfenced automatically.",
        "raftlog brokers list",
    ),
}
"""Remedy and next command by cause. No command removes anything, because operators in a hurry copy
commands.
"""
SESSION_TIMEOUT_MS = Settings.broker_session_timeout_ms
"""Session timeout of a leader that does not report its own."""
HELD_BACK_MS = 1_000
"""Time in ms without progress of LAO that is worth a finding."""


@rule
def _brokers_unknown(survey: Survey) -> Iterator[Finding]:
    if survey.leader is not None and survey.brokers is None and survey.brokers_failure:
        yield degraded(
            "BROKERS_UNKNOWN",
            f"The leader, node {survey.leader.node_id}, does not describe the brokers:"
            f" {survey.brokers_failure}.",
            "A newly elected leader folds its log first, and decides nothing until then.",
            "Check again in a second; if this persists, check its log.",
            "raftlog doctor --watch",
        )


@rule
def _fenced(survey: Survey) -> Iterator[Finding]:
    for one in _of(survey):
        if one.state in (BrokerState.ACTIVE, BrokerState.STOPPING):
            continue
        heard = one.last_contact_age_ms
        last = f"; last heard from {span(heard)} ago" if heard >= 0 else ""
        if heard < 0 and one.state_age_is_at_least:
            last = "; this leader has never heard from it"
        at_least = "more than " if one.state_age_is_at_least else ""
        why = f": {one.reason}" if one.reason else ""
        remedy, command = _BY_CAUSE.get(one.cause, _START_IT)
        yield degraded(
            "BROKER_FENCED",
            f"Broker {one.broker_id} ({one.endpoint}) has been fenced for "
            f"{at_least}{span(one.state_age_ms)}{why}{last}.",
            "It leads no partition and is in no ISR; writes do not wait for it.",
            f"{remedy} If it will not come back: docs/operations.md, A broker is fenced.",
            command,
        )


@rule
def _replicas_without_broker(survey: Survey) -> Iterator[Finding]:
    if missing := _unregistered(survey):
        are = "is" if len(missing) == 1 else "are"
        yield degraded(
            "BROKER_UNREGISTERED",
            f"{brokers(missing).capitalize()} {are} not registered, but {_have(len(missing))} "
            "replicas assigned.",
            "Acknowledged records in these partitions are on fewer disks until the replicas are "
            "moved or the broker is back.",
            "Start the broker, which registers itself, or move its replicas to other brokers.",
            "raftlog partitions reassign --help",
        )


@rule
def _silent(survey: Survey) -> Iterator[Finding]:
    told = survey.brokers.broker_session_timeout_ms if survey.brokers is not None else 0
    session_ms = told or SESSION_TIMEOUT_MS
    for one in _of(survey):
        if one.state == BrokerState.ACTIVE and one.last_contact_age_ms > session_ms // 2:
            yield notice(
                "BROKER_SILENT",
                f"Broker {one.broker_id} ({one.endpoint}) was last heard from"
                f" {span(one.last_contact_age_ms)} ago.",
                f"If it stays silent, it will be fenced {span(session_ms)} after that "
                "contact. Until then, writes with acks=acknowledged or visible wait for it.",
                "Check its process, its machine and the network.",
                "raftlog brokers list",
            )


@rule
def _lao_stalled(survey: Survey) -> Iterator[Finding]:
    found = survey.brokers
    if found is None or found.held_back_ms < HELD_BACK_MS:
        return
    consequence = (
        "Until it advances, plain reads on every broker show an older state, and writes with "
        "acks=acknowledged or visible wait."
    )
    if found.lowest_acknowledged_offset < 0:
        yield degraded(
            "LAO_UNKNOWN",
            f"The lowest acknowledged offset has been unknown for {span(found.held_back_ms)}:"
            f" {found.lao_unknown_reason}.",
            consequence,
            "A newly elected leader waits for the first reports from its brokers: check again. If "
            "this persists, the reports do not reach it; the brokers' /readyz and logs show why.",
            "raftlog brokers list",
        )
    elif found.held_back_by:
        behind = found.high_watermark - 1 - found.lowest_acknowledged_offset
        yield degraded(
            "LAO_HELD_BACK",
            f"{brokers(found.held_back_by).capitalize()} {_s('hold', len(found.held_back_by))} the"
            f" lowest acknowledged offset at {found.lowest_acknowledged_offset}, {behind} behind,"
            f" for {span(found.held_back_ms)}.",
            consequence,
            "Check the disk and the load of that broker; a broker that cannot keep up is fenced "
            "when its session ends.",
            "raftlog brokers list",
        )


@rule
def _partitions(survey: Survey) -> Iterator[Finding]:
    if survey.brokers is None:
        return
    counts = survey.brokers.partitions
    if counts.offline:
        yield down(
            "PARTITIONS_OFFLINE",
            f"{counted(counts.offline, 'partition')} of {counts.total} {_have(counts.offline)} no "
            "leader: no replica with all acknowledged records is available.",
            "Records cannot be produced to or consumed from them.",
            "Start the brokers in the columns ELR and LAST KNOWN ELR, or else those of all "
            "replicas. docs/operations.md, A partition has no leader.",
            "raftlog topics describe",
        )
    if counts.under_min_isr:
        yield down(
            "PARTITIONS_NOT_WRITABLE",
            f"{counted(counts.under_min_isr, 'partition')} of {counts.total}"
            f" {_have(counts.under_min_isr)} fewer in-sync replicas than min.insync.replicas.",
            "They refuse producers with acks=all (NOT_ENOUGH_REPLICAS); consumers are served.",
            "Start the brokers in column OFFLINE.",
            "raftlog topics describe",
        )
    elif counts.under_replicated and not _inactive(survey) and not _unregistered(survey):
        yield degraded(
            "PARTITIONS_UNDER_REPLICATED",
            f"{counted(counts.under_replicated, 'partition')} of {counts.total}"
            f" {_have(counts.under_replicated)} replicas that are not in sync, although no broker "
            "is fenced.",
            "Acknowledged records there are on fewer disks, and fewer brokers can take over.",
            "If a broker has just been started, wait for it to catch up. Otherwise check its disk, "
            "its log and the network between brokers.",
            "raftlog topics describe",
        )
    if counts.recovering:
        yield degraded(
            "PARTITIONS_RECOVERING",
            f"{counted(counts.recovering, 'partition')} {_s('recover', counts.recovering)} under an"
            " unclean leader.",
            "Acknowledged records may be missing there.",
            "Wait, then compare with the records that were produced.",
            "raftlog topics describe",
        )


@rule
def _none_registered(survey: Survey) -> Iterator[Finding]:
    if survey.brokers is not None and not survey.brokers.brokers:
        yield notice(
            "NO_BROKERS",
            "No broker is registered.",
            "There are no readers: every write is acknowledged and visible at once.",
            "Start a broker if there should be one.",
            "raftlog broker run -c FILE",
        )


@rule
def _throttle_left(survey: Survey) -> Iterator[Finding]:
    throttled = [] if survey.brokers is None else survey.brokers.throttled_brokers
    if throttled and survey.brokers is not None and not survey.brokers.partitions.reassigning:
        of = ["all brokers" if name == "" else f"broker {name}" for name in throttled]
        yield notice(
            "THROTTLE_LEFT",
            f"A replication throttle is set for {named(of)}, and no replica is being moved.",
            "It slows down the next reassignment, whoever starts it. It does not affect clients or "
            "replicas that are only catching up.",
            "Remove it unless a move is about to start: the command that set it was interrupted, "
            "or was `partitions reassign`.",
            f"raftlog configs alter broker '{throttled[0]}'"
            f" --delete {THROTTLES[0]} --delete {THROTTLES[1]}",
        )


def _inactive(survey: Survey) -> bool:
    return any(one.state not in (BrokerState.ACTIVE, BrokerState.STOPPING) for one in _of(survey))


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _s(verb: str, count: int) -> str:
    return f"{verb}s" if count == 1 else verb


def _unregistered(survey: Survey) -> list[int]:
    return [] if survey.brokers is None else list(survey.brokers.unregistered_replica_ids)


def _of(survey: Survey) -> list[Broker]:
    return [] if survey.brokers is None else list(survey.brokers.brokers)
