"""A raw TCP connect: whether a process listens there.

REFUSED is the evidence of death that lets an election start at once.

Why: docs/decisions/002-elections-by-proof-of-death.md
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any

from raftlog.errors import ConfigError
from raftlog.transport.api import Probe


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port``. Raises ConfigError."""
    host, separator, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"address {address!r}: want host:port")
    return host, int(port)


async def probe(address: str, timeout_s: float) -> Probe:
    """Try each address of the host.

    ACCEPTED if one accepts; REFUSED only if every one of them refuses.

    A name like localhost has two addresses, and one refusing says nothing about the other; anything
    but a refusal, such as no route or no answer in time, is SILENT: the process may well be alive.
    """
    host, port = split_address(address)
    found: list[Probe] = []
    try:
        async with asyncio.timeout(timeout_s):
            for family, sockaddr in await _resolve(host, port):
                found.append(await _connect(family, sockaddr))
                if found[-1] is Probe.ACCEPTED:
                    return Probe.ACCEPTED
    except OSError:  # TimeoutError and a failed name lookup are among them.
        return Probe.SILENT
    return Probe.REFUSED if found and all(one is Probe.REFUSED for one in found) else Probe.SILENT


async def host_failure(address: str, timeout_s: float) -> str:
    """Return why the host of an address is not known; empty if it is."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(timeout_s):
            await _resolve(host, port)
    except OSError as error:
        why = error.strerror or f"no name server has answered within {timeout_s:g} s"
        return f"the host name {host} does not resolve: {why}"
    return ""


async def _resolve(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    try:
        # No thread for a numeric address.
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        infos = await _lookup(host, port)
    return [(info[0], info[4]) for info in infos]


def _lookup(host: str, port: int) -> asyncio.Future[list[Any]]:
    """Ask for the addresses of a name, in a thread that the end of the process does not wait for:
    a name server may be silent.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[Any]] = loop.create_future()

    def settle(infos: list[Any], error: OSError | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(infos)
            else:
                future.set_exception(error)

    def look() -> None:
        infos: list[Any] = []
        failure: OSError | None = None
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = error
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, infos, failure)

    threading.Thread(target=look, name="raftlog-lookup", daemon=True).start()
    return future


async def _connect(family: int, sockaddr: tuple[object, ...]) -> Probe:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, sockaddr)
        except ConnectionRefusedError:
            return Probe.REFUSED
        except TimeoutError:
            raise
        except OSError:
            return Probe.SILENT
    return Probe.ACCEPTED
