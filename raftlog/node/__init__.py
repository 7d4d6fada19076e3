"""What nodes alone need: configuration, security, disks, replication and observability.

No client imports it.
"""
