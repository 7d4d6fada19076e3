"""What several files of the directory ask for."""

from cluster_kit import three_controllers

__all__ = ["three_controllers"]
