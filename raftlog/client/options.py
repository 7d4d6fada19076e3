"""The options of a client, and the certificates and tokens that the environment names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict, get_type_hints

from raftlog.client.arguments import check_of
from raftlog.client.values import AcksLike, ReadModeLike
from raftlog.client.wire import acks_to_wire, mode_to_wire
from raftlog.endpoint import parse_endpoint
from raftlog.errors import ConfigError
from raftlog.identity import os_user
from raftlog.transport.grpc_transport import NoTokenError, TokenSource, token_file
from raftlog.transport.tls import ClientTls, TlsConfig, TlsTrust

TOKEN_VARIABLE = "RAFTLOG_TOKEN_FILE"
_CA_VARIABLE = "RAFTLOG_TLS_CA_FILE"
_TLS_VARIABLES = ("RAFTLOG_TLS_CERTIFICATE_FILE", "RAFTLOG_TLS_KEY_FILE", _CA_VARIABLE)


class ClientSecurity(NamedTuple):
    """Credentials of a client. ``tls`` None: plain text; then there is no token either."""

    tls: ClientTls | None = None
    token: TokenSource | None = None


def security_of_environment() -> ClientSecurity:
    """Return the credentials in the environment. Raises ConfigError for files that do not fit
    together, and for a missing token.
    """
    token_path = os.environ.get(TOKEN_VARIABLE, "")
    tls = _tls_of_environment(has_token=bool(token_path))
    if not token_path:
        return ClientSecurity(tls)
    if tls is None:
        raise ConfigError(f"{TOKEN_VARIABLE} needs {_CA_VARIABLE}: a token is sent over TLS only")
    token = token_file(Path(token_path))
    try:
        token()
    except NoTokenError as error:
        raise ConfigError(f"{TOKEN_VARIABLE}: {error}") from error
    return ClientSecurity(tls, token)


def _tls_of_environment(*, has_token: bool) -> ClientTls | None:
    paths = [os.environ.get(variable, "") for variable in _TLS_VARIABLES]
    if not any(paths):
        return None
    certificate, key, ca = paths
    if all(paths):
        return TlsConfig(Path(certificate), Path(key), Path(ca))
    if has_token and not certificate and not key:
        return TlsTrust(Path(ca))
    missing = [variable for variable, path in zip(_TLS_VARIABLES, paths, strict=True) if not path]
    raise ConfigError(
        f"TLS needs all of {', '.join(_TLS_VARIABLES)}; missing: {', '.join(missing)}. With"
        f" {TOKEN_VARIABLE}, {_CA_VARIABLE} alone is enough"
    )


Addresses = str | Sequence[str]
"""Addresses ``host:port``, several of them with commas between, or in a list."""
PathLike = str | os.PathLike[str]
BROKERS_VARIABLE, CONTROLLERS_VARIABLE = "RAFTLOG_BOOTSTRAP_SERVER", "RAFTLOG_BOOTSTRAP_CONTROLLER"


class ClientOptions(TypedDict, total=False):
    """Keyword arguments of ``Client``, ``AsyncClient`` and ``connect``."""

    controllers: Addresses
    """Controllers for ``quorum.describe``. A client with controllers and no broker sends its writes
    and queries to the active controller itself, and cannot read.
    """
    client_id: str
    """Name for people: the cluster stores it with the client's numbered writes."""
    cluster_id: str
    """Id of the cluster: requests that reach another cluster are refused. Empty: any cluster."""
    acks: AcksLike
    """Level at which writes return: "committed" (default), "acknowledged" or "visible"."""
    read: ReadModeLike
    """Mode of reads: "repeatable" (default), "latest" or "strict"."""
    timeout_s: float
    """Timeout of each whole call, all attempts included, in seconds. Default: 10."""
    exactly_once: bool | None
    """Number the writes, so that they are retried across failovers and executed once. None
    (default): where the cluster allows it. True: fail where it does not. False: never."""
    principal: str
    """Principal of the writes, for audits, where the cluster has no other proof of it. Default: the
    user who runs this program. Empty: User:ANONYMOUS.
    """
    tls_ca_file: PathLike
    """PEM file of the authority of the servers' certificates; without it: plain text."""
    tls_certificate_file: PathLike
    """PEM file of this client's own certificate, with ``tls_key_file``."""
    tls_key_file: PathLike
    token: str | TokenSource
    """Bearer token, or a function (a coroutine function, too) that returns the next one."""
    token_file: PathLike
    """File with the token; it is read for each connection, so that it can be renewed."""


_HINTS = get_type_hints(ClientOptions)
_PLAIN = _HINTS.keys() - {"acks", "controllers", "read", "timeout_s"}
"""Options whose types imply all checks; the others have checks of their own."""
_FILES = {"tls_ca_file", "tls_certificate_file", "tls_key_file", "token", "token_file"}
"""Options for which None equals a missing one."""


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
        """Servers that the client contacts first: brokers, or controllers without any."""
        return self.bootstrap or self.controllers

    @classmethod
    def of(cls, bootstrap: Addresses, given: ClientOptions) -> Options:
        """Return checked options. Raises ConfigError, or TypeError for an unknown option."""
        unknown = sorted(given.keys() - ClientOptions.__annotations__.keys())
        if unknown:
            known = ", ".join(ClientOptions.__annotations__)
            raise TypeError(f"there is no option {', '.join(unknown)}; there are: {known}")
        controllers = _addresses(given.get("controllers", ""), "controllers", CONTROLLERS_VARIABLE)
        direct = not bootstrap and bool(given.get("controllers"))
        brokers = () if direct else _addresses(bootstrap, "bootstrap", BROKERS_VARIABLE)
        if not brokers and not direct:
            raise ConfigError(
                "no broker is named: give host:port of one or more, as 127.0.0.1:9092, or set"
                f" {BROKERS_VARIABLE}; `raftlog dev` runs a cluster to try it on"
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
    """Return a valid timeout. Raises ValueError, which names the argument."""
    if (
        isinstance(timeout_s, bool)
        or not isinstance(timeout_s, (int, float))
        or not 0.001 <= timeout_s <= 86_400
    ):
        raise ValueError(f"timeout_s={timeout_s!r:.80}: seconds, at least 0.001 and at most a day")
    return timeout_s


def _addresses(given: Addresses, what: str, variable: str) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    if not isinstance(parts, (list, tuple)) or not all(isinstance(one, str) for one in parts):
        raise ConfigError(f"{what}={given!r:.80}: host:port, several with commas or in a list")
    if not any(part.strip() for part in parts):
        parts = os.environ.get(variable, "").split(",")
    try:
        example = "127.0.0.1:9092" if variable == BROKERS_VARIABLE else "127.0.0.1:9093"
        return tuple(
            parse_endpoint(part.strip(), example).address for part in parts if part.strip()
        )
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from None


def _security(given: ClientOptions) -> tuple[ClientTls | None, TokenSource | None]:
    """Return the TLS files and the token source. Raises ConfigError for options that do not fit
    together, and for files that cannot be read.
    """
    token = _token(given)
    ca, certificate, key = (
        given.get("tls_ca_file"),
        given.get("tls_certificate_file"),
        given.get("tls_key_file"),
    )
    if ca is None and certificate is None and key is None and token is None:
        from raftlog.client.options import security_of_environment

        return security_of_environment()
    if ca is None:
        raise ConfigError(
            "tls_ca_file is missing: certificates and tokens are shown to servers only that prove"
            " who they are"
        )
    tls: ClientTls
    if certificate is not None and key is not None:
        tls = TlsConfig(Path(certificate), Path(key), Path(ca))
    elif certificate is None and key is None:
        tls = TlsTrust(Path(ca))
    else:
        raise ConfigError("tls_certificate_file and tls_key_file go together")
    tls.channel_credentials()
    return tls, token


def _token(given: ClientOptions) -> TokenSource | None:
    path, token = given.get("token_file"), given.get("token")
    if path is not None and token is not None:
        raise ConfigError("token and token_file: give one of them")
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
