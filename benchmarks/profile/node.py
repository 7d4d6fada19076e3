"""A node started as ``raftlog`` starts it, whose stages can be measured: SIGUSR1 starts a slice
with measuring, SIGUSR2 one without, and STOP ends the slice and writes the result to
``BENCH_PROFILE``/PID.json.
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

MEASURE, REST, STOP = signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN


def _measure() -> None:
    recorder = Recorder(NODE)

    def stop(*_: Any) -> None:
        path = Path(os.environ["BENCH_PROFILE"]) / f"{os.getpid()}.json"
        whole = path.with_suffix(".part")
        whole.write_text(json.dumps(recorder.stop()))
        whole.rename(path)

    signal.signal(MEASURE, lambda *_: recorder.measure())
    signal.signal(REST, lambda *_: recorder.rest())
    signal.signal(STOP, stop)


if __name__ == "__main__":
    _measure()
    sys.exit(main())
