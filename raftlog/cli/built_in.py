"""The commands of raftlog and raftlog-server, in the order of ``raftlog --help``: requirements,
aliases, and the version.

Looking a command up here avoids reading the metadata of every installed package, which takes as
long as most commands take to run. A new command needs an entry here; its help must equal the first
sentence of the command's own help (a test compares them).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

SECTIONS = ("Start", "Data", "Cluster", "Diagnose", "Analyse", "Node", "Security")
"""The sections of ``raftlog --help``, in order."""


class Command(NamedTuple):
    """The entry point of a command, as the command line needs it."""

    name: str
    """One word, or two for a command in a group: ``cluster features``."""
    value: str
    """``module:app`` for a group, ``module:function`` for a function that adds a command, or empty
    for a group whose commands are all listed here.
    """
    help: str
    """The first sentence of the command's own help, so that the list of commands need not load any.
    """
    section: str = ""
    """The section of ``raftlog --help`` that lists it, or empty for a command in a group."""
    extras: tuple[str, ...] = ()

    def load(self) -> Callable[[Any], object]:
        """Return the function that adds the command to an app. Raises ImportError."""
        module, _, name = self.value.partition(":")
        found = getattr(importlib.import_module(module or "raftlog.cli.command"), name or "group")
        word = self.name.rpartition(" ")[2]
        if name == "register":
            return found
        if hasattr(found, "add_to"):
            return lambda app: found.add_to(app, word)
        group = found if name else found()
        return lambda app: app.add_typer(group, name=word, help=self.help)


class Listed(NamedTuple):
    """A command that is listed but not loaded."""

    name: str
    help: str = ""
    section: str = ""
    extras: tuple[str, ...] = ()

    def load(self) -> Any:
        """Return a function that adds the name only."""
        return lambda app: app.command(self.name.rpartition(" ")[2], help=self.help)(_nothing)


def _nothing() -> None:
    """Do nothing, as a placeholder for the function of a command."""


_TABLE = """
Start
  dev                raftlog.local.dev:dev               server         Run a cluster on this machine, with a prompt to try it.
  local              raftlog.local.commands:local        server         A cluster of processes on this machine.
  demo               raftlog.demo.command:demo           server,replay  Demonstrate raftlog: six nodes, failures, export and Spark.
Data
  topics             raftlog.cli.topics:app              -              Topics and their partitions.
  configs            raftlog.cli.configs:app             -              Configs of topics and brokers, stored in the log.
  produce            raftlog.cli.records:produce         -              Write records to a topic: each line of stdin is one.
  consume            raftlog.cli.records:consume         -              Print the committed records of a topic, until interrupted.
  kv                 raftlog.cli.key_values:app          -              The key-value store: keys, leases and locks.
  kv lease           raftlog.cli.key_values:leases       -              Leases: keys that name one are deleted when it ends.
  kv lock            raftlog.recipes.command:register    -              Take a lock, run a command, and release the lock.
  watch              raftlog.cli.watch:watch             -              Print each change to the metadata in order, until interrupted.
Cluster
  cluster            raftlog.cli.cluster:app             -              The cluster as a whole: features, log levels, export cursors.
  cluster features   raftlog.cli.cluster:features        -              The feature levels that the cluster uses (KIP-584).
  cluster loglevel   raftlog.cli.diagnose:loglevel       -              Show the log level of each node, or change it temporarily.
  cluster hostnames  raftlog.cli.cluster:hostnames       -              Map hosts to broker ids, for brokers without node.id (KIP-426).
  cluster cursors    raftlog.cli.cluster:cursors         -              Export cursors: nodes keep the log that an export still needs.
  cluster perf       raftlog.cli.perf:perf               -              Write at a bounded rate, and check latencies and errors.
  brokers            raftlog.cli.brokers:app             -              The brokers, as the active controller sees them.
  partitions         raftlog.cli.partitions:app          -              Partitions: their replicas, leaders and in-sync replicas.
  quorum             raftlog.cli.quorum:app              -              The controllers, as each sees itself: roles, lag, voters.
  backup             raftlog.cli.storage:backup_         -              Write the committed state to a file, while writes continue.
  restore            raftlog.cli.restore:restore_        server         Create a controller's directory from an export or a backup.
  diff               raftlog.cli.plan:diff_              -              Compare topics, configs, entries and keys of two states.
  plan               raftlog.cli.plan:plan_              -              Show what would change to make a cluster match a file.
  apply              raftlog.cli.plan:apply_             -              Make a cluster match a file, as planned: all or nothing.
Diagnose
  doctor             raftlog.cli.diagnose:doctor         -              Report what is wrong, the consequences, and the remedy.
  explain            raftlog.cli.diagnose:explain        -              Reconstruct an incident: elections, crashes, stalls, changes.
  history            raftlog.cli.diagnose:history        -              List the changes to a topic, broker or config: who, when, what.
  log                raftlog.cli.log:app                 -              The records of the log, and all metadata at one offset.
  log image          raftlog.cli.log:image_              -              Fold the log up to an offset and show all metadata there.
  debug              raftlog.cli.diagnose:debug          -              Evidence for a bug report, and clusters in virtual time.
  debug simulate     simulation.cli:simulate             simulation     Run clusters in virtual time, with faults, and check each step.
Analyse
  export             raftlog.cli.export:export_          export         Export the committed log: Parquet, its exact bytes, a manifest.
  verify             raftlog.cli.export:verify           export         Check that an export is complete and matches the log.
  replay             replay.cli:register                 export         Find out from an exported log what happened.
  import             replay.kafka.cli:register           export         Convert logs of other systems into exports.
Node
  config             raftlog.cli.config:app              server         Explain and check configuration files.
  storage            raftlog.cli.storage:app             server         Prepare and inspect the data directories of stopped nodes.
  controller         controller.cli:app                  server         Run a controller: a voter of the quorum.
  broker             broker.cli:app                      server         Run a broker: it serves reads and forwards writes.
  deploy             -                                   -              Sizing, systemd units, alerts and dashboards.
  deploy size        raftlog.cli.deploy:size_            -              Estimate what the nodes need: memory, disk, syncs.
  deploy systemd     raftlog.cli.deploy:systemd          -              Run nodes as systemd services.
  deploy monitoring  raftlog.cli.deploy:monitoring       -              Alerts for Prometheus, dashboards for Grafana.
Security
  acls               raftlog.cli.acls:app                -              Access control entries: which principal may do what.
  certs              raftlog.cli.certs:app               certs          Certificates for mutual TLS, and tokens: make and inspect them.
"""  # noqa: E501
"""Sections with their commands: name, entry point, required extras, help."""


def _commands() -> Iterator[Command]:
    section = ""
    for line in _TABLE.strip().splitlines():
        if line[0] != " ":
            section = line
            continue
        name, value, extras, text = re.split(" {2,}", line.strip())
        needs = () if extras == "-" else tuple(extras.split(","))
        yield Command(name, value.strip("-"), text, "" if " " in name else section, needs)


COMMANDS = tuple(_commands())
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
"""Former top-level name of a command -> its current name."""


def nested(group: str) -> list[Command]:
    """Return the commands in a group that have entries of their own here."""
    return [one for one in COMMANDS if one.name.startswith(f"{group} ")]


_WORDS = {"status": "doctor"} | {
    one.removesuffix("s"): one
    for one in ("acls", "cursors", "features", "hostnames", "partitions", "topics")
}
_BY_SECOND: Mapping[tuple[str, str], str] = {
    ("broker", "list"): "brokers",
    ("broker", "unregister"): "brokers",
    ("brokers", "run"): "broker",
    ("config", "alter"): "configs",
    ("config", "describe"): "configs",
    ("configs", "check"): "config",
    ("configs", "keys"): "config",
}
"""(first word, second word) -> the group, where both words name a command and the second
decides.
"""


def respelled(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the first one replaced by the command's proper name: ``config`` ->
    ``configs``, ``broker`` -> ``brokers``, ``topic`` -> ``topics``, ``help topics`` -> ``topics
    --help``.
    """
    if not arguments:
        return []
    first, *rest = arguments
    if first == "help":
        return [*respelled(rest), "--help"]
    second = rest[0] if rest else ""
    return [_BY_SECOND.get((first, second), _WORDS.get(first, first)), *rest]


_MODULES = {
    "cli": "rich structlog typer yaml",
    "remote": "fsspec",
    "otel": "opentelemetry",
    "testing": "pytest",
    "certs": "cryptography jwt",
    "export": "numpy pyarrow replay",
    "server": "broker controller cryptography grpc_health grpc_reflection jwt prometheus_client"
    " prompt_toolkit pydantic rocksdict sortedcontainers starlette uvicorn uvloop",
    "replay": "jinja2 numpy pyarrow pyspark replay",
    "simulation": "simulation",
}
"""Extra of pyproject.toml -> the modules that only this extra installs; smallest extra first."""
BROUGHT_BY: Mapping[str, tuple[str, ...]] = {
    module: tuple(extra for extra, brought in _MODULES.items() if module in brought.split())
    for module in " ".join(_MODULES.values()).split()
}
"""Module -> the extras that install it."""
OF_SERVER = frozenset({"broker", "controller", "replay", "simulation"})
"""The packages in the distribution raftlog-server."""


def missing(command: str, error: ModuleNotFoundError, extras: Collection[str] = ()) -> str | None:
    """Return the message for a command that lacks a module, or None if no extra installs the
    module.

    ``extras``: the extras that the command requires; if one of them installs the module, the
    message names all of them.
    """
    module = (error.name or "").partition(".")[0]
    bringing = BROUGHT_BY.get(module, ())
    if not bringing:
        return None
    name = "raftlog-server" if module in OF_SERVER else module
    wanted = sorted(extras) if _with_included(extras) & set(bringing) else bringing[:1]
    return (
        f"`{f'raftlog {command}'.rstrip()}` needs {name}, which is not installed. To install it:"
        f" {pip_install(wanted)}"
    )


def pip_install(extras: Sequence[str]) -> str:
    """Return the command that installs these extras."""
    return f"pip install 'raftlog[{','.join(extras)}]', or scripts/setup in a checkout"


def _with_included(extras: Collection[str]) -> set[str]:
    if not extras:
        return set()
    return {*extras, "cli", "server"} if "simulation" in extras else {*extras, "cli"}


def version_text(*, as_json: bool) -> str:
    """Return the version and the build, and with ``as_json`` also the platform."""
    from raftlog.process import build_text, commit_text

    if not as_json:
        return f"raftlog {build_text()}"
    import json
    import platform

    from raftlog.config_writes import codec

    return json.dumps(
        {
            "version": build_text().split()[0],
            "commit": commit_text(),
            "python": platform.python_version(),
            "codec": codec.NAME,
        }
    )


def version_asked(arguments: list[str]) -> str | None:
    """Return the text of the version if the arguments request only that, else None."""
    if arguments == ["--version"]:
        return version_text(as_json=False)
    if sorted(arguments) == ["--json", "--version"]:
        return version_text(as_json=True)
    return None
