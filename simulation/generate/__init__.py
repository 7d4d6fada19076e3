"""Generated metadata histories of any size, for tests and benchmarks. Brokers start, hang, crash
and are rolled, controllers fail, people and tools write; the controller's own code decides, nodes'
fold applies, the log's codec encodes. So a history is valid, its state hash known, and an audit
finds nothing. A profile and seed give the same bytes.
"""
