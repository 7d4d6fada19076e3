"""``python -m raftlog.cli``: the same as ``raftlog``."""

from raftlog.cli.entry import main

main()
