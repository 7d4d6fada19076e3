"""Why brokers were fenced or not, by the causes of :mod:`raftlog.metadata.causes`, never by
words.
"""

from __future__ import annotations

from raftlog.metadata.causes import OLD_TEXTS


def cause_named(said: str | None, reason: str | None) -> str | None:
    """The cause's name: the one that the record says, else that of its text in the table of the old
    ones; None of another text.
    """
    if said is not None:
        return said
    return OLD_TEXTS[reason].name if reason in OLD_TEXTS else None
