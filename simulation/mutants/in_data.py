"""Mutants of brokers' partitions: ISRs, commitment, acknowledgement, serving, following."""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import DATA, DATA_DISKS, DATA_LATE, DATA_TWINS, DATA_UNKNOWN
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

LATE = "brokers that restart, ISR changes that are late"
CUTS = "brokers that die, sleep and are cut off"
KEEPS_LITTLE = replace(DATA, data_kept_bytes=150)

MUTANTS = (
    Mutant(
        "stale-epoch-joins-with-data",
        "the controller adds a replica to an ISR under a stale broker epoch (KIP-903's race)",
        (
            Edit(
                "controller.decisions.partitions.alter_partition:_ineligible",
                "member.broker_epoch != broker.epoch and not (skip and member.broker_epoch =="
                " UNKNOWN_EPOCH)",
                "False",
            ),
        ),
        DATA_LATE,
        LATE,
    ),
    Mutant(
        "epochs-from-metadata",
        "a leader proposes a follower under the epoch in its metadata, not under the one that the"
        " follower fetched with (KIP-903)",
        (
            Edit(
                "broker.partition.isr:LeaderIsr.epoch_of",
                "return follower.broker_epoch",
                "return self._host.image.brokers[member].epoch if member in"
                " self._host.image.brokers else NO_EPOCH",
            ),
            Edit(
                "broker.partition.isr:LeaderIsr._is_eligible",
                "return follower.broker_epoch == broker.epoch",
                "return True",
            ),
        ),
        DATA_TWINS,
        "brokers that were replaced and do not know it",
        known=21,
    ),
    Mutant(
        "ineligible-not-reverted",
        "a leader whose ISR change is refused as ineligible still waits for it",
        (
            Edit(
                "broker.partition.isr:LeaderIsr._ineligible",
                "self.state.revert()\n            self._pause()",
                "self._pause()",
            ),
        ),
        DATA_LATE,
        LATE,
        known=5,
    ),
    Mutant(
        "data-without-self-fencing",
        "a broker without contact to a controller stays leader beyond its own timeout",
        (
            Edit(
                "broker.partition.host:Host.serves",
                "self.registered and self.now < self.serve_until",
                "self.registered",
            ),
        ),
        DATA,
        CUTS,
        known=12,
    ),
    Mutant(
        "commits-by-committed-isr",
        "the high watermark does not wait for members that are proposed and not yet committed",
        (
            Edit(
                "broker.partition.leader:Leader.advance",
                "self.isr.state.maximal",
                "self.isr.state.committed",
            ),
        ),
        DATA_LATE,
        LATE,
        known=8,
    ),
    Mutant(
        "data-leader-counts-unflushed",
        "a leader counts its own log up to its log end, durable or not",
        (
            Edit(
                "broker.partition.isr:LeaderIsr.end_offset_of",
                "self.replica.log.flushed_end",
                "self.replica.log.end",
            ),
        ),
        DATA,
    ),
    Mutant(
        "data-follower-acknowledges-unflushed",
        "a follower sends its next fetch before the fetched records are durable",
        (
            Edit(
                "broker.partition.follower:Follower.named",
                "replica.log.flushed_end",
                "replica.log.end",
            ),
            Edit(
                "broker.partition.follower:LeaderLink._take",
                "if not replica.durable:",
                "if True:",
            ),
            Edit(
                "broker.partition.follower:LeaderLink._is_written",
                "self._writing[follower.replica.key] = follower",
                "self._is_due(follower)",
            ),
        ),
        DATA,
    ),
    Mutant(
        "joins-isr-behind",
        "a follower enters the ISR at any log end",
        (
            Edit(
                "broker.partition.isr:LeaderIsr._may_join",
                "and follower.end_offset >= self.high_watermark\n            and"
                " follower.end_offset >= self.start_offset",
                "and follower.end_offset >= 0",
            ),
        ),
        DATA_DISKS,
        "brokers that come back with empty disks",
        known=0,
    ),
    Mutant(
        "joins-isr-below-start",
        "a follower enters the ISR below the start of its leader's epoch, before the leader knows"
        " what is committed",
        (
            Edit(
                "broker.partition.isr:LeaderIsr._may_join",
                "and self.high_watermark >= 0",
                "and follower.end_offset >= 0",
            ),
            Edit(
                "broker.partition.isr:LeaderIsr._may_join",
                "and follower.end_offset >= self.start_offset",
                "",
            ),
        ),
        DATA_DISKS,
        "brokers that come back with empty disks, leaders that change",
        seeds=200,
        known=142,
    ),
    Mutant(
        "data-truncation-skipped",
        "a leader does not compare epochs: a follower with a diverging log receives the records"
        " after its log end",
        (
            # One that is longer is told: there is nothing to give behind it.
            Edit(
                "broker.partition.sessions:Session._name",
                "if diverging is not None:",
                "if diverging is not None and named.fetch_offset > leader.replica.log.end:",
            ),
        ),
        DATA,
        CUTS,
        known=8,
    ),
    Mutant(
        "old-incarnation-fetches",
        "fetches of a former incarnation of a follower count (KIP-903)",
        (
            Edit(
                "broker.partition.sessions:Sessions._check_epoch",
                "if epoch < max(known, 0):",
                "if False:",
            ),
        ),
        DATA_TWINS,
        "brokers that were replaced and do not know it",
    ),
    Mutant(
        "leads-at-once-committed",
        "a new leader treats its whole log as committed before its followers have fetched from it",
        (
            Edit(
                "broker.partition.isr:LeaderIsr.end_offset_of",
                "-1 if follower is None else follower.end_offset",
                "-1 if follower is None else max(follower.end_offset, self.start_offset)",
            ),
        ),
        DATA,
        CUTS,
        known=2,
    ),
    Mutant(
        "min-isr-ignored",
        "records are acknowledged with acks=all regardless of min.insync.replicas",
        (
            Edit(
                "broker.partition.leader:Leader.enough_in_sync",
                "len(self.isr.state.committed) >= self.min_isr",
                "True",
            ),
        ),
        DATA,
        CUTS,
        known=2,
    ),
    Mutant(
        "acknowledged-by-leader-alone",
        "records with acks=all are acknowledged when only the leader has them",
        (
            Edit(
                "broker.partition.client_requests:Produces._append",
                "for_commit=acks == ALL",
                "for_commit=False",
            ),
        ),
        DATA,
    ),
    Mutant(
        "produce-unknown-as-definite",
        "records with an unknown outcome are reported as refused when the leadership is lost",
        (
            Edit(
                "broker.partition.leader:Leader._fail_all",
                "outcome_unknown=True",
                "outcome_unknown=False",
            ),
        ),
        DATA,
        CUTS,
        known=2,
    ),
    Mutant(
        "produce-timeout-as-definite",
        "records that are not on all in-sync replicas in time are reported as refused",
        (
            Edit(
                "broker.partition.client_requests:_Produce._timed_out",
                "outcome_unknown=True",
                "outcome_unknown=False",
            ),
        ),
        replace(DATA, timeout_s=0.3),
        CUTS,
    ),
    Mutant(
        "reads-uncommitted",
        "consumers receive the leader's log up to its end, committed or not",
        (
            Edit(
                "broker.partition.client_requests:_readable",
                "return leader, until",
                "return leader, log.end",
            ),
        ),
        DATA,
    ),
    Mutant(
        "unknown-isr-change-reverted",
        "a leader treats an ISR change without an answer as refused",
        (
            Edit(
                "broker.partition.isr:LeaderIsr.failed",
                "proposal.uncertain = proposal.uncertain or outcome_unknown",
                "self.state.revert()",
            ),
        ),
        DATA_UNKNOWN,
        "ISR changes that are late",
        seeds=200,
        known=12,
    ),
    Mutant(
        "lagging-stays-in-isr",
        "a member of the ISR that has fallen behind stays in it",
        (
            Edit(
                "broker.partition.isr:LeaderIsr._look_for_lag",
                "if late and self._may_propose():",
                "if False:",
            ),
        ),
        replace(
            DATA,
            replica_lag_ms=500,
            session_timeout_ms=9000,
            faults={"brokers_cut": 0.5, "broker_disk_hang": 1.0},
        ),
        "brokers that do not reach each other",
        known=4,
    ),
    Mutant(
        "drops-uncommitted",
        "a leader drops what its topic does not keep, committed or not",
        (
            Edit(
                "broker.partition.leader:start_to_keep",
                "whole = run.end_offset < high_watermark",
                "whole = run is not runs.runs[-1]",
            ),
        ),
        KEEPS_LITTLE,
    ),
    Mutant(
        "log-start-not-looked-at",
        "a leader sends a follower that is below its log start what there is",
        (
            Edit(
                "broker.partition.sessions:Session._name",
                "if named.fetch_offset < log.start or (",
                "if (",
            ),
            Edit(
                "broker.partition.sessions:Position.log_start_moved",
                "if self.awaits and self.offset < start:",
                "if False:",
            ),
            Edit(
                "broker.partition.sessions:Session._take_data",
                "position.offset,",
                "max(position.offset, position.leader.replica.log.start),",
            ),
        ),
        KEEPS_LITTLE,
        known=16,
    ),
    Mutant(
        "log-start-ends-all-epochs",
        "a leader says of every epoch that it has dropped that it ended at the log start",
        (
            Edit(
                "broker.partition.host:PartitionLog.divergence",
                "if self.start and (last_epoch < first_epoch or first_epoch < 0):",
                "if False:",
            ),
        ),
        KEEPS_LITTLE,
        known=21,
    ),
    Mutant(
        "empties-its-log",
        "a follower that is told where its leader's log begins empties its own, whatever it has",
        (
            Edit(
                "broker.partition.follower:Follower.begin_at",
                "if not (log_start_offset > log.end or (is_empty and 0 <= log_start_offset <"
                " log.end)):",
                "if log_start_offset < 0:",
            ),
            Edit(
                "broker.partition.sessions:Session._name",
                "        if diverging is not None:\n",
                "        if diverging is not None:\n"
                "            self.is_out_of_range(key, log.start)\n            return\n",
            ),
        ),
        KEEPS_LITTLE,
    ),
)
