"""The position of a job that follows an export: one small file, written last.

Needs no Spark to be read.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from replay.errors import ReplayError

DONE = "done.json"


class Done(msgspec.Struct, frozen=True):
    """Position of a job.

    ``batch`` -1: nothing yet. ``end_offset`` is exclusive; ``alerts``: how many there are in all.
    """

    job: str
    batch: int = -1
    end_offset: int = 0
    alerts: int = 0


def read_done(directory: Path) -> Done | None:
    """Read the position in a job's directory; None: the job has not begun.

    Raises ReplayError if the file is damaged, OSError.
    """
    path = directory / DONE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Done)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ReplayError(f"{path} is damaged: {error}. Begin another directory") from error
