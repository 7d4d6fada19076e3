"""What every test of the directory may ask for."""

from command_lines import at, cluster, raftlog, through

__all__ = ["at", "cluster", "raftlog", "through"]
