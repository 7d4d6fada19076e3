"""Files that hold a private key: nobody but their owner may read them, or root and one group."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

OWNER_ONLY = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ROOTS = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO


def exposed(path: Path) -> str:
    """What is wrong with the permissions of a key's file; empty if nothing is.

    Raises OSError. Windows has no such permissions.
    """
    if os.name != "posix":
        return ""
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if not mode & forbidden(status.st_uid, os.geteuid()):
        return ""
    return (
        f"others than its owner have access to the private key {path} (mode {mode:04o}): chmod 600"
        f" {shlex.quote(str(path))}"
    )


def forbidden(owner: int, us: int) -> int:
    """The permissions that a key may not have. One of root may be readable for a group: so an
    orchestrator hands a secret to a process that is not root.
    """
    return _ROOTS if owner == 0 and us != 0 else _OTHERS
