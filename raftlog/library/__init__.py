"""What an application imports: ``raftlog.Client`` and ``raftlog.AsyncClient``, with plain values in
and out.

One implementation: the blocking client runs the asynchronous one on a loop in a thread of its own.
"""
