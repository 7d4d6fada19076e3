"""The client library: calls to the active controller and to brokers, for brokers, the CLI, the demo
and benchmarks.
"""
