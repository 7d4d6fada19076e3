"""Parts that only nodes use: configuration, security, disks, replication and observability. No
client imports this package.
"""
