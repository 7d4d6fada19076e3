"""Rules about controllers: one per epoch, epochs in order, each starting with the record of its
election, and a voter set that changes by one voter at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raftlog.metadata.records import RecordType
from replay import rules
from replay.kernels.census import Epoch
from replay.kernels.facts import Facts, Row
from replay.kernels.findings import Finding, Place, offence, place_of


def check(facts: Facts, epochs: Iterable[Epoch]) -> Iterator[Finding]:
    """Check each election, the range of offsets of each epoch, and each voter set."""
    columns = ("type", "offset", "epoch", "timestamp_ms", "principal", "leader_id")
    begun = facts.of(RecordType.LEADER_CHANGE, RecordType.RECOVERY, columns=columns)
    yield from _elections(row for row in begun if row["type"] == RecordType.LEADER_CHANGE)
    # An unsafe recovery or a restore opens an epoch without an election.
    yield from _ranges(list(epochs), {row["offset"] for row in begun})
    yield from _voter_sets(facts)


def _elections(rows: Iterable[Row]) -> Iterator[Finding]:
    before: dict[int, Row] = {}
    for row in rows:
        earlier = before.get(row["epoch"])
        before[row["epoch"]] = row
        if earlier is not None:
            yield offence(
                rules.TWO_CONTROLLERS_IN_EPOCH,
                place_of(row, f"controller epoch {row['epoch']}"),
                also=earlier["offset"],
                found=f"node {row['leader_id']} is elected",
                expected=f"only node {earlier['leader_id']}, elected before",
            )


def _ranges(epochs: list[Epoch], begun: set[int]) -> Iterator[Finding]:
    later: int | None = None
    for one in reversed(epochs):
        subject = f"controller epoch {one.epoch}"
        if later is not None and one.last > later:
            yield offence(
                rules.CONTROLLER_EPOCH_WENT_BACK,
                Place(one.last, one.epoch, one.last_ms, None, subject),
                also=later,
                found=f"epoch {one.epoch}",
                expected=f"at least the epoch of the record at {later}",
            )
        if one.first not in begun:
            yield offence(
                rules.EPOCH_WITHOUT_CONTROLLER,
                Place(one.first, one.epoch, one.first_ms, None, subject),
                found="another record comes first",
                expected="LEADER_CHANGE, or RECOVERY after an unsafe recovery or a restore",
            )
        later = one.first if later is None else min(later, one.first)


def _voter_sets(facts: Facts) -> Iterator[Finding]:
    """Yield findings for consecutive voter sets that differ by more than one voter: their
    majorities need not overlap.

    The first voter set in the log follows a configured one, and a set after an unsafe recovery or a
    restore is the operator's choice; both are exempt.
    """
    columns = ("type", "offset", "epoch", "timestamp_ms", "principal", "voters")
    before: Row | None = None
    for row in facts.of(RecordType.VOTERS, RecordType.RECOVERY, columns=columns):
        if row["type"] == RecordType.RECOVERY or row["voters"] is None:
            # An old export lacks the column.
            before = None
            continue
        if before is not None and _changed(_set(before), _set(row)) > 1:
            yield offence(
                rules.VOTERS_REPLACED_WHOLESALE,
                place_of(row, "the voter set"),
                also=before["offset"],
                found=f"voters {_in_words(_set(before), _set(row))}",
                expected=f"one voter more or fewer than {_in_words({}, _set(before))}",
            )
        before = row


def _set(row: Row) -> dict[int, str]:
    """Return the directory of each voter."""
    return {each["voter_id"]: each["voter_directory_id"] for each in row["voters"]}


def _changed(before: dict[int, str], now: dict[int, str]) -> int:
    """Return the number of voters that joined or left, like
    :meth:`raftlog.quorum.voters.VoterSet.replicas_changed`, but also for sets that no controller
    would accept.
    """
    replaced = [each for each in now if _replaced(before, now, each)]
    return len(before.keys() ^ now.keys()) + 2 * len(replaced)


def _replaced(before: dict[int, str], now: dict[int, str], voter: int) -> bool:
    """Return whether a voter has a different directory. A directory that becomes known does not
    count as different.
    """
    return before.get(voter, "") not in ("", now[voter])


def _in_words(before: dict[int, str], now: dict[int, str]) -> str:
    words = [
        f"{each} with another directory" if _replaced(before, now, each) else str(each)
        for each in sorted(now)
    ]
    return f"[{', '.join(words)}]"
