"""All mutants, by name."""

from __future__ import annotations

from simulation.mutants import (
    in_assignments,
    in_broker,
    in_broker_ids,
    in_controller,
    in_data,
    in_keys,
    in_lao,
    in_lifecycle,
    in_messages,
    in_operations,
    in_partitions,
    in_quorum,
    in_reads,
    in_recovery,
    in_security,
    in_snapshots,
    in_transfers,
    in_watches,
)
from simulation.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for module in (
        in_quorum,
        in_transfers,
        in_controller,
        in_data,
        in_partitions,
        in_assignments,
        in_snapshots,
        in_lao,
        in_broker,
        in_broker_ids,
        in_reads,
        in_recovery,
        in_lifecycle,
        in_messages,
        in_operations,
        in_security,
        in_watches,
        in_keys,
    )
    for mutant in module.MUTANTS
}
