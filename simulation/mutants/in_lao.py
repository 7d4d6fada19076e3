"""Mutants of LowestAcknowledgedOffset: its members, the time from which they count, and their
offsets.
"""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import BROKERS, SLOW, UNFENCING
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

ADVANCE = "controller.visibility.lao:LaoTracker._advance"
LOWEST = "members.by_applied.lowest"
MAY_JOIN = "controller.visibility.lao:LaoView.may_join"
LAO = "controller.visibility.lao:LaoView.lao"
SET_FENCED = "controller.visibility.lao:Registrations.set_fenced"
UNKNOWN = "unknown = self._heartbeats_off or silent or self._level_is_zero"

MUTANTS = (
    Mutant(
        "lao-ignores-slowest",
        "the broker with the lowest applied offset does not count",
        (Edit(ADVANCE, LOWEST, "list(members.by_applied)[:2][-1][0]"),),
        BROKERS,
        "slow links to brokers",
    ),
    Mutant(
        "lao-counts-fetched",
        "records in flight to a broker count as applied there",
        (
            Edit(
                "controller.service.announcements:Announcements.report",
                "fetch.applied_offset",
                "max(fetch.applied_offset, self._node.committed_end - 1)",
            ),
        ),
        BROKERS,
        known=1,
    ),
    Mutant(
        "lao-from-uncommitted",
        "reports above this controller's high watermark count",
        (
            Edit(
                "controller.visibility.lao:LaoTracker.report",
                "if max(applied, known_lao) < self._high_watermark:",
                "if True:",
            ),
        ),
        BROKERS,
        "failovers",
        known=32,
    ),
    Mutant(
        "lao-known-too-early",
        "after a failover LAO is known before every member has reported",
        (
            Edit(
                ADVANCE,
                LOWEST,
                "next((a for a, _, _ in members.by_applied if a >= 0), -1)",
            ),
            Edit(
                LAO,
                UNKNOWN,
                "unknown = False",
            ),
        ),
        BROKERS,
        "failovers, slow links to brokers",
    ),
    Mutant(
        "reports-of-other-epochs",
        "reports made to another controller count",
        (
            Edit(
                "controller.visibility.lao:LaoTracker.report",
                "controller_epoch != self.epoch or ",
                "",
            ),
        ),
        replace(SLOW, faults={"resign": 1.0, "isolate": 2.0, "clog": 1.0}),
        "failovers",
        known=6,
    ),
    Mutant(
        "lao-fences-when-proposed",
        "a broker stops counting as soon as its fencing is proposed",
        (
            Edit(
                SET_FENCED,
                "            broker.leaves_at = batch_end\n           "
                " self._leaving.append((batch_end, broker))",
                "            broker.member = False\n           "
                " self.by_applied.remove((broker.applied, broker.broker_id, broker.epoch))\n      "
                "      self.by_known_lao.remove((broker.known_lao, broker.broker_id,"
                " broker.epoch))",
            ),
        ),
        replace(
            BROKERS,
            session_timeout_ms=700,
            disk_max_ms=100.0,
            faults={"clog": 0.3, "pause": 1.0, "partition": 1.0, "split": 3.0},
        ),
        "brokers cut off or paused, slow disks",
        seeds=200,
        known=8,
    ),
    Mutant(
        "joins-unapplied",
        "a broker is unfenced with any applied offset above its own registration",
        (
            Edit(
                MAY_JOIN,
                "if broker.applied < max(self._highest_lao, self._epoch_start_offset):",
                "if False:",
            ),
        ),
        UNFENCING,
        "brokers that lag while they are fenced",
    ),
    Mutant(
        "joins-below-lao",
        "a broker is unfenced as soon as it has applied the first record of the epoch",
        (
            Edit(
                MAY_JOIN,
                "max(self._highest_lao, self._epoch_start_offset)",
                "self._epoch_start_offset",
            ),
        ),
        replace(
            UNFENCING,
            delay_min_ms=1.0,
            delay_mean_ms=60.0,
            safety_s=30.0,
            fetch_timeout_ms=3000,
            election_timeout_ms=2000,
            session_timeout_ms=1000,
            faults={"broker_behind": 0.4, "kill_broker": 2.0},
        ),
        "brokers that lag while they are fenced",
        seeds=100,
        known=26,
    ),
    Mutant(
        "joins-below-epoch-start",
        "a broker is unfenced below the first record of the epoch, while LAO is not known",
        (
            Edit(
                MAY_JOIN,
                "max(self._highest_lao, self._epoch_start_offset)",
                "self._highest_lao",
            ),
        ),
        UNFENCING,
        "failovers, brokers that lag while they are fenced",
    ),
    Mutant(
        "told-of-former-epoch",
        "a broker reads at an LAO from an earlier controller epoch than the one that unfenced it",
        (
            Edit(
                "broker.metadata.view:View._shows_lao",
                "self._known_lao_epoch < self._unfenced_epoch or ",
                "",
            ),
        ),
        UNFENCING,
        "failovers, brokers that lag while they are fenced",
        known=2,
    ),
    Mutant(
        "lao-ignores-tail",
        "a broker that is unfenced in the inherited tail does not count",
        (
            Edit(
                "controller.visibility.lao:LaoTracker._membership_changed",
                'if message.HasField("fenced"):',
                'if message.HasField("fenced") and batch_end > self._epoch_start_offset:',
            ),
        ),
        UNFENCING,
        "failovers while brokers come",
        known=1,
    ),
    Mutant(
        "lao-of-nobody",
        "with no broker to wait for, LAO covers everything committed",
        (
            Edit(
                LAO,
                UNKNOWN,
                "if not self._registrations.by_applied:\n            return self._high_watermark - 1\n"
                "        unknown = silent",
            ),
        ),
        replace(UNFENCING, brokers=1),
        "a time without brokers",
    ),
    Mutant(
        "lao-forgets-stopping",
        "a broker in controlled shutdown no longer counts, although it still serves reads",
        (
            Edit(
                "controller.visibility.lao:LaoTracker._membership_changed",
                '            if message.HasField("fenced"):\n'
                "                registrations.set_fenced(broker, message.fenced, batch_end)",
                '            if message.HasField("fenced") or message.in_controlled_shutdown:\n    '
                "            registrations.set_fenced(broker, message.fenced or"
                " message.in_controlled_shutdown, batch_end)",
            ),
        ),
        replace(SLOW, topics_share=0.6, faults={"stop_broker": 0.7, "clog": 1.0}),
        "brokers that leave in order, slow links to them",
        known=1,
    ),
)
