"""What the commands that read from brokers share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from raftlog.cli.session import run
from raftlog.wire.broker.v1 import broker_pb2


class ReadMode(StrEnum):
    """Which image answers."""

    REPEATABLE = "repeatable"
    LATEST = "latest"
    STRICT = "strict"

    @property
    def wire(self) -> Any:
        """The same on the wire."""
        return broker_pb2.ReadMode.Value(self.name)


ReadModeOption = Annotated[
    ReadMode,
    typer.Option(
        "--read",
        help=(
            "repeatable: what every broker can show; latest: the newest that the broker asked has"
            " applied; strict: linearizable."
        ),
    ),
]


def read(body: Any, mode: ReadMode, bootstrap_server: str, timeout_s: float) -> Any:
    """One read from a broker; the response. Raises ApiError."""

    async def ask(session: Any) -> Any:
        client = session.brokers(bootstrap_server)
        return await client.read(body, mode=mode.wire, timeout_s=timeout_s)

    return run(ask, timeout_s)
