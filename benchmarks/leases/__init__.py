"""The cost of leases and locks that are kept alive, passed on, or lost: for raftlog and for the
peer.
"""
