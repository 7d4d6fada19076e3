"""Directories that are made are there after a power cut; tests/power_loss cuts the power, here is
what it cannot set up.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog import files as durable


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which directories were synced; those named ``unreadable`` can't be."""
    done: list[Path] = []

    def sync(directory: Path) -> None:
        if directory.name == "unreadable":
            raise PermissionError(directory)
        done.append(directory)

    monkeypatch.setattr(durable, "fsync_directory", sync)
    return done


def test_all_names_above_are_synced_whoever_made_them(tmp_path: Path, synced: list[Path]) -> None:
    for _ in ("made", "there already, perhaps by a process that was killed"):
        synced.clear()
        durable.make_directories(tmp_path / "a" / "b")
        assert synced[:2] == [tmp_path / "a", tmp_path]
        assert tmp_path.parent in synced


def test_what_may_not_be_read_is_passed_over_unless_something_was_made_in_it(
    tmp_path: Path, synced: list[Path]
) -> None:
    (tmp_path / "unreadable" / "there").mkdir(parents=True)
    durable.make_directories(tmp_path / "unreadable" / "there" / "a")
    assert synced[:2] == [tmp_path / "unreadable" / "there", tmp_path]
    with pytest.raises(PermissionError):
        durable.make_directories(tmp_path / "unreadable" / "a")


def test_a_relative_path_and_a_link_lead_to_the_same_names(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    monkeypatch.chdir(tmp_path)
    durable.make_directories(Path("link/a"))
    assert synced[:2] == [tmp_path / "disk", tmp_path]
