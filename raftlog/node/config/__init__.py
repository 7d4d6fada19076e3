"""One file a node, environment and flags; every mistake listed at once."""
