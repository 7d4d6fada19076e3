"""Where the power is cut, and who starts then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from examination import Starter
from power_kit import scratch_directory


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with scratch_directory(tmp_path_factory.getbasetemp()) as directory:
        yield directory


@pytest.fixture(scope="module")
def starter(scratch: Path) -> Iterator[Starter]:
    starter = Starter(scratch)
    yield starter
    starter.close()
