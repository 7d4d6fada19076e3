"""What can be wrong with a log of Kafka's."""

from __future__ import annotations

from replay.errors import ReplayError


class KafkaLogError(ReplayError):
    """A file cannot be read as what it should be; the message names the file and the offset."""


class MalformedRecordError(KafkaLogError):
    """The bytes of a batch or of a record are not what Kafka's schema says."""
