"""Decisions map requests and timers to records and replies, without I/O, clock or state."""
