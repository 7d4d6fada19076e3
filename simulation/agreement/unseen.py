"""Reasons for which the replay cannot detect a mutant; it must detect all others."""

from __future__ import annotations

# fmt: off
_REASONS: dict[str, tuple[str, ...]] = {
    "disk contents and votes are not in the log: the committed log is well-formed, and if two nodes commit different logs, each of the two is well-formed": (
        "vote-twice", "vote-not-durable", "acknowledge-before-fsync", "leader-counts-unflushed", "commit-old-epoch",
        "truncate-below-high-watermark", "log-matching-off", "commit-by-minority", "observer-counts", "high-watermark-beyond-log",
        "late-vote-counts", "vote-for-shorter-log", "campaign-again-after-restart", "acknowledge-after-io-error",
        "set-survives-truncation", "late-fetch-answer", "install-keeps-offsets"
    ),
    "which node could be elected, and when, is not in the log: a correct cluster could write the same records": (
        "pre-vote-always", "pre-vote-skipped", "check-quorum-off", "removed-voter-leads"
    ),
    "the cluster stops writing: the log ends, and all of it is correct": (
        "truncate-on-equal", "install-keeps-start", "no-leader-change"
    ),
    "the log does not show when a voter set takes effect, nor what was committed when the next one was proposed": (
        "membership-on-commit", "two-changes-at-once", "change-before-own-commit", "install-keeps-voters", "snapshot-without-voters"
    ),
    "responses to clients are not in the log": (
        "reply-before-commit", "answer-before-commit", "answer-without-round", "unknown-as-definite", "round-by-count",
        "visible-when-acknowledged", "retries-unknown", "log-for-everybody", "node-by-claim", "listing-leaks"
    ),
    "what brokers answer, and whether they serve, is not in the log": (
        "repeatable-from-tip", "token-ignored", "serves-while-fenced", "listens-to-deposed", "isr-in-metadata", "proposed-isr-told",
        "self-fencing-off", "told-before-heartbeats", "told-of-former-epoch", "strict-without-lease", "strict-below-applied",
        "offered-when-applied", "metadata-leaks", "read-checked-on-arrival", "read-checked-by-its-image", "fetch-checked-on-arrival"
    ),
    "read leases and their durations are not in the log": (
        "strict-lease-without-round", "fenced-while-leased", "leases-of-others-unknown", "lease-counted-from-reply",
        "lease-without-margin"
    ),
    "the records of partitions and the logs of their replicas are not in the metadata log": (
        "commits-by-committed-isr", "data-leader-counts-unflushed", "data-follower-acknowledges-unflushed", "joins-isr-behind",
        "joins-isr-below-start", "data-truncation-skipped", "old-incarnation-fetches", "leads-at-once-committed", "min-isr-ignored",
        "acknowledged-by-leader-alone", "produce-unknown-as-definite", "produce-timeout-as-definite", "reads-uncommitted",
        "lagging-stays-in-isr", "unknown-isr-change-reverted", "data-without-self-fencing", "ineligible-not-reverted"
    ),
    "the record names the registered epoch; the epoch that the follower fetched with is not in the log": (
        "epochs-from-metadata",
    ),
    "a correct decision would write the same record; its inputs (heartbeats, the sender, the process) are not in the log": (
        "heartbeat-of-old-incarnation", "leave-keeps-session", "fenced-without-heartbeats", "rejoins-unaware", "hostname-ignored",
        "own-past-taken-for-alive", "missing-at-once", "generated-twice", "unclean-without-being-asked"
    ),
    "progress records are samples of LAO, and no sample fell into the interval; an LAO announced between two samples is not in the log": (
        "lao-from-uncommitted", "reports-of-other-epochs", "lao-fences-when-proposed", "joins-unapplied", "joins-below-lao",
        "joins-below-epoch-start", "lao-ignores-tail", "lao-of-nobody", "lao-forgets-stopping", "old-incarnation-accepted",
        "lao-known-too-early"
    ),
    "LAO in the log matches the applied offsets that the log records for brokers, even where those are false": (
        "lao-counts-fetched",
    ),
    "an image that is ahead of the log, or contains records that never commit, differs at no committed offset": (
        "pending-survives", "committed-from-pending", "snapshot-of-pending"
    ),
    "a node that folds the record stops itself before the record commits": (
        "duplicate-of-old-epoch", "duplicate-not-looked-for", "isr-decided-by-committed"
    ),
    "an incomplete snapshot has no state hash to compare": (
        "part-of-snapshot",
    ),
    "the log start of a node is not in the log: the next export finds the gap and reports it": (
        "cursors-ignored",
    ),
    "which of a client's requests were refused is not in the log, nor who are super users and where a request came from: the audit judges no rights": (
        "deny-ignored", "deny-of-all-ignored", "prefix-is-literal", "literal-is-prefix", "forwarded-principal-of-a-client",
        "broker-forwards-claims", "host-by-claim", "super-user-by-claim", "removed-entry-counts", "client-of-anybody",
        "refused-item-executed", "describe-implies-all", "allow-of-other-host", "decided-by-committed", "clients-without-owners",
        "any-node-id", "node-request-through-broker"
    ),
    "builds that do not map hosts yet write the same records": (
        "registration-unmapped",
    ),
}
# fmt: on

WHY_UNSEEN = {mutant: why for why, mutants in _REASONS.items() for mutant in mutants}
"""Mutant -> the reason, in words."""
