"""One node's copy of the log: a driver of the quorum's state machine over a disk and a network."""
