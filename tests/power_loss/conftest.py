"""What every test of the directory may ask for."""

from power_kit import scratch, starter

__all__ = ["scratch", "starter"]
