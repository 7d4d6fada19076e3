"""A rule between configuration keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raftlog.node.config.settings import Settings

Check = Callable[[Settings], "str | None"]


class Rule(NamedTuple):
    """A rule between keys.

    ``check`` returns the fault, or None. ``fields``: the fields that it reads; the message names
    the first one.
    """

    fields: tuple[str, ...]
    check: Check
