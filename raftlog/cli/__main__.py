#!python
"""The program ``raftlog``, and ``python -m raftlog.cli``."""

from raftlog.cli.entry import main

main()
