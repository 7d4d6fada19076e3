"""The fetch of an issuer's keys: one blocking GET, bounded in bytes and time, for a thread."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.error
import urllib.request
from typing import IO, Any

from raftlog.node.security.jwks import JWKS_MAX_BYTES, KeySet

FETCH_MAX_S = 10.0
"""Timeout of a whole fetch, and of each wait for the network within it, in seconds."""
_WAIT_MAX_S = 5.0
_PART_BYTES = 16_384


class FetchError(Exception):
    """The keys could not be fetched, and the reason."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that refuses redirects: the keys are read from the configured URL alone."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Return None: the redirect becomes an HTTPError."""
        return


def fetch_keys(url: str) -> KeySet:
    """Return the keys at an http:// or https:// URL; certificates are checked by the system's
    authorities (``SSL_CERT_FILE`` names others).

    Raises FetchError.
    """
    secure = url.startswith("https://")
    opener = urllib.request.build_opener(
        _NoRedirects(),
        # A proxy of the environment has no business between us and this machine.
        *(() if secure else (urllib.request.ProxyHandler({}),)),
        *((urllib.request.HTTPSHandler(context=ssl.create_default_context()),) if secure else ()),
    )
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    deadline_s = time.monotonic() + FETCH_MAX_S
    try:
        with opener.open(request, timeout=_WAIT_MAX_S) as response:
            return KeySet.parse(_body(response, deadline_s))
    except urllib.error.HTTPError as error:
        raise FetchError(f"the answer is {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise FetchError(f"{error}" or type(error).__name__) from error


def _body(response: Any, deadline_s: float) -> bytes:
    content = bytearray()
    while part := response.read1(_PART_BYTES):
        content += part
        if len(content) > JWKS_MAX_BYTES:
            raise FetchError(f"the answer has more than {JWKS_MAX_BYTES} bytes")
        if time.monotonic() > deadline_s:
            raise FetchError(f"the answer takes longer than {FETCH_MAX_S:g} s")
    return bytes(content)
