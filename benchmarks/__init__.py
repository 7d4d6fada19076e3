"""Measurements for every claim about speed, with the peer and the machine's limits in the
same run.
"""
