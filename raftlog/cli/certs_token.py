"""``raftlog certs token``: tokens for development."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from raftlog.cli.certificate_views import minute
from raftlog.cli.output import print_line

_MINUTES, _MAX_MINUTES = 60, 525_600
AuthorityDirectory = Annotated[
    Path, typer.Argument(metavar="DIRECTORY", help="The authority's directory.")
]
ClientName = Annotated[
    str, typer.Option("--client", metavar="NAME", help="For this person or program.")
]


def token(
    directory: AuthorityDirectory,
    client: ClientName,
    minutes: Annotated[
        int,
        typer.Option(
            "--minutes", metavar="N", min=1, max=_MAX_MINUTES, help="How long it is valid."
        ),
    ] = _MINUTES,
) -> None:
    """Write a bearer token for development: client-NAME.token. One that is there is replaced.

    The first one makes an issuer in the directory, too: token.key, which stays here, and jwks.json,
    which nodes need. Whoever has token.key can be every client. The output is what the nodes'
    configurations, and a shell, need.

    \b
    Examples:
      raftlog certs token pki --client alice
      raftlog certs token pki --client alice --minutes 5
    """
    from raftlog.security.authority import CA_CERTIFICATE, check_client_name
    from raftlog.security.certificate_files import replace_private
    from raftlog.security.token_issuer import AUDIENCE, ISSUER, JWKS, TokenIssuer

    check_client_name(client)
    now = datetime.now(UTC)
    issuer = TokenIssuer.of(directory)
    path = directory / f"client-{client}.token"
    replace_private(path, f"{issuer.issue(client, minutes, now)}\n".encode())
    print_line(f"# {path}: valid until {minute(now + timedelta(minutes=minutes))}")
    settings = {
        "sasl.oauthbearer.jwks.endpoint.url": (directory / JWKS).absolute().as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }
    print_line("# of nodes:")
    for key, value in settings.items():
        print_line(f"#   {json.dumps(key)} = {json.dumps(value)}")
    for variable, found in (("TOKEN", path), ("TLS_CA", directory / CA_CERTIFICATE)):
        print_line(f"export RAFTLOG_{variable}_FILE={shlex.quote(str(found.absolute()))}")
