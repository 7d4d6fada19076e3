"""Raft as a pure state machine: events and the time in, effects out.

No I/O, no clock, no asyncio.
"""
