"""The cost of a delivered change, with many watchers and few writes: for raftlog and for
the peer.
"""
