import re
import subprocess
from importlib.metadata import version
from pathlib import Path

from raftlog.process import build_text, commit_of_checkout


def test_build_is_its_version_and_the_commit_of_its_checkout(tmp_path: Path) -> None:
    assert build_text().startswith(version("raftlog"))
    assert commit_of_checkout(tmp_path) == ""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True, capture_output=True)
    commit = commit_of_checkout(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{12,}", commit)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], cwd=tmp_path, check=True)
    assert commit_of_checkout(tmp_path) == commit + "+"


def test_commit_of_a_repository_around_an_installation_is_ignored(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (inside := tmp_path / "site-packages").mkdir()
    assert commit_of_checkout(inside) == ""
