"""``scripts/setup`` goes on with a virtual environment that uv has made, where there is no uv."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "setup.py"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for an environment that has no pip: that is how uv makes them."""
    spec = importlib.util.spec_from_file_location("setup_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / "venv")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True
    )
    assert not module.imports(module.python(), "pip")
    return module


def test_pip_is_brought_where_uv_left_it_out(setup: ModuleType) -> None:
    if not setup.imports(setup.python(), "ensurepip"):  # Debian packages it by itself.
        with pytest.raises(setup.SetupError, match="python3-venv"):
            setup.bring_pip()
        return
    setup.bring_pip()
    assert setup.imports(setup.python(), "pip")
    before = {path: path.stat().st_mtime_ns for path in (setup.VENV / "bin").iterdir()}
    setup.bring_pip()
    assert before == {path: path.stat().st_mtime_ns for path in (setup.VENV / "bin").iterdir()}


def test_setup_without_uv_ensures_pip_first(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    monkeypatch.setattr(setup, "require_module", lambda interpreter, *modules: None)
    monkeypatch.setattr(setup, "run", lambda command, failure: ran.append(list(command)))
    setup.set_up(["server"])
    assert ran[0][1:] == ["-m", "ensurepip"]
    assert ran[1][1:3] == ["-m", "pip"]
