"""Compilation of the codec."""

import importlib.util
import sys
from pathlib import Path

import pytest

from raftlog.config_writes import compiling, records


@pytest.mark.skipif(not compiling.compiler(), reason="no C compiler here")
def test_compiled_codec_can_be_loaded(tmp_path: Path) -> None:
    out = tmp_path / compiling.target().name
    failure = compiling.compile_codec(out)
    if failure == "no Python headers":
        pytest.skip(failure)
    assert not failure
    spec = importlib.util.spec_from_file_location("_native", out)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert records.VERSION == module.VERSION
    assert module.grouped(b"", 1, 1) == []
    assert list(tmp_path.iterdir()) == [out], "nothing else is left"


def test_failing_compiler_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compiling, "compiler", lambda: [sys.executable, "-c", "raise SystemExit(1)"]
    )
    assert compiling.compile_codec(tmp_path / "out.so")
    assert not list(tmp_path.iterdir())


def test_unsuitable_headers_disable_hints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_at_first = (
        "import pathlib, sys;"
        "'-DNO_WARM' in sys.argv or sys.exit(1);"
        "pathlib.Path(sys.argv[sys.argv.index('-o') + 1]).write_text('made')"
    )
    monkeypatch.setattr(compiling, "compiler", lambda: [sys.executable, "-c", fails_at_first])
    failure = compiling.compile_codec(tmp_path / "out.so")
    if failure == "no Python headers":
        pytest.skip(failure)
    assert not failure
    assert (tmp_path / "out.so").read_text() == "made"


def test_missing_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compiler", list)
    assert compiling.compile_codec(tmp_path / "out.so") == "no C compiler"
