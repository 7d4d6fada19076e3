"""``python -m raftlog.local``: the program of scripts/quorum and scripts/broker."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.cli.interrupts import run_interruptible


def _load() -> Callable[[], object]:
    from raftlog.local.commands import main

    return main


if __name__ == "__main__":
    run_interruptible(_load)
