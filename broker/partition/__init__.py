"""Partition replicas of one broker: who leads, who follows, what is in sync, what is committed.

Pure decisions, no I/O.
"""
