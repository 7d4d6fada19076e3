"""Made-up histories of any size, for trying the jobs out and for measuring them: ``raftlog replay
generate``.

Not random records: brokers that start, hang, crash and are rolled, controllers that fail, people
and tools that write. What the controller makes of it is decided by the controller's own code,
folded by the fold of every node and encoded as the log is; so a history is valid, the state hash at
its end is known, and an audit has nothing to find. From the same profile and seed come the same
bytes.
"""
