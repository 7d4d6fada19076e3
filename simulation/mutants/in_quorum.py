"""Mutants of the quorum: votes, log, high watermark, rounds."""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import (
    CLOCKS,
    CLOCKS_RIGHTED,
    DIVERGED,
    ELECTIONS,
    FLAPPING,
    LATE,
    REMOVED,
    SILENCED_QUORUM,
    VOTERS,
)
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "silent-peer-link-kept",
        "a node keeps using a silent link to another controller",
        (
            Edit(
                "raftlog.node.replica.peers:PeerLink._dial_another",
                "if self._other is None",
                "if False",
            ),
        ),
        SILENCED_QUORUM,
        "single connections between controllers that are dead",
    ),
    Mutant(
        "vote-twice",
        "a voter grants its vote of an epoch to a second candidate",
        (
            Edit(
                "raftlog.quorum.messages:_grants",
                "if node.vote.voted_id != -1:",
                "if node.vote.voted_id == request.replica_id:",
            ),
        ),
        ELECTIONS,
        "elections under kills and cuts",
        known=7,
    ),
    Mutant(
        "vote-not-durable",
        "messages that depend on a vote are sent before the vote is on disk",
        (
            Edit(
                "raftlog.node.replica.replica:Replica._carry_out",
                "elif self._held and kind in _SENDS:",
                "elif self._held and isinstance(effect, ()):",
            ),
        ),
        ELECTIONS,
    ),
    Mutant(
        "own-vote-counted-early",
        "a candidate counts its own vote before it is on its disk",
        (
            Edit(
                "raftlog.quorum.campaign:Candidate.enter",
                "self.ask_all()",
                "self.ask_all()\n"
                "        self._vote_durable = True\n"
                "        self.granted.add(self.node.config.node_id)",
            ),
        ),
        ELECTIONS,
        "elections under kills and cuts",
    ),
    Mutant(
        "acknowledge-before-fsync",
        "a follower's next Fetch leaves before its flush",
        (
            Edit(
                "raftlog.quorum.fetcher:Fetcher._blocked",
                "node.log.flushed_end < node.log.end",
                "False",
            ),
        ),
        ELECTIONS,
    ),
    Mutant(
        "leader-counts-unflushed",
        "the leader counts itself at its log end, not at its flushed end",
        (Edit("raftlog.quorum.leader:Leader._commit", "node.log.flushed_end", "node.log.end"),),
        ELECTIONS,
        "slow disks",
    ),
    Mutant(
        "commit-old-epoch",
        "a leader commits records of an earlier epoch by counting (Raft 5.4.2)",
        (Edit("raftlog.quorum.leader:Leader._commit", "offset > self.start_offset", "offset > 0"),),
        ELECTIONS,
        "failovers with a tail that is not committed",
    ),
    Mutant(
        "truncate-below-high-watermark",
        "a follower that diverges drops its whole last epoch, committed or not",
        (
            Edit(
                "raftlog.quorum.log_state:LogEnds.truncation_point",
                "target = min(end_offset, local_end) if local_epoch == epoch else local_end",
                "target = min(end_offset, max(self.epochs.last_start, self.start))",
            ),
            Edit(
                "raftlog.quorum.fetcher:Fetcher._truncate",
                "if target < node.high_watermark:",
                "if False:",
            ),
        ),
        ELECTIONS,
        "failovers",
        known=1,
    ),
    Mutant(
        "truncate-on-equal",
        "the leader sends a diverging epoch to a follower whose log ends where the epoch ends",
        (
            Edit(
                "raftlog.quorum.log_state:LogEnds.divergence",
                "epoch == last_epoch and offset <= end else",
                "epoch == last_epoch and offset < end else",
            ),
        ),
        ELECTIONS,
        "failovers",
    ),
    Mutant(
        "log-matching-off",
        "the leader does not compare epochs: it sends a follower the records after its log end,"
        " with any log below",
        (
            Edit(
                "raftlog.quorum.log_state:LogEnds.divergence",
                "return None if epoch == last_epoch and offset <= end else (epoch, end)",
                "return None",
            ),
        ),
        ELECTIONS,
        "a leader that dies with a tail that nobody has",
        known=82,
    ),
    Mutant(
        "commit-by-minority",
        "one voter less than a majority commits",
        (
            Edit(
                "raftlog.quorum.leader:Progress.majority_offset",
                "offsets[-self._majority]",
                "offsets[-max(1, self._majority - 1)]",
            ),
        ),
        ELECTIONS,
    ),
    Mutant(
        "observer-counts",
        "an observer's Fetch counts for the high watermark",
        (
            Edit(
                "raftlog.quorum.leader:Progress.majority_offset",
                "for replica in self._voter_list:",
                "for replica in (*self._voter_list, *self.observers.values()):",
            ),
        ),
        replace(ELECTIONS, observers=2),
        "cuts, with observers",
    ),
    Mutant(
        "high-watermark-beyond-log",
        "a follower accepts a high watermark above its log end",
        (
            Edit(
                "raftlog.quorum.fetcher:Fetcher._append",
                "min(log.end, response.high_watermark)",
                "response.high_watermark",
            ),
        ),
        ELECTIONS,
        "restarts",
        known=11,
    ),
    Mutant(
        "late-vote-counts",
        "a candidate counts any granted vote, also one of an earlier epoch or of a pre-vote",
        (
            Edit(
                "raftlog.quorum.campaign:Campaign.on_response",
                "if self._awaited.get(event.peer_id) != event.correlation_id or not"
                " isinstance(response, pb.VoteResponse):",
                "if not isinstance(response, pb.VoteResponse):",
            ),
            Edit(
                "raftlog.quorum.campaign:Campaign.on_response",
                "del self._awaited[event.peer_id]",
                "self._awaited.pop(event.peer_id, None)",
            ),
            Edit(
                "raftlog.quorum.campaign:Campaign.on_response",
                "not response.error_code and response.leader_epoch == self.epoch and"
                " response.pre_vote == self.pre_vote",
                "not response.error_code",
            ),
        ),
        LATE,
        "late messages",
    ),
    Mutant(
        "vote-for-shorter-log",
        "a voter grants its vote to a candidate whose log lacks records of its own (Raft 5.4.1)",
        (
            Edit(
                "raftlog.quorum.messages:_grants",
                "if node.vote.leader_id != -1 or not up_to_date:",
                "if node.vote.leader_id != -1:",
            ),
            Edit(
                "raftlog.quorum.messages:_grants",
                "return up_to_date and node.role.grants_pre_vote()",
                "return node.role.grants_pre_vote()",
            ),
        ),
        ELECTIONS,
        "kills and cuts under writes",
    ),
    Mutant(
        "campaign-again-after-restart",
        "a node that voted for itself continues to campaign in that epoch after a restart",
        (
            Edit(
                "raftlog.quorum.transitions:RaftNode._first_role",
                "return Resigned(self, timer)",
                "self.leader_id = -1\n"
                "            self.set_vote(VoteState(vote.epoch, me, self.config.directory_id))\n"
                "            return Candidate(self)",
            ),
        ),
        ELECTIONS,
        "leaders that die and come back at once",
        known=1,
    ),
    Mutant(
        "acknowledge-after-io-error",
        "a failed sync is reported as done",
        (
            Edit(
                "raftlog.node.storage.rocks_store:GroupCommit.sync_finished",
                "if error is not None:",
                "if False:",
            ),
        ),
        replace(ELECTIONS, faults={"disk_error": 0.5}),
        "disks that fail",
    ),
    Mutant(
        "no-leader-change",
        "a leader that inherits a log does not begin its epoch with its own record",
        (
            Edit(
                "raftlog.node.replica.replica:Replica._became_leader",
                "self.propose(",
                "if not start:\n            self.propose(",
            ),
            Edit(
                "controller.service.turns:Leadership.claim",
                "log.end_offset < end or end <= log.epoch_start_offset",
                "log.end_offset < end",
            ),
        ),
        ELECTIONS,
        "one failover",
    ),
    Mutant(
        "pre-vote-always",
        "every request for a pre-vote is granted, also by a voter that hears a leader (KIP-996)",
        (
            Edit(
                "raftlog.quorum.messages:_grants",
                "return up_to_date and node.role.grants_pre_vote()",
                "return up_to_date",
            ),
        ),
        FLAPPING,
        "links that break for a moment",
    ),
    Mutant(
        "pre-vote-skipped",
        "a voter that misses its leader opens an epoch without a pre-vote",
        (
            Edit(
                "raftlog.quorum.campaign:Prospective.enter",
                "self._begin_round()",
                "self.node.become_candidate()",
            ),
        ),
        FLAPPING,
        "links that break for a moment",
    ),
    Mutant(
        "check-quorum-off",
        "a leader from which no majority fetches stays leader",
        (
            Edit(
                "raftlog.quorum.leader:Leader.on_tick",
                "            if now >= self._check_at:\n                self._resign",
                "            self._check_at = max(self._check_at, now + self._check_interval_s)\n"
                "            if False:\n                self._resign",
            ),
        ),
        ELECTIONS,
        "a leader that is cut off",
    ),
    Mutant(
        "membership-on-commit",
        "a voter set is in force when it is committed, not when it is appended (KIP-853)",
        (
            Edit(
                "raftlog.quorum.node:Node._adopt_voters",
                "self.voters = history.voters",
                "self.voters = history.voters if history.record_offset < max(0,"
                " self.high_watermark) else history.before",
            ),
        ),
        VOTERS,
        "voters that join and leave",
    ),
    Mutant(
        "two-changes-at-once",
        "a voter set may follow another that is not committed",
        (
            Edit(
                "controller.decisions.quorum.membership:Membership._changeable",
                "if named is not None and named.offset > state.log.committed.offset:",
                "if False:",
            ),
            Edit(
                "raftlog.quorum.node:Node.membership_obstacle",
                "if self.history.record_offset >= self.high_watermark:",
                "if False:",
            ),
        ),
        VOTERS,
        "voters that join and leave",
    ),
    Mutant(
        "set-survives-truncation",
        "a voter set stays in force when its record is truncated",
        (
            Edit(
                "raftlog.quorum.fetcher:Fetcher._truncate_to",
                "node.truncate_voters(end_offset)",
                "pass",
            ),
        ),
        VOTERS,
        "voters that join and leave, failovers",
        known=3,
    ),
    Mutant(
        "removed-voter-leads",
        "a voter of any older set may open epochs, also one that was removed for certain",
        (
            Edit(
                "raftlog.quorum.voters:VoterHistory.may_lead",
                "held = (*base, *self._records[max(0, committed - 1) :])",
                "held = (VotersAt(-1, ()), self._base, *self._records)",
            ),
        ),
        REMOVED,
        "removed voters that campaign on",
    ),
    Mutant(
        "late-fetch-answer",
        "a follower accepts any answer to a Fetch, of any epoch and leader, and in any role of"
        " its own",
        (
            Edit(
                "raftlog.quorum.fetcher:Fetcher.awaits",
                "return correlation_id == self._awaited and peer_id == self.peer_id",
                "return True",
            ),
            Edit(
                "raftlog.quorum.fetcher:Fetcher.process",
                "response.leader_epoch != self._epoch or response.leader_id != self.peer_id",
                "response.leader_epoch < 0",
            ),
        ),
        DIVERGED,
        "answers to Fetches that come late, to followers that differ",
        seeds=200,
        known=37,
    ),
    Mutant(
        "timestamp-of-the-clock",
        "a batch has the time of its leader, also when that is before the last batch's",
        (
            Edit(
                "raftlog.clock:stamp_after",
                "max(last_ms, time_ms)",
                "time_ms",
            ),
        ),
        CLOCKS,
        "wall clocks that are set wrong",
        known=1,
    ),
    Mutant(
        "timestamps-of-others-unknown",
        "a new leader does not know the times of the batches that it has fetched",
        (
            Edit(
                "raftlog.node.replica.local_log:LocalLog.check",
                "            checked.last_timestamp_ms,",
                "            self.last_timestamp_ms,",
            ),
        ),
        CLOCKS,
        "failovers to a controller whose wall clock is behind",
        known=1,
    ),
    Mutant(
        "clock-of-one-node",
        "a leader stamps batches with its own clock, whatever the other voters' clocks say",
        (
            Edit(
                "raftlog.clock:QuorumTime.now_ms",
                "if time_ms is None:",
                "if time_ms is None or voters:",
            ),
        ),
        CLOCKS,
        "a wall clock that is set wrong",
        known=0,
    ),
    Mutant(
        "log-time-stays-ahead",
        "log time that is ahead stands still until the clocks have reached it, however long",
        (
            Edit(
                "raftlog.clock:stamp_after",
                "last_ms - passed_ms > STAND_STILL_MAX_MS",
                "last_ms < 0",
            ),
        ),
        CLOCKS_RIGHTED,
        "wall clocks of a majority that are ahead for a while",
        known=1,
    ),
)
