"""Mutants of unsafe recovery: the generation, the epochs, and the brokers' reaction to them."""

from __future__ import annotations

from simulation.mutants.configs import RECOVERED
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

LOST = "the disks of a majority are lost for good"

MUTANTS = (
    Mutant(
        "leader-epochs-not-raised",
        "after a recovery, partitions keep the leader epochs of the recovered state",
        (
            Edit(
                "controller.state.batched_changes:EpochFloor.is_due",
                "return bool(",
                "return False and bool(",
            ),
        ),
        RECOVERED,
        LOST,
    ),
    Mutant(
        "joined-without-generation",
        "a controller keeps the generation that its disk belongs to, whatever the log says",
        (
            Edit(
                "raftlog.quorum.node:Node._note_generation",
                "if self.generation not in (NO_GENERATION, self.bound_generation):",
                "if self.bound_generation == NO_GENERATION:",
            ),
        ),
        RECOVERED,
        LOST + ", others join and lead",
    ),
    Mutant(
        "recovery-keeps-generation",
        "a recovery does not begin a new generation of the log",
        (
            Edit(
                "raftlog.node.replica.replica:Replica._became_leader",
                "self.core.lineage.current or",
                "(self.core.lineage.below(start) or [0])[-1] or",
            ),
        ),
        RECOVERED,
        LOST,
        known=1,
    ),
    Mutant(
        "recovery-leaves-brokers-unfenced",
        "after a recovery, brokers stay unfenced as in the recovered state, and lead",
        (
            Edit(
                "controller.state.batched_changes:EpochFloor._fence_all",
                "if not unfenced:",
                "if True:",
            ),
        ),
        RECOVERED,
        LOST,
        known=1,
    ),
    Mutant(
        "recovered-brokers-keep-image",
        "a broker that learns of another generation keeps its image",
        (
            Edit(
                "broker.metadata.view:View.reset",
                "self._clear(generation)",
                "self.generation = generation",
            ),
        ),
        RECOVERED,
        LOST,
        known=1,
    ),
    Mutant(
        "recovery-skips-no-epochs",
        "a recovered log continues in the epoch of its last record",
        (
            Edit(
                "raftlog.node.recovery.unsafe_recovery:begin_anew",
                "epoch = _next_epoch(before)",
                "epoch = max(before.epoch, before.last_epoch)",
            ),
        ),
        RECOVERED,
        LOST,
        known=1,
    ),
)
