"""Reasons for which the replay cannot detect a mutant; it must detect all others."""

from __future__ import annotations

# fmt: off
_REASONS: dict[str, tuple[str, ...]] = {
    "the log does not contain disk contents or votes. The committed log is well-formed; if two nodes commit different logs, each log is": (
        "vote-twice", "vote-not-durable", "acknowledge-before-fsync", "leader-counts-unflushed", "commit-old-epoch",
        "truncate-below-high-watermark", "log-matching-off", "commit-by-minority", "observer-counts", "high-watermark-beyond-log",
        "late-vote-counts", "vote-for-shorter-log", "campaign-again-after-restart", "acknowledge-after-io-error",
        "set-survives-truncation", "late-fetch-answer", "install-keeps-offsets"
    ),
    "the log does not show which nodes could be elected, and when; a correct cluster could write the same records": (
        "pre-vote-always", "pre-vote-skipped", "check-quorum-off", "removed-voter-leads"
    ),
    "the cluster stops writing; the log up to there is correct": (
        "truncate-on-equal", "install-keeps-start", "no-leader-change"
    ),
    "the log does not show when a voter set takes effect, or what was committed when the next one was proposed": (
        "membership-on-commit", "two-changes-at-once", "change-before-own-commit", "install-keeps-voters", "snapshot-without-voters"
    ),
    "the log does not contain responses to clients": (
        "reply-before-commit", "answer-before-commit", "answer-without-round", "unknown-as-definite", "round-by-count",
        "visible-when-acknowledged", "retries-unknown", "log-for-everybody", "node-by-claim", "listing-leaks"
    ),
    "the log does not show what brokers respond, or whether they serve at all": (
        "repeatable-from-tip", "token-ignored", "serves-while-fenced", "listens-to-deposed", "isr-in-metadata", "proposed-isr-told",
        "self-fencing-off", "told-before-heartbeats", "told-of-former-epoch", "strict-without-lease", "strict-below-applied",
        "offered-when-applied", "metadata-leaks", "read-checked-on-arrival", "read-checked-by-its-image", "fetch-checked-on-arrival"
    ),
    "the log does not contain read leases": (
        "strict-lease-without-round", "fenced-while-leased", "leases-of-others-unknown", "lease-counted-from-reply",
        "lease-without-margin"
    ),
    "the metadata log contains neither the partitions' records nor the replicas' logs": (
        "commits-by-committed-isr", "data-leader-counts-unflushed", "data-follower-acknowledges-unflushed", "joins-isr-behind",
        "joins-isr-below-start", "data-truncation-skipped", "old-incarnation-fetches", "leads-at-once-committed", "min-isr-ignored",
        "acknowledged-by-leader-alone", "produce-unknown-as-definite", "produce-timeout-as-definite", "reads-uncommitted",
        "lagging-stays-in-isr", "unknown-isr-change-reverted", "data-without-self-fencing", "ineligible-not-reverted"
    ),
    "the record contains the registered epoch, not the one that the follower fetched with": (
        "epochs-from-metadata",
    ),
    "a correct decision could write the same record; the log does not contain its inputs (heartbeats, sender, process)": (
        "heartbeat-of-old-incarnation", "leave-keeps-session", "fenced-without-heartbeats", "rejoins-unaware", "hostname-ignored",
        "own-past-taken-for-alive", "missing-at-once", "generated-twice", "unclean-without-being-asked"
    ),
    "progress records only sample LAO, and no sample fell into the interval": (
        "lao-from-uncommitted", "reports-of-other-epochs", "lao-fences-when-proposed", "joins-unapplied", "joins-below-lao",
        "joins-below-epoch-start", "lao-ignores-tail", "lao-of-nobody", "lao-forgets-stopping", "old-incarnation-accepted",
        "lao-known-too-early"
    ),
    "LAO matches the applied offsets in the log, although these are false": (
        "lao-counts-fetched",
    ),
    "an image that is ahead of the log, or contains records that are never committed, is right at every committed offset": (
        "pending-survives", "committed-from-pending", "snapshot-of-pending"
    ),
    "a node that folds the record stops before the record is committed": (
        "duplicate-of-old-epoch", "duplicate-not-looked-for", "isr-decided-by-committed"
    ),
    "an incomplete snapshot has no state hash to compare": (
        "part-of-snapshot",
    ),
    "the log does not contain nodes' log starts; the next export reports the gap": (
        "cursors-ignored",
    ),
    "which of a client's requests were refused is not in the log, nor who are super users and where a request came from: the audit judges no rights": (
        "deny-ignored", "deny-of-all-ignored", "prefix-is-literal", "literal-is-prefix", "forwarded-principal-of-a-client",
        "broker-forwards-claims", "host-by-claim", "super-user-by-claim", "removed-entry-counts", "client-of-anybody",
        "refused-item-executed", "describe-implies-all", "allow-of-other-host", "decided-by-committed", "clients-without-owners",
        "any-node-id", "node-request-through-broker"
    ),
    "older builds, which do not map hosts, write the same records": (
        "registration-unmapped",
    ),
}
# fmt: on

WHY_UNSEEN = {mutant: why for why, mutants in _REASONS.items() for mutant in mutants}
"""Mutant -> the reason, in words."""
