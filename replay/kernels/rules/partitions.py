"""Rules about one partition: its ISR members, its leader, its growing epochs, and its reassignments
(KIP-455).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from raftlog.metadata.entities import RECOVERING
from replay import rules
from replay.kernels.arrays import MISSING, Bools, Ints
from replay.kernels.findings import Finding, Judged, offence
from replay.kernels.lists import NOTHING, ids


def check(judged: Judged) -> Iterator[Finding]:
    """Check each state on its own, and against the previous one."""
    yield from _stated(judged)
    yield from _eligible(judged)
    yield from _unproposed(judged)
    yield from _stepped(judged)
    yield from _reassigned(judged)


def _rows(judged: Judged, found: Bools) -> list[int]:
    return np.flatnonzero(found & judged.steps.real).tolist()


def _stated(judged: Judged) -> Iterator[Finding]:
    steps, lists = judged.steps, judged.lists
    isr, leader = steps.isr, steps.leader
    strange = lists.lacks(isr, steps.replicas) | lists.names_one_twice(isr)
    for row in _rows(judged, strange & (isr >= 0) & (steps.replicas >= 0)):
        yield offence(
            rules.ISR_NOT_IN_REPLICAS,
            judged.place(row),
            found=f"ISR {lists.text(isr[row])}",
            expected=f"only replicas {lists.text(steps.replicas[row])}, each once",
        )
    moved = steps.replicas != steps.before("replicas")
    wrong = (steps.replicas == lists.empty) | lists.names_one_twice(steps.replicas)
    for row in _rows(judged, moved & wrong):
        yield offence(
            rules.DUPLICATE_REPLICA,
            judged.place(row),
            found=f"replicas {lists.text(steps.replicas[row])}",
            expected="at least one, each once",
        )
    eligible = (steps.eligible != NOTHING) & (steps.eligible != lists.empty)
    # After an unclean shutdown, a replica is no longer eligible but the last known leader, unless
    # its disk is lost: then the record itself states that there is none.
    known = (steps.last_known != NOTHING) & (steps.last_known != lists.empty)
    emptied = (isr != steps.before("isr")) | (steps.eligible != steps.before("eligible"))
    for row in _rows(judged, (isr == lists.empty) & ~eligible & ~known & emptied):
        if steps.text("last_known_elr", row) is not None:
            continue
        yield offence(
            rules.ISR_EMPTY,
            judged.place(row),
            found="ISR []",
            expected="a member, an eligible leader replica, or the last known leader",
        )
    outside = (leader >= 0) & (isr >= 0) & ~lists.contain(isr, leader)
    for row in _rows(judged, outside):
        yield offence(
            rules.LEADER_OUTSIDE_ISR,
            judged.place(row),
            broker_id=int(leader[row]),
            found=f"leader {leader[row]}",
            expected=f"a member of the ISR {lists.text(isr[row])}, or no leader",
        )

    several = (steps.recovery == RECOVERING) & (lists.size(isr) > 1)
    for row in _rows(judged, several):
        yield offence(
            rules.RECOVERING_WITH_FOLLOWERS,
            judged.place(row),
            broker_id=int(leader[row]) if leader[row] >= 0 else None,
            found=f"RECOVERING, ISR {lists.text(isr[row])}",
            expected="the leader alone in the ISR until it has recovered",
        )


def _eligible(judged: Judged) -> Iterator[Finding]:
    """Yield the findings about eligible leader replicas (KIP-966)."""
    steps, lists = judged.steps, judged.lists
    for row in _rows(judged, lists.share(steps.eligible, steps.isr)):
        yield offence(
            rules.ELIGIBLE_IN_ISR,
            judged.place(row),
            found=f"eligible {lists.text(steps.eligible[row])}, ISR {lists.text(steps.isr[row])}",
            expected="each replica in at most one of them",
        )
    before, in_sync = steps.before("eligible"), judged.isr_before
    grew = judged.changed & judged.has_before & lists.lacks(steps.eligible, before)
    for row in _rows(judged, grew & lists.lacks(steps.eligible, in_sync)):
        held = {*_members(judged, before, row), *_members(judged, in_sync, row)}
        new = [each for each in _members(judged, steps.eligible, row) if each not in held]
        if new:
            yield offence(
                rules.ELIGIBLE_NEVER_IN_SYNC,
                judged.place(row),
                broker_id=new[0],
                also=before_of(judged, row),
                found=f"eligible {lists.text(steps.eligible[row])}",
                expected=f"only replicas from the ISR {lists.text(in_sync[row])}"
                f" and the eligible {lists.text(before[row])}",
            )


def _unproposed(judged: Judged) -> Iterator[Finding]:
    steps, lists = judged.steps, judged.lists
    was_eligible = lists.contain(steps.before("eligible"), steps.leader)
    for row in _rows(judged, judged.changed & judged.unproposed & ~judged.unclean & ~was_eligible):
        members, leader = judged.unproposed_list(row), int(steps.leader[row])
        isr, before = lists.text(steps.isr[row]), lists.text(judged.isr_before[row])
        if leader in members:
            yield offence(
                rules.UNDECLARED_UNCLEAN_ELECTION,
                judged.place(row),
                broker_id=leader,
                also=before_of(judged, row),
                found=f"leader {leader}, ISR {isr}, after ISR {before}",
                expected="a leader from the ISR, or one that is alone in it and RECOVERING",
            )
        else:
            yield offence(
                rules.ISR_GREW_UNPROPOSED,
                judged.place(row),
                broker_id=members[0],
                also=before_of(judged, row),
                found=f"ISR {isr} after {before}",
                expected=f"a proposal with {ids(members)}",
            )


def _stepped(judged: Judged) -> Iterator[Finding]:
    steps = judged.steps
    led = steps.before("leader")
    usurped = judged.proposed & (led != MISSING) & (steps.proposer_id != led)
    for row in _rows(judged, usurped):
        proposer = int(steps.proposer_id[row])
        yield offence(
            rules.PROPOSER_NOT_LEADER,
            judged.place(row),
            broker_id=proposer,
            also=before_of(judged, row),
            found=f"proposed by broker {proposer}",
            expected=f"by the leader, {led[row]}",
        )
    before = steps.before("leader_epoch")
    for row in _rows(judged, (steps.leader_epoch < before) & (steps.leader_epoch != MISSING)):
        yield offence(
            rules.LEADER_EPOCH_WENT_BACK,
            judged.place(row),
            also=before_of(judged, row),
            found=f"leader epoch {steps.leader_epoch[row]}",
            expected=f"{before[row]} or more",
        )
    before = steps.before("partition_epoch")
    stood = (steps.partition_epoch <= before) & (steps.partition_epoch != MISSING)
    for row in _rows(judged, stood):
        yield offence(
            rules.PARTITION_EPOCH_WENT_BACK,
            judged.place(row),
            also=before_of(judged, row),
            found=f"partition epoch {steps.partition_epoch[row]}",
            expected=f"more than {before[row]}",
        )


def before_of(judged: Judged, row: int) -> int | None:
    """Return the offset of the state before a row's, or None."""
    return int(judged.steps.begins[row - 1]) if judged.has_before[row] else None


def _reassigned(judged: Judged) -> Iterator[Finding]:
    """Yield the findings about reassignments. Records that neither change replicas nor belong to a
    reassignment are skipped. An export without columns for reassignments has no findings.

    During a reassignment, ``replicas`` contains the target replicas and those to be removed, and
    the *original* replicas are all except those being added. This holds for each of its records, so
    a second reassignment starts from the same originals as the first, and it suffices to compare a
    record with the state before it.

    However a reassignment ends (completed, completed at once, replaced by another, or cancelled),
    each replica that is not an original must be in the ISR; if the number of replicas decreases,
    all of them must be. (After a cancellation, all replicas are originals.)
    """
    steps, empty = judged.steps, judged.lists.empty
    adding_before = steps.before("adding")
    # Null if the export lacks the column.
    known = judged.changed & (steps.adding != NOTHING) & (steps.removing != NOTHING)
    moves = (
        (steps.before("replicas") != steps.replicas)
        | ((adding_before != empty) & (adding_before != NOTHING))
        | (steps.adding != empty)
        | (steps.removing != empty)
    )
    for row in np.flatnonzero(known & moves & judged.has_before).tolist():
        yield from _reassignment(judged, row)


def _reassignment(judged: Judged, row: int) -> Iterator[Finding]:
    steps = judged.steps
    replicas, isr, adding, removing, was, was_adding = (
        _members(judged, column, at)
        for column, at in (
            (steps.replicas, row),
            (steps.isr, row),
            (steps.adding, row),
            (steps.removing, row),
            (steps.replicas, row - 1),
            (steps.adding, row - 1),
        )
    )
    before = [each for each in dict.fromkeys(was) if each not in was_adding]
    also = int(steps.begins[row - 1])
    original = set(replicas) - set(adding)
    if not adding and not removing:
        came = [each for each in dict.fromkeys(replicas) if each not in before]
        went = set(before) - set(replicas)
        # If the number decreases, the remaining replicas must replace the removed ones.
        needed = dict.fromkeys(replicas) if len(went) > len(came) else came
        missing = [each for each in needed if each not in isr]
        if missing:
            yield offence(
                rules.REASSIGNMENT_INCOMPLETE,
                judged.place(row),
                broker_id=missing[0],
                also=also,
                found=f"replicas {ids(replicas)}, ISR {ids(isr)}",
                expected=f"first {ids(missing)} in the ISR, or the original {ids(before)} again",
            )
    elif original != set(before) or set(removing) - original:
        yield offence(
            rules.REASSIGNMENT_LOST_ORIGINAL,
            judged.place(row),
            also=also,
            found=f"replicas {ids(replicas)}, adding {ids(adding)}, removing {ids(removing)}",
            expected=f"{ids(before)} apart from those being added, which include those removed",
        )


def _members(judged: Judged, column: Ints, row: int) -> tuple[int, ...]:
    number = int(column[row])
    return judged.lists.members[number] if number >= 0 else ()
