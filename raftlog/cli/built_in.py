"""The commands of raftlog and raftlog-server, in the groups in which ``raftlog --help`` lists them.

One command is found here without the metadata of every installed package, which takes as long to
read as most commands take to run. To add one takes an entry here, whose help is how the help of the
command begins: a test compares them.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

SECTIONS = ("Start", "Data", "Cluster", "Diagnose", "Analyse", "Node", "Security")
"""The groups of ``raftlog --help``, in their order."""


class Command(NamedTuple):
    """As importlib's EntryPoint, as far as the command line needs it."""

    name: str
    """One word, or for a command of a group two: ``cluster features``."""
    value: str
    """``module:app`` of a group, ``module:function`` of what adds a command; empty: a group whose
    commands are all here."""
    help: str
    """The first sentence of the command's own help: the list of all commands loads none of them."""
    section: str = ""
    """Where ``raftlog --help`` lists it; empty for a command of a group."""
    extras: tuple[str, ...] = ()

    def load(self) -> Any:
        """Return the function that adds the command. Raises ImportError."""
        module, _, name = self.value.partition(":")
        found = getattr(importlib.import_module(module or "raftlog.cli.command"), name or "group")
        if name not in {"", "app"}:
            return found
        group = found if name else found()
        return lambda app: app.add_typer(group, name=self.name.rpartition(" ")[2], help=self.help)


class Listed(NamedTuple):
    """A command that is to be listed and not run."""

    name: str
    help: str = ""
    section: str = ""
    extras: tuple[str, ...] = ()

    def load(self) -> Any:
        """Return the function that adds the name."""
        return lambda app: app.command(self.name.rpartition(" ")[2], help=self.help)(_nothing)


def _nothing() -> None:
    """Stand for a command whose name is all that is needed."""


COMMANDS = (
    Command(
        "dev",
        "raftlog.local.dev:register",
        "Run a cluster on this machine and a prompt to try it.",
        "Start",
        extras=("server",),
    ),
    Command(
        "local",
        "raftlog.local.commands:register",
        "A cluster of processes on this machine.",
        "Start",
        extras=("server",),
    ),
    Command(
        "demo",
        "raftlog.demo.command:register",
        "Show raftlog at work: six nodes, failures, export and Spark.",
        "Start",
        extras=("server", "replay"),
    ),
    Command("topics", "raftlog.cli.topics:app", "Topics and their partitions.", "Data"),
    Command(
        "configs",
        "raftlog.cli.configs:app",
        "Configs of topics and brokers: in the log, alike on every node.",
        "Data",
    ),
    Command(
        "produce",
        "raftlog.cli.produce:register",
        "Write records to a topic: each line of stdin is one.",
        "Data",
    ),
    Command(
        "consume",
        "raftlog.cli.consume:register",
        "Print the committed records of a topic, until interrupted.",
        "Data",
    ),
    Command(
        "kv",
        "raftlog.cli.key_values:app",
        "The key-value store: keys, leases and locks.",
        "Data",
    ),
    Command(
        "kv lease",
        "raftlog.cli.leases:app",
        "Leases: keys that name one are deleted when it ends.",
    ),
    Command(
        "kv lock",
        "raftlog.recipes.command:register",
        "Take a lock, run a command, and release the lock.",
    ),
    Command(
        "watch",
        "raftlog.cli.watch:register",
        "Print each change of the metadata in order, until interrupted.",
        "Data",
    ),
    Command(
        "cluster",
        "raftlog.cli.cluster:app",
        "The cluster as a whole: features, log levels, export cursors.",
        "Cluster",
    ),
    Command(
        "cluster features",
        "raftlog.cli.features:app",
        "The feature levels that the cluster uses (KIP-584).",
    ),
    Command(
        "cluster loglevel",
        "raftlog.cli.diagnose:register_loglevel",
        "Show the log level of each node, or set another one for a while.",
    ),
    Command(
        "cluster hostnames",
        "raftlog.cli.hostnames:app",
        "Which broker runs on which host, without node.id (KIP-426).",
    ),
    Command(
        "cluster cursors",
        "raftlog.cli.cursors:app",
        "Export cursors: the nodes keep the log from there on.",
    ),
    Command(
        "cluster perf",
        "raftlog.cli.perf:register",
        "Write at a bounded rate, and judge what comes back.",
    ),
    Command(
        "brokers",
        "raftlog.cli.brokers:app",
        "The brokers, as the active controller sees them.",
        "Cluster",
    ),
    Command(
        "partitions",
        "raftlog.cli.partitions:app",
        "Partitions: their replicas, leaders and in-sync replicas.",
        "Cluster",
    ),
    Command(
        "quorum",
        "raftlog.cli.quorum:register",
        "The controllers, as each sees itself: roles, lag, voters.",
        "Cluster",
    ),
    Command(
        "backup",
        "raftlog.cli.storage:register_backup",
        "Write the committed state to a file, while writes continue.",
        "Cluster",
    ),
    Command(
        "doctor",
        "raftlog.cli.diagnose:register_doctor",
        "Say what is wrong, what follows from it, and what to do.",
        "Diagnose",
    ),
    Command(
        "explain",
        "raftlog.cli.diagnose:register_explain",
        "Tell an incident in order: elections, crashes, stalls, changes.",
        "Diagnose",
    ),
    Command(
        "history",
        "raftlog.cli.diagnose:register_history",
        "List the changes of a topic, broker or config: who, when, what.",
        "Diagnose",
    ),
    Command(
        "log",
        "raftlog.cli.log:register",
        "The records of the log, and all metadata at one offset.",
        "Diagnose",
    ),
    Command(
        "log image",
        "raftlog.cli.log:register_image",
        "Fold the log up to an offset and show all metadata there.",
    ),
    Command(
        "debug",
        "raftlog.cli.diagnose:register_debug",
        "Evidence for a bug report, and clusters in virtual time.",
        "Diagnose",
    ),
    Command(
        "debug simulate",
        "simulation.cli:register",
        "Run clusters in virtual time, with faults, and check each step.",
        extras=("simulation",),
    ),
    Command(
        "export",
        "raftlog.cli.export:register",
        "Export the committed log: Parquet, its exact bytes, a manifest.",
        "Analyse",
        extras=("export",),
    ),
    Command(
        "verify",
        "raftlog.cli.verify:register",
        "Check that an export is whole and is the log.",
        "Analyse",
        extras=("export",),
    ),
    Command(
        "replay",
        "replay.cli:register",
        "Ask an exported log what happened.",
        "Analyse",
        extras=("export",),
    ),
    Command(
        "import",
        "replay.kafka.cli:register",
        "Make exports of the logs of other systems.",
        "Analyse",
        extras=("export",),
    ),
    Command(
        "config",
        "raftlog.cli.config:register",
        "Explain and check configuration files.",
        "Node",
        extras=("server",),
    ),
    Command(
        "storage",
        "raftlog.cli.storage:register",
        "Prepare and inspect data directories (of stopped nodes).",
        "Node",
        extras=("server",),
    ),
    Command(
        "controller",
        "controller.cli:register",
        "Run a controller: a voter of the quorum.",
        "Node",
        extras=("server",),
    ),
    Command(
        "broker",
        "broker.cli:register",
        "Run a broker: it serves reads and forwards writes.",
        "Node",
        extras=("server",),
    ),
    Command("deploy", "", "Sizes, units of systemd, alerts and dashboards.", "Node"),
    Command(
        "deploy size",
        "raftlog.cli.deploy:register_size",
        "Say what the nodes need: memory, disk, syncs.",
    ),
    Command(
        "deploy systemd", "raftlog.cli.deploy:register_systemd", "Run nodes as services of systemd."
    ),
    Command(
        "deploy monitoring",
        "raftlog.cli.deploy:register_monitoring",
        "Alerts for Prometheus, dashboards for Grafana.",
    ),
    Command(
        "acls",
        "raftlog.cli.acls:app",
        "Access control entries: which principal may do what.",
        "Security",
    ),
    Command(
        "certs",
        "raftlog.cli.certs:register",
        "Certificates for mutual TLS, and tokens: make and inspect them.",
        "Security",
        extras=("certs",),
    ),
)
BY_NAME = {one.name: one for one in COMMANDS}
MOVED = {
    "check": "cluster perf",
    "cursors": "cluster cursors",
    "features": "cluster features",
    "hostnames": "cluster hostnames",
    "image": "log image",
    "lease": "kv lease",
    "lock": "kv lock",
    "loglevel": "cluster loglevel",
    "monitoring": "deploy monitoring",
    "simulate": "debug simulate",
    "size": "deploy size",
    "systemd": "deploy systemd",
}
"""Names that commands had when all of them stood in one list, with today's."""


def nested(group: str) -> list[Command]:
    """Return the commands of a group that have entries of their own."""
    return [one for one in COMMANDS if one.name.startswith(f"{group} ")]
