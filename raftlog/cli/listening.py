"""Whether anybody listens where a command is to ask: if not, it says so at once.

A client library goes on trying until its deadline, as servers restart; a person who has mistyped a
port does not want to wait for that.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

from raftlog.endpoint import parse_endpoint
from raftlog.errors import ApiError, ErrorCode

PATIENCE_S = 0.1
"""A refusal of a host that is there comes sooner; a slow name server is not waited for."""


def require_listener(addresses: Sequence[str]) -> None:
    """Raises ApiError (NETWORK_EXCEPTION) if every address refuses connections.

    Returns at the first that does not, or when it takes too long to know.
    """
    refused: list[bool] = []

    def look() -> None:
        refused.append(all(_refuses(address) for address in addresses))

    # A daemon: the lookup of a name must not keep the process from ending.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(PATIENCE_S)
    if refused == [True]:
        whom = " and ".join(filter(None, (", ".join(addresses[:-1]), addresses[-1])))
        raise ApiError(
            ErrorCode.NETWORK_EXCEPTION,
            f"nobody listens at {whom} (connection refused); nothing was sent",
        )


def _refuses(address: str) -> bool:
    endpoint = parse_endpoint(address)
    try:
        with socket.create_connection((endpoint.host.strip("[]"), endpoint.port), PATIENCE_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
