"""What Python workers of Spark do before their first task."""

from __future__ import annotations

import gc


def set_aside_what_is_loaded() -> None:
    """Keep what this worker has imported out of its garbage collections.

    Spark uses a worker for many tasks, with a full collection after each. That would take 50 ms to
    look through modules, of which nothing is ever freed: more than most tasks take.
    """
    if not gc.get_freeze_count():
        gc.freeze()
