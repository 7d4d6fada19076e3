"""The partition replicas of one broker: leaders, followers, ISRs, high watermarks.

Pure decisions, no I/O.
"""
