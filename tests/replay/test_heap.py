"""What the C library does with free memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    return int(subprocess.run([sys.executable, "-c", code], stdout=-1, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's alone")
def test_free_memory_is_there_for_the_next_array() -> None:
    all_pages = _ARRAYS * _ROUNDS * _PAGES
    assert _faults("") > all_pages / 2, "what it is needed for"
    assert _faults("from replay.heap import keep_heap; keep_heap()") < all_pages / 20
