"""A node started as ``raftlog`` starts it, whose Python calls can be counted: SIGUSR1 starts
counting, SIGUSR2 stops it and writes the counts to ``BENCH_CALLS``/PID.json.

Counts only calls on the event loop's thread, as the disk thread calls none of raftlog's functions
while it waits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from raftlog.cli.entry import main

_calls: Counter[CodeType] = Counter()


def _count(frame: FrameType, event: str, _: Any) -> None:
    if event == "call":
        _calls[frame.f_code] += 1


def _begin(*_: Any) -> None:
    _calls.clear()
    sys.setprofile(_count)


def _end(*_: Any) -> None:
    sys.setprofile(None)
    found = [(code.co_filename, code.co_qualname, count) for code, count in _calls.items()]
    path = Path(os.environ["BENCH_CALLS"]) / f"{os.getpid()}.json"
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(found))
    whole.rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _end)
    sys.exit(main())
