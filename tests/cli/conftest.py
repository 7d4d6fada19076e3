from command_lines import at, cluster, raftlog, through

__all__ = ["at", "cluster", "raftlog", "through"]
