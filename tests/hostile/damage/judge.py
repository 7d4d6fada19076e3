"""The judgement of a reader's result: the answer of the undamaged directory, or an error that names
the damage.

Nothing in between.

The exceptions are few, and each is a limit that the documentation names:

* a write-ahead log of a node that was killed may end earlier, or be gone: the log is then a prefix
  that reaches at least as far as ``log-state.json`` says (a broker's replicas: a prefix each);
* an older vote within the log's last epoch, an older identity, and a missing bootstrap file can't
  be told from right ones;
* an older manifest of an export, which names fewer files, is that export as it was;
* a snapshot that is damaged is left out, with a line of level critical from a node, if an older one
  and the log make up for it.
"""

import json
import re
from typing import Any

from raftlog.node.storage.directory import read_log_state

from .bases import Base
from .wounds import Wound

PLACE = re.compile(r"offsets? \d+|byte \d+")
ERRORS = (1, 2, 3, 6)


def problem(
    base: Base, wound: Wound, reader: str, sound: dict[str, Any], found: dict[str, Any]
) -> str:
    """Return the problem with a reader's result; empty if there is none."""
    if "defect" in found:
        return f"not a typed error: {found['defect']}\n{found.get('trace', '')}"
    if found["code"]:
        return _error(base, wound, sound, found)
    if found["out"] == sound["out"] or base.kind == "config":
        return ""
    return (
        ""
        if _allowed(base, wound, reader, sound["out"], found)
        else f"another answer: {_difference(sound, found)}"
    )


def _error(base: Base, wound: Wound, sound: dict[str, Any], found: dict[str, Any]) -> str:
    said = "\n".join(
        line for line in found["err"].strip().splitlines() if not line.endswith("; ignoring it")
    )
    if found["code"] not in ERRORS:
        return f"exit code {found['code']}: {said}"
    if "Traceback" in said or not said.startswith("raftlog: ") or len(said) > 2000:
        return f"no message: {said[:2000]}"
    if "\n" in said and base.kind != "config":
        return f"more than one line: {said}"
    if not sound["out"].startswith(found["out"]):
        return f"output before the error that is not the undamaged one: {found['out'][-300:]}"
    return (
        ""
        if _names(wound, said) or found.get("offset", -1) >= 0
        else f"neither file nor offset: {said}"
    )


def _names(wound: Wound, said: str) -> bool:
    names = [
        wound.victim.rpartition("/")[2],
        *([wound.other.name] if wound.other is not None else []),
    ]
    # RocksDB does not always say more than where it lies.
    inside = [
        f"/case/{folder}" for folder in ("log", "partitions") if wound.victim.startswith(folder)
    ]
    unformatted = wound.victim == "meta.json" and "/case is not formatted" in said
    return (
        unformatted
        or any(name in said for name in (*names, *inside))
        or PLACE.search(said) is not None
    )


def _allowed(base: Base, wound: Wound, reader: str, sound: str, found: dict[str, Any]) -> bool:
    victims = {wound.victim, *([wound.other.name] if wound.other is not None else [])}
    if wound.kind == "older" and wound.victim == "manifest.json":
        return _shorter_export(reader, sound, found["out"])
    if wound.victim == "bootstrap.json" and wound.kind == "delete":
        return _same_but(sound, found["out"], "bootstrap")
    if wound.kind == "older" and wound.victim in ("quorum-state.json", "meta.json"):
        return _same_but(
            sound,
            found["out"],
            "vote",
            "voted_id",
            "voted_directory_id",
            "vote_epoch",
            "identity",
            "format_version",
        )
    if wound.victim == "quorum-state.json" and reader == "info":
        # One of its two copies makes up for the other, and the file is named.
        named = wound.victim in found["err"] and json.loads(found["out"])["vote_copy_damaged"]
        return named and _same_but(sound, found["out"], "vote_copy_damaged")
    wal = any(name.endswith(".log") for name in victims) or wound.victim in ("log", "partitions")
    if wal and base.name.endswith("killed"):
        # The two may have changed places.
        but = ("snapshots",) if any(name.endswith(".checkpoint") for name in victims) else ()
        return _prefix(base, reader, sound, found["out"], *but)
    if any(name.endswith(".checkpoint") for name in victims) or wound.victim == "snapshots":
        if reader == "start" and not _loud(wound, sound, found):
            return False
        if reader in ("image", "export"):
            # Less may be proven to be committed.
            told = wound.kind in ("delete", "older") or "is corrupt" in found["err"]
            return told and _prefix(base, reader, sound, found["out"])
        return _same_but(sound, found["out"], "snapshots")
    return False


def _loud(wound: Wound, sound: str, found: dict[str, Any]) -> bool:
    """Return whether a node that ignores a present snapshot reports it."""
    fewer = len(json.loads(found["out"])["snapshots"]) < len(json.loads(sound)["snapshots"])
    return not fewer or wound.kind in ("delete", "older") or "a snapshot is corrupt" in found["log"]


def _shorter_export(reader: str, sound: str, found: str) -> bool:
    if reader == "dump":
        return sound.startswith(found)
    one, other = json.loads(sound), json.loads(found)
    if "rows" in one and reader == "tables" and other["rows"] != one["rows"][: len(other["rows"])]:
        return False
    return all(other[name] < one[name] for name in ("end", "next", "offset") if name in one)


def _same_but(sound: str, found: str, *fields: str) -> bool:
    try:
        one, other = json.loads(sound), json.loads(found)
    except ValueError:
        return False
    return {key: value for key, value in one.items() if not key.startswith(fields)} == {
        key: value for key, value in other.items() if not key.startswith(fields)
    }


def _prefix(base: Base, reader: str, sound: str, found: str, *but: str) -> bool:
    """Return whether the result is a prefix of the right one that covers everything durable."""
    if base.kind == "broker":
        one, other = json.loads(sound), json.loads(found)
        return one["identity"] == other["identity"] and all(
            all(one["content"][key].get(end) == prefix for end, prefix in ends.items())
            for key, ends in other["content"].items()
        )
    least = read_log_state(base.directory).end_offset_at_least
    if reader == "dump":
        last = json.loads(found.splitlines()[-1])["offset"] if found else -1
        return sound.startswith(found) and last + 1 >= least
    if reader == "info":
        return least <= json.loads(found)["log_end_offset"] and _same_but(
            sound, found, "log_end_offset"
        )
    if reader == "image":
        # Of what is proven to be committed, which may end before what is durable.
        return bool(json.loads(found)["offset"] <= json.loads(sound)["offset"])
    one, other = json.loads(sound), json.loads(found)
    (begin, end), prefix = other["range"], one["prefixes"].get(str(other["range"][1]))
    same = begin == one["range"][0] and (other["content"] == prefix or end == begin)
    if reader == "export":
        return same and one["cluster_id"] == other["cluster_id"]
    return (
        same
        and end >= least
        and _same_but(sound, found, "range", "content", "prefixes", "epochs", *but)
    )


def _difference(sound: dict[str, Any], found: dict[str, Any]) -> str:
    one, other = sound["out"], found["out"]
    at = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return (
        f"at character {at} of {len(one)}: …{other[max(0, at - 80) : at + 120]}… instead of"
        f" …{one[max(0, at - 80) : at + 120]}…"
    )
