"""Mutants of the rules that keep ISRs true: broker epochs, and the effects of registering and
fencing on partitions.
"""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import REPLICAS
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

RESTARTS = "brokers that restart, late proposals"

MUTANTS = (
    Mutant(
        "isr-member-epoch-ignored",
        "a replica enters an ISR under the broker epoch of a former incarnation (KIP-903)",
        (
            Edit(
                "controller.decisions.partitions.alter_partition:_ineligible",
                "member.broker_epoch != broker.epoch and",
                "False and",
            ),
        ),
        REPLICAS,
        RESTARTS,
        known=1,
    ),
    Mutant(
        "isr-proposer-epoch-ignored",
        "a former incarnation of the leader changes an ISR",
        (
            Edit(
                "controller.decider:Decider._alter_partition",
                "self.state.check_broker_epoch(request.broker_id, request.broker_epoch)",
                "pass",
            ),
        ),
        REPLICAS,
        RESTARTS,
        known=1,
    ),
    Mutant(
        "isr-of-fenced",
        "a fenced broker can enter an ISR",
        (
            Edit(
                "controller.decisions.partitions.alter_partition:_ineligible",
                "if broker.fenced:",
                "if False:",
            ),
        ),
        REPLICAS,
        RESTARTS,
    ),
    Mutant(
        "isr-decided-by-committed",
        "a proposal is decided by the committed image, without pending records",
        (
            Edit(
                "controller.decider:Decider._alter_partition",
                "alter_partitions(self.state.log.pending,",
                "alter_partitions(self.state.log.committed,",
            ),
        ),
        replace(REPLICAS, isr_changes_per_s=100.0, disk_max_ms=50.0),
        "slow disks",
        known=23,
    ),
    Mutant(
        "registration-keeps-isr",
        "a new incarnation keeps the places of its predecessor in ISRs",
        (
            Edit(
                "controller.decisions.brokers.registration:register_broker",
                "records.extend(removals(state.log.pending, old.id, on_purpose=True,"
                " same_disk=same_disk))",
                "pass",
            ),
        ),
        REPLICAS,
        RESTARTS,
        known=1,
    ),
    Mutant(
        "fencing-keeps-isr",
        "a broker whose session has ended stays in ISRs and stays leader",
        (
            Edit(
                "controller.rules.fencing:fence",
                "[change, *removals(view, broker.id, limit=MAX_REMOVALS)]",
                "[change]",
            ),
        ),
        REPLICAS,
        "brokers that are cut off or paused",
    ),
    Mutant(
        "leader-outside-isr",
        "a leader is chosen among all live replicas",
        (
            Edit(
                "controller.rules.partition_change:choose_leader",
                "if replica in isr and active(replica)",
                "if active(replica)",
            ),
        ),
        REPLICAS,
        RESTARTS,
    ),
    Mutant(
        "heartbeat-of-old-incarnation",
        "a heartbeat of a former incarnation of a broker counts for the current one",
        (
            Edit(
                "controller.decider:Decider._heartbeat",
                "broker = self.state.check_broker_epoch(request.broker_id, request.broker_epoch)",
                "broker = self.state.log.pending.brokers.get(request.broker_id) or "
                "self.state.check_broker_epoch(request.broker_id, request.broker_epoch)",
            ),
        ),
        REPLICAS,
        "twins, brokers that restart",
        known=8,
    ),
)
