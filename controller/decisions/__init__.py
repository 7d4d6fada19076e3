"""Decisions: requests and timers in, records and replies out. No I/O, no clock, no state."""
