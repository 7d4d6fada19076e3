"""Simulated twins of time, network and disk, below unchanged code."""
