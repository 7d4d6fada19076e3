"""A real browser, driven through its debugging pipe (JSON messages ended by a zero byte)."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser import find_browser

PATIENCE_S = 30


class Page:
    """One tab."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._buffer, self._number, self._session = b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command; return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                data = os.read(self._answers, 1 << 16)
                assert data, "the browser has ended"
                self._buffer += data
            text, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the page's viewport."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; the result if it is a promise."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until the expression is true."""
        end = time.monotonic() + PATIENCE_S
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.value("document.body.innerText"))
            time.sleep(0.05)


@contextmanager
def browsing(directory: Path) -> Iterator[Page]:
    """A browser with its own profile, and one page."""
    program = find_browser()
    assert program is not None
    from_us, to_us = os.pipe(), os.pipe()

    def pipes() -> None:
        # The browser reads 3 and writes 4, and neither may be overwritten by the other.
        reads, writes = os.dup(from_us[0]), os.dup(to_us[1])
        while reads in (3, 4):
            reads = os.dup(reads)
        while writes in (3, 4):
            writes = os.dup(writes)
        os.dup2(reads, 3)
        os.dup2(writes, 4)

    process = subprocess.Popen(
        [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--no-proxy-server",
            "--remote-debugging-pipe",
            f"--user-data-dir={directory}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=pipes,  # noqa: PLW1509
        close_fds=False,
        start_new_session=True,
    )
    os.close(from_us[0])
    os.close(to_us[1])
    try:
        yield Page(from_us[1], to_us[0])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(from_us[1])
        os.close(to_us[0])
