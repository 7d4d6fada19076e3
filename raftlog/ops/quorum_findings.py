"""Findings about the quorum: its leader, its voters, and the consistency of cluster and state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from raftlog.ops.evidence import AskedNode, QuorumAnswer, Reach, Replica, Survey
from raftlog.text import clock, counted, named, nodes, span


class Severity(IntEnum):
    """The severity of a finding."""

    NOTICE = 1
    """Worth knowing; no action is needed now."""
    DEGRADED = 2
    """All guarantees hold, but something is slower, partly unavailable, or one failure from an
    outage.
    """
    DOWN = 3
    """Writes are down, or a guarantee is broken, until an operator acts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a cluster."""

    code: str
    """Stable identifier; it never changes, though the sentences may."""
    severity: Severity
    cause: str
    consequence: str
    remedy: str
    command: str = ""
    """The next command to run, or "" if none."""


def _of(severity: Severity) -> Callable[..., Finding]:
    def finding(code: str, cause: str, consequence: str, remedy: str, command: str = "") -> Finding:
        return Finding(code, severity, cause, consequence, remedy, command)

    return finding


notice, degraded, down = map(_of, Severity)
Rule = Callable[[Survey], Iterator[Finding]]
RULES: list[Rule] = []


def rule(check: Rule) -> Rule:
    """Register a function that yields findings from the evidence as one of the doctor's rules."""
    RULES.append(check)
    return check


HEARD_MS = 2_000
"""Largest age in ms of a voter's last fetch at which the voter is considered alive, even if it does
not answer here.
"""
START = "raftlog controller run -c FILE"
READY = "ready"
"""Condition of a spare that could become a voter now."""
SILENT = "silent"
"""Condition of a replica that the leader does not hear."""


def unanswering(survey: Survey) -> Iterator[tuple[AskedNode, int]]:
    """Yield the voters that do not answer, with the age of each voter's last fetch, or -1 if it
    never fetched or there is no leader. A voter whose port refuses connections from here and from
    the leader has stopped, however recent its last fetch.
    """
    leader = survey.leader
    states = {voter.replica_id: voter for voter in (leader.voters if leader is not None else ())}
    for voter, node in survey.voters():
        leads = leader is not None and voter.replica_id == leader.node_id
        if node is not None and node.description is None and not leads:
            told = states.get(voter.replica_id)
            ended = node.reach is Reach.REFUSES and told and told.unreachable_reason
            yield node, -1 if told is None or ended else told.last_fetch_age_ms


def heard(age_ms: int) -> bool:
    """Return whether the leader has heard a voter recently. ``age_ms``: -1 if it never has."""
    return 0 <= age_ms < HEARD_MS


def gone_voters(survey: Survey) -> list[AskedNode]:
    """Return the voters that neither answer here nor fetch from the leader."""
    return [node for node, age_ms in unanswering(survey) if not heard(age_ms)]


def voters_left(survey: Survey) -> tuple[int, int]:
    """Return the number of voters that are neither gone, replaced nor in another cluster, and the
    number of all voters.
    """
    total = len(list(survey.voters()))
    return total - len(gone_voters(survey)) - len(survey.strays) - len(survey.replaced), total


def how_many_left(survey: Survey) -> str:
    """Return text such as ``2 of 3 voters are left: one more failure stops all writes``."""
    left, total = voters_left(survey)
    spare = left - (total // 2 + 1)
    count = f"{left} of {total} voters {'is' if left == 1 else 'are'} left"
    if spare < 0:
        return f"{count}, but {total // 2 + 1} are needed"
    return (
        f"{count}: {spare} more may fail"
        if spare
        else f"{count}: one more failure stops all writes"
    )


def lost_voters(survey: Survey, lost: list[AskedNode], *, capital: bool = False) -> str:
    """Return text such as ``nodes 1 and 2 refuse connections since 04:54:25Z``, grouped by
    result.
    """
    by: dict[Reach, list[AskedNode]] = defaultdict(list)
    for node in lost:
        by[node.reach].append(node)
    said = [_found(survey, reach, several) for reach, several in by.items()]
    text = "; ".join(said)
    return text[0].upper() + text[1:] if capital else text


def _found(survey: Survey, reach: Reach, lost: list[AskedNode]) -> str:
    ids = [node.node_id for node in lost]
    since_ms = max(survey.unreachable_ms(one) for one in ids)
    since = f" since {clock(survey.at_ms - since_ms)} ({span(since_ms)})" if since_ms else ""
    why = f" ({lost[0].tls.text or lost[0].failure})" if _tells_more(lost[0]) else ""
    if reach is Reach.UNRESOLVED:
        why = f" ({named([node.endpoint for node in lost])})"
    return f"{nodes(ids)} {str(reach) if len(ids) == 1 else _plural(reach)}{since}{why}"


def ended_first(survey: Survey, missing: list[int]) -> str:
    """Return a note that hanging processes must be killed before their replacements can be
    started.
    """
    silent = [
        node.node_id
        for node in survey.nodes
        if node.node_id in missing and node.reach is Reach.SILENT
    ]
    return f" (kill the hanging process first: {nodes(silent)})" if silent else ""


def _plural(reach: Reach) -> str:
    return {
        Reach.ANSWERS: "answer",
        Reach.REFUSES: "refuse connections",
        Reach.SILENT: "do not answer",
        Reach.UNRESOLVED: "do not resolve",
        Reach.DAMAGED: "are repairing their logs",
        Reach.OTHER: "give an unexpected answer",
    }[reach]


_NO_WRITES = (
    "Writes are not possible. Brokers serve reads until they have had no contact for "
    "broker.fencing.timeout.ms (12 s by default), then they fence themselves."
)


_REPAIRS = "Damaged nodes repair themselves: docs/operations.md, Corrupted log."


@rule
def _nobody_answers(survey: Survey) -> Iterator[Finding]:
    unexplained = [node for node in survey.nodes if not node.fails_for_tls]
    if survey.answers or not unexplained:
        return
    reasons = "; ".join(
        f"{node.endpoint} {node.reach}" + (f" ({node.failure})" if _tells_more(node) else "")
        for node in unexplained
    )
    if any(node.reach is Reach.DAMAGED for node in unexplained):
        yield down(
            "NOBODY_ANSWERS",
            f"No controller that answers has an intact log: {reasons}.",
            _NO_WRITES,
            f"Start the controllers that do not run. {_REPAIRS}",
            START,
        )
        return
    if any(node.reach is Reach.OTHER for node in unexplained):
        yield down(
            "NOBODY_ANSWERS",
            f"No controller answers: {reasons}.",
            "The state of the cluster is unknown: the responding process is not a controller, or "
            "refuses access.",
            "Give the addresses on which controllers serve gRPC (listeners in their"
            " configuration), and the certificate or token that they require: raftlog certs"
            " inspect shows its expiry.",
            "raftlog doctor --bootstrap-controller HOST:PORT",
        )
        return
    yield down(
        "NOBODY_ANSWERS",
        f"No controller answers: {reasons}.",
        _NO_WRITES,
        "Check the addresses, then start the controllers.",
        START,
    )


def _to_start(survey: Survey, missing: list[int], short: int) -> str:
    """Return which of the missing voters to start, of which ``short`` are needed."""
    damaged = [node.node_id for node in survey.nodes if node.reach is Reach.DAMAGED]
    if damaged:
        missing = [one for one in missing if one not in damaged]
        return f"Start {nodes(missing)}. {_REPAIRS}" if missing else _REPAIRS
    if not missing:
        return "Restart the nodes with the directories that have a vote, as told below."
    some = "one" if short == 1 else str(short)
    whom = nodes(missing) if short >= len(missing) else f"{some} of {nodes(missing)}"
    return f"Start {whom}{ended_first(survey, missing)}."


@rule
def _no_leader(survey: Survey) -> Iterator[Finding]:
    best = survey.best
    if best is None or survey.leader is not None or survey.heard_leader[0] >= 0:
        return
    voters = list(survey.voters())
    alive = {
        voter.replica_id: node.description
        for voter, node in voters
        if node is not None and node.description and voter.replica_id not in survey.replaced
    }
    majority = len(voters) // 2 + 1
    # Nodes without a vote may know another voter set, or none.
    needed = min((one.votes_needed for one in alive.values() if one.votes_needed), default=majority)
    if not voters:
        yield down(
            "NO_VOTERS",
            "No leader: the nodes that answer have no voter set.",
            "Writes are not possible.",
            "Format one controller with a voter set, then let the others join.",
            "raftlog storage format -c FILE --standalone",
        )
        return
    count = f"{len(alive)} of {len(voters)} voters answer{'s' if len(alive) == 1 else ''}"
    if len(alive) < needed:
        lost = lost_voters(survey, [node for _, node in voters if node and not node.description])
        missing = [
            voter.replica_id
            for voter, _ in voters
            if voter.replica_id not in alive and voter.replica_id not in survey.replaced
        ]
        founds = needed > majority
        yield down(
            "NO_QUORUM",
            f"No leader: {count}, but {needed} are needed{' to found a quorum' if founds else ''}"
            f"{'; ' + lost if lost else ''}.",
            _NO_WRITES,
            _to_start(survey, missing, needed - len(alive))
            + (
                " All configured voters must be up together once before a new quorum accepts "
                "writes: docs/deployment.md, Formatting."
                if founds
                else " If their disks are gone for good: docs/operations.md, A quorum lost for"
                " good."
            ),
            START,
        )
        return
    if apart := list(_apart(survey, needed)):
        yield down(
            "VOTERS_APART",
            f"No leader: {count}, but they do not reach each other: {named(apart)}.",
            _NO_WRITES,
            "Compare each dialed address with the listeners of that node, and check the network "
            "between the nodes.",
            "raftlog quorum describe --replication",
        )
        return
    ask = max(one.leader_epoch for one in survey.answers)
    yield down(
        "ELECTION",
        f"No leader: {count}, which is enough; an election is in progress in epoch {ask}.",
        "Writes are not possible until it ends, which takes at most a second.",
        "Check again. If this persists, check the logs of the voters.",
        "raftlog doctor --watch",
    )


def _apart(survey: Survey, needed: int) -> Iterator[str]:
    """Yield a sentence for each voter that others do not reach, if no voter reaches enough others
    to be elected.
    """
    ids = [voter.replica_id for voter, _ in survey.voters()]
    answers = [one for one in survey.answers if one.node_id in ids]
    lost = {
        one.node_id: [voter for voter in one.voters if voter.unreachable_reason] for one in answers
    }
    if any(len(ids) - len(of) >= needed for of in lost.values()):
        return
    by: dict[tuple[int, str], list[int]] = defaultdict(list)
    for node_id, of in lost.items():
        for voter in of:
            by[voter.replica_id, voter.unreachable_reason].append(node_id)
    for (node_id, reason), whom in sorted(by.items()):
        yield f"node {node_id} does not answer {nodes(whom)} ({reason})"


@rule
def _leader_unseen(survey: Survey) -> Iterator[Finding]:
    leader_id, hears = survey.heard_leader
    if leader_id < 0:
        return
    where = next((node for _, node in survey.voters() if node and node.node_id == leader_id), None)
    how = f"{where.reach} here ({where.endpoint})" if where else "was not queried"
    yield degraded(
        "LEADER_UNSEEN",
        f"Node {leader_id} leads, according to {nodes(hears)}, but {how}.",
        "State that only the leader knows is unknown here: brokers, partitions, LAO. The cluster "
        "may be serving normally.",
        "Check again. If this persists, check the load of that node, and the network from here.",
        "raftlog doctor --watch",
    )


@rule
def _writes_refused(survey: Survey) -> Iterator[Finding]:
    if survey.leader is not None and survey.leader.writes_refused:
        yield down(
            "WRITES_REFUSED",
            f"Every write is refused: {survey.leader.writes_refused}.",
            "Writes are not possible. Reads are served.",
            "Free space on these disks, or install larger ones. docs/operations.md, A disk fills "
            "up.",
            "raftlog quorum describe --replication",
        )


def _tells_more(node: AskedNode) -> bool:
    return node.reach in (Reach.DAMAGED, Reach.OTHER) and bool(node.tls.text or node.failure)


BEHIND_MS = 10_000
"""Time in ms since a voter last had the whole log from which it counts as behind; a slow disk
delays it by milliseconds only.
"""


@rule
def _missing_voters(survey: Survey) -> Iterator[Finding]:
    if survey.leader is None:
        return
    for node, age_ms in unanswering(survey):
        if heard(age_ms) and not node.fails_for_tls:
            slow = node.reach is Reach.SILENT
            how = f"has not answered within {node.waited_ms} ms" if slow else node.reach
            yield notice(
                "NODE_SLOW",
                f"Node {node.node_id} {how}, but fetches from the leader"
                f" (last {span(age_ms)} ago).",
                "None: it is replicating.",
                "If this persists, check its load, and the network from here.",
                f"raftlog quorum describe --bootstrap-controller {node.endpoint}",
            )
    gone = gone_voters(survey)
    if not gone:
        return
    yield degraded(
        "VOTER_DOWN",
        f"{lost_voters(survey, gone, capital=True)}.",
        f"{how_many_left(survey)}.",
        f"{_revive(gone)} {_replaced_by_itself(survey)}If its disk is lost: docs/operations.md,"
        " Replacing a controller's disk.",
        _to_revive(gone),
    )


def _replaced_by_itself(survey: Survey) -> str:
    """Return what autopilot does about a voter that is down, or "" if it is off."""
    autopilot = survey.leader.autopilot if survey.leader is not None else None
    if autopilot is None or not autopilot.after_ms:
        return ""
    return f"Autopilot: {autopilot.reason}. "


@rule
def _no_spare(survey: Survey) -> Iterator[Finding]:
    autopilot = survey.leader.autopilot if survey.leader is not None else None
    if autopilot is None or not autopilot.after_ms:
        return
    others = [one for one in autopilot.replicas if not one.is_voter]
    # A node with a new directory is also listed with the old one, which is silent for good.
    live = {one.replica_id for one in autopilot.replicas if one.condition != SILENT}
    others = [one for one in others if one.condition != SILENT or one.replica_id not in live]
    if not any(one.condition == READY for one in others):
        said = [f"node {one.replica_id}: {one.condition}" for one in others]
        yield notice(
            "NO_SPARE",
            f"Autopilot has no spare{f' ({named(said)})' if said else ''}.",
            "A voter that dies will not be replaced.",
            "Start a controller that is not a voter with controller.quorum.voter.replace.after.ms: "
            "docs/operations.md, Voters come and go.",
            "raftlog quorum autopilot",
        )


@rule
def _replacement_under_way(survey: Survey) -> Iterator[Finding]:
    autopilot = survey.leader.autopilot if survey.leader is not None else None
    if autopilot is None or not autopilot.is_replacing:
        return
    voters = sum(one.is_voter for one in autopilot.replicas)
    off = not autopilot.after_ms
    yield degraded(
        "VOTER_REPLACEMENT",
        f"{counted(voters, 'voter')} on {counted(autopilot.seats, 'seat')}: a dead voter is being"
        " replaced.",
        f"{how_many_left(survey)}.",
        "Autopilot is off: add a voter or remove the dead one manually."
        if off
        else f"Autopilot: {autopilot.reason}.",
        "raftlog quorum autopilot",
    )


def _revive(gone: list[AskedNode]) -> str:
    """Return the remedy for voters that are down."""
    reaches = {node.reach for node in gone}
    said = []
    if Reach.REFUSES in reaches:
        said.append("Start the processes that are not running.")
    if Reach.SILENT in reaches:
        said.append(
            "A node that does not answer hangs, or its machine or network is down: check these. "
            "Kill a hanging process (kill -9 loses nothing), and start it again."
        )
    if Reach.UNRESOLVED in reaches:
        said.append("If a host name does not resolve, check the name servers from here.")
    if Reach.DAMAGED in reaches:
        said.append(_REPAIRS)
    if Reach.OTHER in reaches:
        said.append(
            "If another program answers, find and stop it on that machine, or change the node's "
            "port; then start the node."
        )
    return " ".join(said)


def _to_revive(gone: list[AskedNode]) -> str:
    """Return the next command: a damaged node repairs itself, and a program that holds the port
    must be found before the node is started.
    """
    if all(node.reach is Reach.DAMAGED for node in gone):
        return "raftlog doctor --watch"
    taken = [node for node in gone if node.reach is Reach.OTHER and not node.fails_for_tls]
    if len(taken) == len(gone):
        return f"ss -ltnp 'sport = :{taken[0].endpoint.rpartition(':')[2]}'"
    return START


@rule
def _other_directories(survey: Survey) -> Iterator[Finding]:
    for node_id, voter in survey.replaced.items():
        yield degraded(
            "VOTER_REPLACED",
            f"Node {node_id} runs with a different data directory than that of the voter "
            f"({voter.replica_directory_id}), so it has no vote.",
            f"It does not count for a majority. {how_many_left(survey)}.",
            "If the voter's directory still exists (on a disk that is not mounted), restart the "
            "node with it. If it is lost: docs/operations.md, Replacing a controller's disk, from "
            "step 3 onwards.",
            f"raftlog quorum remove-voter --voter-id {node_id}",
        )
    yield from _twins(survey)


def _twins(survey: Survey) -> Iterator[Finding]:
    leader = survey.leader
    if leader is None:
        return
    for voter in leader.voters:
        twins = [
            one
            for one in leader.observers
            if one.replica_id == voter.replica_id
            and voter.replica_directory_id not in ("", one.replica_directory_id)
            and heard(one.last_fetch_age_ms)
        ]
        if twins and voter.replica_id not in survey.replaced and _lives(leader, voter):
            yield degraded(
                "NODE_ID_TWICE",
                f"Two nodes run as node {voter.replica_id}: the voter"
                f"{f' at {voter.endpoint}' if voter.endpoint else ''}, and one"
                f" {named([_twin(one) for one in twins])}.",
                "The second follows as an observer, and does not count for a majority. If it was "
                "meant to be a different voter, that voter is missing.",
                "Stop the second, and give it its own node.id and directory; ss -tnp on its "
                "machine shows which process owns a port.",
                "raftlog quorum describe --replication",
            )


def _twin(one: Replica) -> str:
    where = f"connected from {one.connected_from}, " if one.connected_from else ""
    return f"{where}with data directory {one.replica_directory_id}"


def _lives(leader: QuorumAnswer, voter: Replica) -> bool:
    return voter.replica_id == leader.node_id or heard(voter.last_fetch_age_ms)


@rule
def _behind(survey: Survey) -> Iterator[Finding]:
    leader = survey.leader
    if leader is None:
        return
    up = {
        voter.replica_id
        for voter, node in survey.voters()
        if node is not None and node.description and voter.replica_id not in survey.replaced
    }
    for voter in leader.voters:
        lag = leader.log_end_offset - voter.log_end_offset
        since = voter.last_caught_up_age_ms
        if voter.replica_id not in up or voter.replica_id == leader.node_id:
            continue
        if since == -1 or since > BEHIND_MS:
            last = f"it last had all records {span(since)} ago"
            if since == -1:
                last = f"it has never had all records since node {leader.node_id} became leader"
            yield degraded(
                "VOTER_BEHIND",
                f"Node {voter.replica_id} lacks {max(0, lag)} records of the leader's log; {last}.",
                "It counts for elections, but does not contribute to the majority for current "
                "writes.",
                "If it has just been started, wait. Otherwise check its disk and the network.",
                "raftlog quorum describe --replication",
            )


@rule
def _fragile(survey: Survey) -> Iterator[Finding]:
    voters = len(list(survey.voters()))
    if survey.leader is not None and voters in (1, 2):
        yield notice(
            "NO_REDUNDANCY",
            f"The quorum has {voters} voter{'s' if voters > 1 else ''}.",
            f"{'The failure of either' if voters > 1 else 'Its failure'} stops all writes; a lost"
            f" disk loses the log{' of one voter' if voters > 1 else ''}.",
            "Add voters until there are three or five.",
            "raftlog quorum add-voter -c FILE",
        )


@rule
def _several_clusters(survey: Survey) -> Iterator[Finding]:
    of: dict[str, list[str]] = defaultdict(list)
    best, strays = survey.best, survey.strays
    left, total = voters_left(survey)
    for node in survey.nodes:
        one = node.description
        if one is None or best is None:
            continue
        if node.endpoint not in strays:
            of[one.cluster_id].append(node.endpoint)
            continue
        yield degraded(
            "NODE_OF_OTHER_CLUSTER",
            f"Node {strays[node.endpoint]} ({node.endpoint}) runs with cluster id"
            f" {one.cluster_id}; the others belong to {best.cluster_id}.",
            f"It and the others refuse each other: {left} of {total} voters are left.",
            "Correct cluster.id in its configuration. Its directory was formatted with the wrong"
            " id: keep it, and format an empty one"
            " (docs/operations.md, Replacing a controller's disk).",
            "raftlog storage format -c FILE",
        )
    if len(of) > 1:
        yield down(
            "CLUSTER_ID_DIFFERS",
            "Nodes of several clusters answer: "
            + "; ".join(f"{', '.join(where)} of {cluster}" for cluster, where in of.items())
            + ".",
            "They refuse each other; the rest of this report mixes them.",
            "Correct the addresses, or the configuration of the node that was formatted with"
            " another cluster id.",
        )


@rule
def _contradicted(survey: Survey) -> Iterator[Finding]:
    for one in survey.reports:
        if one.node.log_contradiction:
            yield down(
                "LOG_CONTRADICTED",
                f"{one.name[:1].upper()}{one.name[1:]} reports: {one.node.log_contradiction}.",
                "Committed records differ between nodes: an acknowledged write may be lost.",
                "Find the controller whose directory was restored, copied or reformatted, and stop "
                "it; keep all directories (docs/operations.md, A log that contradicts another).",
                "raftlog quorum describe --replication",
            )


@rule
def _diverged(survey: Survey) -> Iterator[Finding]:
    states: dict[tuple[int, int], dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
    logs: dict[int, dict[bytes, list[int]]] = defaultdict(lambda: defaultdict(list))
    for one in survey.answers:
        if one.state_hash and one.image_offset >= 0:
            states[one.image_offset, one.image_epoch][one.state_hash].append(one.node_id)
            if one.log_hash:
                logs[one.image_offset][one.log_hash].append(one.node_id)
    for (offset, _), by_hash in states.items():
        if len(by_hash) > 1:
            sides = " against ".join(nodes(ids) for ids in by_hash.values())
            yield down(
                "STATE_DIVERGED",
                f"At offset {offset}, {sides} have different states for the same records.",
                "One of them gives wrong answers.",
                "Stop the minority, keep its directory, and let it rejoin with an empty one. "
                "Report this as a bug.",
                f"raftlog log image --at {offset}",
            )
    for offset, by_hash in logs.items():
        if len(by_hash) > 1:
            sides = " against ".join(nodes(ids) for ids in by_hash.values())
            yield down(
                "LOG_DIVERGED",
                f"Up to offset {offset}, {sides} have different bytes in their logs.",
                "Committed records differ between nodes.",
                "Stop the minority, keep its directory, and let it rejoin with an empty one. "
                "Report this as a bug.",
                f"raftlog log dump --directory DIR --until {offset}",
            )


@rule
def _low_space(survey: Survey) -> Iterator[Finding]:
    if low := survey.low_on_space:
        yield degraded(
            "LOW_ON_SPACE",
            f"The disk of {named([_with_room(survey, one) for one in low])} is below its free-space"
            " reserve.",
            "Such a node does not lead if another can; if no node can, writes are refused.",
            "Free space; note that the cursor of an abandoned export retains the log. "
            "docs/operations.md, A disk fills up.",
            "raftlog cluster cursors list",
        )


def _with_room(survey: Survey, node_id: int) -> str:
    name = f"node {node_id}"
    about = next((one for one in survey.reports if one.name == name), None)
    known = about is not None and about.node.disk_total_bytes > 0
    return f"{name} ({about.room})" if about is not None and known else name


@rule
def _refusals(survey: Survey) -> Iterator[Finding]:
    if not survey.answers:
        return
    known = {voter.replica_id for voter, _ in survey.voters()}
    for node in survey.nodes:
        if node.description is None and node.node_id not in known and not node.fails_for_tls:
            yield notice(
                "ADDRESS_WRONG",
                f"{node.endpoint} {node.reach}: {node.failure or 'no reason'}.",
                "None for the cluster: no voter has this address.",
                "Remove it from --bootstrap-controller, or correct it.",
            )


@rule
def _feature_levels(survey: Survey) -> Iterator[Finding]:
    leader = survey.leader
    voters = {voter.replica_id for voter, _ in survey.voters()}
    if leader is None or {one.node_id for one in survey.answers} & voters != voters:
        return
    for feature in leader.features:
        highest = min(
            (
                other.max_supported_version
                for one in survey.answers
                for other in one.features
                if other.name == feature.name
            ),
            default=0,
        )
        if 0 < feature.finalized_level < highest:
            yield notice(
                "FEATURE_LEVEL_LOW",
                f"{feature.name} is {feature.finalized_level}; all controllers that answer support "
                f"{highest}.",
                "What the higher level adds is unused. Until it is raised, every node can still be "
                "rolled back to the older build.",
                "Raise it once the upgrade is final.",
                f"raftlog cluster features upgrade {feature.name}={highest}",
            )


@rule
def _removed_ahead(survey: Survey) -> Iterator[Finding]:
    # Each leader refuses it (UNKNOWN_LEADER_EPOCH), and it can give up no epoch in which it may
    # have voted. The others adopt the epoch of a voter that is ahead, so that one recovers by
    # itself.
    leader = survey.leader
    if leader is None or not leader.voters:
        return
    voters = {(voter.replica_id, voter.replica_directory_id) for voter in leader.voters}
    for one in survey.answers:
        if (
            one.cluster_id != leader.cluster_id
            or one.leader_epoch <= leader.leader_epoch
            or one.leader_id != -1
            or not one.directory_id
            or not voters.isdisjoint({(one.node_id, one.directory_id), (one.node_id, "")})
        ):
            continue
        yield degraded(
            "REMOVED_AHEAD",
            f"Node {one.node_id} is not a voter, and is in epoch {one.leader_epoch}, but the "
            f"leader in epoch {leader.leader_epoch}.",
            "It cannot follow the leader or become a voter until the others' epoch exceeds its "
            "own. The quorum does not need it.",
            "Stop it. To bring it back, give it an empty directory and add it again: "
            "docs/operations.md, Replacing a controller's disk, from step 2 onwards.",
            "raftlog storage format -c FILE --no-initial-controllers",
        )
