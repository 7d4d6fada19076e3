"""Which build this is: the version, and the commit it was built from where that is known."""

from __future__ import annotations

from pathlib import Path

COMMIT_FILE = "COMMIT"
"""Beside this module in a wheel that was built from a checkout: see hatch_build.py."""
_PACKAGE = Path(__file__).resolve().parent


def version_text() -> str:
    """``0.1.0``."""
    from importlib.metadata import PackageNotFoundError, version  # 20 ms, which others save.

    try:
        return version("raftlog")
    except PackageNotFoundError:
        return "unknown version"


def build_text() -> str:
    """For people: ``0.1.0 (commit 58f7ecc1d2e3)``, or the version alone."""
    number = version_text()
    commit = commit_text()
    return f"{number} (commit {commit})" if commit else number


def commit_text() -> str:
    """The commit's hash, shortened, with "+" if files differ from it; empty if this was not built
    from a checkout.
    """
    try:
        return (_PACKAGE / COMMIT_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return commit_of_checkout(_PACKAGE.parent)


def commit_of_checkout(root: Path) -> str:
    """The same of a git checkout; empty if ``root`` is none, or git is not there.

    Never of a repository around it.
    """
    if not (root / ".git").exists():
        return ""
    import subprocess

    # As --dirty does, refresh nothing on disk: others may work in the checkout.
    command = [
        "git",
        "--no-optional-locks",
        "describe",
        "--always",
        "--abbrev=12",
        "--exclude=*",
        "--dirty=+",
    ]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
