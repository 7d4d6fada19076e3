"""Offline repair of a controller's directory: restore, unsafe recovery, and the start of a
new log.
"""
