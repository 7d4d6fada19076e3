"""A side's reports on its steps: one JSON line when a step begins, and one when it is done.

After each, the side waits for a line on its standard input: the watcher has then measured it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Step = Callable[[], Any]
"""Function that returns the result to compare between sides, or None."""


def perform(steps: dict[str, Step]) -> None:
    """Perform the steps in order. A step that fails stops the side, with a traceback on standard
    error.
    """
    for name, step in steps.items():
        _say(step=name, event="begin")
        began = time.perf_counter()
        answer = step()
        _say(step=name, event="end", seconds=time.perf_counter() - began, answer=answer)


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)
    sys.stdin.readline()
