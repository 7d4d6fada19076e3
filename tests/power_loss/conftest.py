"""Fixtures of the power-loss tests."""

from power_kit import scratch, starter

__all__ = ["scratch", "starter"]
