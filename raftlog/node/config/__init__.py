"""The configuration of a node: one file, environment and flags; every mistake is listed at once."""
