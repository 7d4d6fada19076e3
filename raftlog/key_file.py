"""Files that hold a private key: nobody but their owner may read them."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

OWNER_ONLY = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def exposed(path: Path) -> str:
    """What is wrong with the permissions of a key's file; empty if nothing is.

    Raises OSError. Windows has no such permissions.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name != "posix" or not mode & _OTHERS:
        return ""
    return (
        f"others than its owner have access to the private key {path} (mode {mode:04o}): chmod 600"
        f" {shlex.quote(str(path))}"
    )
