"""The program ``raftlog`` under the name of this package."""

from raftlog.cli.entry import main

if __name__ == "__main__":
    main()
