from collections.abc import Iterator

import pytest
import structlog

from simulation.cli import silence


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    silence()
    yield
    structlog.reset_defaults()
