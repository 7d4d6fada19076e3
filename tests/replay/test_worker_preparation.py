"""Preparation of worker processes: the C library's memory, and Python's garbage collection."""

import gc
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from replay.engine.pool import prepare_worker

_ARRAYS, _ROUNDS, _PAGES = 20, 40, 256
_CHILD = f"""
import resource
import numpy as np
{{begin}}
def use():
    return [np.ones({_PAGES} * 4096 // 8) for _ in range({_ARRAYS})]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({_ROUNDS}):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(begin: str) -> int:
    code = _CHILD.format(begin=begin)
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env={})
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's alone")
def test_freed_memory_is_kept_for_the_next_array() -> None:
    all_pages = _ARRAYS * _ROUNDS * _PAGES
    if _faults("") < all_pages / 2:
        pytest.skip("this kernel gives memory in large pages")
    assert _faults("from replay.engine.pool import keep_heap; keep_heap()") < all_pages / 20


@pytest.fixture
def _nothing_set_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_nothing_set_aside")
def test_prepared_worker_excludes_loaded_modules_from_collections() -> None:
    assert gc.get_freeze_count() == 0
    prepare_worker()
    first = gc.get_freeze_count()
    assert first > 0
    kept: list[dict[int, int]] = [{} for _ in range(1000)]
    prepare_worker()
    assert gc.get_freeze_count() <= first, "a later task's rows were set aside, too"
    assert len(kept) == 1000
