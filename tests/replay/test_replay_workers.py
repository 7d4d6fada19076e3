"""What a task's function does for its worker, before it looks at a row."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest

from replay.changes import _record_changes
from replay.fold import _folder
from replay.points import _sharer

Task = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@pytest.fixture
def _nothing_set_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_nothing_set_aside")
@pytest.mark.parametrize(
    "task",
    [_record_changes, _folder(with_entities=False), _sharer([])],
)
def test_what_is_loaded_is_in_no_later_collection(task: Task) -> None:
    assert gc.get_freeze_count() == 0
    list(task(iter(())))
    first = gc.get_freeze_count()
    assert first > 0
    kept: list[dict[int, int]] = [{} for _ in range(1000)]
    list(task(iter(())))
    assert gc.get_freeze_count() <= first, "a later task's rows were set aside, too"
    assert len(kept) == 1000
