"""The client library: ``raftlog.Client`` and ``raftlog.AsyncClient``, which take and return plain
values.

They are built on protobuf sessions, which brokers, commands and the simulator also use. There is
one implementation: the blocking client runs the asynchronous one on an event loop in its own
thread.
"""
