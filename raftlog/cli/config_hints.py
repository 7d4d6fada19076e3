"""What the command line says about config keys beyond their validity: which was meant, and which
ones nothing acts on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from raftlog.metadata import config_keys as keys
from raftlog.metadata.config_keys import config_keys, is_acted_on


def did_you_mean(resource_type: int, names: Iterable[str]) -> str:
    """The keys that were probably meant by those that there are not; empty: there is no guess."""
    known = config_keys(resource_type) or {}
    guesses = [
        close[0]
        for name in names
        if name not in known and (close := get_close_matches(name, known, n=1, cutoff=0.6))
    ]
    return f"did you mean {', '.join(guesses)}?" if guesses else ""


def without_effect(resource_type: int, configs: Mapping[str, str]) -> str:
    """What to say of keys that are kept and shown and change nothing; empty: there are none."""
    known = config_keys(resource_type) or {}
    idle = [name for name in configs if name in known and not is_acted_on(resource_type, name)]
    notes = []
    if idle:
        are, it = ("are", "them") if len(idle) > 1 else ("is", "it")
        kept = f"{', '.join(idle)} {are} kept and shown"
        notes.append(f"note: {kept}, but this build does not act on {it}")
    notes += [
        f"note: {name}: nothing is compacted in this build, delete alone drops records"
        for name in sorted(configs)
        if name not in idle and keys.without_effect(resource_type, name, configs[name])
    ]
    return "\n".join(notes)
