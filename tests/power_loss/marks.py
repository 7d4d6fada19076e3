"""The marks by which a recorded program reports its promises: writes to a descriptor that nothing
else uses.
"""

import json
import os
from typing import Any

MARK_FD = 777


def open_marks() -> None:
    """Open the descriptor; called once by the recorded process."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, MARK_FD)
    os.close(null)


def mark(what: str, **details: Any) -> None:
    """Report: later disk operations come after this."""
    os.write(MARK_FD, json.dumps({"what": what, **details}).encode())
