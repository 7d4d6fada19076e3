#!python
"""The program ``raftlog``, and ``python -m raftlog``."""

from raftlog.cli.entry import main

# A process that multiprocessing spawns loads the script of its parent again: it runs no command.
if __name__ == "__main__":
    main()
