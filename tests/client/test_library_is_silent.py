"""A program that uses the client library sees nothing on its stdout and stderr unless it asks for
logs.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, random, socket, sys
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.controller.v1 import controller_pb2 as pb

SETUP

async def main():
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    transport = GrpcTransport()
    client = ControllerClient(transport, [f"127.0.0.1:{closed.getsockname()[1]}"], rng=random.Random(0))
    try:
        await client.call(pb.DescribeBrokersRequest(), timeout_s=0.5)
    except ApiError as error:
        assert error.code.name in ("REQUEST_TIMED_OUT", "NETWORK_EXCEPTION"), error
    else:
        raise AssertionError("answered by nobody")
    from raftlog.transport import links
    links.log.info("planted info", peer="x")
    links.log.warning("planted warning", peer="x")
    try:
        raise ValueError("planted cause")
    except ValueError:
        links.log.exception("planted exception")
    client.close()
    await transport.close()

asyncio.run(main())
"""


def run(setup: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("SETUP", setup)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_nothing_is_printed_by_default() -> None:
    assert run("") == ("", "")


@pytest.mark.parametrize(
    ("setup", "stream"),
    [
        ("import logging; logging.basicConfig(level=logging.INFO)", 1),
        (
            "from raftlog.node.observability.logs import setup_logging; setup_logging('info', 'json')",
            1,
        ),
        ("import structlog; structlog.configure()", 0),
    ],
    ids=["logging", "a node", "structlog"],
)
def test_logs_are_there_when_asked_for(setup: str, stream: int) -> None:
    printed = run(setup)[stream]
    for text in (
        "planted info",
        "planted warning",
        "planted exception",
        "ValueError: planted cause",
    ):
        assert text in printed
