"""A link whose other end is the test."""

from typing import Any

from raftlog.identity import ANONYMOUS, PeerIdentity


class FakeLink:
    """Keeps what is sent, unless ``error`` is to be raised. Nothing else is expected of it."""

    identity: PeerIdentity = ANONYMOUS
    peer = "test"
    listener = ""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.error: Exception | None = None

    def send(self, message: Any) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(message)

    def close(self, reason: str = "") -> None:
        raise NotImplementedError

    def unknown_kind(self, what: str) -> None:
        raise NotImplementedError

    malformed = forbidden = throttled = unknown_kind
