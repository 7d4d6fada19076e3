"""The parts of nodes alone: configuration, security, disks, replication and observability.

No client imports it.
"""
