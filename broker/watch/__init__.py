"""Watches of the metadata: a state machine without I/O; ``broker.service.watches`` is its shell."""
