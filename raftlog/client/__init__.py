"""The client library: ``raftlog.Client`` and ``raftlog.AsyncClient``, with plain values in and out.

Below them are sessions that speak protobuf, which brokers, commands and the simulator use, too.
There is one implementation: the blocking client runs the asynchronous one on an event loop in a
thread of its own.
"""
