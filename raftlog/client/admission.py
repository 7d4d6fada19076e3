"""Whether the servers are there and can be spoken to, found out before the first call.

A call goes on trying until its time is over, as servers restart; a program that begins with a wrong
port or certificate is better told at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raftlog.client.options import Options
from raftlog.endpoint import parse_endpoint
from raftlog.errors import TlsError

if TYPE_CHECKING:
    from raftlog.transport.tls_look import TlsFiles, TlsSeen

LOOK_TIMEOUT_S = 2.0
"""For each step of a handshake."""
LOOK_AGAIN_S = 0.2
"""A server that is about to stop hangs up, as one does that does not take a certificate."""


def require_servers(options: Options) -> None:
    """Raises NetworkError and TlsError if none of the brokers can be spoken to."""
    from raftlog.client.listening import require_listener

    require_listener(options.bootstrap, plaintext=options.tls is None)
    if options.tls is not None:
        _require_tls(options.bootstrap, options.tls.files)


async def require_tls(options: Options) -> None:
    """Raises TlsError if no broker can be spoken to for what its or our certificate is; says
    nothing of brokers that are not there.
    """
    if options.tls is not None:
        await asyncio.to_thread(_require_tls, options.bootstrap, options.tls.files)


def _require_tls(addresses: Sequence[str], files: TlsFiles) -> None:
    from raftlog.transport.tls_look import TlsTrouble

    wrong = _looked_at(addresses, files)
    if any(seen.trouble is TlsTrouble.OWN_REFUSED for seen in wrong.values()):
        time.sleep(LOOK_AGAIN_S)
        wrong = _looked_at(addresses, files)
    if wrong:
        said = "; ".join(f"{address} {seen.text}" for address, seen in wrong.items())
        trouble = next(iter(wrong.values())).trouble
        raise TlsError(trouble.value, f"{said}; nothing was sent")


def _looked_at(addresses: Sequence[str], files: TlsFiles) -> dict[str, TlsSeen]:
    """What is wrong with each address; nothing if one of them is fine, as far as can be seen."""
    from raftlog.transport.tls_look import TlsTrouble, tls_trouble

    wrong: dict[str, TlsSeen] = {}
    for address in addresses:
        seen = tls_trouble(*parse_endpoint(address).socket_address, files, LOOK_TIMEOUT_S)
        if seen.trouble is TlsTrouble.NONE:
            return {}
        wrong[address] = seen
    return wrong
