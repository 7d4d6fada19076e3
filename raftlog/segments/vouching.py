"""From which offset to which the bytes of an export are vouched for, and by whom.

A hash that is wrong is a fault. Bytes that nobody vouches for are no fault, and no proof either:
that is a warning. So is the word of nodes that only the manifest has: who can rewrite the files can
rewrite that, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from raftlog import batch
from raftlog.metadata.log_hash import LogHash, extended
from raftlog.segments.log_hashes import Claim, Vouched
from raftlog.segments.manifest import Manifest, StateHash
from raftlog.segments.ranges import Fault

CHECK = "LOG_HASH"
HOW = {
    "asked": "said so just now",
    "manifest": "said so, says the manifest",
    "log": "in the log itself",
    "signature": "has signed",
}
"""In words, what ``Witness.how`` can be."""


class Witness(msgspec.Struct, frozen=True):
    """Who vouches for the bytes between two offsets (inclusive).

    ``how``: ``asked`` (just now), ``manifest`` (as it has recorded), ``log`` (progress records),
    ``signature``.
    """

    who: str
    how: str
    first_offset: int
    last_offset: int


class Vouching(msgspec.Struct, frozen=True):
    """The log hash at ``last_offset``, empty if it is not known there, who vouches, and what is
    wrong or missing.
    """

    log_hash: str
    log_hash_begin_offset: int
    last_offset: int
    witnesses: list[Witness]
    faults: list[Fault]
    warnings: list[str]


def beyond(end: LogHash, asked: Sequence[StateHash], read: Callable[[int], bytes]) -> list[Claim]:
    """What nodes have just said of offsets behind the end of the export, held against the bytes
    here and what ``read`` gives of the log from an offset on (empty: no more).

    A hash there covers the export, too.
    """
    wanted = {one.offset + 1 for one in asked if one.log_hash and one.offset >= end.end_offset}
    there: dict[int, LogHash] = {}
    known = end
    while wanted and known.digest and known.end_offset < max(wanted):
        chunk = read(known.end_offset)
        if not chunk:
            break
        for header in batch.headers(chunk, expect_offset=known.end_offset):
            known = extended(known, chunk[header.position : header.position + header.size])
            if known.end_offset in wanted:
                there[known.end_offset] = known
    return [
        Claim(
            one.offset + 1,
            one.log_hash_begin_offset,
            one.log_hash,
            one.describe(),
            (one.log_hash_begin_offset, one.log_hash) == (found.begin_offset, found.digest.hex()),
            found.digest.hex(),
            True,
        )
        for one in asked
        if one.log_hash and (found := there.get(one.offset + 1)) is not None
    ]


def judge(
    manifest: Manifest,
    found: Vouched,
    later: Iterable[Claim] = (),
    *,
    asked: bool = False,
    signed_by: str = "",
) -> Vouching:
    """What all of that comes to. ``later``: as ``beyond`` gives it; ``asked``: nodes were;
    ``signed_by``: the public key by which the manifest is signed, where it was given.
    """
    end = found.end
    last, first = end.end_offset - 1, manifest.history_begin
    claims = (*found.claims, *later)
    faults = [_wrong(claim) for claim in (*claims, *found.wrong) if not claim.agrees]
    faults += _faults(manifest, found)
    witnesses = _witnesses(found, claims, last)
    if signed_by:
        witnesses.append(Witness(f"key {signed_by[:16]}…", "signature", first, last))
    return Vouching(
        end.digest.hex() if end.is_known else "",
        end.begin_offset,
        last,
        witnesses,
        faults,
        list(_warnings(manifest, found, witnesses, asked=asked)),
    )


def _wrong(claim: Claim) -> Fault:
    here = f"have the log hash {claim.found}" if claim.found else "end inside a batch"
    message = (
        f"the bytes here from offset {claim.begin_offset} to {claim.end_offset - 1} {here}, and"
        f" {claim.who} says {claim.digest}: they are not what was committed"
    )
    return Fault(claim.begin_offset, claim.end_offset - 1, CHECK, "", message)


def _faults(manifest: Manifest, found: Vouched) -> list[Fault]:
    last = found.end.end_offset - 1
    faults = []
    if found.manifest_agrees is False:
        message = (
            f"the bytes here have the log hash {found.end.digest.hex()} at the end, offset {last},"
            f" and the manifest says {manifest.log_hash}: they are not what was exported"
        )
        faults.append(Fault(manifest.history_begin, last, CHECK, "", message))
    if found.unnamed >= 0:
        message = (
            f"the progress record at offset {found.unnamed} names no log hash, and those before it"
            " do: controllers always write it"
        )
        faults.append(Fault(found.unnamed, found.unnamed, CHECK, "", message))
    return faults


def _witnesses(found: Vouched, claims: Iterable[Claim], last: int) -> list[Witness]:
    """Of each the furthest word that is so: it covers everything below."""
    furthest: dict[tuple[bool, str], Claim] = {}
    for claim in claims:
        if claim.agrees:
            furthest[claim.asked, claim.who] = claim
    witnesses = [
        Witness(
            who,
            "asked" if asked else "manifest",
            max(claim.begin_offset, found.first_known),
            min(claim.end_offset - 1, last),
        )
        for (asked, who), claim in sorted(furthest.items(), key=lambda one: (not one[0][0], one[0]))
    ]
    if found.recorded and not found.wrong:
        count = f"{found.recorded} progress record{'s' if found.recorded > 1 else ''}"
        witnesses.append(Witness(count, "log", found.first_known, found.recorded_end - 1))
    return witnesses


def _warnings(
    manifest: Manifest, found: Vouched, witnesses: Sequence[Witness], *, asked: bool
) -> Iterable[str]:
    last, begin = found.end.end_offset - 1, manifest.history_begin
    if begin and manifest.state_from is None:
        yield f"This export begins at offset {begin}: what came before is not in it."
    if not found.end.is_known:
        if manifest.origin:
            why = f"a log of {manifest.origin} has no log hash; sign the export"
        else:
            why = "the chain of log hashes that it needs begins before this export"
        if not any(one.how == "signature" for one in witnesses):
            yield f"Nobody vouches for the bytes: {why}."
        return
    strong = [one for one in witnesses if one.how in ("asked", "signature")]
    nodes = [one for one in witnesses if one.how in ("asked", "manifest", "signature")]
    reached = max((one.last_offset for one in nodes), default=begin - 1)
    if reached < last:
        yield f"No node vouches for {_offsets(max(reached + 1, begin), last)}."
    first = min((one.first_offset for one in nodes), default=last + 1)
    if begin < first <= last:
        yield (
            f"No node vouches for {_offsets(begin, first - 1)}: the log hash begins at offset"
            f" {first}."
        )
    if found.adopted:
        yield f"Where the log hash begins here is the word of {found.adopted}."
    if asked and not any(one.how == "asked" for one in witnesses):
        yield "No node that was asked vouches for any of it."
    elif nodes and not strong:
        yield (
            "Only this export says what nodes have said. Whoever could rewrite its files could"
            " rewrite that: ask the nodes (--bootstrap-controller), or check a signature"
            " (--public-key)."
        )


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"
