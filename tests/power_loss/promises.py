"""The promises that a recorded program had made at a moment, and whether the next start's findings
keep them.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

Found = dict[str, Any]
"""The report of a recovery; ``error`` is the text of a refusal, if any."""


class Promises(Protocol):
    """Folds the reports; compares them with the findings."""

    def said(self, what: str, details: dict[str, Any]) -> None:
        """Fold one more report."""

    def broken_by(self, found: Found) -> str | None:
        """Return the first promise that the findings break; None if they keep all."""


class _Refuses:
    """A refusing start breaks a promise by itself."""

    @staticmethod
    def refusal(found: Found) -> str | None:
        return f"the start is refused: {found['error']}" if "error" in found else None


class ValuePromises(_Refuses):
    """The promises about a replaced file: it holds the value reported as written, or the one being
    written.
    """

    def __init__(self) -> None:
        self._written, self._writing = -1, -1

    def said(self, what: str, details: dict[str, Any]) -> None:
        if what == "writing":
            self._writing = details["number"]
        elif what == "written":
            self._written = details["number"]

    def broken_by(self, found: Found) -> str | None:
        if (refusal := self.refusal(found)) is not None:
            return refusal
        if found["value"] not in (self._written, self._writing):
            return (
                f"the value is {found['value']}: {self._written} was written, {self._writing} was"
                " being written"
            )
        return None


Batches = list[list[Any]]
"""[base offset, end offset, bytes as hex] each, in order."""


@dataclass(slots=True)
class Version:
    """A log that may be found: ``start`` and what follows. Records at or above ``durable`` may be
    missing.
    """

    start: int
    batches: Batches
    durable: int

    @property
    def end(self) -> int:
        return _end(self.start, self.batches)

    def is_in(self, start: int, batches: Batches) -> bool:
        """Return whether the log found is this one."""
        return (
            start == self.start
            and batches == self.batches[: len(batches)]
            and _end(start, batches) >= self.durable
        )


@dataclass(slots=True)
class LogPromises(_Refuses):
    """The promises about a node's directory, or with ``key`` about one of several logs."""

    versions: list[Version] = field(default_factory=lambda: [Version(0, [], 0)])
    """Any of them may be found; the last one is the newest."""
    votes: list[list[Any]] = field(default_factory=list)
    """Any of them may be found."""
    identities: list[dict[str, Any]] = field(default_factory=list)
    snapshots: dict[str, str] = field(default_factory=dict)
    """Content of every snapshot that was begun."""
    stored: set[str] = field(default_factory=set)
    """Snapshots that must exist."""
    recovering: dict[str, Any] | None = None
    """Records from ``end`` on are the recovery's, whose ``vote`` is durable before them."""
    formatted: bool = True
    """It was reported that there is a directory."""

    def said(self, what: str, details: dict[str, Any]) -> None:
        newest = self.versions[-1]
        match what:
            case "unformatted":
                self.formatted = False
            case "formatted":
                self.formatted = True
            case "log":
                # Replaces all that was known: what a formatting leaves.
                self.versions = [Version(details["start"], details["batches"], details["end"])]
            case "appending":
                newest.batches.append([details["base"], details["end"], details["data"]])
            case "durable":
                newest.durable = max(newest.durable, details["end"])
                # What was begun before the flush is durable too.
                self.versions = [newest]
            case "truncating":
                kept = [one for one in newest.batches if one[1] <= details["end"]]
                self.versions.append(
                    Version(newest.start, kept, min(newest.durable, details["end"]))
                )
            case "starting":
                kept = [one for one in newest.batches if one[1] > details["end"]]
                self.versions.append(
                    Version(details["end"], kept, max(newest.durable, details["end"]))
                )
            case "installing":
                self.versions.append(Version(details["end"], [], details["end"]))
            case "started":
                self.versions = [newest]
                self.stored = {name for name in self.stored if int(name[:20]) >= details["end"]}
            case "voting":
                self.votes.append(details["vote"])
            case "voted":
                self.votes = [details["vote"]]
            case "identifying":
                self.identities.append(details["identity"])
            case "identified":
                self.identities = [details["identity"]]
            case "storing":
                self.snapshots[details["name"]] = details["data"]
            case "stored":
                self.stored.add(details["name"])
            case "recovering":
                self.recovering = details
            case "dropping":
                self.stored.discard(details["name"])

    def broken_by(self, found: Found) -> str | None:
        if (refusal := self.refusal(found)) is not None:
            return refusal
        if not found["formatted"]:
            return "the directory was formatted, and is not" if self.formatted else None
        start, batches = found["start"], found["batches"]
        if not any(version.is_in(start, batches) for version in self.versions):
            may = "; or ".join(
                f"[{one.start}, {one.end}), of it up to {one.durable} for sure"
                for one in self.versions
            )
            return f"the log is {_offsets(start, batches)}, it should be {may}"
        if self.votes and found["vote"] not in self.votes:
            return f"the vote is {found['vote']}, it should be {' or '.join(map(str, self.votes))}"
        if self.identities and found["identity"] not in self.identities:
            return (
                f"the identity is {found['identity']}, it should be"
                f" {' or '.join(map(str, self.identities))}"
            )
        if (
            (new := self.recovering)
            and _end(start, batches) > new["end"]
            and found["vote"] != new["vote"]
        ):
            return f"the log holds records of the recovery, and not its vote {new['vote']}"
        for name, data in found["snapshots"].items():
            if data != self.snapshots.get(name):
                return f"snapshot {name} is not what was stored"
        if gone := self.stored - set(found["snapshots"]):
            return f"snapshot {', '.join(sorted(gone))} is gone"
        return None


def _offsets(start: int, batches: Batches) -> str:
    return f"[{start}, {_end(start, batches)})"


def _end(start: int, batches: Batches) -> int:
    return batches[-1][1] if batches else start


class PartitionPromises(_Refuses):
    """The promises about all partition replicas of a broker."""

    def __init__(self) -> None:
        self._logs: dict[str, LogPromises] = {}

    def said(self, what: str, details: dict[str, Any]) -> None:
        if (key := details.get("key")) is not None:
            self._logs.setdefault(key, LogPromises()).said(what, details)

    def broken_by(self, found: Found) -> str | None:
        if (refusal := self.refusal(found)) is not None:
            return refusal
        for key in sorted({*self._logs, *found["partitions"]}):
            log = self._logs.get(key, LogPromises())
            batches = found["partitions"].get(key, [])
            one = {"formatted": True, "start": 0, "batches": batches, "snapshots": {}}
            if (broken := log.broken_by(one)) is not None:
                return f"partition {key}: {broken}"
        return None


def parse_mark(text: str) -> tuple[str, dict[str, Any]]:
    """Return the kind and the details of a mark."""
    details = json.loads(text)
    return details.pop("what"), details
