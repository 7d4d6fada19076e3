"""The error for a missing extra, which names the extra instead of the module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_testing_extra() -> Iterator[None]:
    """Raise ModuleNotFoundError with the extra to install if a module is missing in the block."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "raftlog":
            raise
        raise ModuleNotFoundError(
            f"raftlog.testing needs {error.name}: pip install 'raftlog[testing]'", name=error.name
        ) from None
