"""The console's document, as plain containers: the cluster, and the image of the serving node."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any, TypeVar

import msgspec

from raftlog import batch
from raftlog.client.security import ClientSecurity
from raftlog.client.wire import known
from raftlog.metadata.config_keys import ResourceType, without_effect
from raftlog.metadata.entities import PLANNED, KeyValue, Partition
from raftlog.metadata.image import Image
from raftlog.metadata.record_text import fields_text, record_name, record_to_dict, resource_text
from raftlog.metadata.records import RecordType
from raftlog.metadata.words import acl_in_words, author
from raftlog.ops.collector import Collector, nodes_of
from raftlog.ops.console import Local
from raftlog.ops.doctor import diagnose, report
from raftlog.ops.evidence import BrokerState, Survey, Timeline
from raftlog.ops.story import Story, tell
from raftlog.ops.story_lines import ALONE_MAX, TOGETHER_MS, Line, Weight, groups, took
from raftlog.text import counted, printable, to_json

MAX_NODES = 100
MAX_BROKERS = 200
MAX_TOPICS = 200
MAX_CONFIGS = 200
MAX_READ = 5_000
"""Maximum number of topics that are read for one document; if there are more, topics that sort
first by name may be missing.
"""
MAX_LINES = 100
MAX_FINDINGS = 50


def document(
    survey: Survey,
    image: Image,
    changes: Sequence[Mapping[str, Any]],
    story: Story | None,
    node: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the page's document.

    ``node``: the serving node. ``story``: the last hour, or None if no journal has been read yet.
    """
    findings = diagnose(survey)
    said = to_json(report(survey, findings[:MAX_FINDINGS]))
    del said["nodes"]
    return {
        **said,
        "at_ms": survey.at_ms,
        "node": dict(node),
        "quorum": _quorum(survey),
        "lao": _lao(survey),
        "brokers": _brokers(survey, image),
        "topics": {
            "total": len(image.topics),
            "offset": image.offset,
            "shown": [
                {"name": one.name, "partitions": one.partition_count}
                for one in nsmallest(
                    MAX_TOPICS, islice(image.topics.values(), MAX_READ), key=lambda one: one.name
                )
            ],
        },
        "configs": _configs(image),
        **stored(image),
        "changes": list(changes),
        "incidents": _incidents(story, changes),
    }


def _quorum(survey: Survey) -> list[dict[str, Any]]:
    leader = survey.leader
    return [
        {
            "node_id": known(node.node_id),
            "endpoint": node.endpoint,
            "state": str(node.reach) if one is None else one.role,
            "answers": one is not None,
            "epoch": None if one is None else one.leader_epoch,
            "log_end": None if one is None else one.log_end_offset,
            "lag": None
            if one is None or leader is None
            else max(0, leader.log_end_offset - one.log_end_offset),
            "failure": node.failure,
        }
        for node in survey.nodes[:MAX_NODES]
        for one in (node.description,)
    ]


def _lao(survey: Survey) -> dict[str, Any]:
    found = survey.brokers
    if found is None:
        return {"offset": None, "why": survey.brokers_failure or "no leader answers"}
    held_by = found.held_back_by
    behind = ", ".join(map(str, held_by[:10])) + (", …" if len(held_by) > 10 else "")
    holds = "holds" if len(held_by) == 1 else "hold"
    held = f" for {took(found.held_back_ms)}" if found.held_back_ms else ""
    return {
        "offset": known(found.lowest_acknowledged_offset),
        "high_watermark": found.high_watermark,
        "why": ("" if found.brokers else "no broker has registered yet")
        or found.lao_unknown_reason
        or (
            f"{counted(len(held_by), 'broker')} ({behind}) {holds} it back{held}" if behind else ""
        ),
    }


def _registered_brokers(image: Image) -> dict[str, Any]:
    """Return the registrations in this node's image, which are known without a leader."""
    unknown = dict.fromkeys(("applied", "lag", "leads"))
    ids = sorted(image.brokers)[:MAX_BROKERS]
    return {
        "total": len(image.brokers),
        "shown": [
            {
                **unknown,
                "id": one.id,
                "endpoint": one.endpoint,
                "state": "not known",
                "rack": one.rack,
                "holds_lao": False,
                "replicas": len(image.replicas_of.get(one.id) or ()),
                "reason": "unknown without a leader",
            }
            for one in (image.brokers[broker_id] for broker_id in ids)
        ],
    }


def _brokers(survey: Survey, image: Image) -> dict[str, Any]:
    found = survey.brokers
    if found is None:
        return _registered_brokers(image)
    held = set(found.held_back_by)
    # Brokers that need attention come first.
    ordered = sorted(
        found.brokers,
        key=lambda one: (
            one.state == BrokerState.ACTIVE and one.broker_id not in held,
            one.broker_id,
        ),
    )
    return {
        "total": len(ordered),
        "partitions": found.partitions.total,
        "offline": found.partitions.offline,
        "shown": [
            {
                "id": one.broker_id,
                "endpoint": one.endpoint,
                "state": one.state_name,
                "rack": one.rack,
                "applied": known(one.applied_offset),
                "lag": max(0, found.high_watermark - 1 - one.applied_offset)
                if one.applied_offset >= 0
                else None,
                "holds_lao": one.broker_id in held,
                "leads": one.leader_count,
                "replicas": one.replica_count,
                "reason": one.reason,
            }
            for one in ordered[:MAX_BROKERS]
        ],
    }


def _configs(image: Image) -> dict[str, Any]:
    found = [
        {
            "resource": resource_text(type_, name),
            "key": key,
            "value": value,
            "without_effect": without_effect(
                type_, key, value, of_one_broker=bool(name) and type_ == ResourceType.BROKER
            ),
        }
        for (type_, name), entries in islice(image.configs.items(), MAX_CONFIGS)
        for key, value in islice(entries.items(), MAX_CONFIGS)
    ]
    shown = sorted(found[:MAX_CONFIGS], key=lambda one: (one["resource"], one["key"]))
    more = len(found) > MAX_CONFIGS or len(image.configs) > MAX_CONFIGS
    return {"resources": len(image.configs), "more": more, "shown": shown}


def _incidents(story: Story | None, changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if story is None:
        return {"summary": [], "missing": [], "shown": None}
    lines = sorted((*story.lines, *change_lines(changes, story.from_ms)), key=lambda one: one.at_ms)
    return {
        "summary": list(story.summary),
        "missing": list(story.missing[:MAX_NODES]),
        "shown": [
            {
                "at_ms": one.at_ms,
                "weight": one.weight.name.lower(),
                "text": one.text,
                "lasted": took(one.lasted_ms) if one.lasted_ms else "",
                "because": list(one.because),
            }
            for one in reversed(lines[-MAX_LINES:])
        ],
    }


_ALTERATIONS: Mapping[str, str] = {
    RecordType.TOPIC.name: "topic",
    RecordType.REMOVE_TOPIC.name: "topic",
    RecordType.CONFIG.name: "config",
    RecordType.FEATURE_LEVEL.name: "feature level",
    RecordType.ACCESS_CONTROL_ENTRY.name: "ACL",
    RecordType.REMOVE_ACCESS_CONTROL_ENTRY.name: "ACL",
    RecordType.VOTERS.name: "voter set",
    RecordType.UNREGISTER_BROKER.name: "broker",
}


def change_lines(changes: Sequence[Mapping[str, Any]], from_ms: int) -> list[Line]:
    """Return lines for the changes since a time.

    ``changes``: rows of the last changes, newest first. Changes that the controller makes by
    itself, such as the first records of a new cluster, are omitted, except for the fencing of a
    broker, which no node's journal records.
    """
    told = (
        one
        for one in reversed(changes)
        if one["type"] in _ALTERATIONS and one["by"] and one["at_ms"] >= from_ms
    )
    fenced = [
        Line(one["at_ms"], "FENCED", Weight.TROUBLE, "broker", one["sentence"], one["at_ms"])
        for one in changes
        if one["trouble"] and one["at_ms"] >= from_ms
    ]
    return fenced + [line for together in groups(told, _belong) for line in _lines(together)]


def _belong(before: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    near = one["at_ms"] - before["at_ms"] <= TOGETHER_MS
    return near and (before["who"], before["type"]) == (one["who"], one["type"])


def _lines(together: Sequence[Mapping[str, Any]]) -> list[Line]:
    if len(together) > ALONE_MAX:
        first, last = together[0], together[-1]
        made = counted(len(together), f"{_ALTERATIONS[first['type']]} change")
        text = f"{first['who']} made {made}, the last one: {last['sentence']}"
        return [_line(first, text, last["at_ms"])]
    return [_line(one, f"{one['who']}: {one['sentence']}", one["at_ms"]) for one in together]


def _line(one: Mapping[str, Any], text: str, until_ms: int) -> Line:
    return Line(one["at_ms"], "CHANGED", Weight.CHANGE, _ALTERATIONS[one["type"]], text, until_ms)


MAX_CHANGES = 50
MAX_CHUNKS = 200
MAX_RECORDS = 500
"""Maximum number of records, the newest ones, that are decoded for one document."""
TEXT_MAX_CHARS = 240
_UNTOLD = frozenset(
    {
        RecordType.NO_OP,
        RecordType.PROGRESS,
        RecordType.OPEN_CLIENT,
        RecordType.CLOSE_CLIENT,
        RecordType.EXPORT_CURSOR,
        RecordType.SNAPSHOT_HEADER,
        RecordType.SNAPSHOT_FOOTER,
        RecordType.SNAPSHOT_ENTITIES,
    }
)


class RecentChanges:
    """The newest changes, each decoded once."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=MAX_CHANGES)
        self._behind = 0
        """End of the records that were read or skipped, exclusive."""
        self._before = Image()
        """The previous document's image, which still has the name of a topic that has been removed
        since.
        """
        self._new_names: dict[str, str] = {}
        """Names of topics created since the previous document, by id, as a topic may be removed
        before the next document.
        """

    def read(self, newest: Sequence[bytes], until: int, image: Image) -> list[dict[str, Any]]:
        """Return the rows of the newest changes, newest first.

        ``newest``: chunks of the log, ascending. ``until``: the high watermark, exclusive.
        ``image``: source of the topics' names.
        """
        found: list[tuple[int, batch.BatchHeader, Any]] = []
        for chunk in reversed(newest):
            headers = list(batch.headers(chunk, verify=False))
            if headers[-1].end_offset <= self._behind or len(found) >= MAX_RECORDS:
                break
            for header in reversed(headers):
                if self._behind <= header.base_offset and header.end_offset <= until:
                    found += reversed(_newest_of(chunk, header, MAX_RECORDS - len(found)))
        for offset, header, data in reversed(found):
            if data.type not in _UNTOLD:
                self._add(offset, header, data, image)
        if found:
            self._behind = found[0][1].end_offset
        self._before = image
        self._new_names.clear()
        return list(reversed(self._kept))

    def _add(
        self, offset: int, header: batch.BatchHeader, data: batch.RecordData, image: Image
    ) -> None:
        """Add a row for a record, merged with an earlier row if both are one change.

        The partitions of a new topic are merged into the topic's row, and simultaneous changes to
        partitions into one row (a fenced broker changes hundreds, which would displace the
        operators' changes). Repeated puts of a key by a program are merged, too.
        """
        last = self._kept[-1] if self._kept else None
        if last is not None and _goes_with(last, header, data):
            last["partitions"] += 1
            return
        row = _told(offset, header, data, self._name_of(data, image))
        if last is not None and _is_repeated(last, row):
            row["times"] = last["times"] + 1
            self._kept.pop()
        self._kept.append(row)

    def _name_of(self, data: batch.RecordData, image: Image) -> Callable[[str], str]:
        """Return a function from a topic's id to its name, or "" if unknown."""
        if data.type == RecordType.TOPIC:
            fields = record_to_dict(data)
            self._new_names[str(fields["topic_id"])] = str(fields["name"])

        def name(topic_id: str) -> str:
            id_ = bytes.fromhex(topic_id)
            topic = image.topics.get(id_) or self._before.topics.get(id_)
            return topic.name if topic is not None else self._new_names.get(topic_id, "")

        return name


def _goes_with(last: Mapping[str, Any], header: batch.BatchHeader, data: batch.RecordData) -> bool:
    if data.type == RecordType.PARTITION:
        return last["type"] == RecordType.TOPIC.name and last["offset"] >= header.base_offset
    return (
        data.type == RecordType.PARTITION_CHANGE
        and last["type"] == RecordType.PARTITION_CHANGE.name
        and (last["at_ms"], last["who"])
        == (header.timestamp_ms, author(header.principal, header.client_id))
    )


def _is_repeated(last: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    return row["type"] == RecordType.KEY_VALUE.name and (last["sentence"], last["who"]) == (
        row["sentence"],
        row["who"],
    )


def _newest_of(
    chunk: bytes, header: batch.BatchHeader, most: int
) -> list[tuple[int, batch.BatchHeader, batch.RecordData]]:
    """Return the last records of a batch, without copying the others."""
    first = max(0, header.record_count - most)
    bodies = islice(batch.bodies(chunk, header), first, None)
    return [
        (header.base_offset + at, header, batch.RecordData(*body))
        for at, body in enumerate(bodies, start=first)
    ]


def _told(
    offset: int, header: batch.BatchHeader, data: batch.RecordData, name_of: Callable[[str], str]
) -> dict[str, Any]:
    """Return the row of a record. ``name_of`` returns a topic's name by its id."""
    fields = record_to_dict(data)
    if fields.get("proposer_id") == fields.get("proposer_epoch") == 0:
        # Fenced by the controller itself: no registration has epoch 0.
        fields = {key: fields[key] for key in fields if not key.startswith("proposer_")}
    topic = name_of(str(fields.get("topic_id", "")))
    if topic and data.type != RecordType.TOPIC:
        # People refer to topics by name.
        fields = {"topic": topic} | {k: v for k, v in fields.items() if k != "topic_id"}
    return {
        "offset": offset,
        "at_ms": header.timestamp_ms,
        "by": header.principal,
        "who": author(header.principal, header.client_id),
        "type": record_name(data.type),
        "sentence": _bounded(sentence(data.type, fields)),
        "partitions": 0,
        "times": 1,
        "trouble": data.type == RecordType.BROKER_REGISTRATION_CHANGE and _is_trouble(fields),
    }


def _is_trouble(fields: Mapping[str, Any]) -> bool:
    """Return whether a broker was fenced without having requested it."""
    return bool(fields.get("fenced")) and int(fields["cause"]) not in PLANNED


def _bounded(text: str) -> str:
    return text if len(text) <= TEXT_MAX_CHARS else text[: TEXT_MAX_CHARS - 1] + "…"


Fields = Mapping[str, Any]


def sentence(type_: int, fields: Fields) -> str:
    """Return a sentence about a record, or its fields if its type has no sentence. ``topic`` among
    the fields is the name for ``topic_id``.
    """
    known = _SENTENCES.get(type_)
    # A record version that this build does not support has no fields.
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
        return f"{broker} is in controlled shutdown"
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


def _key_sentence(fields: Fields) -> str:
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
        return f"access control entry was added: {acl_in_words(dict(fields))}"
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
    RecordType.KEY_VALUE: _key_sentence,
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
    """Return the beginning of a value: its text, or hex if it is not text."""
    head = value[:most]
    # The value may be truncated inside a character.
    text = head.decode(errors="ignore" if len(value) > most else "replace")
    shown = printable(text) if text.isprintable() and "\ufffd" not in text else f"0x{head.hex()}"
    return shown + ("…" if len(value) > most else "")


T = TypeVar("T")

MAX_SHOWN = 200
VALUE_MAX_BYTES = 120
_QUEUES = {"locks": "lock", "elections": "election"}
_PLACE_DIGITS = 20


def stored(image: Image) -> dict[str, Any]:
    """Return the document's four lists, by name."""
    read = list(islice(image.key_values.values(), MAX_READ))
    total = len(image.key_values)
    return {
        "keys": _listed(read, total, lambda one: one.key, _key),
        "locks": _locks(read, total),
        "leases": _listed(
            list(islice(image.leases.values(), MAX_READ)),
            len(image.leases),
            lambda one: one.id,
            lambda one: {
                "id": one.id,
                "name": one.name,
                "ttl_ms": one.ttl_ms,
                "principal": one.principal,
            },
        ),
        "partitions": _partitions(image),
    }


def _listed(
    read: list[T], total: int, order: Callable[[T], Any], row: Callable[[T], dict[str, Any]]
) -> dict[str, Any]:
    return {
        "total": total,
        "partial": total > len(read),
        "shown": [row(one) for one in nsmallest(MAX_SHOWN, read, key=order)],
    }


def _key(one: KeyValue) -> dict[str, Any]:
    return {
        "key": one.key,
        "value": shortened_value(one.value, VALUE_MAX_BYTES),
        "bytes": len(one.value),
        "offset": one.offset,
        "lease_id": one.lease_id or None,
    }


def _locks(read: Iterable[KeyValue], total: int) -> dict[str, Any]:
    """Return locks and elections: the key with the lowest create_offset is the holder's, the others
    are waiting.
    """
    queues: dict[tuple[str, str], list[KeyValue]] = {}
    count = 0
    for one in read:
        count += 1
        directory, _, rest = one.key.partition("/")
        name, _, place = rest.rpartition("/")
        if directory in _QUEUES and name and len(place) == _PLACE_DIGITS and place.isdigit():
            queues.setdefault((_QUEUES[directory], name), []).append(one)
    rows = [
        {
            "kind": kind,
            "name": name,
            "holder": shortened_value(first.value, VALUE_MAX_BYTES),
            "lease_id": first.lease_id or None,
            "waiting": len(places) - 1,
        }
        for (kind, name), places in sorted(queues.items())
        for first in (min(places, key=lambda one: one.create_offset),)
    ]
    return {"total": len(rows), "partial": total > count, "shown": rows[:MAX_SHOWN]}


def _partitions(image: Image) -> dict[str, Any]:
    """Return partitions: those without a leader first, then those with replicas out of sync."""
    read = list(islice(image.partitions.values(), MAX_READ))

    def name(one: Partition) -> str:
        topic = image.topics.get(one.topic_id)
        return one.topic_id.hex() if topic is None else topic.name

    def order(one: Partition) -> tuple[bool, bool, str, int]:
        return (one.leader >= 0, len(one.isr) >= len(one.replicas), name(one), one.index)

    return _listed(
        read,
        len(image.partitions),
        order,
        lambda one: {
            "topic": name(one),
            "index": one.index,
            "leader": one.leader if one.leader >= 0 else None,
            "replicas": list(one.replicas),
            "isr": list(one.isr),
            "state": "offline"
            if one.leader < 0
            else "under-replicated"
            if len(one.isr) < len(one.replicas)
            else "in sync",
        },
    )


JOURNALS_S = 1.0
JOURNALS_EVERY_S = 15.0
MAX_JOURNALS = 50
HOUR_MS = 3_600_000


class Looker:
    """The collector of one node's documents. ``security``: credentials for querying other nodes."""

    def __init__(self, local: Local, security: ClientSecurity) -> None:
        self._local, self._collector = local, Collector(security)
        self._changes = RecentChanges()
        self._story: Story | None = None
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[Story] | None = None
        self._brokers: list[str] = []
        """Addresses of the brokers that the last leader named."""

    async def look(self) -> bytes:
        """Return the document as JSON in one line."""
        local = self._local
        survey = await self._collector.survey(local.controllers())
        self._ask_journals(survey)
        until = local.committed_end()
        changes = self._changes.read(local.newest_chunks(MAX_CHUNKS), until, local.image())
        node = {"role": local.role, "node_id": local.node_id}
        made = document(survey, local.image(), changes, self._story, node)
        return msgspec.json.encode(cleaned(made))

    def _ask_journals(self, survey: Survey) -> None:
        """Read the journals from time to time, in the background; meanwhile the last story is
        shown.
        """
        now = asyncio.get_running_loop().time()
        if self._asking is not None:
            if not self._asking.done():
                return
            if not self._asking.cancelled() and self._asking.exception() is None:
                self._story = self._asking.result()
            self._asking = None
        if now - self._asked_at >= JOURNALS_EVERY_S:
            self._asked_at = now
            self._asking = asyncio.create_task(self._tell(survey), name="console journals")

    async def _tell(self, survey: Survey) -> Story:
        if survey.brokers is not None:
            # Without a leader no node names the brokers, yet only they report dead controllers.
            self._brokers = [one.endpoint for one in nodes_of(survey) if one.role == "broker"]
        nodes = nodes_of(survey, self._brokers)[:MAX_JOURNALS]
        told = await self._collector.journals(survey, nodes, HOUR_MS, JOURNALS_S)
        return tell(Timeline.until_now(survey.at_ms - HOUR_MS, survey.at_ms, tuple(told)))


def cleaned(value: Any) -> Any:
    """Return a document with all control characters escaped."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {name: cleaned(each) for name, each in value.items()}
    return [cleaned(each) for each in value] if isinstance(value, list) else value
