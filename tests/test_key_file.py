"""Which permissions the file of a private key may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.files import exposed, forbidden


@pytest.mark.parametrize(
    ("owner", "us", "mode", "allowed"),
    [
        (1000, 1000, 0o600, True),
        (1000, 1000, 0o640, False),
        (1000, 1000, 0o604, False),
        (0, 0, 0o640, False),
        # A secret that an orchestrator mounts: of root, for the group of the process.
        (0, 10001, 0o440, True),
        (0, 10001, 0o640, True),
        (0, 10001, 0o660, False),
        (0, 10001, 0o644, False),
        # Somebody else's file is no orchestrator's.
        (1000, 10001, 0o640, False),
    ],
)
def test_who_may_read_a_key(owner: int, us: int, mode: int, allowed: bool) -> None:
    assert (mode & forbidden(owner, us) == 0) is allowed


def test_a_file_is_looked_at(tmp_path: Path) -> None:
    key = tmp_path / "a key"
    key.touch(mode=0o600)
    assert exposed(key) == ""
    key.chmod(0o604)
    assert f"chmod 600 '{key}'" in exposed(key)
