"""The declared part of a state: topics, configs, access control entries and keys; in a file, in the
differences between two states, and in a plan that makes a cluster match a file.

A file states what must exist. Entities that it does not name stay unchanged: a topic, an entry or a
key is deleted only if the file has ``absent: true``, and a config is reset only if it is listed
under ``reset``. (A tool that deleted everything that its file does not name would delete every
other team's topics.) The parser treats all scalars in the file as text: ``no``, ``010`` and
``1_000`` are config values like any other. A duplicate key is an error. Keys that belong to a lease
are not declared state: their holder puts and deletes them.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec

from raftlog.errors import ApiError, ConfigError
from raftlog.metadata.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    AclResourceType,
    Binding,
    PatternType,
)
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import Image
from raftlog.metadata.words import TYPE_NUMBERS, acl_in_words, config_key, text_and_base64
from raftlog.text import counted
from raftlog.wire.controller.v1 import controller_pb2 as rpc

T = TypeVar("T")
MAX_FILE_BYTES = 32 << 20
DEFAULT = -1
"""A number of partitions or replicas that is left to the cluster's default."""
_TOPIC = TYPE_NUMBERS["topic"]


class Topic(NamedTuple):
    """A declared topic. ``id``: in hex if it comes from a state; empty if it comes from a file."""

    partitions: int
    replication_factor: int
    id: str = ""


class ConfigOf(NamedTuple):
    """The name of a config."""

    resource_type: int
    resource_name: str
    name: str


@dataclass(frozen=True, slots=True)
class Key:
    """A key. ``offset``: offset of its last put in this state; not a declared property."""

    value: bytes
    offset: int = field(default=-1, compare=False)


Name = str | ConfigOf | Binding
"""Name of a topic, key or config, or an access control entry, which is its own name."""
Value = Topic | str | Binding | Key
Declared = dict[tuple[str, Name], Value]
"""Entities by kind (topic, config, acl, key) and name."""
KINDS = ("topic", "config", "acl", "key")


class Change(NamedTuple):
    """A difference between two states; None stands for an absent entity."""

    kind: str
    name: Name
    before: Value | None
    after: Value | None

    @property
    def action(self) -> str:
        """The change in one word: create, delete or change."""
        return "create" if self.before is None else "delete" if self.after is None else "change"


def declared(image: Image) -> Declared:
    """Return the declared part of a state."""
    found: Declared = {}
    for topic_id, topic in image.topics.items():
        first = image.partitions[topic_id, 0]
        found["topic", topic.name] = Topic(
            topic.partition_count, _replication_factor(first), topic_id.hex()
        )
    for (resource_type, resource_name), values in image.configs.items():
        for name, value in values.items():
            found["config", ConfigOf(resource_type, resource_name, name)] = value
    for entry in image.acls.values():
        found["acl", entry.binding] = entry.binding
    for key, one in image.key_values.items():
        if not one.lease_id:
            found["key", key] = Key(one.value, one.offset)
    return found


def _replication_factor(partition: Partition) -> int:
    """Return the number of replicas of a partition after its reassignment."""
    return sum(one not in partition.removing_replicas for one in partition.replicas)


def differences(before: Declared, after: Declared) -> list[Change]:
    """Return the changes that make the first state equal to the second."""
    names = sorted(before.keys() | after.keys(), key=_order)
    return [
        Change(*name, before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _order(name: tuple[str, Name]) -> tuple[Any, ...]:
    kind, of = name
    return KINDS.index(kind), (of,) if isinstance(of, str) else tuple(of)


class _Topic(msgspec.Struct, forbid_unknown_fields=True):
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    configs: dict[str, str] = {}
    reset: list[str] = []
    absent: bool = False


class _Configs(msgspec.Struct, forbid_unknown_fields=True):
    set: dict[str, str] = {}
    reset: list[str] = []


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    principal: str
    operation: str
    resource: str
    name: str = CLUSTER_NAME
    pattern: str = "literal"
    host: str = ANY_HOST
    permission: str = "allow"
    absent: bool = False


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    value: str | None = None
    base64: str | None = None
    absent: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    topics: dict[str, Any] = {}
    configs: dict[str, dict[str, Any]] = {}
    acls: list[Any] = []
    keys: dict[str, Any] = {}


Wanted = dict[tuple[str, Name], Value | None]
"""The declared values by kind and name; None if the entity must be absent."""


def read_file(text: str, name: str) -> Wanted:
    """Parse a file. ``name``: its name in errors. Raises ConfigError."""
    content = _loaded(text, name)
    if isinstance(content, dict):
        # A heading with no content is parsed as an empty text.
        content = {part: each for part, each in content.items() if each}
    document = _converted(content, _File, name)
    wanted: Wanted = {}

    def add(kind: str, of: Name, value: Value | None) -> None:
        if (kind, of) in wanted:
            raise ConfigError(f"{name}: {kind} {in_words(kind, of)} is defined twice")
        wanted[kind, of] = value

    for topic, content in document.topics.items():
        for each in _topic(topic, _converted(content or {}, _Topic, f"{name}: topics.{topic}")):
            add(*each)
    for kind, resources in document.configs.items():
        number = TYPE_NUMBERS.get(kind)
        if number is None or number == _TOPIC:
            raise ConfigError(
                f"{name}: configs.{kind}: must be broker, client-metrics or group (put a topic's "
                "configs under the topic)"
            )
        for resource, content in resources.items():
            where = f"{name}: configs.{kind}.{resource}"
            for each in _configs(number, resource, _converted(content or {}, _Configs, where)):
                add(*each)
    for index, content in enumerate(document.acls):
        where = f"{name}: acls[{index}]"
        entry = _converted(content, _Entry, where)
        binding = _binding(entry, where)
        add("acl", binding, None if entry.absent else binding)
    for key, content in document.keys.items():
        where = f"{name}: keys.{key}"
        add("key", key, _key(_converted(content or {}, _Key, where), where))
    return wanted


def _loaded(text: str, name: str) -> Any:
    """Parse YAML whose scalars are all text. Raises ConfigError."""
    import yaml

    class Loader(yaml.BaseLoader):
        """A loader that refuses duplicate keys, and tags, which YAML's would ignore."""

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            """Return an object. Raises ConfigError for a tag, such as ``!!binary``."""
            if node.tag.removeprefix("tag:yaml.org,2002:") not in {"str", "seq", "map"}:
                where = f"{name}: {node.tag} at line {node.start_mark.line + 1}"
                raise ConfigError(f"{where} is a YAML tag: quote a text that begins with !")
            return super().construct_object(node, deep)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            """Return a mapping. Raises ConfigError for a duplicate key."""
            found = super().construct_mapping(node, deep)
            seen = set[str]()
            for key, _ in node.value:
                if key.value in seen:
                    line = key.start_mark.line + 1
                    raise ConfigError(f"{name}: duplicate key {key.value!r} at line {line}")
                seen.add(key.value)
            return found

    try:
        found = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        where = f": {error}"
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            where = f" at line {error.problem_mark.line + 1}: {error.problem}"
        raise ConfigError(f"{name} is not valid YAML{where}") from error
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply") from None
    if found is None:
        raise ConfigError(f"{name} is empty")
    return found


def _converted(content: Any, type_: type[T], where: str) -> T:
    try:
        return msgspec.convert(content, type_, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error


Item = tuple[str, Name, Value | None]


def _topic(name: str, one: _Topic) -> Iterator[Item]:
    if one.absent:
        if one != _Topic(absent=True):
            raise ConfigError(
                f"topic {name} has absent: true, so it cannot have partitions or configs"
            )
        yield "topic", name, None
        return
    yield "topic", name, Topic(one.partitions, one.replication_factor)
    yield from _configs(_TOPIC, name, _Configs(one.configs, one.reset))


def _configs(number: int, resource: str, one: _Configs) -> Iterator[Item]:
    for key, value in one.set.items():
        yield "config", ConfigOf(number, resource, key), value
    for key in one.reset:
        yield "config", ConfigOf(number, resource, key), None


def _key(one: _Key, where: str) -> Key | None:
    if sum((one.value is not None, one.base64 is not None, one.absent)) != 1:
        raise ConfigError(f"{where}: give exactly one of value, base64 and absent")
    if one.absent:
        return None
    if one.value is not None:
        return Key(one.value.encode())
    try:
        return Key(b64decode(one.base64 or "", validate=True))
    except ValueError as error:
        raise ConfigError(f"{where}: base64: {error}") from error


def _binding(one: _Entry, where: str) -> Binding:
    def number(field: str, names: Any, text: str) -> int:
        found = names.__members__.get(text.upper().replace("-", "_"))
        if found is None or found.name in ("ANY", "MATCH"):
            known = ", ".join(
                each.lower().replace("_", "-")
                for each in names.__members__
                if each not in ("ANY", "MATCH")
            )
            raise ConfigError(f"{where}: {field} {text!r}: must be one of {known}")
        return int(found)

    return Binding(
        resource_type=number("resource", AclResourceType, one.resource),
        resource_name=one.name,
        pattern_type=number("pattern", PatternType, one.pattern),
        principal=one.principal,
        host=one.host,
        operation=number("operation", AclOperation, one.operation),
        permission_type=number("permission", AclPermission, one.permission),
    )


def write_file(changes: Iterable[Change], *, with_values: bool) -> tuple[str, int]:
    """Return a file that makes these changes, and the number of keys that it omits.
    ``with_values``: include keys, whose values may be secrets.
    """
    import yaml

    topics: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    acls: list[dict[str, Any]] = []
    keys: dict[str, Any] = {}
    left_out = 0
    deleted = {one.name for one in changes if one.kind == "topic" and one.after is None}
    for kind, name, _, after in changes:
        if kind == "topic":
            assert isinstance(name, str)
            topics.setdefault(name, {}).update(_topic_as_document(after))
        elif isinstance(name, ConfigOf):
            if name.resource_type == _TOPIC and name.resource_name in deleted:
                continue
            _put_config(topics, configs, name, after)
        elif isinstance(name, Binding):
            acls.append(_entry_as_document(name, absent=after is None))
        elif not with_values and after is not None:
            left_out += 1
        else:
            keys[name] = _key_as_document(after)
    document = {"topics": topics, "configs": configs, "acls": acls, "keys": keys}
    filled = {part: content for part, content in document.items() if content}
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(filled, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)
    return (text if filled else ""), left_out


def _topic_as_document(value: Value | None) -> dict[str, Any]:
    if value is None:
        return {"absent": True}
    assert isinstance(value, Topic)
    return {"partitions": value.partitions, "replication_factor": value.replication_factor}


def _put_config(
    topics: dict[str, Any], configs: dict[str, Any], name: ConfigOf, value: Value | None
) -> None:
    if name.resource_type == _TOPIC:
        resource, set_ = topics.setdefault(name.resource_name, {}), "configs"
    else:
        kind = next(one for one, number in TYPE_NUMBERS.items() if number == name.resource_type)
        resource, set_ = configs.setdefault(kind, {}).setdefault(name.resource_name, {}), "set"
    if value is None:
        resource.setdefault("reset", []).append(name.name)
    else:
        resource.setdefault(set_, {})[name.name] = value


def _entry_as_document(one: Binding, *, absent: bool) -> dict[str, Any]:
    def name(names: Any, number: int) -> str:
        return str(names(number).name).lower().replace("_", "-")

    document: dict[str, Any] = {
        "principal": one.principal,
        "permission": name(AclPermission, one.permission_type),
        "operation": name(AclOperation, one.operation),
        "resource": name(AclResourceType, one.resource_type),
        "name": one.resource_name,
        "pattern": name(PatternType, one.pattern_type),
        "host": one.host,
    }
    return document | ({"absent": True} if absent else {})


def _key_as_document(value: Value | None) -> dict[str, Any]:
    if value is None:
        return {"absent": True}
    assert isinstance(value, Key)
    text, base64 = text_and_base64(value.value)
    # A parser would change control characters and line ends in the text.
    if text is None or not text.isprintable():
        from base64 import b64encode

        return {"base64": base64 or b64encode(value.value).decode()}
    return {"value": text}


def in_words(kind: str, name: Name) -> str:
    """Return the name of an entity as text."""
    if isinstance(name, ConfigOf):
        return config_key(*name)
    return acl_in_words(name._asdict()) if isinstance(name, Binding) else name


def change_in_words(one: Change, *, with_values: bool) -> str:
    """Describe the change. ``with_values``: include the values of keys, which may be secrets."""
    before, after = one.before, one.after
    if one.kind == "topic":
        return _topic_in_words(before, after)
    if one.kind == "acl":
        return ""
    show: Callable[[Any], str] = str
    if one.kind == "key":
        show = _value_shown if with_values else _value_hidden
    if before is None or after is None:
        return show(after if before is None else before)
    also = ""
    if one.kind == "key" and show(before) == show(after):
        also = ", different value"
    return f"{show(before)} → {show(after)}{also}"


def _value_shown(one: Key) -> str:
    text, base64 = text_and_base64(one.value)
    return text if text is not None else f"base64 {base64}"


def _value_hidden(one: Key) -> str:
    return f"({counted(len(one.value), 'byte')})"


def _topic_in_words(before: Any, after: Any) -> str:
    def number(value: int) -> str:
        return "default" if value == DEFAULT else str(value)

    if before is None or after is None:
        one = after or before
        partitions = number(one.partitions)
        return (
            f"{partitions} partition{'' if partitions == '1' else 's'}, replication factor"
            f" {number(one.replication_factor)}"
        )
    return "; ".join(
        f"{field.replace('_', ' ')} {getattr(before, field)} → {number(getattr(after, field))}"
        if field != "id"
        else "a different topic with that name"
        for field in Topic._fields
        if getattr(before, field) != getattr(after, field)
    )


class Plan(NamedTuple):
    """The changes that make a cluster match a file."""

    changes: list[Change]
    problems: list[str]
    """Requirements in the file that no plan can meet."""
    topics: dict[str, Topic]
    """The existing topics whose configs change: the plan applies only to these, not to later topics
    with the same names.
    """


def plan_of(image: Image, wanted: Wanted) -> Plan:
    """Return the plan that changes a cluster with this image to what a file declares."""
    live = declared(image)
    changes: list[Change] = []
    problems: list[str] = []
    for (kind, name), want in sorted(wanted.items(), key=lambda one: _order(one[0])):
        present, after = live.get((kind, name)), want
        if isinstance(want, Topic) and isinstance(present, Topic):
            after = _topic_wanted(str(name), present, want, problems)
        held = image.key_values.get(str(name)) if kind == "key" else None
        if held is not None and held.lease_id:
            problems.append(
                f"key {name} belongs to lease {held.lease_id}, so only the lease's holder may "
                "change it"
            )
        elif after != present:
            changes.append(Change(kind, name, present, after))
    of = {
        one.name.resource_name
        for one in changes
        if isinstance(one.name, ConfigOf) and one.name.resource_type == _TOPIC
    }
    topics = {str(name): one for (_, name), one in live.items() if isinstance(one, Topic)}
    return Plan(changes, problems, {name: topics[name] for name in sorted(of & topics.keys())})


def _topic_wanted(name: str, present: Topic, want: Topic, problems: list[str]) -> Topic:
    """Return the desired topic; properties that the file omits keep their current values."""
    partitions = present.partitions if want.partitions == DEFAULT else want.partitions
    if partitions < present.partitions:
        problems.append(
            f"topic {name} has {present.partitions} partitions, and partitions cannot be removed: "
            f"{partitions} partitions need a new topic"
        )
        partitions = present.partitions
    if want.replication_factor not in (DEFAULT, present.replication_factor):
        problems.append(
            f"topic {name} has replication factor {present.replication_factor}, not"
            f" {want.replication_factor}: change it with `raftlog partitions reassign`"
        )
    return present._replace(partitions=partitions)


def plan_id(plan: Plan, cluster_id: str, generation: int) -> str:
    """Return a short id of exactly these changes, covering both the present and the new values.

    Slow on purpose: the id is printed, and the values of keys may be secrets that are short enough
    to be found from a fast hash by search.
    """
    found = [[one.kind, one.name, one.before, one.after] for one in plan.changes]
    # Includes the offset of each existing key, which changes if the key is put again.
    ids = {name: one.id for name, one in plan.topics.items()}
    content = msgspec.json.encode([cluster_id, generation, found, plan.problems, ids])
    return hashlib.scrypt(content, salt=b"raftlog plan", n=1 << 13, r=8, p=1, dklen=8).hex()


_ITEM = re.compile(r"(\w{1,40})\[(\d{1,9})\]", re.ASCII)


def named_error(error: ApiError, request: rpc.ApplyPlanRequest) -> ApiError:
    """Return the error with a message that names the plan's item to which its field refers."""
    found = _ITEM.match(error.field)
    if found is None or found[1] not in request.DESCRIPTOR.fields_by_name:
        return error
    items = getattr(request, found[1])
    # The field comes from the controller, and may name an item that was not sent.
    if not isinstance(items, Sequence) or int(found[2]) >= len(items):
        return error
    item = items[int(found[2])]
    if isinstance(item, rpc.AccessControlEntry):
        name = acl_in_words(Binding.of(item)._asdict())
    elif isinstance(item, rpc.AlterConfigsResource):
        name = config_key(item.resource_type, item.resource_name)
    else:
        name = item if isinstance(item, str) else getattr(item, "name", "") or item.key
    return ApiError(error.code, f"{name}: {error.message}", field=error.field)


def request_of(plan: Plan, generation: int, *, validate_only: bool) -> rpc.ApplyPlanRequest:
    """Return the request that makes the plan's changes, provided that nothing has changed since."""
    request = rpc.ApplyPlanRequest(generation=generation, validate_only=validate_only)
    created: dict[str, rpc.CreatableTopic] = {}
    deleted: set[str] = set()
    resources: dict[tuple[int, str], rpc.AlterConfigsResource] = {}
    for one in plan.changes:
        if isinstance(one.name, ConfigOf):
            if not (one.name.resource_type == _TOPIC and one.name.resource_name in deleted):
                _add_config(request, resources, created, one)
        elif isinstance(one.name, Binding):
            entries = request.delete_acls if one.after is None else request.create_acls
            entries.add(**one.name._asdict())
        elif one.kind == "key":
            _add_key(request, one)
        else:
            _add_topic(request, created, deleted, one)
    expected = {one.name for one in request.expected_topics}
    for name, topic in plan.topics.items():
        if name not in expected:
            _expect(request, name, topic)
    return request


def _expect(request: rpc.ApplyPlanRequest, name: str, present: Topic | None) -> None:
    """Make the plan conditional on the topic for which it was made, or on its absence if None."""
    expected = request.expected_topics.add(name=name)
    if present is not None:
        expected.topic_id, expected.num_partitions = bytes.fromhex(present.id), present.partitions


def _add_topic(
    request: rpc.ApplyPlanRequest,
    created: dict[str, rpc.CreatableTopic],
    deleted: set[str],
    one: Change,
) -> None:
    name, before, after = str(one.name), one.before, one.after
    _expect(request, name, before if isinstance(before, Topic) else None)
    if not isinstance(after, Topic):
        request.delete_topics.append(name)
        deleted.add(name)
    elif before is None:
        created[name] = request.create_topics.add(
            name=name, num_partitions=after.partitions, replication_factor=after.replication_factor
        )
    else:
        request.create_partitions.add(name=name, count=after.partitions)


def _add_config(
    request: rpc.ApplyPlanRequest,
    resources: dict[tuple[int, str], rpc.AlterConfigsResource],
    created: Mapping[str, rpc.CreatableTopic],
    one: Change,
) -> None:
    assert isinstance(one.name, ConfigOf)
    resource_type, resource_name, name = one.name
    value = None if one.after is None else str(one.after)
    topic = created.get(resource_name) if resource_type == _TOPIC else None
    if topic is not None:
        if value is not None:
            topic.configs.add(name=name, value=value)
        return
    resource = resources.get((resource_type, resource_name))
    if resource is None:
        resource = resources[resource_type, resource_name] = request.configs.add(
            resource_type=resource_type, resource_name=resource_name
        )
    resource.configs.add(
        name=name,
        config_operation=rpc.COMPARE_AND_DELETE if value is None else rpc.COMPARE_AND_SET,
        value=value or "",
        expected=None if one.before is None else str(one.before),
    )


def _add_key(request: rpc.ApplyPlanRequest, one: Change) -> None:
    before, after = one.before, one.after
    request.keys.add(
        key=str(one.name),
        operation=rpc.KEY_VALUE_PUT if isinstance(after, Key) else rpc.KEY_VALUE_DELETE,
        value=after.value if isinstance(after, Key) else b"",
        expected_offset=before.offset if isinstance(before, Key) else -1,
    )
