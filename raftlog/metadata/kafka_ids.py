"""Topic ids as Kafka prints them: 22 characters of base64, safe for URLs. Ours are 32 hex digits.

Only output about an imported log has Kafka's form, so that it matches the output of Kafka's
commands.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

_HEX = re.compile(r"[0-9a-f]{32}", re.IGNORECASE)
_KAFKAS = re.compile(r"[0-9A-Za-z_-]{22}")
_ID_FIELDS = {"topic": "id", "partition": "topic_id"}
"""Kind of entity -> the field of its value with a topic's id."""


def kafka_id(digits: str) -> str:
    """Return an id of 32 hex digits as Kafka prints it."""
    return base64.urlsafe_b64encode(bytes.fromhex(digits)).decode().rstrip("=")


def parse_topic_id(text: str) -> str | None:
    """Return the 32 hex digits of a topic id in either form; None: it is no id."""
    if _HEX.fullmatch(text):
        return text.lower()
    if not _KAFKAS.fullmatch(text):
        return None
    try:
        digits = base64.urlsafe_b64decode(text + "==").hex()
    except binascii.Error:
        return None
    # The last character says four bits more than there are: they must be 0.
    return digits if kafka_id(digits) == text else None


def with_kafka_id(kind: str, value: Any) -> Any:
    """Return an entity's value in JSON, with the id of its topic as Kafka prints it."""
    name = _ID_FIELDS.get(kind)
    if name is None or not isinstance(value, dict):
        return value
    return {**value, name: kafka_id(value[name])}


def id_field(kind: str) -> str | None:
    """Return the field of an entity's value with a topic's id; None: there is none."""
    return _ID_FIELDS.get(kind)
