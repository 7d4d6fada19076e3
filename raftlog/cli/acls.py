"""``raftlog acls``: who may do what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from raftlog.cli.acl_options import (
    Chosen,
    Cluster,
    Cursors,
    FilterPattern,
    Groups,
    Hostnames,
    Keys,
    Operation,
    Operations,
    PatternChoice,
    Permission,
    Sessions,
    Topics,
    operation_of,
    pattern_text,
    permission_text,
    spelled,
    type_text,
)
from raftlog.cli.exits import EPILOG, Exit
from raftlog.cli.options import (
    DEFAULT_TIMEOUT_S,
    BootstrapController,
    BootstrapServer,
    Json,
    Timeout,
)
from raftlog.cli.output import print_json, print_line, print_table
from raftlog.cli.writes import (
    Acks,
    AcksLevel,
    ValidateOnly,
    first_error,
    print_written,
    require,
    write,
    written,
)
from raftlog.errors import ConfigError
from raftlog.metadata.acls import (
    ANY_HOST,
    AccessControlEntry,
    AclOperation,
    AclPermission,
    AclResourceType,
    Binding,
    PatternType,
    Resource,
)
from raftlog.wire.controller.v1 import controller_pb2 as rpc

app = typer.Typer(
    help="Access control entries: which principal may do what.",
    epilog=EPILOG,
    no_args_is_help=True,
)


def _whole(principal: str | None) -> str | None:
    """A principal with its type: without it nothing would match, which looks like an answer."""
    if principal is not None and not principal.startswith("User:"):
        raise typer.BadParameter(f"{principal!r} is no principal: write 'User:{principal}'")
    return principal


Principal = Annotated[
    str | None,
    typer.Option(
        "--principal",
        metavar="PRINCIPAL",
        help="Of this principal, as User:alice.",
        callback=_whole,
    ),
]
Host = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", help="Of this host, an IP address or *.")
]
Patterns = Annotated[
    FilterPattern,
    typer.Option(
        "--resource-pattern-type",
        help=(
            "How entries name the resource; match: all entries that are about a resource of this"
            " name."
        ),
    ),
]
Permissions = Annotated[
    Permission | None, typer.Option("--permission", help="Only entries that allow, or deny.")
]


def register(app_: typer.Typer) -> None:
    """Add the commands."""
    app_.add_typer(app, name="acls")


@app.callback()
def _group() -> None:
    """Access control entries: which principal may do what."""


@app.command("list", epilog=EPILOG)
def list_(
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    client_session: Sessions = None,
    hostname: Hostnames = None,
    export_cursor: Cursors = None,
    kv: Keys = None,
    principal: Principal = None,
    host: Host = None,
    operation: Operations = None,
    permission: Permissions = None,
    resource_pattern_type: Patterns = FilterPattern.ANY,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List the access control entries.

    \b
    Examples:
      raftlog acls list --bootstrap-controller 127.0.0.1:9093
      raftlog acls list --topic orders --resource-pattern-type match
    """
    chosen = Chosen.of(topic, group, cluster, client_session, hostname, export_cursor, kv)
    filters = _filters(chosen, principal, host, operation, permission, resource_pattern_type)
    answers = [_describe(one, bootstrap_controller, timeout) for one in filters]
    entries = _unique(entry for answer in answers for entry in answer.entries)
    if as_json:
        print_json(
            {
                "offset": answers[-1].offset,
                "authorizer_enabled": answers[0].authorizer_enabled,
                "super_users": list(answers[0].super_users),
                "allow_everyone_if_no_acl_found": answers[0].allow_everyone_if_no_acl_found,
                "acls": [_document(entry) for entry in entries],
            }
        )
        return
    _print_entries(entries)
    if not answers[0].authorizer_enabled:
        print_line("no node asks them: authorizer.class.name is empty at the active controller")
    elif answers[0].super_users:
        print_line(f"super users, whatever is listed: {', '.join(answers[0].super_users)}")


@app.command(epilog=EPILOG)
def add(
    allow_principal: Annotated[
        list[str] | None,
        typer.Option("--allow-principal", metavar="PRINCIPAL", help="User:NAME, or User:*."),
    ] = None,
    deny_principal: Annotated[
        list[str] | None,
        typer.Option("--deny-principal", metavar="PRINCIPAL", help="User:NAME, or User:*."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="ADDRESS", help="From here only; default: anywhere."),
    ] = None,
    deny_host: Annotated[
        list[str] | None,
        typer.Option("--deny-host", metavar="ADDRESS", help="From here only; default: anywhere."),
    ] = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    client_session: Sessions = None,
    hostname: Hostnames = None,
    export_cursor: Cursors = None,
    kv: Keys = None,
    resource_pattern_type: Annotated[
        PatternChoice,
        typer.Option("--resource-pattern-type", help="prefixed: all names that begin so."),
    ] = PatternChoice.LITERAL,
    acks: Acks = AcksLevel.ACKNOWLEDGED,
    validate_only: ValidateOnly = False,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Add access control entries.

    One for each principal, host, operation and resource given. Without --operation: all. Who may do
    nothing needs no entry; an entry that denies wins over all that allow.

    \b
    Examples:
      raftlog acls add --allow-principal User:alice --operation read --topic orders
      raftlog acls add --allow-principal User:app --operation write --topic app. \\
        --resource-pattern-type prefixed
      raftlog acls add --deny-principal User:bob --deny-host 10.0.0.9 --topic '*'
    """
    if not allow_principal and not deny_principal:
        raise ConfigError("name a principal: --allow-principal or --deny-principal")
    resources = Chosen.of(topic, group, cluster, client_session, hostname, export_cursor, kv).some()
    body = rpc.CreateAclsRequest(validate_only=validate_only)
    for permission, principals, hosts in (
        (AclPermission.ALLOW, allow_principal, allow_host),
        (AclPermission.DENY, deny_principal, deny_host),
    ):
        if hosts and not principals:
            raise ConfigError(f"a host needs a principal: --{permission.name.lower()}-principal")
        body.creations.extend(
            rpc.AccessControlEntry(
                resource_type=resource.type,
                resource_name=resource.name,
                pattern_type=PatternType[resource_pattern_type.name],
                principal=principal,
                host=host,
                operation=one,
                permission_type=permission,
            )
            for resource in resources
            for principal in principals or []
            for host in hosts or [ANY_HOST]
            for one in map(operation_of, operation or [Operation.ALL])
        )
    response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
    results = response.create_acls.results
    if (error := first_error(results)) is not None:
        raise error
    done = "would be added" if validate_only else "added"
    pairs = list(zip(body.creations, results, strict=True))
    if as_json:
        print_json(
            {
                "acls": [{**_document(one), "existed": result.existed} for one, result in pairs],
                "write": written(response),
            }
        )
    else:
        for one, result in pairs:
            print_line(f"{_text(one)}: {'was there already' if result.existed else done}")
        print_written(response)
    require(response, acks)


@app.command(epilog=EPILOG)
def remove(
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    client_session: Sessions = None,
    hostname: Hostnames = None,
    export_cursor: Cursors = None,
    kv: Keys = None,
    principal: Principal = None,
    host: Host = None,
    operation: Operations = None,
    permission: Permissions = None,
    resource_pattern_type: Patterns = FilterPattern.LITERAL,
    all_: Annotated[bool, typer.Option("--all", help="Remove every entry there is.")] = False,
    acks: Acks = AcksLevel.ACKNOWLEDGED,
    validate_only: ValidateOnly = False,
    bootstrap_server: BootstrapServer = "",
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Remove the access control entries that match all that is given.

    With --acks acknowledged, the default, every unfenced broker refuses from then on what only
    these entries allowed.

    \b
    Examples:
      raftlog acls remove --principal User:alice --topic orders
      raftlog acls remove --principal User:bob --resource-pattern-type any
    """
    chosen = Chosen.of(topic, group, cluster, client_session, hostname, export_cursor, kv)
    narrowed = bool(chosen.resources or principal or host or operation or permission)
    if all_ == narrowed:
        raise ConfigError("say which entries, or --all")
    pattern = FilterPattern.ANY if all_ else resource_pattern_type
    body = rpc.DeleteAclsRequest(
        filters=_filters(chosen, principal, host, operation, permission, pattern),
        validate_only=validate_only,
    )
    response = write(body, acks, bootstrap_server, bootstrap_controller, timeout)
    if (error := first_error(response.delete_acls.results)) is not None:
        raise error
    gone = [one for result in response.delete_acls.results for one in result.matching_acls]
    done = "would be removed" if validate_only else "removed"
    if as_json:
        print_json({"acls": [_document(one) for one in gone], "write": written(response)})
    else:
        for one in gone:
            print_line(f"{_text(one)}: {done}")
        if not gone:
            print_line("no entry matches")
        print_written(response)
    require(response, acks)


@app.command("test", epilog=EPILOG)
def decide(
    principal: Annotated[
        str,
        typer.Option(
            "--principal", metavar="PRINCIPAL", help="Who, as User:alice.", callback=_whole
        ),
    ],
    operation: Annotated[Operation, typer.Option("--operation", help="What.")],
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="From where, an IP address.")
    ] = "",
    topic: Topics = None,
    group: Groups = None,
    cluster: Cluster = False,
    client_session: Sessions = None,
    hostname: Hostnames = None,
    export_cursor: Cursors = None,
    kv: Keys = None,
    bootstrap_controller: BootstrapController = "",
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Say whether a principal may do something, and which entry decides.

    By the committed entries, and by super.users and allow.everyone.if.no.acl.found of the active
    controller. The exit code is 1 if it may not.

    \b
    Examples:
      raftlog acls test --principal User:alice --operation read --topic orders
    """
    from raftlog.metadata.acl_index import AclIndex
    from raftlog.security.authorizer import Authorizer, Caller

    resources = Chosen.of(topic, group, cluster, client_session, hostname, export_cursor, kv).some()
    everything = _filters(Chosen([]), None, None, None, None, FilterPattern.ANY)
    answer = _describe(everything[0], bootstrap_controller, timeout)
    index = AclIndex()
    for number, one in enumerate(answer.entries):
        index = index.with_entry(_entry(number, one))
    authorizer = Authorizer(frozenset(answer.super_users), answer.allow_everyone_if_no_acl_found)
    verdicts = [
        (
            resource,
            authorizer.verdict(index, Caller(principal, host), operation_of(operation), resource),
        )
        for resource in resources
    ]
    if as_json:
        print_json(
            {
                "offset": answer.offset,
                "authorizer_enabled": answer.authorizer_enabled,
                "verdicts": [
                    {
                        "resource_type": type_text(resource.type),
                        "resource_name": resource.name,
                        "allowed": verdict.allowed,
                        "why": verdict.why.name.lower(),
                        "entry": None if verdict.entry is None else _document(verdict.entry),
                    }
                    for resource, verdict in verdicts
                ],
            }
        )
    else:
        for resource, verdict in verdicts:
            said = "allowed" if verdict.allowed else "denied"
            why = verdict.why.value if verdict.entry is None else _text(verdict.entry)
            print_line(f"{type_text(resource.type)} {resource.name}: {said}: {why}")
        if not answer.authorizer_enabled:
            print_line("but no node asks: authorizer.class.name is empty at the active controller")
    if not all(verdict.allowed for _, verdict in verdicts):
        raise typer.Exit(Exit.REFUSED)


def _entry(number: int, one: Any) -> AccessControlEntry:
    return AccessControlEntry(number.to_bytes(16, "big"), *Binding.of(one))


def _filters(
    chosen: Chosen,
    principal: str | None,
    host: str | None,
    operations: list[Operation] | None,
    permission: Permission | None,
    pattern: FilterPattern,
) -> list[rpc.AccessControlEntryFilter]:
    """One for each resource and operation."""
    wanted = [operation_of(one) for one in operations or []] or [AclOperation.ANY]
    permission_type = AclPermission[permission.name] if permission else AclPermission.ANY
    resources: list[Resource | None] = [*chosen.resources] or [None]
    return [
        rpc.AccessControlEntryFilter(
            resource_type=AclResourceType.ANY if resource is None else resource.type,
            resource_name=None if resource is None else resource.name,
            pattern_type=PatternType.ANY if resource is None else PatternType[pattern.name],
            principal=principal,
            host=host,
            operation=operation,
            permission_type=permission_type,
        )
        for resource in resources
        for operation in wanted
    ]


def _describe(
    filter_: rpc.AccessControlEntryFilter, bootstrap_controller: str, timeout: float
) -> Any:
    from raftlog.cli.session import ask_controller

    body = rpc.DescribeAclsRequest(filter=filter_)
    return ask_controller(body, bootstrap_controller, timeout).describe_acls


def _unique(entries: Iterable[Any]) -> list[Any]:
    return list({one.SerializeToString(deterministic=True): one for one in entries}.values())


def _document(one: Any) -> dict[str, Any]:
    return {
        "resource_type": type_text(one.resource_type),
        "resource_name": one.resource_name,
        "pattern_type": pattern_text(one.pattern_type),
        "principal": one.principal,
        "host": one.host,
        "operation": spelled(one.operation),
        "permission_type": permission_text(one.permission_type),
    }


def _text(one: Any) -> str:
    document = _document(one)
    host = "any host" if one.host == ANY_HOST else one.host
    prefix = "names beginning with " if one.pattern_type == PatternType.PREFIXED else ""
    return (
        f"{document['permission_type']} {one.principal} from {host}: {document['operation']} on"
        f" {document['resource_type']} {prefix}{one.resource_name}"
    )


def _print_entries(entries: list[Any]) -> None:
    rows = [tuple(_document(one).values()) for one in entries]
    columns = ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")
    print_table(columns, rows, least=("HOST", "PATTERN"))
