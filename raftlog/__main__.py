#!python
"""The program ``raftlog``, and ``python -m raftlog``."""

from raftlog.cli.entry import main

# A process spawned by multiprocessing imports its parent's script again, and must not run it.
if __name__ == "__main__":
    main()
