import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raftlog.files import RotatedFile, backup_of, exposed, forbidden


def failing(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let a function of ``os`` fail for this path; return what ends that."""
    works = getattr(os, name)

    def fails(first: Any, *more: Any) -> Any:
        if first == path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return works(first, *more)

    monkeypatch.setattr(os, name, fails)
    return lambda: monkeypatch.setattr(os, name, works)


@pytest.mark.parametrize("name", ["replace", "open"])
def test_failed_rotation_loses_neither_lines_nor_backups(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    for number in (1, 2):
        backup_of(path, number).write_text(f"backup {number}")
    file, written = RotatedFile(path, max_bytes=8, max_backups=3), [0]
    file.append([b"line 0\n"], [0])
    mend = failing(name, path, monkeypatch)
    for number in range(1, 4):
        file.append([b"line %d\n" % number], [0])
    file.append([b"line 4\n", b"line 5\n"], written)
    assert (written, file.rotation_failure) == ([2], "Too many open files")
    mend()
    file.append([b"line 6\n"], [0])
    file.close()
    assert file.rotation_failure == ""
    assert path.read_text() == "line 6\n"
    assert backup_of(path, 1).read_text() == "".join(f"line {number}\n" for number in range(6))
    assert [backup_of(path, one).read_text() for one in (2, 3)] == ["backup 1", "backup 2"]


def test_file_readable_by_others_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("")
    path.chmod(0o644)
    RotatedFile(path, max_bytes=8, max_backups=0).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    elsewhere.chmod(0o644)
    path.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic links"):
        RotatedFile(path, max_bytes=8, max_backups=0)
    assert elsewhere.read_text() == "precious"
    assert elsewhere.stat().st_mode & 0o777 == 0o644


def test_link_that_appears_before_a_rotation_is_not_followed(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    file = RotatedFile(path, max_bytes=8, max_backups=1)
    file.append([b"line 0\n"], [0])
    os.rename(path, tmp_path / "away")
    path.symlink_to(elsewhere)
    file.append([b"line 1\n", b"line 2\n"], [0])
    file.close()
    assert elsewhere.read_text() == "precious"


def test_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(OSError, match="No such device"):
        RotatedFile(tmp_path / "log", max_bytes=8, max_backups=0)
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="not a regular file"):
        RotatedFile(tmp_path / "log", max_bytes=8, max_backups=0)
    os.close(reader)


@pytest.mark.parametrize("leave", ["moved", "removed", "replaced"])
def test_file_taken_away_by_others_is_recreated(tmp_path: Path, leave: str) -> None:
    """As logrotate does: the renamed file is compressed and removed later."""
    path = tmp_path / "log"
    file = RotatedFile(path, max_bytes=20, max_backups=1)
    file.append([b"line 0\n"], [0])
    if leave == "removed":
        path.unlink()
    else:
        path.rename(tmp_path / "elsewhere")
    if leave == "replaced":
        path.write_text("theirs\n")
    file.append([b"line 1\n"], [0])
    file.append([b"line 2\n"], [0])
    file.close()
    begin = "theirs\n" if leave == "replaced" else ""
    rest = backup_of(path, 1)
    assert (rest.read_text() if rest.exists() else "") + path.read_text() == (
        f"{begin}line 1\nline 2\n"
    )
    assert path.stat().st_mode & 0o777 == 0o600
    if leave != "removed":
        assert (tmp_path / "elsewhere").read_text() == "line 0\n"


def test_writing_continues_while_the_directory_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "log"
    path.parent.mkdir()
    file = RotatedFile(path, max_bytes=100, max_backups=1)
    path.parent.rename(tmp_path / "away")
    file.append([b"line 0\n"], [0])
    (tmp_path / "away").rename(path.parent)
    file.append([b"line 1\n"], [0])
    file.close()
    assert path.read_text() == "line 0\nline 1\n"


# --- Which permissions the file of a private key may have ----------------------------------------


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
        # Somebody else's file is not an orchestrator's.
        (1000, 10001, 0o640, False),
    ],
)
def test_key_file_mode_depends_on_its_owner(owner: int, us: int, mode: int, allowed: bool) -> None:
    assert (mode & forbidden(owner, us) == 0) is allowed


def test_file_mode_and_owner_are_checked(tmp_path: Path) -> None:
    key = tmp_path / "a key"
    key.touch(mode=0o600)
    assert exposed(key) == ""
    key.chmod(0o604)
    assert f"chmod 600 '{key}'" in exposed(key)
