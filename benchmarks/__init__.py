"""Measurements behind every claim about speed, with the peer's and the machine's limits in the same
run.
"""
