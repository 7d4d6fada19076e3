"""``raftlog acls``: the rights of principals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raftlog.cli.command import ASK, WRITE, Answer, ValidateOnly, command, group, would, written
from raftlog.cli.exits import Exit
from raftlog.cli.options import opt
from raftlog.cli.output import print_line, print_table
from raftlog.errors import ConfigError
from raftlog.metadata.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    Resource,
)
from raftlog.outcome import Acks
from raftlog.text import to_json

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.cluster import AclListing, AclResult
    from raftlog.client.values import Acl, AclFilter
    from raftlog.node.security.authorizer import Why
    from raftlog.outcome import WriteResult

app = group()
PatternName = Literal["literal", "prefixed", "match", "any"]


class OperationName(StrEnum):
    """An operation, as the command line spells it."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"


def _with_type(principal: str | None) -> str | None:
    """Require a principal to include its type: without one it would match no entry, which would
    look like a valid result.
    """
    if principal is not None and not principal.startswith("User:"):
        raise typer.BadParameter(f"--principal {principal!r} has no type: write 'User:{principal}'")
    return principal


Names = list[str] | None
Operations = Annotated[
    list[OperationName] | None,
    opt("--operation OPERATION", "Only this operation; may be repeated."),
]


@dataclass
class Resources:
    """The options that name resources, in declaration order."""

    topic: Annotated[Names, opt("--topic NAME", "A topic, or '*' for all; may be repeated.")] = None
    group: Annotated[Names, opt("--group NAME", "A group, for its configs, or '*' for all.")] = None
    cluster: Annotated[bool, opt("--cluster", "The cluster as a whole.")] = False
    client_session: Annotated[
        Names, opt("--client-session NAME", "The name of an exactly-once client, or '*' for all.")
    ] = None
    hostname: Annotated[Names, opt("--hostname HOST", "A hostname mapping, or '*' for all.")] = None
    export_cursor: Annotated[
        Names, opt("--export-cursor NAME", "An export cursor, or '*' for all.")
    ] = None
    kv: Annotated[Names, opt("--kv KEY", "A key of the key-value store, or '*' for all.")] = None

    @property
    def named(self) -> list[Resource]:
        """Return the resources that the options name."""
        names = (
            (AclResourceType.TOPIC, self.topic),
            (AclResourceType.GROUP, self.group),
            (AclResourceType.CLUSTER, [CLUSTER_NAME] if self.cluster else None),
            (AclResourceType.CLIENT_SESSION, self.client_session),
            (AclResourceType.HOSTNAME, self.hostname),
            (AclResourceType.EXPORT_CURSOR, self.export_cursor),
            (AclResourceType.KEY_VALUE, self.kv),
        )
        return [Resource(kind, name) for kind, found in names for name in found or ()]

    def some(self) -> list[Resource]:
        """Return the named resources. Raises ConfigError if none is named."""
        if not self.named:
            raise ConfigError(
                "name a resource: --topic, --group, --cluster, --client-session, --hostname,"
                " --export-cursor or --kv"
            )
        return self.named


@dataclass
class Chosen(Resources):
    """The options that select entries."""

    principal: Annotated[
        str | None,
        opt(
            "--principal PRINCIPAL",
            "Only entries for this principal, such as User:alice.",
            callback=_with_type,
        ),
    ] = None
    host: Annotated[
        str | None, opt("--host ADDRESS", "Only entries for this host: an IP address, or *.")
    ] = None
    operation: Operations = None
    permission: Annotated[
        Literal["allow", "deny"] | None,
        opt("--permission", "Only entries that allow, or only those that deny."),
    ] = None

    def filters(self, pattern: PatternName) -> list[AclFilter]:
        """Return one filter for each combination of resource and operation."""
        from raftlog.client.values import AclFilter

        resources: Sequence[Resource | None] = self.named or [None]
        return [
            AclFilter(
                self.principal,
                operation,
                AclResourceType.ANY if one is None else one.type,
                None if one is None else one.name,
                PatternType.ANY if one is None else PatternType[pattern.upper()],
                AclPermission[(self.permission or "any").upper()],
                self.host,
            )
            for one in resources
            for operation in [AclOperation[name.name] for name in self.operation or ()]
            or [AclOperation.ANY]
        ]


Patterns = Annotated[
    PatternName,
    opt(
        "--resource-pattern-type",
        "How the entries name the resource; match: every entry that applies to a resource with "
        "this name.",
    ),
]


@dataclass
class ShownAcls:
    """The matching entries, and the active controller's other inputs to a decision."""

    offset: int
    authorizer_enabled: bool
    super_users: Sequence[str]
    allow_everyone_if_no_acl_found: bool
    items: Sequence[Acl]


@dataclass
class Verdict:
    """The decision about one resource."""

    resource_type: AclResourceType
    resource_name: str
    allowed: bool
    why: Why
    entry: Acl | None
    """The entry that decides, or None if no entry does."""


@dataclass
class Verdicts:
    """The decisions about a principal. Exit code 1 if at least one of them denies."""

    offset: int
    authorizer_enabled: bool
    verdicts: Sequence[Verdict]


@command(app, "list", shared=ASK)
async def list_(
    client: AsyncClient, chosen: Chosen, resource_pattern_type: Patterns = "any"
) -> Answer[ShownAcls]:
    """List the access control entries.

    \b
    Examples:
      raftlog acls list --bootstrap-controller 127.0.0.1:9093
      raftlog acls list --topic orders --resource-pattern-type match
    """
    listed = [await client.acls.list(one) for one in chosen.filters(resource_pattern_type)]
    acls, last = [*dict.fromkeys(one for some in listed for one in some)], listed[-1]

    def show() -> None:
        keys = ("resource_type", "resource_name", "pattern_type", "principal", "host",
                "operation", "permission")  # fmt: skip
        columns = ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")
        rows = ([to_json(getattr(one, key)) for key in keys] for one in acls)
        print_table(columns, rows, least=("HOST", "PATTERN"))
        if not last.authorizer_enabled:
            print_line(
                "entries are not enforced: authorizer.class.name is empty at the active controller"
            )
        elif last.super_users:
            print_line(f"super users, allowed regardless of entries: {', '.join(last.super_users)}")

    document = ShownAcls(
        last.offset,
        last.authorizer_enabled,
        last.super_users,
        last.allow_everyone_if_no_acl_found,
        acls,
    )
    return Answer(document, show)


@command(app, shared=WRITE, acks=Acks.ACKNOWLEDGED)
async def add(
    client: AsyncClient,
    resources: Resources,
    allow_principal: Annotated[
        list[str] | None, opt("--allow-principal PRINCIPAL", "User:NAME, or User:*.")
    ] = None,
    deny_principal: Annotated[
        list[str] | None, opt("--deny-principal PRINCIPAL", "User:NAME, or User:*.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        opt("--allow-host ADDRESS", "Only from this address; default: any address."),
    ] = None,
    deny_host: Annotated[
        list[str] | None,
        opt("--deny-host ADDRESS", "Only from this address; default: any address."),
    ] = None,
    operation: Operations = None,
    resource_pattern_type: Annotated[
        Literal["literal", "prefixed"],
        opt("--resource-pattern-type", "prefixed: every name that begins with the given one."),
    ] = "literal",
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[AclResult]]:
    """Add access control entries.

    One for each combination of principal, host, operation and resource. Without --operation: all
    operations. A principal without rights needs no entry; an entry that denies wins over all that
    allow.

    \b
    Examples:
      raftlog acls add --allow-principal User:alice --operation read --topic orders
      raftlog acls add --allow-principal User:app --operation write --topic app. \\
        --resource-pattern-type prefixed
      raftlog acls add --deny-principal User:bob --deny-host 10.0.0.9 --topic '*'
    """
    from raftlog.client.values import Acl

    if not allow_principal and not deny_principal:
        raise ConfigError("name a principal: --allow-principal or --deny-principal")
    some = resources.some()
    acls: list[Acl] = []
    for permission, principals, hosts in (
        (AclPermission.ALLOW, allow_principal, allow_host),
        (AclPermission.DENY, deny_principal, deny_host),
    ):
        if hosts and not principals:
            raise ConfigError(f"a host needs a principal: --{permission.name.lower()}-principal")
        pattern = PatternType[resource_pattern_type.upper()]
        acls += [
            Acl(
                principal,
                AclOperation[one.name],
                resource.type,
                resource.name,
                pattern,
                permission,
                host,
            )
            for resource in some
            for principal in principals or ()
            for host in hosts or [ANY_HOST]
            for one in operation or [OperationName.ALL]
        ]
    done = would("added", validate_only)
    return await written(
        client.acls.create(*acls, validate_only=validate_only),
        lambda one: "already existed" if one.existed else done,
    )


@command(app, shared=WRITE, acks=Acks.ACKNOWLEDGED)
async def remove(
    client: AsyncClient,
    chosen: Chosen,
    resource_pattern_type: Patterns = "literal",
    everything: Annotated[bool, opt("--all", "Remove all entries.")] = False,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[AclResult]]:
    """Remove the access control entries that match all the options given.

    With --acks acknowledged, the default, every unfenced broker has stopped granting what only
    these entries allowed.

    \b
    Examples:
      raftlog acls remove --principal User:alice --topic orders
      raftlog acls remove --principal User:bob --resource-pattern-type any
    """
    if everything == (chosen != Chosen()):
        raise ConfigError("name the entries to remove (--principal, --topic, …), or give --all")
    filters = chosen.filters("any" if everything else resource_pattern_type)
    answer = await written(
        client.acls.delete(*filters, validate_only=validate_only), would("removed", validate_only)
    )
    if not answer.document.items:
        return Answer(answer.document, lambda: print_line("no entry matches"))
    return answer


@command(app, "test", shared=ASK)
async def decide(
    client: AsyncClient,
    resources: Resources,
    principal: Annotated[
        str, opt("--principal PRINCIPAL", "The principal, such as User:alice.", callback=_with_type)
    ],
    operation: Annotated[OperationName, opt("--operation", "The operation.")],
    host: Annotated[str, opt("--host ADDRESS", "The principal's IP address.")] = "",
) -> Answer[Verdicts]:
    """Show whether a principal may do something, and which entry decides.

    The committed entries decide, and the active controller's super.users and
    allow.everyone.if.no.acl.found. Exit code 1 if the principal may not.

    \b
    Examples:
      raftlog acls test --principal User:alice --operation read --topic orders
    """
    some = resources.some()
    listed = await client.acls.list()
    verdicts = _decide(listed, principal, host, AclOperation[operation.name], some)

    def show() -> None:
        for one in verdicts:
            said = "allowed" if one.allowed else "denied"
            kind = one.resource_type.name.lower().replace("_", " ")
            why = one.why.value if one.entry is None else one.entry
            print_line(f"{kind} {one.resource_name}: {said}: {why}")
        if not listed.authorizer_enabled:
            print_line(
                "but entries are not enforced: authorizer.class.name is empty at the active "
                "controller"
            )

    refused = [] if all(one.allowed for one in verdicts) else [typer.Exit(Exit.REFUSED)]
    return Answer(Verdicts(listed.offset, listed.authorizer_enabled, verdicts), show, refused)


def _decide(
    listed: AclListing,
    principal: str,
    host: str,
    operation: AclOperation,
    resources: Iterable[Resource],
) -> list[Verdict]:
    from raftlog.metadata.acls import AccessControlEntry, AclIndex
    from raftlog.node.security.authorizer import Authorizer, Caller

    index, acls = AclIndex(), {}
    for number, one in enumerate(listed):
        entry = AccessControlEntry(
            number.to_bytes(16, "big"), one.resource_type, one.resource_name, one.pattern_type,
            one.principal, one.host, one.operation, one.permission,
        )  # fmt: skip
        index, acls[entry.id] = index.with_entry(entry), one
    authorizer = Authorizer(frozenset(listed.super_users), listed.allow_everyone_if_no_acl_found)
    found = []
    for resource in resources:
        verdict = authorizer.verdict(index, Caller(principal, host), operation, resource)
        entry_ = None if verdict.entry is None else acls[verdict.entry.id]
        found.append(Verdict(resource.type, resource.name, verdict.allowed, verdict.why, entry_))
    return found
