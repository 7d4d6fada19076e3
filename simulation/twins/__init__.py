"""Twins of what is real: time, network and disk.

The code above the three seams runs on them unchanged.
"""
