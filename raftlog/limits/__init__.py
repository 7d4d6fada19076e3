"""Limits of what others send: every text, byte string and list of every request has one, in one
table (``fields``), that ``checking.check`` holds a message against.
"""
