"""Parsers for values on the command line: times, durations, partitions, replicas and plans."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from raftlog.cli import completion
from raftlog.cli.options import arg, opt
from raftlog.errors import ConfigError

_SPAN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|min|h|d|w)")
_UNIT_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 7 * 86_400_000,
}
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?Z?")
_MILLISECONDS = re.compile(r"[0-9]{9,18}")

Since = Annotated[str, opt("--since SPAN", "Start this long before the end: 90s, 15m, 1h, 7d.")]
From = Annotated[str, opt("--from TIME", "Start at this time (UTC): 2026-01-31T12:00:00Z, 12:00.")]
To = Annotated[str, opt("--to TIME", "End at this time. Default: no end.")]
FOR_EVER_MS = 1 << 62


def parse_span_ms(text: str) -> int:
    """Parse a duration such as ``90s``, ``1h30m``, ``7d``; return milliseconds. Raises
    BadParameter.
    """
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise typer.BadParameter(f"{text!r} is not a duration like 90s, 15m, 1h or 7d")
    span_ms = round(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))
    if span_ms > FOR_EVER_MS:
        raise typer.BadParameter(f"{text!r} is longer than {FOR_EVER_MS} milliseconds")
    return span_ms


def parse_when_ms(text: str, now_ms: Callable[[], int]) -> int:
    """Parse a time; return milliseconds. Raises BadParameter.

    Accepts ISO 8601, a time of day (its most recent occurrence before ``now_ms``), or milliseconds;
    UTC unless a zone is given. Calls ``now_ms`` only for a time of day.
    """
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        if _CLOCK.fullmatch(text):
            today = datetime.fromtimestamp(now_ms() / 1000, UTC)
            clock = datetime.strptime(text.rstrip("Z").split(".")[0], _clock_format(text))
            found = today.replace(
                hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0
            )
            if found > today:
                found -= timedelta(days=1)
        else:
            found = datetime.fromisoformat(text)
            if found.tzinfo is None:
                found = found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is not a time like 2026-01-31T12:00:00Z or 12:00:30"
        ) from None
    return round(found.timestamp() * 1000)


def export_time_ms(text: str | None, export: str) -> int | None:
    """Parse the value of --at-time; a time of day is on the last day of the export. Raises
    BadParameter, also for an empty value, as an unset variable in a script must not mean the end of
    the export.
    """
    if text is None:
        return None
    from raftlog.segments.manifest import read_manifest

    return parse_when_ms(text, lambda: read_manifest(export).exported_ms)


@dataclass(frozen=True, slots=True)
class Period:
    """The period between --since or --from, and --to.

    ``default``: the duration if neither --since nor --from is given; empty for no lower bound.
    Raises BadParameter.
    """

    since: str = ""
    begin: str = ""
    end: str = ""
    default: str = ""

    def __post_init__(self) -> None:
        if self.since and self.begin:
            raise typer.BadParameter("give either --since or --from, not both")
        if self.since:
            parse_span_ms(self.since)
        for text in filter(None, (self.begin, self.end)):
            parse_when_ms(text, lambda: 0)

    @property
    def is_given(self) -> bool:
        """Whether one of the options is given."""
        return bool(self.since or self.begin or self.end)

    def at(self, now_ms: Callable[[], int]) -> tuple[int, int]:
        """Return the period's first and last millisecond; the last is FOR_EVER_MS if it is open.
        Raises BadParameter.

        ``now_ms`` returns the time by the clock that stamps the log and the journals, never by the
        local clock: if that is slow, the last seconds would be missing. Called only if needed.
        """
        last_ms = parse_when_ms(self.end, now_ms) if self.end else FOR_EVER_MS
        span = self.since or self.default
        if self.begin:
            first_ms = parse_when_ms(self.begin, now_ms)
        elif span:
            first_ms = (last_ms if self.end else now_ms()) - parse_span_ms(span)
        else:
            first_ms = 0
        first_ms = max(0, first_ms)
        if first_ms >= last_ms:
            raise typer.BadParameter("--to must be later than the start of the period")
        return first_ms, last_ms


def _clock_format(text: str) -> str:
    return "%H:%M:%S" if text.count(":") == 2 else "%H:%M"


PartitionName = tuple[str, int]
Topics = Annotated[
    list[str] | None,
    arg(
        "[TOPIC...]",
        "Only these topics; default: all.",
        show_default=False,
        autocompletion=completion.topics,
    ),
]


def partition_name(text: str) -> PartitionName:
    """Parse TOPIC:PARTITION; topic names contain no colon. Raises ConfigError."""
    topic, colon, index = text.rpartition(":")
    if not colon or not topic or not (index.isascii() and index.isdigit() and len(index) < 10):
        raise ConfigError(f"{text!r}: write it as TOPIC:PARTITION, for instance orders:0")
    return topic, int(index)


def broker_ids(text: str, separator: str = ",") -> list[int]:
    """Parse broker ids, the preferred leader first. Raises ConfigError."""
    parts = [part.strip() for part in text.split(separator)]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ConfigError(f"{text!r}: write broker ids as 4{separator}5{separator}6")
    return [int(part) for part in parts]


def assignments(text: str) -> list[list[int]]:
    """Parse the replicas of successive partitions, such as 1:2:3,2:3:1; return an empty list for
    "". Raises ConfigError.
    """
    return [broker_ids(part, ":") for part in text.split(",")] if text else []


def assigned(text: str) -> tuple[PartitionName, list[int]]:
    """Parse TOPIC:PARTITION=BROKER,BROKER,.... Raises ConfigError."""
    name, equals, ids = text.partition("=")
    if not equals:
        raise ConfigError(
            f"{text!r}: write it as TOPIC:PARTITION=BROKER,BROKER,..., for instance orders:0=4,5,6"
        )
    return partition_name(name), broker_ids(ids)


def read_plan(path: Path) -> list[tuple[PartitionName, list[int]]]:
    """Read a plan in the format of Kafka's tools: {"version": 1, "partitions": [{"topic",
    "partition", "replicas"}, ...]}. Raises ConfigError.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        entries = [
            (_entry(one["topic"], one["partition"]), _ids(one["replicas"]))
            for one in document["partitions"]
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'{path} is not a plan like {{"version": 1, "partitions": [{{"topic": "orders",'
            f' "partition": 0, "replicas": [4, 5, 6]}}]}}: {type(error).__name__} {error}'
        ) from None
    return entries


def plan_of(entries: Iterable[tuple[PartitionName, Sequence[int]]]) -> dict[str, Any]:
    """Return a plan in the format that ``read_plan`` reads."""
    return {
        "version": 1,
        "partitions": [
            {"topic": name[0], "partition": name[1], "replicas": list(ids)} for name, ids in entries
        ],
    }


def by_topic(names: Iterable[PartitionName]) -> dict[str, list[int]]:
    """Group partitions by topic, in the order given."""
    found: dict[str, list[int]] = {}
    for topic, index in names:
        found.setdefault(topic, []).append(index)
    return found


def _entry(topic: Any, index: Any) -> PartitionName:
    if not isinstance(topic, str) or not isinstance(index, int) or isinstance(index, bool):
        raise TypeError(f"{topic!r}, {index!r}: expected a topic name and a partition number")
    return topic, index


def _ids(values: Any) -> list[int]:
    if not isinstance(values, list) or not all(
        isinstance(one, int) and not isinstance(one, bool) for one in values
    ):
        raise TypeError(f"{values!r} is not a list of broker ids")
    return values
