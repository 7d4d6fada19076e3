"""The client library: ``raftlog.Client`` and ``raftlog.AsyncClient``, with plain values in and out.

They are built on sessions that speak protobuf, which brokers, commands and the simulator use, too.
There is one implementation: the blocking client runs the asynchronous one on an event loop in its
own thread.
"""
