"""``python -m replay``: the program of scripts/replay."""

from __future__ import annotations

from collections.abc import Callable

from raftlog.cli.interrupts import run_interruptible


def _load() -> Callable[[], object]:
    from replay.cli import app

    return app


if __name__ == "__main__":
    run_interruptible(_load)
