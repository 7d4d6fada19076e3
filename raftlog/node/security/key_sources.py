"""Sources of the issuer's keys: a file that is read again when it changes, or an endpoint that is
queried in a thread, never on the event loop.

Keys stay in use while there are no newer ones: an outage of the endpoint affects no client whose
key is known.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from raftlog.clock import DeadlineTimer
from raftlog.errors import ConfigError
from raftlog.logger import get_logger
from raftlog.node.security.jwks import JWKS_MAX_BYTES, KeySet
from raftlog.node.security.jwks_fetch import FETCH_MAX_S, FetchError
from raftlog.node.security.refresh import RefreshPlan
from raftlog.transport.certificates import Reread

log = get_logger(__name__)


class KeySource(Protocol):
    """A source of keys."""

    def current(self) -> KeySet | None:
        """Return the present keys; None: there have been none yet."""

    async def newer(self) -> None:
        """Wait for newer keys, as a key is unknown, if there may be some soon."""

    def close(self) -> None:
        """Stop the queries. Idempotent."""


class FileKeys:
    """A source that reads a file. Raises ConfigError if the file has no keys at the beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reread = Reread((path,), self._read, what="JWKS")

    def current(self) -> KeySet:
        """Return the keys of the file."""
        return self._reread.current()

    async def newer(self) -> None:
        """Do nothing: the file is checked with every token, once a second at most."""

    def close(self) -> None:
        """Do nothing: the file is not open."""

    def _read(self) -> KeySet:
        try:
            with self._path.open("rb") as file:
                return KeySet.parse(file.read(JWKS_MAX_BYTES + 1))
        except OSError as error:
            raise ConfigError(_wrong(f"{error.strerror}: {self._path}")) from error
        except ValueError as error:
            raise ConfigError(_wrong(f"{self._path} is no JWK set: {error}")) from error


def _wrong(why: str) -> str:
    return f"sasl.oauthbearer.jwks.endpoint.url: {why}"


class EndpointKeys:
    """A source that queries an endpoint. Made on the event loop; ``fetch`` blocks, and raises
    FetchError.
    """

    def __init__(self, url: str, fetch: Callable[[str], KeySet], plan: RefreshPlan) -> None:
        self._loop = asyncio.get_running_loop()
        self._url, self._fetch, self._plan = url, fetch, plan
        self._keys: KeySet | None = None
        self._failure = ""
        self._closed = False
        self._timer = DeadlineTimer(self._loop, self._due)
        self._ended = asyncio.Event()
        """Set at the end of the last begun fetch."""
        self._due()

    def current(self) -> KeySet | None:
        """Return the keys of the last successful fetch."""
        return self._keys

    async def newer(self) -> None:
        """Wait for the fetch in progress, or for a new one; return at once if it is too soon for
        one.
        """
        self._begin(wanted=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(FETCH_MAX_S):
                await self._ended.wait()

    def close(self) -> None:
        """Discard the fetch in progress."""
        self._closed = True
        self._timer.cancel()
        self._ended.set()

    def _due(self) -> None:
        self._begin(wanted=False)
        self._timer.arm(self._plan.due)

    def _begin(self, *, wanted: bool) -> None:
        if self._closed or not self._plan.begin(self._loop.time(), wanted=wanted):
            return
        self._ended.clear()
        # Not of a pool: the process ends without waiting for it.
        threading.Thread(target=self._work, name="raftlog-jwks", daemon=True).start()

    def _work(self) -> None:
        fetched: KeySet | Exception
        try:
            fetched = self._fetch(self._url)
        except Exception as error:
            fetched = error
        # The loop may be gone.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._fetched, fetched)

    def _fetched(self, fetched: KeySet | Exception) -> None:
        if self._closed:
            return
        good = isinstance(fetched, KeySet)
        self._plan.ended(self._loop.time(), good=good)
        if isinstance(fetched, KeySet):
            self._use(fetched)
        else:
            self._failed(fetched)
        self._timer.arm(self._plan.due)
        self._ended.set()

    def _use(self, fetched: KeySet) -> None:
        if self._failure:
            log.info("the keys of the issuer can be fetched again", url=self._url)
            self._failure = ""
        # The same object for the same keys: verdicts that are remembered go with it.
        if fetched != self._keys:
            log.info("keys of the issuer", url=self._url, keys=len(fetched.ids))
            self._keys = fetched

    def _failed(self, error: Exception) -> None:
        why = str(error) if isinstance(error, FetchError) else f"{type(error).__name__}: {error}"
        # Once for each reason: an endpoint that stays down must not fill the log.
        if why != self._failure:
            self._failure = why
            log.warning(
                "cannot fetch the keys of the issuer",
                url=self._url,
                error=why,
                still_used=len(self._keys.ids) if self._keys else 0,
            )
