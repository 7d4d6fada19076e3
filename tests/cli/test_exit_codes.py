"""Which error ends a command with which code."""

from __future__ import annotations

import errno
import os

import pytest

from raftlog.cli.exits import DESCRIPTORS_REMEDY, DISK_REMEDY, Exit, FailedError, exit_code
from raftlog.cli.main import main
from raftlog.cli.nodes import remedy
from raftlog.errors import ApiError, ConfigError, CorruptLogError, ErrorCode, StorageError
from raftlog.segments.errors import CorruptExportError, ExportError


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, "x"), Exit.REFUSED),
        (ApiError(ErrorCode.REQUEST_TIMED_OUT, "x"), Exit.UNREACHABLE),
        (ApiError(ErrorCode.NOT_CONTROLLER, "x"), Exit.UNREACHABLE),
        (ApiError(ErrorCode.REQUEST_TIMED_OUT, "x", outcome_unknown=True), Exit.UNKNOWN),
        (ApiError(ErrorCode.NETWORK_EXCEPTION, "x", outcome_unknown=True), Exit.UNKNOWN),
        (ConfigError("x"), Exit.USAGE),
        (CorruptLogError("x", offset=3), Exit.FOUND),
        (CorruptExportError("x", file="f"), Exit.FOUND),
        (ExportError("x"), Exit.REFUSED),
        (StorageError("x"), Exit.DISK),
        (StorageError("IO error: LOCK: Too many open files"), Exit.REFUSED),
        (caused(ExportError("x"), OSError(errno.ENOSPC, "full")), Exit.DISK),
        (caused(ConfigError("x"), OSError(errno.ENOENT, "none")), Exit.USAGE),
        (TimeoutError(), Exit.UNREACHABLE),
        (FailedError("x", Exit.FOUND), Exit.FOUND),
    ],
    ids=lambda value: str(value) if isinstance(value, Exit) else type(value).__name__,
)
def test_exit_code(error: Exception, code: Exit) -> None:
    assert exit_code(error) is code


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_disk_error_that_nobody_has_named_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/data/x")

    monkeypatch.setattr("raftlog.cli.main.build_for", lambda _: fail)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code is Exit.DISK
    said = capsys.readouterr().err
    assert (
        said
        == f"raftlog: the disk failed: can't use /data/x: {os.strerror(number)}; {DISK_REMEDY}\n"
    )


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/data/x"),
        StorageError(f"can't open /data/x: {os.strerror(errno.ENFILE)}"),
    ],
)
def test_lack_of_descriptors_is_told_with_its_own_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("raftlog.cli.main.build_for", lambda _: fail)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code is Exit.REFUSED
    said = capsys.readouterr().err
    assert said.startswith("raftlog: can't open /data/x: Too many open files")
    assert said.endswith(f"; {DESCRIPTORS_REMEDY}\n")
    assert remedy(error, "broker") == {"remedy": DESCRIPTORS_REMEDY}


def test_other_errors_of_the_system_are_defects(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EPIPE + 1000, "x")

    monkeypatch.setattr("raftlog.cli.main.build_for", lambda _: fail)
    with pytest.raises(OSError, match="x"):
        main([])
