"""Invariants of a simulated cluster, checked at every step."""
