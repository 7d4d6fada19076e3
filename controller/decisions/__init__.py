"""Requests and timers in, records and replies out. No I/O: time and state are arguments."""
