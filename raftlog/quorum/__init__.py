"""Raft as a pure state machine: it takes events and the time, and returns effects. No I/O, no
clock, no asyncio.
"""
