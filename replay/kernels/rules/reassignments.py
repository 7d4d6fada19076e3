"""Rules about reassignments (KIP-455): each is followed from the record that begins it to the one
that ends it.

While one is under way the replicas are those wanted and those to be removed, and the replicas there
were *at first* are all but those that are being added. That holds for each record of it, whatever
it changes: so a second one starts from where the first did, and it is enough to look at a record
and at the state before it.

However one ends, complete at the end, complete at once, given up for another one or cancelled, each
replica that was not there at first must be in the ISR; and where replicas become fewer, all of
them. (Where it is cancelled there is no replica that was not there at first.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from replay import rules
from replay.kernels.arrays import Ints
from replay.kernels.findings import Finding, Judged, offence
from replay.kernels.lists import NOTHING, ids

RULES = (rules.REASSIGNMENT_INCOMPLETE, rules.REASSIGNMENT_LOST_ORIGINAL)


def check(judged: Judged) -> Iterator[Finding]:
    """Yield the findings about reassignments. Few records matter: those without a change of the
    replicas or a reassignment under way are skipped. An export without columns for reassignments
    has no findings.
    """
    steps, empty = judged.steps, judged.lists.empty
    adding_before = steps.before("adding")
    # Null, where there was no column for it.
    known = judged.changed & (steps.adding != NOTHING) & (steps.removing != NOTHING)
    moves = (
        (steps.before("replicas") != steps.replicas)
        | ((adding_before != empty) & (adding_before != NOTHING))
        | (steps.adding != empty)
        | (steps.removing != empty)
    )
    for row in np.flatnonzero(known & moves & judged.has_before).tolist():
        yield from _judge(judged, row)


def _judge(judged: Judged, row: int) -> Iterator[Finding]:
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
        # Where there are fewer in the end, those who stay must be able to stand for those who go.
        needed = dict.fromkeys(replicas) if len(went) > len(came) else came
        missing = [each for each in needed if each not in isr]
        if missing:
            yield offence(
                rules.REASSIGNMENT_INCOMPLETE,
                judged.place(row),
                broker_id=missing[0],
                also=also,
                found=f"replicas {ids(replicas)}, ISR {ids(isr)}",
                expected=f"{ids(missing)} in the ISR first, or the original {ids(before)} again",
            )
    elif original != set(before) or set(removing) - original:
        yield offence(
            rules.REASSIGNMENT_LOST_ORIGINAL,
            judged.place(row),
            also=also,
            found=f"replicas {ids(replicas)}, adding {ids(adding)}, removing {ids(removing)}",
            expected=f"{ids(before)} without those added, and those removed of them",
        )


def _members(judged: Judged, column: Ints, row: int) -> tuple[int, ...]:
    number = int(column[row])
    return judged.lists.members[number] if number >= 0 else ()
