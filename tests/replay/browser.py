"""A headless browser, if installed."""

import os
import shutil
from pathlib import Path

from command_runs import run_text

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=30000",
)  # fmt: skip
_TIMEOUT_S = 120


def find_browser() -> str | None:
    """Return the browser named by the variable RAFTLOG_BROWSER, or one on PATH."""
    named = os.environ.get("RAFTLOG_BROWSER")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """Each call starts the browser with an empty profile."""

    def __init__(self, executable: str, home: Path) -> None:
        self._executable, self._home, self._started = executable, home, 0

    def dom(self, url: str, *, width: int = 1280) -> str:
        """Return the document after its scripts have run, as HTML."""
        return self._run(url, "--dump-dom", f"--window-size={width},1000")

    def screenshot(
        self, url: str, path: Path, *, width: int, height: int, dark: bool = False
    ) -> None:
        """Write a PNG file of the top of the page."""
        scheme = f"--blink-settings=preferredColorScheme={int(not dark)}"
        self._run(url, f"--screenshot={path}", f"--window-size={width},{height}", scheme)

    def _run(self, url: str, *options: str) -> str:
        self._started += 1
        profile = self._home / f"profile-{self._started}"
        words = [self._executable, *_QUIET, f"--user-data-dir={profile}", *options, url]
        return run_text(words, timeout=_TIMEOUT_S, check=True).stdout
