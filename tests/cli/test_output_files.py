"""Files that commands write: whole, or not at all."""

from __future__ import annotations

import errno
import tarfile
from pathlib import Path

import pytest

from raftlog.cli.exits import Exit, exit_code
from raftlog.errors import ConfigError
from raftlog.local.cluster import LocalCluster
from raftlog.ops.bundle import write_bundle


def test_a_bundle_that_finds_no_space_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    path = tmp_path / "bundle.tar.gz"
    with pytest.raises(ConfigError, match="can't write") as raised:
        write_bundle(path, {"doctor.json": b"{}"}, 0)
    assert exit_code(raised.value) is Exit.DISK
    assert not path.exists()


def test_a_bundle_of_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    path.write_bytes(b"of before")
    with pytest.raises(ConfigError, match="is there already"):
        write_bundle(path, {}, 0)
    assert path.read_bytes() == b"of before"


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"can't make .*file/cluster: Not a directory"):
        LocalCluster(tmp_path / "file" / "cluster").generate()
