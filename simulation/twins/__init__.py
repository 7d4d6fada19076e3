"""Simulated twins of time, network and disk.

The code above the three seams runs on them unchanged.
"""
