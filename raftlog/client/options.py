"""The options of a client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, get_type_hints

from raftlog.client.arguments import check_of
from raftlog.client.security import security_of_environment
from raftlog.client.values import AcksLike, ReadModeLike
from raftlog.client.wire import acks_to_wire, mode_to_wire
from raftlog.endpoint import parse_server
from raftlog.errors import ConfigError
from raftlog.identity import os_user
from raftlog.transport.grpc_transport import NoTokenError, TokenSource, token_file
from raftlog.transport.tls import ClientTls, TlsConfig, TlsTrust

Addresses = str | Sequence[str]
"""Addresses ``host:port``, separated by commas or in a list."""
PathLike = str | os.PathLike[str]
BROKERS_VARIABLE, CONTROLLERS_VARIABLE = "RAFTLOG_BOOTSTRAP_SERVER", "RAFTLOG_BOOTSTRAP_CONTROLLER"


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of ``Client``, ``AsyncClient`` and ``connect``."""

    controllers: Addresses
    """Controllers for ``quorum.describe``. A client with controllers but no brokers sends its
    writes and queries directly to the active controller, and cannot read.
    """
    client_id: str
    """Name of the client, for operators; the cluster stores it with numbered writes."""
    cluster_id: str
    """Id of the cluster: a request that reaches another cluster is refused. Empty for any
    cluster.
    """
    acks: AcksLike
    """Level at which writes return: "committed" (default), "acknowledged" or "visible"."""
    read: ReadModeLike
    """Mode of reads: "repeatable" (default), "latest" or "strict"."""
    timeout_s: float
    """Timeout of each call, including all attempts, in seconds. Default: 10."""
    exactly_once: bool | None
    """Whether to number writes, so that they are retried across failovers but executed once. None
    (default): if the cluster allows it. True: raise an error if it does not. False: never.
    """
    principal: str
    """Principal of the writes, for audits, unless the cluster can prove another one. Default: the
    user who runs this program. Empty: User:ANONYMOUS.
    """
    tls_ca_file: PathLike
    """PEM file of the certificate authority for the servers' certificates; without it,
    plain text.
    """
    tls_certificate_file: PathLike
    """PEM file of this client's certificate, together with ``tls_key_file``."""
    tls_key_file: PathLike
    token: str | TokenSource
    """Bearer token, or a function or coroutine function that returns the next one."""
    token_file: PathLike
    """File with the bearer token, read for each connection, so that it can be renewed."""


_HINTS = get_type_hints(ClientOptions)
_PLAIN = _HINTS.keys() - {"acks", "controllers", "read", "timeout_s"}
"""Options that are fully checked by their types; the others have their own checks."""
_FILES = {"tls_ca_file", "tls_certificate_file", "tls_key_file", "token", "token_file"}
"""Options for which None is the same as omitting them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The checked options of a client."""

    bootstrap: tuple[str, ...]
    controllers: tuple[str, ...] = ()
    client_id: str = ""
    cluster_id: str = ""
    acks: str = "committed"
    read: str = "repeatable"
    timeout_s: float = 10.0
    exactly_once: bool | None = None
    principal: str = ""
    tls: ClientTls | None = None
    token: TokenSource | None = None

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers to contact first: brokers, or controllers if there are no brokers."""
        return self.bootstrap or self.controllers

    @classmethod
    def of(cls, bootstrap: Addresses, given: ClientOptions) -> Options:
        """Return checked options. Raises ConfigError, or TypeError for an unknown option."""
        unknown = sorted(given.keys() - ClientOptions.__annotations__.keys())
        if unknown:
            known = ", ".join(ClientOptions.__annotations__)
            raise TypeError(f"unknown option {', '.join(unknown)}; the options are {known}")
        controllers = _addresses(given.get("controllers", ""), "controllers", CONTROLLERS_VARIABLE)
        direct = not bootstrap and bool(given.get("controllers"))
        brokers = () if direct else _addresses(bootstrap, "bootstrap", BROKERS_VARIABLE)
        if not brokers and not direct:
            raise ConfigError(
                "no broker is given: pass host:port of at least one, such as 127.0.0.1:9092, or "
                f"set {BROKERS_VARIABLE}; `raftlog dev` runs a cluster to try"
            )
        acks, read = given.get("acks", "committed"), given.get("read", "repeatable")
        timeout_s = given.get("timeout_s", 10.0)
        try:
            acks_to_wire(acks)
            mode_to_wire(read)
            positive(timeout_s)
            for name in _PLAIN & given.keys():
                value = given.get(name)
                if value is not None or name not in _FILES:
                    check_of(_HINTS[name])(value, name)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from None
        tls, token = _security(given)
        return cls(
            bootstrap=brokers,
            controllers=controllers,
            client_id=given.get("client_id", ""),
            cluster_id=given.get("cluster_id", ""),
            acks=acks,
            read=read,
            timeout_s=timeout_s,
            exactly_once=given.get("exactly_once"),
            principal=given["principal"] if "principal" in given else os_user(),
            tls=tls,
            token=token,
        )


def positive(timeout_s: float) -> float:
    """Return a valid timeout in seconds. Raises ValueError, which names the argument."""
    if (
        isinstance(timeout_s, bool)
        or not isinstance(timeout_s, (int, float))
        or not 0.001 <= timeout_s <= 86_400
    ):
        raise ValueError(f"timeout_s={timeout_s!r:.80}: must be between 0.001 seconds and one day")
    return timeout_s


def _addresses(given: Addresses, what: str, variable: str) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, (list, tuple)) or not all(isinstance(one, str) for one in parts):
        raise ConfigError(
            f"{what}={given!r:.80}: must be host:port, or several separated by commas or in a list"
        )
    if not any(part.strip() for part in parts):
        parts = os.environ.get(variable, "").split(",")
    try:
        example = "127.0.0.1:9092" if variable == BROKERS_VARIABLE else "127.0.0.1:9093"
        return tuple(parse_server(part.strip(), example) for part in parts if part.strip())
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from None


def _security(given: ClientOptions) -> tuple[ClientTls | None, TokenSource | None]:
    """Return the TLS files and the token source. Raises ConfigError for options that do not match,
    and for files that cannot be read.
    """
    token = _token(given)
    ca, certificate, key = (
        given.get("tls_ca_file"),
        given.get("tls_certificate_file"),
        given.get("tls_key_file"),
    )
    if ca is None and certificate is None and key is None and token is None:
        return security_of_environment()
    if ca is None:
        raise ConfigError(
            "tls_ca_file is missing: a certificate or token is sent only to servers that prove "
            "their identity"
        )
    tls: ClientTls
    if certificate is not None and key is not None:
        tls = TlsConfig(Path(certificate), Path(key), Path(ca))
    elif certificate is None and key is None:
        tls = TlsTrust(Path(ca))
    else:
        raise ConfigError("give both of tls_certificate_file and tls_key_file, or neither")
    tls.channel_credentials()
    return tls, token


def _token(given: ClientOptions) -> TokenSource | None:
    path, token = given.get("token_file"), given.get("token")
    if path is not None and token is not None:
        raise ConfigError("give either token or token_file, not both")
    if path is not None:
        source = token_file(Path(path))
        try:
            source()
        except NoTokenError as error:
            raise ConfigError(f"token_file: {error}") from None
        return source
    if isinstance(token, str):
        value = token
        return lambda: value
    return token
