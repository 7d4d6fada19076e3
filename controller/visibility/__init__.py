"""LAO and its inputs: applied offsets, read leases, and the records of progress."""
