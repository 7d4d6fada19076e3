"""Mutants of assignments: reassignments, elections, and their effect on ISRs."""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import MOVING
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

RESTARTS = "brokers that restart"

MUTANTS = (
    Mutant(
        "reassignment-before-in-sync",
        "a reassignment is complete before the new replicas are in the ISR",
        (
            Edit(
                "controller.rules.partition_change:_completed",
                "not staying or not set(wanted.adding) <= set(members)",
                "not staying",
            ),
        ),
        MOVING,
    ),
    Mutant(
        "cancelled-replica-in-isr",
        "a replica that was being added stays in the ISR after the cancellation",
        (
            Edit(
                "controller.decisions.partitions.reassignment:_change",
                "[member for member in partition.isr if member in assignment.replicas]",
                "list(partition.isr)",
            ),
        ),
        MOVING,
        known=1,
    ),
    Mutant(
        "cancel-forgets-removing",
        "a cancellation keeps the new replicas instead of the old ones",
        (
            Edit(
                "controller.decisions.partitions.reassignment:_decide",
                "Assignment(assignment_of(partition).original, (), ())",
                "Assignment(assignment_of(partition).target, (), ())",
            ),
        ),
        MOVING,
    ),
    Mutant(
        "second-reassignment-forgets-first",
        "a second reassignment treats the replicas that the first one adds as original replicas",
        (
            Edit(
                "controller.decisions.partitions.reassignment:_reassign",
                "original = assignment_of(partition).original",
                "original = partition.replicas",
            ),
        ),
        MOVING,
    ),
    Mutant(
        "unclean-without-being-asked",
        "a replica outside the ISR leads without permission",
        (
            Edit(
                "controller.rules.partition_change:removal",
                "not isr and not on_purpose and unclean_election_enabled(view, partition.topic_id)",
                "not isr and not on_purpose",
            ),
        ),
        replace(MOVING, unclean=False),
        RESTARTS,
    ),
    Mutant(
        "unclean-not-declared",
        "an unclean leader is not declared as one",
        (
            Edit(
                "controller.rules.partition_change:next_state",
                "wanted, members, recovery_state = present, (leader,), RECOVERING",
                "wanted, members = present, (leader,)",
            ),
        ),
        MOVING,
        RESTARTS,
    ),
    Mutant(
        "preferred-outside-isr",
        "the preferred leader is elected though it is not in the ISR",
        (
            Edit(
                "controller.rules.partition_change:choose_leader",
                "replicas[0] in isr and active(replicas[0])",
                "active(replicas[0])",
            ),
            Edit(
                "controller.decisions.partitions.leader_elections:wants_preferred",
                "first in partition.isr and brokers.active(first)",
                "brokers.active(first)",
            ),
        ),
        MOVING,
        RESTARTS,
    ),
    Mutant(
        "last-member-leaves-isr",
        "the last member of an ISR is removed from it",
        (
            Edit(
                "controller.rules.partition_change:next_state",
                "members or partition.isr",
                "members",
            ),
        ),
        MOVING,
        RESTARTS,
    ),
    Mutant(
        "removed-replica-keeps-leader-epoch",
        "replicas are removed without a new leader epoch",
        (
            Edit(
                "raftlog.metadata.fold:changed_partition",
                'has("leader") or (replicas is not old.replicas and not set(old.replicas) <='
                " set(replicas))",
                'has("leader")',
            ),
        ),
        MOVING,
    ),
)
