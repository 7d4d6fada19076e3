"""The last changes of the metadata, read from the newest chunks of the log in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from raftlog import batch
from raftlog.cli.render import record_name, record_to_dict
from raftlog.console.sentences import sentence
from raftlog.metadata.authors import author
from raftlog.metadata.causes import PLANNED, cause_of
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType

MAX_CHANGES = 50
MAX_CHUNKS = 200
MAX_RECORDS = 500
"""Decoded in one look: the newest."""
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
        """All below was looked at, or has been passed over."""
        self._before = Image()
        """Of the look before: a topic that was removed since has its name there."""
        self._new_names: dict[str, str] = {}
        """Of topics, by id, that were made since: one may be gone before anybody looks."""

    def read(self, newest: Sequence[bytes], until: int, image: Image) -> list[dict[str, Any]]:
        """The newest first. ``newest``: chunks of the log, ascending; ``until``: exclusive, the end
        of what is committed; ``image``: names the topics.
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
        """A row. The partitions of a new topic go into that of the topic, and changes of partitions
        at one time into one [a broker that is fenced is in hundreds: they pushed out what people
        had done]. So does a key that a program puts again and again.
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
        """Finds the name of a topic by its id; empty: nobody knows it."""
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
    """The last records of a batch; what is passed over costs a step each, and is not copied."""
    first = max(0, header.record_count - most)
    bodies = islice(batch.bodies(chunk, header), first, None)
    return [
        (header.base_offset + at, header, batch.RecordData(*body))
        for at, body in enumerate(bodies, start=first)
    ]


def _told(
    offset: int,
    header: batch.BatchHeader,
    data: batch.RecordData,
    name_of: Callable[[str], str],
) -> dict[str, Any]:
    """``name_of`` a topic, by its id."""
    fields = record_to_dict(data)
    if fields.get("proposer_id") == fields.get("proposer_epoch") == 0:
        # The controller by itself. No registration has epoch 0.
        fields = {key: fields[key] for key in fields if not key.startswith("proposer_")}
    topic = name_of(str(fields.get("topic_id", "")))
    if topic and data.type != RecordType.TOPIC:
        # People know topics by name.
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
    """Whether a broker was fenced that had not asked for it."""
    if not fields.get("fenced"):
        return False
    try:
        return cause_of(int(fields["cause"]), str(fields["reason"])) not in PLANNED
    except ValueError:  # A cause that this build does not know.
        return True


def _bounded(text: str) -> str:
    return text if len(text) <= TEXT_MAX_CHARS else text[: TEXT_MAX_CHARS - 1] + "…"
