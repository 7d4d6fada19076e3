"""Tests that are coroutines and run in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from simulation.twins.loop import run

P = ParamSpec("P")


def simulated(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an ``async def test_…`` on a simulated loop of its own, not on asyncio's, as others are
    run by pytest-asyncio.
    """

    @wraps(test)
    def to_its_end(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return to_its_end
