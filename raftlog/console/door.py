"""Who may see what the console shows."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raftlog.errors import ConfigError
from raftlog.key_file import exposed

MIN_TOKEN_CHARS = 16
_BEARER = "Bearer "


@dataclass(frozen=True, slots=True)
class Refused:
    """``status``: of HTTP; ``reason``: for the person at the page."""

    status: int
    reason: str


class Door:
    """``secured``: the node asks its clients who they are, so the console asks, too. ``token``:
    empty, none is configured.
    """

    def __init__(self, *, secured: bool, token: str = "") -> None:
        self._secured, self._token = secured, token.encode()

    def refusal(self, headers: Mapping[str, str]) -> Refused | None:
        """Why this request sees nothing; None: it may see all. The names are lower case."""
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Refused(403, "the console answers its own page only")
        if not self._token:
            if self._secured:
                return Refused(
                    403,
                    "this node is secured: its console needs http.console.token.file in the"
                    " configuration",
                )
            return None
        given = headers.get("authorization", "")
        shown = given[len(_BEARER) :] if given.startswith(_BEARER) else ""
        if not hmac.compare_digest(shown.encode(), self._token):
            return Refused(401, "the token is wrong" if shown else "a token is needed")
        return None


def read_token(path: Path) -> str:
    """The token in a file. Raises ConfigError for a file that others may read, for none, and for a
    token that can be guessed.
    """
    try:
        if exposed(path):
            raise ConfigError(
                f"http.console.token.file: others than its owner have access to {path}: chmod 600"
            )
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise ConfigError(f"http.console.token.file: {path}: {reason}") from error
    if len(token) < MIN_TOKEN_CHARS or not token.isprintable() or " " in token:
        raise ConfigError(
            f"http.console.token.file: {path}: one word of at least {MIN_TOKEN_CHARS} characters"
            " is needed"
        )
    return token
