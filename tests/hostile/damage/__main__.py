"""Damages a node's files, an export and a configuration, systematically and at random, and asks
every reader.

``python -m tests.hostile.damage --cases 5000 --seed 1``; a case is one damage. RocksDB names its
files anew in each run: what is wrong is told in words that say how to do it again by hand.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from .suite import run


def main() -> int:
    """Run; return 0 if every reader was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="cases of this base, such as killed, alone")
    parser.add_argument(
        "--readers", type=int, default=0, help="so many readers a case, drawn; 0: all"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="raftlog-damage-") as scratch:
        report = run(
            Path(scratch),
            given.cases,
            given.seed,
            only=given.only,
            readers_per_case=given.readers,
            show=print,
        )
    print(report.summary())
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
