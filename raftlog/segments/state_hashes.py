"""What nodes have said of the state, as the manifest keeps it: bounded, and never about offsets
that are not there.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.segments.manifest import Manifest, StateHash

MAX_OFFSETS = 512
"""About so many offsets the manifest keeps what was said.

With more, every second one of the older half goes.
"""


def merged(
    known: tuple[StateHash, ...], said: Iterable[StateHash], manifest: Manifest
) -> tuple[StateHash, ...]:
    """What is known and what was said of offsets in ``manifest``, each once, by offset.

    Statements that contradict each other are both kept: to find that out is what they are for.
    """
    inside = (one for one in said if manifest.history_begin <= one.offset < manifest.end_offset)
    everything = sorted({*known, *inside})
    offsets = sorted({one.offset for one in everything})
    if len(offsets) <= MAX_OFFSETS:
        return tuple(everything)
    kept = {*offsets[: MAX_OFFSETS // 2 : 2], *offsets[MAX_OFFSETS // 2 :]}
    return tuple(one for one in everything if one.offset in kept)
