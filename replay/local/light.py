"""Lets pyarrow begin without pandas."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa

_PANDAS = "pandas"


class _Hidden(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _PANDAS:
            raise ModuleNotFoundError(f"{name} is not looked for", name=name)
        return None


def spare_pandas() -> None:
    """Keep pyarrow from importing pandas, in a process of our own: with its first array it does so
    where pandas is installed, which takes half a second. Nothing without Spark needs it; an
    explicit import still works.
    """
    if _PANDAS in sys.modules:
        return
    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        # pyarrow looks once, and remembers what it found.
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
