"""Offline repair of a controller directory: restore, unsafe recovery, and a log that begins
anew.
"""
