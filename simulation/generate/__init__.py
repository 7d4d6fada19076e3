"""Generated metadata histories of any size, which tests and benchmarks replay.

The records are not random: brokers start, hang, crash and are rolled, controllers fail, people and
tools write. The controller's own code makes every decision, the fold of every node applies it, and
the codec of the log encodes it. So a history is valid, the state hash at its end is known, and an
audit finds nothing. The same profile and seed give the same bytes.
"""
