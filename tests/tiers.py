"""Selection of the cases of a parametrized test that run in the gate."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def nightly(case: Any) -> Any:
    """Return a case that the gate omits."""
    return pytest.param(case, marks=pytest.mark.nightly)


def in_gate(cases: Iterable[Any], gate: Container[Any]) -> list[Any]:
    """Return all cases; those that are not in ``gate`` are omitted from the gate."""
    return [case if case in gate else nightly(case) for case in cases]
