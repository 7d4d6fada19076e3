"""Mutants of snapshots: their contents, and the log and image after one is installed."""

from __future__ import annotations

from dataclasses import replace

from simulation.mutants.configs import EXPORTS, PARTS, SNAPSHOTS, STEPS, TRANSFERS
from simulation.mutants.edits import Edit
from simulation.mutants.mutant import Mutant

LEFT_BEHIND = "followers that are left behind, a log that is cut"

MUTANTS = (
    Mutant(
        "install-keeps-start",
        "after the installation of a snapshot, the log that the node sends still begins at its old"
        " start",
        (
            Edit(
                "raftlog.node.replica.local_log:LocalLog.install",
                "self.start_offset = snapshot_id.end_offset",
                "pass",
            ),
        ),
        SNAPSHOTS,
        LEFT_BEHIND,
        known=2,
    ),
    Mutant(
        "snapshot-of-pending",
        "a snapshot is taken of the pending image",
        (
            Edit(
                "controller.service.upkeep:Housekeeping._do_chores",
                "lambda: committed.image",
                "lambda: node.committed.image if node.leadership is None or"
                " node.leadership.decider is None else node.leadership.log.pending.snapshot()",
            ),
        ),
        SNAPSHOTS,
        "slow disks",
        known=1,
    ),
    Mutant(
        "log-hash-survives-install",
        "the log hash goes on from where it was when a snapshot is installed",
        (
            Edit(
                "controller.service.catch_up:CatchUp._load_slice",
                "node.committed.replace(image, load.log_hash())",
                "node.committed.replace(image, node.committed.log_hash._replace("
                "end_offset=image.offset + 1))",
            ),
        ),
        SNAPSHOTS,
        LEFT_BEHIND,
    ),
    Mutant(
        "image-survives-install",
        "the image does not change when a snapshot is installed",
        (
            Edit(
                "controller.service.catch_up:CatchUp._load_slice",
                "node.committed.replace(image, load.log_hash())",
                "node.committed.replace(type(image)(**{name: getattr(image if name in ('offset',"
                " 'epoch') else node.committed.image, name) for name in image.__struct_fields__}),"
                " load.log_hash())",
            ),
        ),
        SNAPSHOTS,
        LEFT_BEHIND,
        known=0,
    ),
    Mutant(
        "snapshot-without-clients",
        "snapshots lack exactly-once clients, and no check compares the hash",
        (
            Edit(
                "raftlog.metadata.snapshot:pieces",
                "for kind in KINDS:",
                "for kind in (one for one in KINDS if not one.name.startswith('client')):",
            ),
            Edit(
                "raftlog.metadata.snapshot:pieces",
                "if state_hash & HASH_MASK != image.state_hash:",
                "if False:",
            ),
            Edit(
                "raftlog.metadata.snapshot:SnapshotLoader.finish",
                "if image.state_hash != self._verifier.state_hash:",
                "if False:",
            ),
        ),
        SNAPSHOTS,
    ),
    Mutant(
        "snapshot-without-index",
        "an image from a snapshot lacks the index of partitions by broker; no hash shows it",
        (
            Edit(
                "raftlog.metadata.snapshot:_add_partitions",
                "put_new(parts, (partition for (partition,) in contents))",
                "put_new(parts, (partition for (partition,) in contents))\n"
                "    parts.replicas_of = type(parts.replicas_of)(Image().replicas_of)",
            ),
        ),
        SNAPSHOTS,
        known=1,
    ),
    Mutant(
        "hash-misses-field",
        "an image from a snapshot lacks the log directories of brokers, and its hash is computed as"
        " if it had them",
        (
            Edit(
                "raftlog.metadata.snapshot:_add_broker",
                "parts.brokers[content[0]] = content[1]",
                "from msgspec.structs import replace\n"
                "    parts.brokers[content[0]] = replace(content[1], log_dirs=('lost',))",
            ),
        ),
        SNAPSHOTS,
        known=1,
    ),
    Mutant(
        "snapshot-without-voters",
        "the voter set is not in a snapshot's header",
        (
            Edit(
                "raftlog.metadata.snapshot:header_of",
                "image.voters.voters if image.voters is not None else ()",
                "()",
            ),
        ),
        SNAPSHOTS,
    ),
    Mutant(
        "cursors-ignored",
        "retention ignores export cursors",
        (
            Edit(
                "controller.disk.retention:judge",
                "log_start_offset <= one.end_offset < start.end_offset",
                "False",
            ),
        ),
        EXPORTS,
        "exports, a log that is cut",
    ),
    Mutant(
        "install-keeps-offsets",
        "after the installation of a snapshot, the state machine continues with its old log",
        (
            Edit(
                "raftlog.quorum.node:Node.install_snapshot",
                "self.log.reset(snapshot_id, generations)",
                "pass",
            ),
        ),
        SNAPSHOTS,
        LEFT_BEHIND,
    ),
    Mutant(
        "install-keeps-voters",
        "after the installation of a snapshot, the voter set stays that of the previous log",
        (
            Edit(
                "raftlog.quorum.node:Node.install_snapshot",
                "self.history.reset(snapshot_id.end_offset, voters)",
                "pass",
            ),
        ),
        replace(
            SNAPSHOTS,
            observers=2,
            auto_join=True,
            faults={**SNAPSHOTS.faults, "change_voters": 0.7},
        ),
        LEFT_BEHIND + ", voters that join and leave",
    ),
    Mutant(
        "part-of-snapshot",
        "a truncated snapshot counts as complete, and nothing verifies it",
        (
            Edit(
                "raftlog.quorum.fetcher:SnapshotFetcher.store",
                "self._size = response.size",
                "self._size = min(600, response.size)",
            ),
            Edit(
                "raftlog.quorum.fetcher:SnapshotFetcher.store",
                "last=end == response.size",
                "last=end == self._size",
            ),
            Edit(
                "raftlog.quorum.fetcher:SnapshotFetcher.store",
                "or self._size not in (None, response.size)",
                "",
            ),
            Edit("simulation.twins.disk:_is_sound", "return ", "return True or "),
        ),
        PARTS,
        LEFT_BEHIND + ", snapshots in parts",
    ),
    Mutant(
        "first-part-is-all",
        "a broker treats the first part of a snapshot as the whole",
        (
            Edit(
                "raftlog.client.log_reader:SnapshotFetch._take",
                "if self.position >= response.size:",
                "if True:",
            ),
        ),
        PARTS,
        "snapshots in parts",
    ),
    Mutant(
        "dropped-snapshot-asked-for",
        "a follower keeps requesting a snapshot that the leader has dropped in the meantime",
        (
            Edit(
                "raftlog.quorum.fetcher:Fetcher._take_part",
                "            self.drop_snapshot()\n            self._not_before",
                "            self._not_before",
            ),
        ),
        TRANSFERS,
        "snapshots in parts, sleep and newer snapshots between them",
        known=4,
    ),
    Mutant(
        "part-from-the-beginning",
        "every request for a part of a snapshot returns its beginning",
        (
            Edit(
                "raftlog.node.replica.snapshots:ReplicaSnapshots.reply",
                "self._store.read_snapshot(snapshot_id, effect.position, max_bytes)",
                "self._store.read_snapshot(snapshot_id, 0, max_bytes)",
            ),
        ),
        PARTS,
        "snapshots in parts",
    ),
    Mutant(
        "emptied-log-is-part",
        "a log without records counts as a part of a newer snapshot, and its replacement is not"
        " repeated after a crash",
        (
            Edit(
                "raftlog.node.storage.log_bounds:is_part",
                "return snapshot_id.epoch == epoch_before_end",
                "return epoch_before_end is None or snapshot_id.epoch == epoch_before_end",
            ),
        ),
        STEPS,
        "deaths between the steps of an installation",
        known=1,
    ),
)
