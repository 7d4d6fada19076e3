"""The client library: ``raftlog.Client`` and ``raftlog.AsyncClient``, with plain values in and out,
above sessions that speak protobuf; brokers, commands and the simulator use these sessions, too.

There is one implementation: the blocking client runs the asynchronous one on an event loop in a
thread of its own.
"""
