"""Limits of received messages: every text, byte string and list of every request has one, in one
table (``fields``), which ``checking.check`` enforces.
"""
