"""Topics, partitions, ISRs, leaders and reassignments."""
