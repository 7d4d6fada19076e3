"""The cost of keeping leases alive and of passing on or losing locks, for raftlog and for
the peer.
"""
