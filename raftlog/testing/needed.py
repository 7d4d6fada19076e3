"""Names the extra that is missing, in place of a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_testing_extra() -> Iterator[None]:
    """Raise ModuleNotFoundError with the way to what is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "raftlog":
            raise
        raise ModuleNotFoundError(
            f"raftlog.testing needs {error.name}: pip install 'raftlog[testing]'", name=error.name
        ) from None
