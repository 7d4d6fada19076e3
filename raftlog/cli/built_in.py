"""The commands of this distribution. One of them is found here without the metadata of every
installed package, which takes as long to read as most commands take to run.

The same as ``[project.entry-points."raftlog.commands"]`` in pyproject.toml: a test compares them.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Command(NamedTuple):
    """As importlib's EntryPoint, as far as the command line needs it."""

    name: str
    value: str
    extras: tuple[str, ...] = ()

    def load(self) -> Any:
        """The function that adds the command. Raises ImportError."""
        module, _, function = self.value.partition(":")
        return getattr(importlib.import_module(module), function)


COMMANDS = (
    Command("acls", "raftlog.cli.acls:register"),
    Command("backup", "raftlog.cli.backup:register"),
    Command("broker", "broker.cli:register", ("server",)),
    Command("brokers", "raftlog.cli.brokers:register"),
    Command("certs", "raftlog.cli.certs:register", ("certs",)),
    Command("check", "raftlog.cli.check:register"),
    Command("cluster", "raftlog.cli.cluster:register"),
    Command("config", "raftlog.cli.config:register", ("server",)),
    Command("configs", "raftlog.cli.configs:register"),
    Command("consume", "raftlog.cli.consume:register"),
    Command("controller", "controller.cli:register", ("server",)),
    Command("cursors", "raftlog.cli.cursors:register"),
    Command("debug", "raftlog.cli.debug:register"),
    Command("demo", "raftlog.demo.command:register", ("server", "replay")),
    Command("doctor", "raftlog.cli.doctor:register"),
    Command("explain", "raftlog.cli.explain:register"),
    Command("export", "raftlog.cli.export:register", ("export",)),
    Command("features", "raftlog.cli.features:register"),
    Command("history", "raftlog.cli.history:register"),
    Command("hostnames", "raftlog.cli.hostnames:register"),
    Command("image", "raftlog.cli.image:register"),
    Command("import", "replay.kafka.cli:register", ("export",)),
    Command("log", "raftlog.cli.log:register"),
    Command("loglevel", "raftlog.cli.loglevel:register"),
    Command("monitoring", "raftlog.cli.monitoring:register"),
    Command("partitions", "raftlog.cli.partitions:register"),
    Command("produce", "raftlog.cli.produce:register"),
    Command("quorum", "raftlog.cli.quorum:register"),
    Command("replay", "replay.cli:register", ("replay",)),
    Command("simulate", "simulation.cli:register", ("simulation",)),
    Command("size", "raftlog.cli.size:register"),
    Command("status", "raftlog.cli.doctor:register_status"),
    Command("storage", "raftlog.cli.storage:register", ("server",)),
    Command("systemd", "raftlog.cli.systemd:register"),
    Command("topics", "raftlog.cli.topics:register"),
    Command("verify", "raftlog.cli.verify:register", ("export",)),
    Command("watch", "raftlog.cli.watch:register"),
)
BY_NAME = {one.name: one for one in COMMANDS}
