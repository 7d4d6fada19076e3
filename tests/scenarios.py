"""Decorators for tests that are coroutines: each selects the loop and the world of its test."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

import pytest

from raftlog.errors import ApiError
from simulation.twins.loop import run

P = ParamSpec("P")


def simulated(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an ``async def test_…`` on its own simulated loop instead of asyncio's."""

    @wraps(test)
    def to_its_end(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return to_its_end


def scenario(
    runner: Callable[..., Any] | str, *arguments: Any, **options: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an ``async def test_…`` by ``runner(test, *arguments, **options)``. The runner passes the
    positional parameters of the test: its world. Those after ``*`` are pytest's. A runner that is a
    fixture is given by name.
    """

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        given = [
            one
            for one in inspect.signature(test).parameters.values()
            if one.kind is one.KEYWORD_ONLY
        ]
        if isinstance(runner, str):
            given.append(inspect.Parameter(runner, inspect.Parameter.KEYWORD_ONLY))

        @wraps(test)
        def to_its_end(**fixtures: Any) -> None:
            run_by = fixtures.pop(runner) if isinstance(runner, str) else runner

            async def with_fixtures(*world: Any) -> None:
                await test(*world, **fixtures)

            run_by(with_fixtures, *arguments, **options)

        to_its_end.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
        return to_its_end

    return decorate


async def failure(call: Awaitable[object]) -> ApiError:
    """Return the error with which a call ends."""
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value
