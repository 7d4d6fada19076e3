"""Read the public keys of a token issuer: a JWK set (RFC 7517) in a file or at an endpoint.

A key is selected by its id together with the algorithm that a token names, so a forged token cannot
make a key verify in a way that the set does not permit. Keys stay in use until newer ones arrive,
so an outage of the endpoint affects no client whose key is known.

PyJWT's PyJWKClient is not used: it reads an answer of any size on the caller's thread, follows
redirects, discards its keys when they expire during an outage, and fetches for each unknown id.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from tenacity import AsyncRetrying, RetryCallState, wait_fixed

from raftlog.errors import ConfigError
from raftlog.logger import get_logger
from raftlog.transport.certificates import Reread

log = get_logger(__name__)

PublicKey = (
    rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey
)

JWKS_MAX_BYTES = 1 << 18
"""Maximum size of a set, in bytes; the sets of large providers have about 10,000."""
JWKS_MAX_KEYS = 100
KID_MAX_CHARS = 255
RSA_MIN_BITS, RSA_MAX_BITS = 2_048, 8_192

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_OF_CURVE = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}
_EDDSA = ("EdDSA",)
ALGORITHMS = frozenset({*_RSA, "ES256", "ES384", "ES512", *_EDDSA})
"""Accepted algorithms: only the issuer can make their signatures, so neither ``none`` nor HS256."""
_PUBLIC_MEMBERS = ("kty", "n", "e", "crv", "x", "y")
"""Members of a JWK that are read. Those of a private key are ignored."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys by id and algorithm."""

    keys: Mapping[tuple[str, str], PublicKey]

    @classmethod
    def parse(cls, content: bytes) -> KeySet:
        """Parse a JWK set.

        Symmetric keys, keys for encryption and keys without an id are ignored. Raises ValueError if
        no key is left, or if the content is not a JWK set.
        """
        if len(content) > JWKS_MAX_BYTES:
            raise ValueError(f"the content has more than {JWKS_MAX_BYTES} bytes")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError("the content is not JSON") from error
        listed = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(listed, list):
            raise ValueError('the content has no list "keys"')  # noqa: TRY004  (of a document, not of a caller)
        if len(listed) > JWKS_MAX_KEYS:
            raise ValueError(
                f"the set has {len(listed)} keys, and at most {JWKS_MAX_KEYS} are allowed"
            )
        keys: dict[tuple[str, str], PublicKey] = {}
        for one in listed:
            for algorithm, key in _usable(one):
                if keys.setdefault((one["kid"], algorithm), key) is not key:
                    raise ValueError(f"two keys have the id {one['kid']!r}")
        if not keys:
            raise ValueError("the set has no key with an id (kid) that verifies signatures")
        return cls(keys)

    def find(self, kid: str, algorithm: str) -> PublicKey | None:
        """Return the key with this id if it permits this algorithm, or None."""
        return self.keys.get((kid, algorithm))

    @property
    def ids(self) -> frozenset[str]:
        """Ids of all keys."""
        return frozenset(kid for kid, _ in self.keys)


def _usable(one: Any) -> Iterable[tuple[str, PublicKey]]:
    """Yield the key of one entry, under each algorithm that it permits."""
    if not isinstance(one, dict) or not _is_for_signatures(one):
        return
    kid = one.get("kid")
    if not isinstance(kid, str) or not 0 < len(kid) <= KID_MAX_CHARS:
        return
    try:
        key, allowed = _key_of({name: one[name] for name in _PUBLIC_MEMBERS if name in one})
    except Exception:
        # Unsupported or malformed; the parsers raise many kinds of errors. Other keys stay usable.
        return
    named = one.get("alg")
    for algorithm in allowed:
        if named is None or named == algorithm:
            yield algorithm, key


def _is_for_signatures(one: Mapping[str, Any]) -> bool:
    operations = one.get("key_ops")
    return one.get("use", "sig") == "sig" and (
        operations is None or (isinstance(operations, list) and "verify" in operations)
    )


def _key_of(public: dict[str, Any]) -> tuple[PublicKey, tuple[str, ...]]:
    """Return a public key and its algorithms. Raises the errors of the parsers."""
    key: Any
    match public.get("kty"):
        case "RSA":
            key = RSAAlgorithm.from_jwk(public)
            if not RSA_MIN_BITS <= key.key_size <= RSA_MAX_BITS:
                allowed = f"{RSA_MIN_BITS} to {RSA_MAX_BITS} bits are allowed"
                raise ValueError(f"the RSA key has {key.key_size} bits, but {allowed}")
            return key, _RSA
        case "EC" if public.get("crv") in _OF_CURVE:
            return ECAlgorithm.from_jwk(public), _OF_CURVE[public["crv"]]  # type: ignore[return-value]
        case "OKP":
            return OKPAlgorithm.from_jwk(public), _EDDSA  # type: ignore[return-value]
    raise ValueError("the type of the key is not supported")


FETCH_MAX_S = 10.0
"""Timeout of a whole fetch, in seconds."""
_WAIT_MAX_S = 5.0
_PART_BYTES = 16_384


class FetchError(Exception):
    """The keys could not be fetched; the message gives the reason."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A handler that refuses redirects: keys are read from the configured URL only."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Return None, so that the redirect becomes an HTTPError."""
        return


def fetch_keys(url: str) -> KeySet:
    """Fetch the keys at an http:// or https:// URL.

    Server certificates are checked with the system's authorities, or those of ``SSL_CERT_FILE``.
    Raises FetchError.
    """
    secure = url.startswith("https://")
    opener = urllib.request.build_opener(
        _NoRedirects(),
        # Plain http is for this machine only: ignore the proxies of the environment.
        *(() if secure else (urllib.request.ProxyHandler({}),)),
        *((urllib.request.HTTPSHandler(context=ssl.create_default_context()),) if secure else ()),
    )
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    deadline_s = time.monotonic() + FETCH_MAX_S
    try:
        with opener.open(request, timeout=_WAIT_MAX_S) as response:
            return KeySet.parse(_body(response, deadline_s))
    except urllib.error.HTTPError as error:
        raise FetchError(f"the endpoint answered with HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise FetchError(f"{error}" or type(error).__name__) from error


def _body(response: Any, deadline_s: float) -> bytes:
    content = bytearray()
    while part := response.read1(_PART_BYTES):
        content += part
        if len(content) > JWKS_MAX_BYTES:
            raise FetchError(f"the answer has more than {JWKS_MAX_BYTES} bytes")
        if time.monotonic() > deadline_s:
            raise FetchError(f"the answer took longer than {FETCH_MAX_S:g} s")
    return bytes(content)


class KeySource(Protocol):
    """A source of keys."""

    def current(self) -> KeySet | None:
        """Return the latest keys, or None if none have been read yet."""

    async def newer(self) -> None:
        """Wait for newer keys if some may arrive soon. Call it when a key is unknown."""

    def close(self) -> None:
        """Stop fetching. Idempotent."""


class FileKeys:
    """A source that reads a file. The constructor raises ConfigError if the file has no keys."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reread = Reread((path,), self._read, what="JWKS")

    def current(self) -> KeySet:
        """Return the keys of the file."""
        return self._reread.current()

    async def newer(self) -> None:
        """Return at once: ``current`` checks the file itself, at most once per second."""

    def close(self) -> None:
        """Do nothing, as the file is not open."""

    def _read(self) -> KeySet:
        try:
            with self._path.open("rb") as file:
                return KeySet.parse(file.read(JWKS_MAX_BYTES + 1))
        except OSError as error:
            raise ConfigError(_wrong(f"{error.strerror}: {self._path}")) from error
        except ValueError as error:
            raise ConfigError(_wrong(f"{self._path} is not a JWK set: {error}")) from error


def _wrong(why: str) -> str:
    return f"sasl.oauthbearer.jwks.endpoint.url: {why}"


class EndpointKeys:
    """A source that fetches from an endpoint: every ``refresh_s`` seconds, ``backoff_s`` seconds
    after a failure, and at once for an unknown key.

    Two fetches are at least ``backoff_s`` apart, as any client can write an unknown key id into a
    token. Construct it on the event loop. ``fetch`` blocks, and raises FetchError.
    """

    def __init__(
        self, url: str, fetch: Callable[[str], KeySet], refresh_s: float, backoff_s: float
    ) -> None:
        self._url, self._fetch = url, fetch
        self._refresh_s, self._backoff_s = refresh_s, backoff_s
        self._keys: KeySet | None = None
        self._failure = ""
        self._wanted: asyncio.Event | None = None
        """Set it to fetch now. None while a fetch is in progress, or too soon after the
        last one.
        """
        self._ended = asyncio.Event()
        """Set when the latest fetch has finished."""
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh())

    def current(self) -> KeySet | None:
        """Return the keys of the last successful fetch."""
        return self._keys

    async def newer(self) -> None:
        """Wait for the fetch in progress or start one, at most FETCH_MAX_S; return at once if it is
        too soon for a fetch.
        """
        if self._wanted is not None:
            self._wanted.set()
            self._ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(FETCH_MAX_S):
                await self._ended.wait()

    def close(self) -> None:
        """Stop fetching, and discard the fetch in progress."""
        self._task.cancel()
        self._wanted = None
        self._ended.set()

    async def _keep_fresh(self) -> None:
        retrying = AsyncRetrying(
            sleep=self._rest, wait=wait_fixed(self._backoff_s), after=self._failed
        )
        while True:
            self._use(await retrying(self._in_thread))
            await self._rest(self._backoff_s, self._refresh_s)

    async def _rest(self, backoff_s: float, refresh_s: float | None = None) -> None:
        """Wait until the next fetch; after ``backoff_s``, a request for newer keys ends the
        wait.
        """
        self._ended.set()
        await asyncio.sleep(backoff_s if refresh_s is None else min(backoff_s, refresh_s))
        if refresh_s is not None:
            self._wanted = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(refresh_s - backoff_s):
                    await self._wanted.wait()
            self._wanted = None

    async def _in_thread(self) -> KeySet:
        """Fetch in a daemon thread outside any pool, as the process must exit without waiting for
        it.
        """
        self._ended.clear()
        loop = asyncio.get_running_loop()
        fetched: asyncio.Future[KeySet | Exception] = loop.create_future()

        def end(found: KeySet | Exception) -> None:
            if not fetched.done():
                fetched.set_result(found)

        def work() -> None:
            try:
                found: KeySet | Exception = self._fetch(self._url)
            except Exception as error:
                found = error
            with suppress(RuntimeError):  # The loop may be gone.
                loop.call_soon_threadsafe(end, found)

        threading.Thread(target=work, name="raftlog-jwks", daemon=True).start()
        found = await fetched
        if isinstance(found, Exception):
            raise found
        return found

    def _use(self, fetched: KeySet) -> None:
        if self._failure:
            log.info("the issuer's keys can be fetched again", url=self._url)
            self._failure = ""
        # Keep the object if the keys are equal, as cached verdicts belong to it.
        if fetched != self._keys:
            log.info("the issuer's keys have changed", url=self._url, keys=len(fetched.ids))
            self._keys = fetched

    def _failed(self, state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        why = str(error) if isinstance(error, FetchError) else f"{type(error).__name__}: {error}"
        # Log each reason once: an endpoint that stays down must not fill the log.
        if why != self._failure:
            self._failure = why
            log.warning(
                "cannot fetch the issuer's keys",
                url=self._url,
                error=why,
                still_used=len(self._keys.ids) if self._keys else 0,
            )
