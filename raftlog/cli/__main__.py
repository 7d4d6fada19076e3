"""``python -m raftlog.cli``: the same as ``raftlog``."""

from raftlog.cli.main import main

main()
