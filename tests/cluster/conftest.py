"""Fixtures shared by the tests with real processes."""

from cluster_kit import three_controllers

__all__ = ["three_controllers"]
