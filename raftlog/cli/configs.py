"""``raftlog configs``: dynamic configs of topics, brokers, groups and clients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from raftlog.cli import completion
from raftlog.cli.command import READ, WRITE, Answer, ValidateOnly, command, group, pair, written
from raftlog.cli.exits import Exit, FailedError
from raftlog.cli.options import arg, opt
from raftlog.cli.output import print_error, print_line, print_note, print_table, print_text
from raftlog.errors import ConfigError
from raftlog.metadata import config_keys as keys_of
from raftlog.metadata.config_keys import ResourceType
from raftlog.text import counted

if TYPE_CHECKING:
    from raftlog.client.async_client import AsyncClient
    from raftlog.client.values import ConfigEntry, ItemResult
    from raftlog.outcome import WriteResult

app = group()
_SOURCES = {
    "dynamic_topic_config": "dynamic topic",
    "dynamic_broker_config": "dynamic broker",
    "dynamic_default_broker_config": "dynamic default",
    "default_config": "default",
    "dynamic_client_metrics_config": "client metrics",
    "group_config": "group",
}
"""Kafka's ConfigSource -> its name in the output."""


class ResourceKind(StrEnum):
    """A kind of resource that has configs."""

    TOPIC = "topic"
    BROKER = "broker"
    CLIENT_METRICS = "client-metrics"
    GROUP = "group"

    @property
    def number(self) -> ResourceType:
        """The number of the kind in Kafka's protocol."""
        return ResourceType[self.name]


@dataclass
class ConfigDescriptions:
    """Every key of the resource, or only the requested ones."""

    offset: int
    items: Sequence[ConfigEntry]


Kind = Annotated[ResourceKind, arg("KIND", "topic, broker, client-metrics or group.")]
Name = Annotated[
    str,
    arg(
        "NAME",
        'The topic, broker id, …; "" for all brokers.',
        autocompletion=completion.config_names,
    ),
]


@command(app, shared=WRITE)
async def alter(
    client: AsyncClient,
    kind: Kind,
    name: Name,
    set_: Annotated[
        list[str] | None,
        opt(
            "--set KEY=VALUE",
            "Set a key; may be repeated.",
            autocompletion=completion.config_assignments,
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        opt(
            "--delete KEY",
            "Reset a key to its default; may be repeated.",
            autocompletion=completion.config_keys,
        ),
    ] = None,
    append: Annotated[
        list[str] | None, opt("--append KEY=ITEM,...", "Add items to a list; may be repeated.")
    ] = None,
    subtract: Annotated[
        list[str] | None,
        opt("--subtract KEY=ITEM,...", "Remove items from a list; may be repeated."),
    ] = None,
    validate_only: ValidateOnly = False,
) -> Answer[WriteResult[ItemResult]]:
    """Change configs of one resource: all changes are made, or none.

    \b
    Examples:
      raftlog configs alter topic orders --set max.message.bytes=2000000
      raftlog configs alter topic orders --delete min.insync.replicas --acks visible
      raftlog configs alter broker "" --set min.insync.replicas=2
    """
    values, added, removed = (
        _pairs(texts, option)
        for texts, option in ((set_, "--set"), (append, "--append"), (subtract, "--subtract"))
    )
    names = [*values, *added, *removed, *(delete or ())]
    if not names:
        raise ConfigError(
            "nothing to change: give at least one of --set, --append, --subtract (each KEY=VALUE) "
            "and --delete KEY"
        )
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise ConfigError(f"keys given more than once: {', '.join(twice)}")
    answer = await written(
        client.configs.alter(
            kind.number,
            name,
            set=values,
            delete=delete or (),
            append=added,
            subtract=removed,
            validate_only=validate_only,
        ),
        "would be accepted" if validate_only else "altered",
    )
    if not answer.errors:
        changed = values | added
        own = changed if name and kind.number == ResourceType.BROKER else ()
        if note := without_effect(kind.number, changed, own):
            print_note(note)
    elif hint := did_you_mean(kind.number, names):
        print_error(hint)
    return answer


def _pairs(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        key, value = pair(text, option)
        if key in found:
            raise ConfigError(f"{option}: {key} is given more than once")
        found[key] = value
    return found


@command(app, shared=READ)
async def describe(
    client: AsyncClient,
    kind: Kind,
    name: Name,
    keys: Annotated[
        list[str] | None,
        opt("--key KEY", "Only this key; may be repeated.", autocompletion=completion.config_keys),
    ] = None,
    show_all: Annotated[bool, opt("--all -a", "Also show defaults without effect.")] = False,
) -> Answer[ConfigDescriptions]:
    """Show the configs of one resource, and where each value comes from.

    Shows configs that are set or that this build acts on; --all and --json show every config.

    \b
    Examples:
      raftlog configs describe topic orders --bootstrap-server 127.0.0.1:9092
      raftlog configs describe broker 4 --key message.max.bytes --json
    """
    found = await client.configs.describe(kind.number, name, keys=keys or ())
    offset = client.token.offset if client.token is not None else -1

    def show() -> None:
        shown = [
            one
            for one in found.values()
            if show_all or keys or not one.is_default or not one.without_effect
        ]
        rows = ((one.name, one.value, source_text(one)) for one in shown)
        print_table(("KEY", "VALUE", "SOURCE"), rows)
        if idle := len(found) - len(shown):
            print_text(
                f"({counted(idle, 'default')} without effect in this build not shown: --all)"
            )
        print_line(f"at offset {offset}")

    meant = {one.name: one.value for one in found.values() if keys or not one.is_default}
    own = [one.name for one in found.values() if one.source.name == "DYNAMIC_BROKER_CONFIG"]
    if note := without_effect(kind.number, meant, own):
        print_note(note)
    # Every existing key has a value, if only its default.
    unknown = sorted({*(keys or ())} - found.keys())
    hint = did_you_mean(kind.number, unknown)
    why = f"INVALID_CONFIG: no such {kind.value} config: {', '.join(unknown)}"
    errors = [FailedError(f"{why}{f'; {hint}' if hint else ''}", Exit.REFUSED)] if unknown else []
    return Answer(ConfigDescriptions(offset, [*found.values()]), show, errors)


def source_text(one: ConfigEntry) -> str:
    """Return the source of a value, and why the value has no effect, if so."""
    source = _SOURCES.get(one.source.name.lower(), str(int(one.source)))
    return f"{source} ({one.without_effect})" if one.without_effect else source


def did_you_mean(resource_type: int, names: Iterable[str]) -> str:
    """Return a hint with known keys similar to the unknown ones, or "" if none."""
    known = keys_of.config_keys(resource_type) or {}
    guesses = [
        close[0]
        for name in names
        if name not in known and (close := get_close_matches(name, known, n=1, cutoff=0.6))
    ]
    return f"did you mean {', '.join(guesses)}?" if guesses else ""


def without_effect(
    resource_type: int, configs: Mapping[str, str], of_one_broker: Collection[str] = ()
) -> str:
    """Return notes about keys that are stored but have no effect, or "" if none."""
    known = keys_of.config_keys(resource_type) or {}
    idle = [
        name for name in configs if name in known and not keys_of.is_acted_on(resource_type, name)
    ]
    notes = []
    if idle:
        are, it = ("are", "them") if len(idle) > 1 else ("is", "it")
        kept = f"{', '.join(idle)} {are} stored and shown"
        notes.append(f"note: {kept}, but this build does not act on {it}")
    alone = [
        name
        for name in configs
        if name in known
        and name not in idle
        and name in of_one_broker
        and keys_of.without_effect(resource_type, name, "", of_one_broker=True)
    ]
    if alone:
        notes.append(
            f"note: {', '.join(alone)}: no effect if set on a single broker; to set it for all"
            ' brokers, give "" as the name'
        )
    notes += [
        f"note: {name}: this build does not compact topics; only the policy delete removes records"
        for name in sorted(configs)
        if name not in idle and keys_of.without_effect(resource_type, name, configs[name])
    ]
    return "\n".join(notes)
