"""The certificates and tokens of a client, and those named by the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import ConfigError
from raftlog.transport.grpc_transport import NoTokenError, TokenSource, token_file
from raftlog.transport.tls import ClientTls, TlsConfig, TlsTrust

TOKEN_VARIABLE = "RAFTLOG_TOKEN_FILE"
_CA_VARIABLE = "RAFTLOG_TLS_CA_FILE"
_TLS_VARIABLES = ("RAFTLOG_TLS_CERTIFICATE_FILE", "RAFTLOG_TLS_KEY_FILE", _CA_VARIABLE)


class ClientSecurity(NamedTuple):
    """Credentials of a client. ``tls``: None for plain text; there is no token then."""

    tls: ClientTls | None = None
    token: TokenSource | None = None


def security_of_environment() -> ClientSecurity:
    """Return the credentials named by the environment. Raises ConfigError for files that do not
    match, and for a missing token.
    """
    token_path = os.environ.get(TOKEN_VARIABLE, "")
    tls = _tls_of_environment(has_token=bool(token_path))
    if not token_path:
        return ClientSecurity(tls)
    if tls is None:
        raise ConfigError(f"{TOKEN_VARIABLE} needs {_CA_VARIABLE}: a token is sent only over TLS")
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
        f"TLS needs all of {', '.join(_TLS_VARIABLES)}; missing: {', '.join(missing)}. With "
        f"{TOKEN_VARIABLE}, only {_CA_VARIABLE} is needed"
    )
