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

from pyspark.sql import functions as sf

from replay.audit import rules
from replay.audit.finding import Charge, ids, text, verdict, when
from replay.audit.steps import nobody

RULES = (rules.REASSIGNMENT_INCOMPLETE, rules.REASSIGNMENT_LOST_ORIGINAL)


def charges() -> tuple[Charge, ...]:
    """On a row of :func:`replay.audit.steps.steps`; none holds in an export that has no columns for
    reassignments.
    """
    replicas, isr, adding, removing = (
        sf.col(name) for name in ("replicas", "isr", "adding_replicas", "removing_replicas")
    )
    before = sf.array_except(
        sf.col("before.replicas"), sf.coalesce("before.adding_replicas", nobody())
    )
    settled = (sf.size(adding) == 0) & (sf.size(removing) == 0)
    came, went = sf.array_except(replicas, before), sf.array_except(before, replicas)
    # Where there are fewer in the end, those who stay must be able to stand for those who go.
    needed = sf.when(sf.size(went) > sf.size(came), replicas).otherwise(came)
    missing = sf.array_except(needed, isr)
    original = sf.array_except(replicas, adding)
    differs = (sf.size(sf.array_except(original, before)) > 0) | (
        sf.size(sf.array_except(before, original)) > 0
    )
    strays = sf.size(sf.array_except(removing, original)) > 0
    also, changed = sf.col("before.begins"), sf.col("changed")
    return (
        when(
            changed & settled & (sf.size(missing) > 0),
            verdict(
                rules.REASSIGNMENT_INCOMPLETE,
                broker_id=sf.element_at(missing, 1),
                also=also,
                found=text("replicas {}, ISR {}", ids(replicas), ids(isr)),
                expected=text(
                    "{} in the ISR first, or the original {} again", ids(missing), ids(before)
                ),
            ),
        ),
        when(
            changed & ~settled & (differs | strays),
            verdict(
                rules.REASSIGNMENT_LOST_ORIGINAL,
                also=also,
                found=text(
                    "replicas {}, adding {}, removing {}", ids(replicas), ids(adding), ids(removing)
                ),
                expected=text("{} without those added, and those removed of them", ids(before)),
            ),
        ),
    )
