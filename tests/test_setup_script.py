import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "setup.py"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run the script for an environment without pip, as uv makes them."""
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


def test_setup_installs_pip_where_uv_omitted_it(setup: ModuleType) -> None:
    if not setup.imports(setup.python(), "ensurepip"):  # Debian packages it by itself.
        with pytest.raises(setup.SetupError, match="python3-venv"):
            setup.bring_pip()
        return
    setup.bring_pip()
    assert setup.imports(setup.python(), "pip")
    before = {path: path.stat().st_mtime_ns for path in (setup.VENV / "bin").iterdir()}
    setup.bring_pip()
    assert before == {path: path.stat().st_mtime_ns for path in (setup.VENV / "bin").iterdir()}


def test_setup_without_uv_installs_pip(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    monkeypatch.setattr(setup, "require_module", lambda interpreter, *modules: None)
    monkeypatch.setattr(setup, "run", lambda command, failure: ran.append(list(command)))
    setup.set_up(["server"])
    assert ran[0][1:] == ["-m", "ensurepip"]
    assert ran[1][1:3] == ["-m", "pip"]
