"""Sentences for the records of the log: ``broker 5 was fenced: session timed out``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raftlog.cli.render import fields_text, resource_text
from raftlog.metadata.acl_words import in_words
from raftlog.metadata.records import RecordType
from raftlog.printable import printable

Fields = Mapping[str, Any]


def sentence(type_: int, fields: Fields) -> str:
    """Return what a record says. ``topic`` among the fields names the topic of a ``topic_id``.

    A type without a sentence is shown by its fields.
    """
    known = _SENTENCES.get(type_)
    # A version of a record that this build does not know has no fields.
    return fields_text(fields) if known is None or "undecoded" in fields else known(fields)


def _ids(value: Any) -> str:
    found = value.get("ids", ()) if isinstance(value, Mapping) else value
    return ", ".join(map(str, found)) or "none"


def _because(fields: Fields) -> str:
    return f": {fields['reason']}" if fields.get("reason") else ""


def _topic_of(fields: Fields) -> str:
    return str(fields.get("topic") or f"with id {fields.get('topic_id', '')}")


def _leader(leader: int) -> str:
    return str(leader) if leader >= 0 else "none"


def _registered(fields: Fields) -> str:
    at = ", ".join(f"{one['host']}:{one['port']}" for one in fields.get("end_points", ()))
    return f"broker {fields['broker_id']} registered" + (f" at {at}" if at else "")


def _broker_changed(fields: Fields) -> str:
    broker = f"broker {fields['broker_id']}"
    if fields.get("fenced") is not None:
        return f"{broker} was {'fenced' if fields['fenced'] else 'unfenced'}{_because(fields)}"
    if fields.get("in_controlled_shutdown"):
        return f"{broker} is shutting down in order"
    return f"the registration of {broker} was changed{_because(fields)}"


def _partition(fields: Fields) -> str:
    return (
        f"partition {fields['partition_id']} of topic {_topic_of(fields)} was created:"
        f" leader {_leader(fields['leader'])}, replicas {_ids(fields.get('replicas', ()))}"
    )


def _partition_changed(fields: Fields) -> str:
    parts = [f"leader {_leader(fields['leader'])}"] if fields.get("leader") is not None else []
    for name, words in (
        ("isr", "in sync"),
        ("replicas", "replicas"),
        ("adding_replicas", "adding"),
        ("removing_replicas", "removing"),
    ):
        if fields.get(name):
            parts.append(f"{words} {_ids(fields[name])}")
    if not fields.get("isr") and fields.get("isr_with_epochs"):
        parts.append(f"in sync {_ids([one['broker_id'] for one in fields['isr_with_epochs']])}")
    of = f"partition {fields['partition_id']} of topic {_topic_of(fields)}"
    return f"{of}: {'; '.join(parts) or 'unchanged'}"


def _config(fields: Fields) -> str:
    of = resource_text(fields["resource_type"], fields["resource_name"])
    value = fields.get("value")
    if value is None:
        return f"{fields['name']} of {of} was removed"
    return f"{fields['name']} of {of} was set to {value}"


def _feature(fields: Fields) -> str:
    level = fields.get("feature_level", 0)
    return f"feature {fields['name']} was {f'set to level {level}' if level else 'removed'}"


def _key(fields: Fields) -> str:
    verb = "deleted" if fields.get("value") is None else "put"
    lease = int(fields.get("lease_id") or 0)
    return f"key {fields['key']} was {verb}" + (f" with lease {lease}" if lease else "")


def _lease(fields: Fields) -> str:
    name = f" {fields['name']}" if fields.get("name") else ""
    return f"lease{name} was granted for {int(fields['ttl_ms']) / 1000:g} s without a renewal"


def _hostname(fields: Fields) -> str:
    broker = fields.get("broker_id")
    to = "is mapped to no broker" if broker is None else f"is mapped to broker {broker}"
    return f"hostname {fields['hostname']} {to}{_because(fields)}"


def _entry(fields: Fields) -> str:
    try:
        return f"access control entry was added: {in_words(dict(fields))}"
    except (KeyError, ValueError):
        return f"access control entry was added: {fields_text(fields)}"


_SENTENCES: Mapping[int, Callable[[Fields], str]] = {
    RecordType.REGISTER_BROKER: _registered,
    RecordType.UNREGISTER_BROKER: lambda fields: f"broker {fields['broker_id']} was unregistered",
    RecordType.BROKER_REGISTRATION_CHANGE: _broker_changed,
    RecordType.TOPIC: lambda fields: f"topic {fields['name']} was created",
    RecordType.REMOVE_TOPIC: lambda fields: f"topic {_topic_of(fields)} was deleted",
    RecordType.PARTITION: _partition,
    RecordType.PARTITION_CHANGE: _partition_changed,
    RecordType.CONFIG: _config,
    RecordType.FEATURE_LEVEL: _feature,
    RecordType.KEY_VALUE: _key,
    RecordType.LEASE: _lease,
    RecordType.REMOVE_LEASE: lambda fields: f"lease {fields['lease_id']} ended{_because(fields)}",
    RecordType.HOSTNAME: _hostname,
    RecordType.LEADER_CHANGE: lambda fields: f"controller {fields['leader_id']} became the leader",
    RecordType.ACCESS_CONTROL_ENTRY: _entry,
    RecordType.VOTERS: lambda fields: (
        "the voters are "
        + ", ".join(str(one.get("id", one.get("voter_id"))) for one in fields.get("voters", ()))
    ),
}


def shortened_value(value: bytes, most: int) -> str:
    """Return the beginning of a value: its text, or hex where it is not text."""
    head = value[:most]
    # A cut may fall into a character.
    text = head.decode(errors="ignore" if len(value) > most else "replace")
    shown = printable(text) if text.isprintable() and "\ufffd" not in text else f"0x{head.hex()}"
    return shown + ("…" if len(value) > most else "")
