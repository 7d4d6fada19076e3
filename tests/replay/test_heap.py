"""What the C library does with free memory."""

from __future__ import annotations

import platform
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
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env={})
    return int(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's alone")
def test_free_memory_is_there_for_the_next_array() -> None:
    all_pages = _ARRAYS * _ROUNDS * _PAGES
    if _faults("") < all_pages / 2:
        pytest.skip("this kernel gives memory in large pages")
    assert _faults("from replay.engine.pool import keep_heap; keep_heap()") < all_pages / 20
