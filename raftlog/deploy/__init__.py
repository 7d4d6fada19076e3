"""What runs nodes on machines, as files and figures: ``raftlog systemd``, ``raftlog size``."""
