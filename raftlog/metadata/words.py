"""Entities and their changes as text: printable keys, values as JSON objects or on one line,
differences field by field, authors.

A batch names its principal; batches without one are the controller's own. The log of another system
names no authors at all, so its batches are not attributed to the controller.

Topic ids have Kafka's form (22 characters of base64, safe for URLs) only in output about an
imported log, so that it matches the output of Kafka's commands.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from raftlog.identity import ANONYMOUS_PRINCIPAL
from raftlog.metadata.acls import (
    ALL_RESOURCES,
    ANY_HOST,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from raftlog.metadata.entities import (
    ClientResult,
    KeyValue,
)

RESOURCE_TYPES = {2: "topic", 4: "broker", 16: "client-metrics", 32: "group"}
"""Kafka's config resource types."""
TYPE_NUMBERS = {name: number for number, name in RESOURCE_TYPES.items()}


def plain(value: Any) -> Any:
    """Return a value as in JSON: structs as objects (in the log's hash they are arrays), bytes in
    hex.
    """
    if isinstance(value, KeyValue):
        return key_value(value.key, value.value, value.offset, value.create_offset, value.lease_id)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def text_and_base64(value: bytes | None) -> tuple[str | None, str | None]:
    """Return (text, base64) for bytes: the text if they are UTF-8, else the base64; the other is
    None. Both are None if there are no bytes.
    """
    if value is None:
        return None, None
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return None, b64encode(value).decode()


def key_value(
    key: str, value: bytes, offset: int, create_offset: int, lease_id: int
) -> dict[str, Any]:
    """Return a key of the key-value store as an object; its lease is null if it has none."""
    text, base64 = text_and_base64(value)
    return {
        "key": key,
        "value": text,
        "value_base64": base64,
        "offset": offset,
        "create_offset": create_offset,
        "lease_id": lease_id or None,
    }


def to_json(value: Any) -> str:
    """Return ``plain`` as JSON text."""
    return msgspec.json.encode(plain(value)).decode()


def config_key(resource_type: int, resource_name: str, name: str = "") -> str:
    """Return the key of a config, such as topic:orders:retention.ms."""
    resource = f"{RESOURCE_TYPES.get(resource_type, resource_type)}:{resource_name}"
    return f"{resource}:{name}" if name else resource


def result_key(result: ClientResult) -> str:
    """Return the key of a result, from client and number, such as 1234-7."""
    return f"{result.client_id}-{result.sequence}"


def lower(name: IntEnum) -> str:
    """Return a name in lower case, with spaces: ``client session`` for CLIENT_SESSION."""
    return name.name.lower().replace("_", " ")


PERMISSIONS = {int(each): lower(each) for each in AclPermission}
OPERATIONS = {int(each): lower(each) for each in AclOperation} | {
    int(AclOperation.ALL): "all operations"
}
RESOURCES = {int(each): lower(each) for each in AclResourceType}


def acl_in_words(entry: dict[str, Any]) -> str:
    """Describe an entry, given its JSON object in changes."""
    permission, operation, resource = (
        names.get(entry[field], str(entry[field]))
        for names, field in (
            (PERMISSIONS, "permission_type"),
            (OPERATIONS, "operation"),
            (RESOURCES, "resource_type"),
        )
    )
    name = entry["resource_name"]
    if entry["pattern_type"] == PatternType.PREFIXED:
        on = f"every {resource} {name}…"
    elif entry["resource_type"] == AclResourceType.CLUSTER:
        on = "the cluster"
    else:
        on = f"every {resource}" if name == ALL_RESOURCES else f"{resource} {name}"
    host = "" if entry["host"] == ANY_HOST else f" from host {entry['host']}"
    return f"{permission} {entry['principal']} {operation} on {on}{host}"


_HEX = re.compile(r"[0-9a-f]{32}", re.IGNORECASE)
_KAFKAS = re.compile(r"[0-9A-Za-z_-]{22}")
_ID_FIELDS = {"topic": "id", "partition": "topic_id"}
"""Kind of entity -> the field of its value that contains a topic's id."""


def kafka_id(digits: str) -> str:
    """Return an id of 32 hex digits in the form that Kafka prints."""
    return urlsafe_b64encode(bytes.fromhex(digits)).decode().rstrip("=")


def parse_topic_id(text: str) -> str | None:
    """Return the 32 hex digits of a topic id in either form, or None if it is not an id."""
    if _HEX.fullmatch(text):
        return text.lower()
    if not _KAFKAS.fullmatch(text):
        return None
    try:
        digits = urlsafe_b64decode(text + "==").hex()
    except binascii.Error:
        return None
    # The last character has four surplus bits, which must be 0.
    return digits if kafka_id(digits) == text else None


def with_kafka_id(kind: str, value: Any) -> Any:
    """Return an entity's value in JSON, with its topic id in the form that Kafka prints."""
    name = _ID_FIELDS.get(kind)
    if name is None or not isinstance(value, dict):
        return value
    return {**value, name: kafka_id(value[name])}


def id_field(kind: str) -> str | None:
    """Return the field that contains a topic's id in values of this kind, or None."""
    return _ID_FIELDS.get(kind)


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "none"


def _topic(value: dict[str, Any]) -> str:
    return f"id {value['id']}"


def _partition(value: dict[str, Any]) -> str:
    leader = value["leader"]
    text = f"leader {leader if leader >= 0 else 'none'}, replicas {_ids(value['replicas'])}"
    if value["isr"] != value["replicas"]:
        text += f", ISR {_ids(value['isr'])}"
    for name in ("adding", "removing"):
        if value[f"{name}_replicas"]:
            text += f", {name} {_ids(value[f'{name}_replicas'])}"
    for name, said in (("elr", "eligible to lead"), ("last_known_elr", "known to have led last")):
        if value.get(name):
            text += f", {said} {_ids(value[name])}"
    return text


def _broker(value: dict[str, Any]) -> str:
    at = ", ".join(f"{one['host']}:{one['port']}" for one in value["listeners"])
    rack = f", rack {value['rack']}" if value["rack"] else ""
    # Kafka's log contains no reason.
    why = f" ({value['reason']})" if value["reason"] else ""
    state = f"fenced{why}" if value["fenced"] else "unfenced"
    return f"at {at}{rack}, {state}, broker epoch {value['epoch']}"


def _partition_detail(value: dict[str, Any]) -> str:
    """Return the details of an imported partition."""
    said = [
        f"{words} {_ids(value[name])}"
        for name, words in (
            ("eligible_leader_replicas", "eligible to lead"),
            ("last_known_elr", "known to have led last"),
        )
        if value.get(name)
    ]
    if directories := value.get("directories"):
        said.append(f"directories {', '.join(directories)}")
    return ", ".join(said) or "nothing"


def _leader(value: dict[str, Any]) -> str:
    return f"node {value['leader_id']} in epoch {value['epoch']}, voters {_ids(value['voters'])}"


def _voters(value: dict[str, Any]) -> str:
    said = ", ".join(_each_voter(value).values())
    seats = f" on {value['seats']} seats" if value.get("seats") else ""
    return f"{said}{seats}" + (f" ({value['reason']})" if value.get("reason") else "")


def _each_voter(value: dict[str, Any]) -> dict[tuple[int, str], str]:
    return {
        (one["id"], one.get("directory_id", "")): f"{one['id']}@{one['endpoint']}"
        for one in value["voters"]
    }


def _changed_voters(old: dict[str, Any], new: dict[str, Any]) -> str:
    before, after = _each_voter(old), _each_voter(new)
    said = [f"removed {one}" for key, one in before.items() if key not in after]
    said += [f"added {one}" for key, one in after.items() if key not in before]
    said += [
        f"moved {one} → {after[key].partition('@')[2]}"
        for key, one in before.items()
        if after.get(key, one) != one
    ]
    return "; ".join([*said, f"now {_voters(new)}"])


def _hostname(value: dict[str, Any]) -> str:
    why = f" ({value['reason']})" if value["reason"] else ""
    return f"broker {value['broker_id']}{why}"


def _key_value(value: dict[str, Any]) -> str:
    base64, lease = value.get("value_base64"), value.get("lease_id")
    text = f"base64 {base64}" if base64 else str(value.get("value"))
    return f"{text}, lease {lease}" if lease else text


def _lease(value: dict[str, Any]) -> str:
    name = f" named {value['name']}" if value.get("name") else ""
    return f"for {value['ttl_ms'] / 1000:g} s{name}"


def _cursor(value: dict[str, Any]) -> str:
    target = f" for {value['target']}" if value.get("target") else ""
    return f"from offset {value['end_offset']} onwards{target}"


IN_WORDS: dict[str, Callable[[Any], str]] = {
    "acl": acl_in_words,
    "broker": _broker,
    "export_cursor": _cursor,
    "hostname": _hostname,
    "kv": _key_value,
    "leader": _leader,
    "lease": _lease,
    "partition": _partition,
    "partition_detail": _partition_detail,
    "topic": _topic,
    "voters": _voters,
}
"""Kind -> function that describes its values, for kinds whose JSON is hard to read."""


def recovery_in_words(recovery: dict[str, Any]) -> str:
    """Describe what an unclean recovery knew and what it may lose, given its JSON object."""
    said = [f"unclean recovery ({recovery.get('strategy', '')})"]
    for one in recovery.get("logs", ()):
        epoch = one.get("last_epoch", 0)
        end = f"{one.get('log_end_offset', 0)} in leader epoch {epoch}" if epoch >= 0 else "nothing"
        said.append(f"broker {one.get('broker_id', 0)} reported {end}")
    said.extend(f"broker {one} did not report" for one in recovery.get("silent", ()))
    loss = recovery.get("loss", "")
    return ", ".join(said) + (
        f"; may have lost records: {loss}" if loss else "; no records are lost"
    )


class FieldChange(msgspec.Struct, frozen=True):
    """A field that has changed. ``before`` and ``after`` are JSON; ``field`` is "value" for an
    entity that is a plain value.
    """

    field: str
    before: msgspec.Raw
    after: msgspec.Raw


def raw(text: str | None) -> msgspec.Raw:
    """Return JSON text unchanged, or null for None."""
    return msgspec.Raw((text or "null").encode())


def field_changes(before: str | None, after: str | None) -> list[FieldChange]:
    """Return the differences between two values in JSON; empty if the entity was created or
    deleted.
    """
    if before is None or after is None or before == after:
        return []
    old, new = msgspec.json.decode(before), msgspec.json.decode(after)
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [FieldChange("value", raw(before), raw(after))]
    names = [*new, *(name for name in old if name not in new)]
    return [
        FieldChange(name, _encoded(old.get(name)), _encoded(new.get(name)))
        for name in names
        if old.get(name) != new.get(name)
    ]


def words(
    before: msgspec.Raw, after: msgspec.Raw, fields: list[FieldChange], kind: str = ""
) -> str:
    """Describe a change: created, deleted, or one line per field. ``kind``: kind of the entity."""
    old, new = msgspec.json.decode(before), msgspec.json.decode(after)
    say = IN_WORDS.get(kind, _in_fields)
    if old is None:
        return f"created: {say(new)}"
    if new is None:
        return f"deleted: {say(old)}"
    if kind == "voters":
        return _changed_voters(old, new)
    if len(fields) == 1 and fields[0].field == "value":
        return f"{brief(old)} → {brief(new)}"
    return "\n".join(f"{one.field}: {_shown(one.before)} → {_shown(one.after)}" for one in fields)


def _in_fields(value: Any) -> str:
    """Return an entity's fields as text, with spaces at which a line can be wrapped."""
    if not isinstance(value, dict):
        return brief(value)
    shown = {name: one for name, one in value.items() if one not in (None, "", [], {})}
    return ", ".join(f"{name.replace('_', ' ')} {brief(one)}" for name, one in shown.items())


def brief(value: Any) -> str:
    """Return a value on one line: text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _shown(value: msgspec.Raw) -> str:
    return brief(msgspec.json.decode(value))


def _encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def author(principal: str, client_id: int = 0) -> str:
    """Return the author of a batch in raftlog's own log, as shown to users. ``client_id``: from the
    batch, or 0 if its write has no number.
    """
    if principal == ANONYMOUS_PRINCIPAL:
        return f"client {client_id} (no principal)" if client_id else "a client (no principal)"
    return principal or "the controller"


def why_nobody(origin: str) -> str:
    """Return the text to show instead of an author. ``origin``: system that wrote the log, as in
    the manifest.
    """
    return f"{origin.capitalize()}'s log does not record who made a change"
