"""Whether RocksDB can be opened at all.

Asked in a child process, because a failing open may spin for ever, holding the GIL.

The child imports rocksdict alone (no site, no environment: about 10 ms) and opens read-only. What
it finds does not matter, only that it comes back: an error shows again, with its text, when the
node opens for itself.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from raftlog.errors import StorageError

PROBE_TIMEOUT_S = 30.0
"""Far above what a replay of the largest WAL takes on a loaded machine."""

_CHILD = """
import os, sys
sys.path.append(sys.argv[2])
from rocksdict import AccessType, DBRecoveryMode, Options, Rdict
options = Options(raw_mode=True)
options.create_if_missing(False)
options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
try:
    Rdict(sys.argv[1], options, None, AccessType.read_only(False))
except Exception:
    pass
os._exit(0)
"""


def probe_open(rocks: Path, timeout_s: float = PROBE_TIMEOUT_S) -> None:
    """Return once a child has opened ``rocks``.

    Raises StorageError if it did not within ``timeout_s``, or died.
    """
    spec = importlib.util.find_spec("rocksdict")
    if spec is None or spec.origin is None:
        raise StorageError("rocksdict is not installed")
    packages = str(Path(spec.origin).parent.parent)
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CHILD, str(rocks), packages],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise StorageError(
            f"the log in {rocks} could not be opened within {timeout_s:g} s: it is damaged, or the"
            " disk does not answer"
        ) from None
    if child.returncode:
        raise StorageError(
            f"the log in {rocks} can't be opened: the process that tried ended with"
            f" {child.returncode}"
        )
