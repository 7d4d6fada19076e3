from cluster_kit import three_controllers

__all__ = ["three_controllers"]
