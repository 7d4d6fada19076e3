"""The commands of this distribution. One of them is found here without the metadata of every
installed package, which takes as long to read as most commands take to run.

The same as ``[project.entry-points."raftlog.commands"]`` in pyproject.toml, and the same words as
their own helps: tests compare them.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Command(NamedTuple):
    """As importlib's EntryPoint, as far as the command line needs it."""

    name: str
    value: str
    help: str
    """How the command's own help begins: the list of all commands loads none of them."""
    extras: tuple[str, ...] = ()

    def load(self) -> Any:
        """The function that adds the command. Raises ImportError."""
        module, _, function = self.value.partition(":")
        return getattr(importlib.import_module(module), function)


class Listed(NamedTuple):
    """A command that is to be listed and not run."""

    name: str
    help: str = ""
    extras: tuple[str, ...] = ()

    def load(self) -> Any:
        """The function that adds the name."""
        return lambda app: app.command(self.name, help=self.help)(_nothing)


def _nothing() -> None:
    """Stands for a command whose name is all that is needed."""


COMMANDS = (
    Command(
        "acls", "raftlog.cli.acls:register", "Access control entries: which principal may do what."
    ),
    Command(
        "backup",
        "raftlog.cli.backup:register",
        "Write the newest committed state of a running cluster to a file; writes go on meanwhile.",
    ),
    Command(
        "broker",
        "broker.cli:register",
        "Run a broker: a follower that serves reads and forwards writes.",
        extras=("server",),
    ),
    Command(
        "brokers",
        "raftlog.cli.brokers:register",
        "The brokers, as the active controller sees them.",
    ),
    Command(
        "certs",
        "raftlog.cli.certs:register",
        "Certificates for mutual TLS, and tokens: make and inspect them.",
        extras=("certs",),
    ),
    Command("check", "raftlog.cli.check:register", "Whether the cluster does what it should."),
    Command("cluster", "raftlog.cli.cluster:register", "The cluster, as a broker shows it."),
    Command(
        "config",
        "raftlog.cli.config:register",
        "Explain and check configuration files.",
        extras=("server",),
    ),
    Command(
        "configs",
        "raftlog.cli.configs:register",
        "Dynamic configs: kept in the log, the same on every node.",
    ),
    Command(
        "consume",
        "raftlog.cli.consume:register",
        "Print the committed records of a topic, in order within a partition, until interrupted.",
    ),
    Command(
        "controller",
        "controller.cli:register",
        "Run a controller: a voter of the quorum.",
        extras=("server",),
    ),
    Command(
        "cursors",
        "raftlog.cli.cursors:register",
        "Export cursors: up to where exports have read the log, which nodes keep from there on.",
    ),
    Command("debug", "raftlog.cli.debug:register", "What others need to help."),
    Command(
        "demo",
        "raftlog.demo.command:register",
        "Demonstrate raftlog: three controllers and three brokers as processes, writes, "
        "failures, export and Spark. About a minute.",
        extras=("server", "replay"),
    ),
    Command(
        "doctor",
        "raftlog.cli.doctor:register",
        "Say what is wrong with the cluster, what follows from it, and what to do.",
    ),
    Command(
        "explain",
        "raftlog.cli.explain:register",
        "Tell an incident in order: elections with their reasons, crashes, stalls, "
        "fences, who held visibility back, what was changed before, gaps in the writes, "
        "and what is wrong now.",
    ),
    Command(
        "export",
        "raftlog.cli.export:register",
        "Export the committed log: Parquet for analysis, raw segments with its exact "
        "bytes, and a manifest. Resumes where it ended.",
        extras=("export",),
    ),
    Command(
        "features",
        "raftlog.cli.features:register",
        "The feature levels that the cluster uses (KIP-584).",
    ),
    Command(
        "history",
        "raftlog.cli.history:register",
        "Every change of a topic, broker, config, …: when, who, and from what to what.",
    ),
    Command(
        "hostnames",
        "raftlog.cli.hostnames:register",
        "Which broker runs on which host, for brokers without node.id (KIP-426).",
    ),
    Command("image", "raftlog.cli.image:register", "All metadata at one offset."),
    Command(
        "import",
        "replay.kafka.cli:register",
        "Make exports of the logs of other systems.",
        extras=("export",),
    ),
    Command(
        "kv",
        "raftlog.cli.key_values:register",
        "The key-value store: small values, changed on conditions.",
    ),
    Command(
        "lease",
        "raftlog.cli.leases:register",
        "Leases: keys that name one are deleted when it ends.",
    ),
    Command(
        "lock",
        "raftlog.recipes.command:register",
        "Take a lock, run a command, and let the lock go.",
    ),
    Command("log", "raftlog.cli.log:register", "The records of the log."),
    Command(
        "loglevel",
        "raftlog.cli.loglevel:register",
        "Show the log level of each node, or set another one for a while.",
    ),
    Command(
        "monitoring",
        "raftlog.cli.monitoring:register",
        "Alerts for Prometheus, dashboards for Grafana.",
    ),
    Command(
        "partitions",
        "raftlog.cli.partitions:register",
        "Partitions: their replicas, leaders and in-sync replicas.",
    ),
    Command(
        "produce",
        "raftlog.cli.produce:register",
        "Write records to a topic: each line of stdin is one. --timeout applies to each record.",
    ),
    Command(
        "quorum", "raftlog.cli.quorum:register", "The nodes of the quorum, as each sees itself."
    ),
    Command(
        "replay",
        "replay.cli:register",
        "Ask an exported log what happened, with Spark.",
        extras=("replay",),
    ),
    Command(
        "simulate",
        "simulation.cli:register",
        "Run whole clusters in virtual time: real controllers and brokers, clients, "
        "faults, and every promise checked at each step.",
        extras=("simulation",),
    ),
    Command(
        "size",
        "raftlog.cli.size:register",
        "Say what three controllers and some brokers need: memory, disk, syncs.",
    ),
    Command("status", "raftlog.cli.doctor:register_status", "The same as `raftlog doctor`."),
    Command(
        "storage",
        "raftlog.cli.storage:register",
        "Prepare and inspect data directories (of stopped nodes).",
        extras=("server",),
    ),
    Command("systemd", "raftlog.cli.systemd:register", "Run nodes as services of systemd."),
    Command("topics", "raftlog.cli.topics:register", "Topics and their partitions."),
    Command(
        "verify",
        "raftlog.cli.verify:register",
        "Check that an export is whole and is the log, and say who vouches for which offsets.",
        extras=("export",),
    ),
    Command(
        "watch",
        "raftlog.cli.watch:register",
        "Print each change of the metadata, one a line, in order, until interrupted.",
    ),
)
BY_NAME = {one.name: one for one in COMMANDS}
