"""What every test of the directory may ask for."""

from starters import scratch, starter

__all__ = ["scratch", "starter"]
