"""A node as ``raftlog`` starts it, whose stages are measured: SIGUSR1 begins, SIGUSR2 ends and
writes the result to ``BENCH_PROFILE``/PID.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks.profile.recorder import Recorder
from benchmarks.profile.stages import NODE
from raftlog.cli.entry import main


def _measure() -> None:
    recorder = Recorder(NODE)

    def end(*_: Any) -> None:
        path = Path(os.environ["BENCH_PROFILE"]) / f"{os.getpid()}.json"
        whole = path.with_suffix(".part")
        whole.write_text(json.dumps(recorder.end()))
        whole.rename(path)

    signal.signal(signal.SIGUSR1, lambda *_: recorder.begin())
    signal.signal(signal.SIGUSR2, end)


if __name__ == "__main__":
    _measure()
    sys.exit(main())
