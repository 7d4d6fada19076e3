"""``raftlog certs``: certificates, their authority, and tokens."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raftlog.cli.command import Answer, command, group
from raftlog.cli.exits import Exit
from raftlog.cli.options import arg, opt
from raftlog.cli.output import print_line
from raftlog.errors import ConfigError
from raftlog.identity import NodeRule
from raftlog.text import printable

if TYPE_CHECKING:
    from raftlog.node.security.certificate_files import PairPaths

app = group()


@dataclass
class Certificate:
    """A certificate."""

    subject: str
    issuer: str
    names: Sequence[str]
    authority: bool
    usages: Sequence[str] | None
    """Extended key usages, or None if any usage is allowed."""
    nodes: Sequence[int]
    """Ids of the nodes that the owner may act as."""
    not_before: str
    not_after: str
    validity: str
    days_left: int
    fingerprint_sha256: str


@dataclass
class Certificates:
    """The certificates of a file."""

    file: str
    certificates: Sequence[Certificate]


def _show(rows: Sequence[Certificate]) -> None:
    """Print one line per field of each certificate."""
    for at, one in enumerate(rows):
        if at:
            print_line("")
        begin, end = (minute(datetime.fromisoformat(at)) for at in (one.not_before, one.not_after))
        left = f", {one.days_left} days left" if one.validity == "valid" else ""
        lines = {
            "subject": one.subject,
            "issuer": one.issuer,
            "names": ", ".join(one.names),
            "node": ", ".join(map(str, one.nodes)),
            "authority": "yes" if one.authority else "no",
            "usages": "any" if one.usages is None else ", ".join(one.usages),
            "from": begin,
            "until": end,
            "validity": f"{one.validity}{left}",
            "SHA-256": one.fingerprint_sha256,
        }
        for key, value in lines.items():
            print_line(f"{key:<11}{value or '-'}")


def minute(time: datetime) -> str:
    """Return a time to the minute."""
    return f"{time:%Y-%m-%d %H:%M} UTC"


_MINUTES, _MAX_MINUTES = 60, 525_600
AuthorityDirectory = Annotated[
    Path, arg("DIRECTORY", "The directory of the certificate authority.")
]
ClientName = Annotated[str, opt("--client NAME", "Name of the client.")]


_AUTHORITY_DAYS, _DAYS, _MAX_DAYS = 3650, 365, 36_500
_NODE_ID_MAX = 2**31 - 1
_FILE_MAX_BYTES = 1 << 20
_RULE = "CN=node-{id}"


def _days(what: str) -> Any:
    return opt("--days N", f"How long {what} is valid.", min=1, max=_MAX_DAYS)


@command(app)
def init(
    directory: AuthorityDirectory,
    name: Annotated[
        str, opt("--name TEXT", "The common name of the certificate authority.")
    ] = "raftlog development authority",
    days: Annotated[int, _days("the authority")] = _AUTHORITY_DAYS,
) -> None:
    """Make a certificate authority for development.

    Writes ca.pem and ca.key. Keep ca.key here: its holder can make a certificate for any node. The
    key is not encrypted; only its owner can read the directory and the key. If the directory
    exists, it must be empty.

    \b
    Examples:
      raftlog certs init pki
    """
    from raftlog.node.security.authority import new_authority
    from raftlog.node.security.certificate_files import (
        PairPaths,
        make_private_directory,
        write_pair,
    )

    issued = new_authority(name, days, datetime.now(UTC))
    make_private_directory(directory)
    paths = PairPaths.of(directory, "ca")
    write_pair(paths, issued.certificate, issued.key, replace=False)
    print_line(
        f"{paths.certificate}: a certificate authority, valid until {minute(issued.not_after)}"
    )


@command(app)
def issue(
    directory: AuthorityDirectory,
    node: Annotated[
        int | None, opt("--node ID", "Id of the node.", min=0, max=_NODE_ID_MAX)
    ] = None,
    client: ClientName = "",
    hosts: Annotated[
        list[str] | None,
        opt("--host HOST", "A name or address at which others reach the node; may be repeated."),
    ] = None,
    days: Annotated[int, _days("the certificate")] = _DAYS,
    force: Annotated[bool, opt("--force", "Replace existing files.")] = False,
) -> None:
    """Issue a certificate to a node or a client.

    Writes node-ID.pem and node-ID.key, or client-NAME.pem and client-NAME.key. A node's certificate
    names the node as the rule CN=node-{id} expects (node.principal.rule). Prints the settings for
    the node's configuration, or for a shell. A certificate expires no later than its authority.

    \b
    Examples:
      raftlog certs issue pki --node 1 --host c1.example --host 10.0.0.1
      raftlog certs issue pki --client alice --days 30
    """
    if (node is None) == (not client):
        raise ConfigError("give --node ID or --client NAME")
    if (node is None) != (not hosts):
        raise ConfigError(
            "--host is only for --node: nothing connects to a client"
            if hosts
            else "--node needs --host: at least one name or address at which others reach it"
        )
    from raftlog.node.security.authority import (
        CA_CERTIFICATE,
        Authority,
        check_client_name,
        node_name,
    )
    from raftlog.node.security.certificate_files import PairPaths, write_pair

    now = datetime.now(UTC)
    if node is None:
        check_client_name(client)
        paths = PairPaths.of(directory, f"client-{client}")
        issued = Authority.load(directory).issue_client(client, days, now)
    else:
        paths = PairPaths.of(directory, node_name(node))
        issued = Authority.load(directory).issue_node(node, hosts or [], days, now)
    write_pair(
        paths, issued.certificate, issued.key, replace=force, remedy="; --force replaces both"
    )
    print_line(f"# {paths.certificate}: valid until {minute(issued.not_after)}")
    _show_settings(_settings(paths, directory / CA_CERTIFICATE), for_node=node is not None)


def _settings(paths: PairPaths, ca: Path) -> dict[str, str]:
    """Return the TLS configuration keys, with absolute paths, which do not depend on the working
    directory.
    """
    return {
        "tls.certificate.file": str(paths.certificate.absolute()),
        "tls.key.file": str(paths.key.absolute()),
        "tls.ca.file": str(ca.absolute()),
    }


def _show_settings(settings: Mapping[str, str], *, for_node: bool) -> None:
    if for_node:
        for key, value in {**settings, "node.principal.rule": _RULE}.items():
            print_line(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    else:
        for key, value in settings.items():
            variable = f"RAFTLOG_{key.upper().replace('.', '_')}"
            print_line(f"export {variable}={shlex.quote(value)}")


@command(app)
def inspect(
    file: Annotated[Path, arg("FILE", "Certificates, PEM.")],
    rule: Annotated[
        str, opt("--node-principal-rule RULE", "How certificates name nodes (node.principal.rule).")
    ] = _RULE,
) -> Answer[Certificates]:
    """Show certificates, and which node their owner may act as.

    Does not verify signatures. Exit code 3 if a certificate has expired, or is not valid yet.

    \b
    Examples:
      raftlog certs inspect pki/node-1.pem
      raftlog certs inspect node.pem --node-principal-rule 'DNS:node{id}.example' --json
    """
    from raftlog.node.security.inspection import Validity, inspect_certificates

    try:
        node_rule = NodeRule.parse(rule)
    except ValueError as error:
        raise ConfigError(f"--node-principal-rule: {error}") from error
    content = _content(file)
    try:
        found = inspect_certificates(content)
    except ValueError as error:
        raise ConfigError(
            f"{file} contains no valid PEM certificate: {printable(str(error))}"
        ) from error
    now = datetime.now(UTC)
    rows = [
        Certificate(
            one.subject,
            one.issuer,
            one.names,
            one.authority,
            one.usages,
            sorted(node_rule.nodes_of(one.identity)),
            one.not_before.isoformat(),
            one.not_after.isoformat(),
            str(one.validity(now)),
            one.days_left(now),
            one.fingerprint,
        )
        for one in found
    ]
    invalid = any(one.validity(now) is not Validity.VALID for one in found)
    errors = [typer.Exit(Exit.FOUND)] if invalid else []
    return Answer(Certificates(str(file), rows), lambda: _show(rows), errors)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    if len(content) > _FILE_MAX_BYTES:
        raise ConfigError(f"{file} is not a certificate: it is longer than {_FILE_MAX_BYTES} bytes")
    return content


@command(app)
def token(
    directory: AuthorityDirectory,
    client: ClientName,
    minutes: Annotated[
        int, opt("--minutes N", "How long it is valid.", min=1, max=_MAX_MINUTES)
    ] = _MINUTES,
) -> None:
    """Write a bearer token for development: client-NAME.token. Replaces an existing token.

    The first call also creates an issuer in the directory: token.key, which must stay here, and
    jwks.json, which nodes need. The holder of token.key can act as any client. Prints the settings
    for the nodes' configurations, and for a shell.

    \b
    Examples:
      raftlog certs token pki --client alice
      raftlog certs token pki --client alice --minutes 5
    """
    from raftlog.node.security.authority import CA_CERTIFICATE, check_client_name
    from raftlog.node.security.certificate_files import replace_private
    from raftlog.node.security.token_issuer import AUDIENCE, ISSUER, JWKS, TokenIssuer

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
    print_line("# for the nodes:")
    for key, value in settings.items():
        print_line(f"#   {json.dumps(key)} = {json.dumps(value)}")
    for variable, found in (("TOKEN", path), ("TLS_CA", directory / CA_CERTIFICATE)):
        print_line(f"export RAFTLOG_{variable}_FILE={shlex.quote(str(found.absolute()))}")
