"""Findings about machines and connections: certificates, clocks, disks and builds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median_low

from raftlog.doctor.evidence import About, Evidence, NodeSeen
from raftlog.doctor.finding import Finding, Severity
from raftlog.transport.tls_look import TlsTrouble
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.words import named, nodes, span

CLOCKS_MS = 1_000
"""An answer takes a tenth of that at most."""
ENDS_SOON_MS = 14 * 86_400_000
NEARLY_FULL = 0.1
NEARLY_FULL_BYTES = 20 << 30
"""A tenth of a large disk is no reason to worry."""
_OURS = (
    "Give the certificate, the token and the authority that these nodes know, by RAFTLOG_TLS_..."
)
_INSPECT = "raftlog certs inspect FILE"
_TLS: dict[TlsTrouble, tuple[str, str, str]] = {
    TlsTrouble.EXPIRED: (
        "CERTIFICATE_EXPIRED",
        "Renew it: write the new files over the old ones; the node uses them from its next"
        " connection on (docs/security.md, Renewal).",
        _INSPECT,
    ),
    TlsTrouble.NOT_YET_VALID: (
        "CERTIFICATE_EXPIRED",
        "Compare the clocks of the authority, the node and this machine; then issue it again.",
        _INSPECT,
    ),
    TlsTrouble.OTHER_AUTHORITY: ("CERTIFICATE_REFUSED", _OURS + " Or renew the node's.", _INSPECT),
    TlsTrouble.OTHER_NAME: (
        "CERTIFICATE_REFUSED",
        "Use an address that the certificate names, or issue it with this name, too.",
        _INSPECT,
    ),
    TlsTrouble.OWN_EXPIRED: ("OWN_CERTIFICATE_EXPIRED", "Renew the certificate here.", _INSPECT),
    TlsTrouble.OWN_REFUSED: ("OWN_CERTIFICATE_REFUSED", _OURS, _INSPECT),
    TlsTrouble.PLAINTEXT: (
        "TLS_DIFFERS",
        "Leave RAFTLOG_TLS_... unset, or correct the address.",
        "raftlog doctor --bootstrap-controller HOST:PORT",
    ),
    TlsTrouble.WANTS_TLS: ("TLS_DIFFERS", _OURS, _INSPECT),
    TlsTrouble.NOT_H2: (
        "TLS_DIFFERS",
        "Give the port of a listener, not of http.listener.",
        "raftlog doctor --bootstrap-controller HOST:PORT",
    ),
}


def connections(seen: Evidence) -> Iterator[Finding]:
    """What is in the way of a connection, as far as it is TLS."""
    by: dict[TlsTrouble, list[NodeSeen]] = defaultdict(list)
    for node in seen.nodes:
        if node.fails_for_tls:
            by[node.tls.trouble].append(node)
    for trouble, several in by.items():
        code, remedy, command = _TLS[trouble]
        first, *more = several
        also = f" (also: {named([one.endpoint for one in more])})" if more else ""
        yield Finding(
            code,
            Severity.DEGRADED if seen.answers else Severity.DOWN,
            f"{_where(first)} {first.tls.text}{also}.",
            _follows(trouble, known=bool(seen.answers)),
            remedy,
            command,
        )


def _where(node: NodeSeen) -> str:
    return f"Node {node.node_id} ({node.endpoint})" if node.node_id >= 0 else node.endpoint


def _follows(trouble: TlsTrouble, *, known: bool) -> str:
    if trouble is TlsTrouble.EXPIRED:
        return (
            "Nobody can connect to it any more. Connections that are there stay until they break:"
            " then it is gone for the others, too."
        )
    return "Nothing is known of it from here." if known else "Nothing is known of the cluster."


def certificates(seen: Evidence) -> Iterator[Finding]:
    """A node's certificate ends before long."""
    soon = [
        (one.name, one.node.certificate_ends_at_ms)
        for one in seen.told
        if 0 < one.node.certificate_ends_at_ms < seen.at_ms + ENDS_SOON_MS
    ]
    if soon:
        said = named([f"of {name} {_when(at_ms - seen.at_ms)}" for name, at_ms in soon])
        yield Finding(
            "CERTIFICATE_ENDS_SOON",
            Severity.NOTICE,
            f"Certificates end: that {said}.",
            "From then on nobody can connect to that node any more.",
            "Renew it in time; nodes need no restart (docs/security.md, Renewal).",
            _INSPECT,
        )


def _when(left_ms: int) -> str:
    return f"in {span(left_ms)}" if left_ms > 0 else f"has ended {span(-left_ms)} ago"


def clocks(seen: Evidence) -> Iterator[Finding]:
    """The clocks of machines differ."""
    told = [one for one in seen.told if one.node.now_ms]
    if len(told) < 2:
        return
    middle = median_low([one.ahead_ms for one in told])
    off = [(one.name, one.ahead_ms - middle) for one in told]
    off = [(name, ms) for name, ms in off if abs(ms) > CLOCKS_MS]
    if off:
        said = named(
            [f"of {name} {span(abs(ms))} {'ahead' if ms > 0 else 'behind'}" for name, ms in off]
        )
        yield Finding(
            "CLOCKS_DIFFER",
            Severity.NOTICE,
            f"Clocks differ: that {said}.",
            "Elections, leases and LAO use no clock of the day. The log, the records of partitions"
            " and retention by time go by the clocks of a majority of the voters. But on that"
            " machine certificates and tokens may seem to have expired.",
            "Let chrony or another NTP client set the clock of that machine.",
            "timedatectl",
        )


def full_brokers(seen: Evidence) -> Iterator[Finding]:
    """A broker's disk is below its reserve; of controllers the quorum tells."""
    low = [one for one in _brokers(seen) if one.node.low_on_space]
    if low:
        serving = seen.brokers.brokers if seen.brokers is not None else ()
        every = sum(one.state == controller_pb2.ACTIVE for one in serving) == len(low)
        said = named([f"{one.name} ({room(one)})" for one in low])
        yield Finding(
            "BROKER_LOW_ON_SPACE",
            Severity.DOWN if every else Severity.DEGRADED,
            f"The disk of {said} is below its free-space reserve.",
            "Producers are refused by the partitions that it leads"
            f"{', so by all' if every else ''}; consumers are served. When the"
            " disk is full, the broker ends.",
            "Free space, or give it a larger disk; let large topics keep less (retention.ms,"
            " retention.bytes). docs/operations.md, A disk fills up.",
            "raftlog topics describe",
        )


def _brokers(seen: Evidence) -> list[About]:
    return [one for one in seen.told if one.node.role == "broker"]


def room(one: About) -> str:
    """``12 of 200 MiB are free``."""
    return f"{one.node.disk_free_bytes >> 20} of {one.node.disk_total_bytes >> 20} MiB are free"


def disks(seen: Evidence) -> Iterator[Finding]:
    """A disk will be full before long. One below its reserve is a finding of its own."""
    low = {f"node {node_id}" for node_id in seen.low_on_space}
    low |= {one.name for one in _brokers(seen) if one.node.low_on_space}
    full = [one for one in seen.told if one.name not in low and _nearly_full(one)]
    if full:
        said = named(
            [
                f"of {one.name} ({one.node.disk_free_bytes >> 20} MiB,"
                f" {100 * one.node.disk_free_bytes // one.node.disk_total_bytes} % are free)"
                for one in full
            ]
        )
        yield Finding(
            "DISK_NEARLY_FULL",
            Severity.NOTICE,
            f"The disk {said} is nearly full.",
            "Below its reserve a controller leads no more if another can; a broker refuses"
            " producers.",
            "Free space, or give it a larger disk. docs/operations.md, A disk fills up.",
            "raftlog quorum describe --replication",
        )


def _nearly_full(one: About) -> bool:
    free, total = one.node.disk_free_bytes, one.node.disk_total_bytes
    return total > 0 and free < min(NEARLY_FULL * total, NEARLY_FULL_BYTES)


def builds(seen: Evidence) -> Iterator[Finding]:
    """Nodes run different builds, or know different levels of a feature."""
    of: dict[str, list[str]] = defaultdict(list)
    for one in seen.told:
        if one.node.version:
            of[one.node.version].append(one.name)
    levels = list(_levels(seen))
    if len(of) < 2 and not levels:
        return
    said = [f"{version} on {named(names)}" for version, names in sorted(of.items())]
    cause = f"Nodes run different builds: {'; '.join(said)}." if len(of) > 1 else ""
    yield Finding(
        "MIXED_BUILDS",
        Severity.NOTICE,
        " ".join(filter(None, (cause, *levels))),
        "Levels of features cannot be raised above what all nodes know. As long as none is raised,"
        " every node can go back.",
        "Finish the upgrade, or roll it back: docs/operations.md, Upgrade and rollback.",
        "raftlog cluster features describe",
    )


def _levels(seen: Evidence) -> Iterator[str]:
    """Which controllers know a feature only up to which level."""
    features: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    best = seen.best
    for one in seen.answers:
        if best is not None and one.cluster_id == best.cluster_id:
            for feature in one.features:
                highest = feature.max_supported_version
                features[feature.name][highest].append(one.node_id)
    for name, of in features.items():
        if len(of) > 1:
            said = ", ".join(f"{nodes(who)} to {level}" for level, who in sorted(of.items()))
            yield f"Controllers know {name} up to different levels: {said}."


RULES = (connections, certificates, clocks, full_brokers, disks, builds)
