"""The kind of cluster whose log a result is about: the result names it, as other systems' logs lack
facts that ours has. The ids of an imported log's topics are as Kafka prints them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from raftlog.metadata.words import FieldChange, id_field, kafka_id, with_kafka_id


def with_origin(result: Any, origin: str) -> Any:
    """Return the result of a job, with ``origin`` in each object that has a field for it."""
    if not origin or not isinstance(result, msgspec.Struct):
        return result
    kind = getattr(result, "kind", "")
    said: dict[str, Any] = {}
    for name in result.__struct_fields__:
        value = getattr(result, name)
        if name == "origin":
            said[name] = origin
        elif name == "topic_id" and value:
            said[name] = kafka_id(value)
        elif isinstance(value, msgspec.Raw) and id_field(kind):
            said[name] = _value(kind, value)
        elif isinstance(value, msgspec.Struct):
            said[name] = with_origin(value, origin)
        elif isinstance(value, list) and value and isinstance(value[0], FieldChange):
            said[name] = [_field(kind, each) for each in value]
        elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            said[name] = [with_origin(each, origin) for each in value]
    return msgspec.structs.replace(result, **said) if said else result


def _value(kind: str, value: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(with_kafka_id(kind, msgspec.json.decode(value))))


def _field(kind: str, change: FieldChange) -> FieldChange:
    if change.field != id_field(kind):
        return change
    before, after = (
        msgspec.Raw(msgspec.json.encode(kafka_id(msgspec.json.decode(one))))
        for one in (change.before, change.after)
    )
    return FieldChange(change.field, before, after)
