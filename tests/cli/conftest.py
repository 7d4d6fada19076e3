"""What every test of the directory may ask for."""

from command_lines import cluster, raftlog

__all__ = ["cluster", "raftlog"]
