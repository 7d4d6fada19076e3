"""Preparation of a Python worker of Spark."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from replay.engine.pool import prepare_worker


@pytest.fixture
def _nothing_set_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_nothing_set_aside")
def test_prepared_worker_keeps_what_is_loaded_out_of_collections() -> None:
    assert gc.get_freeze_count() == 0
    prepare_worker()
    first = gc.get_freeze_count()
    assert first > 0
    kept: list[dict[int, int]] = [{} for _ in range(1000)]
    prepare_worker()
    assert gc.get_freeze_count() <= first, "a later task's rows were set aside, too"
    assert len(kept) == 1000
