"""The command raftlog."""
