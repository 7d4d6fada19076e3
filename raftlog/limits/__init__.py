"""Limits of what others send: every text, byte string and list of every request has one, in one
table (``fields``).
"""

from raftlog.limits.checking import check

__all__ = ["check"]
