"""One node's copy of the log: drives the quorum's state machine over a disk and a network."""
