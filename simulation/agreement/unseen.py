"""Why the replay cannot see what a mutant breaks. A mutant that is not named here must be seen."""

from __future__ import annotations

_REASONS: dict[str, tuple[str, ...]] = {
    "which node has what on its disk, and who voted for whom, is not in the log: what is committed is a good log, until two nodes have"
    " two of them, and then each is a good one": (
        "vote-twice", "vote-not-durable", "acknowledge-before-fsync", "leader-counts-unflushed", "commit-old-epoch",
        "truncate-below-high-watermark", "log-matching-off", "commit-by-minority", "observer-counts", "high-watermark-beyond-log",
        "late-vote-counts", "vote-for-shorter-log", "campaign-again-after-restart", "acknowledge-after-io-error",
        "set-survives-truncation", "late-fetch-answer", "install-keeps-offsets",
    ),
    "who may be elected, and when, is not in the log: a cluster with less luck would write the same": (
        "pre-vote-always", "pre-vote-skipped", "check-quorum-off",
    ),
    "nothing is written any more: the log ends, and says no wrong": ("truncate-on-equal", "install-keeps-start", "no-leader-change"),
    "from when on a voter set is in force is not in the log, nor what was committed when the next one was proposed": (
        "membership-on-commit", "two-changes-at-once", "change-before-own-commit", "install-keeps-voters", "snapshot-without-voters",
    ),
    "what a client is told is not in the log": (
        "reply-before-commit", "answer-before-commit", "answer-without-round", "unknown-as-definite", "round-by-count",
        "visible-when-acknowledged", "retries-unknown",
    ),
    "what brokers show, and whether they serve, is not in the log": (
        "repeatable-from-tip", "token-ignored", "serves-while-fenced", "listens-to-deposed", "isr-in-metadata", "proposed-isr-told",
        "self-fencing-off", "told-before-heartbeats", "told-of-former-epoch", "strict-without-lease", "strict-below-applied",
        "offered-when-applied",
    ),
    "leases, and how long they last, are not in the log": (
        "strict-lease-without-round", "fenced-while-leased", "leases-of-others-unknown", "lease-counted-from-reply",
        "lease-without-margin",
    ),
    "the records of partitions, and what replicas have of them, are not in the log of metadata": (
        "commits-by-committed-isr", "data-leader-counts-unflushed", "data-follower-acknowledges-unflushed", "joins-isr-behind",
        "joins-isr-below-start", "data-truncation-skipped", "old-incarnation-fetches", "leads-at-once-committed", "min-isr-ignored",
        "acknowledged-by-leader-alone", "produce-unknown-as-definite", "produce-timeout-as-definite", "reads-uncommitted",
        "lagging-stays-in-isr", "unknown-isr-change-reverted", "data-without-self-fencing", "ineligible-not-reverted",
    ),
    "the epoch that is named is the one that is registered: which one the follower fetched with is not in the log": (
        "epochs-from-metadata",
    ),
    "it is a record as after an honest decision; what it was decided by (heartbeats, who asked, which process) is not in the log": (
        "heartbeat-of-old-incarnation", "leave-keeps-session", "fenced-without-heartbeats", "rejoins-unaware", "hostname-ignored",
        "own-past-taken-for-alive", "missing-at-once", "generated-twice", "unclean-without-being-asked",
    ),
    "progress records are samples of LAO, and none fell into the moment; what is announced between two of them is not in the log": (
        "lao-from-uncommitted", "reports-of-other-epochs", "lao-fences-when-proposed", "joins-unapplied", "joins-below-lao",
        "joins-below-epoch-start", "lao-ignores-tail", "lao-of-nobody", "lao-forgets-stopping", "old-incarnation-accepted",
        "lao-known-too-early",
    ),
    "LAO in the log follows from what brokers are said to have applied, also where that is not true": ("lao-counts-fetched",),
    "an image that was ahead of the log, or of records that were never committed, says no other state at an offset of the log": (
        "pending-survives", "committed-from-pending", "snapshot-of-pending",
    ),
    "who folds the record stops himself, before it is committed": (
        "duplicate-of-old-epoch", "duplicate-not-looked-for", "isr-decided-by-committed",
    ),
    "a snapshot that is not whole names no state to compare": ("part-of-snapshot",),
    "where a node's log begins is not in the log: who exports next meets the gap, and is told": ("cursors-ignored",),
    "builds that do not map hosts yet write the same": ("registration-unmapped",),
}  # fmt: skip

WHY_UNSEEN = {mutant: why for why, mutants in _REASONS.items() for mutant in mutants}
"""Mutant -> the reason, in words."""
